"""What launchers found of their pods' network, asked through the API server with the rights of whoever calls (get pods/proxy)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from trainyard.api.names import LAUNCHER_PORT
from trainyard.cli.env import Seat
from trainyard.contract.codec import ContractError
from trainyard.contract.network import PodNetwork
from trainyard.contract.requests import PATH_STATUS
from trainyard.contract.status import decode_status
from trainyard.kube import resources
from trainyard.kube.client import KubeClient
from trainyard.kube.errors import ApiError
from trainyard.world.records import Pod, Running

MOST_ASKED: Final = 64
"""So many pods of a gang are asked at most; those after them are shown as the plan has them."""
ANSWER_SECONDS: Final = 5.0


async def ask_launchers(client: KubeClient, seated: Sequence[Seat], rank: int | None) -> tuple[Seat, ...]:
    """The same seats with what their launchers say. rank: the only one that is asked. Who cannot be asked says nothing."""
    asked = [seat for seat in seated if rank is None or seat.rank == rank][:MOST_ASKED]
    found = await asyncio.gather(*(_found(client, seat.pod) for seat in asked))
    said = {seat.rank: network for seat, network in zip(asked, found, strict=True)}
    return tuple(replace(seat, found=said.get(seat.rank)) for seat in seated)


async def _found(client: KubeClient, pod: Pod | None) -> PodNetwork | None:
    if pod is None or not isinstance(pod.trainer, Running):
        return None
    where = f"{pod.name}:{LAUNCHER_PORT}"
    try:
        answer = await client.request(
            "get",
            resources.PODS,
            pod.namespace,
            where,
            f"proxy{PATH_STATUS}",
            seconds=ANSWER_SECONDS,
            attempts=1,
        )
        return decode_status(answer).network
    except (ApiError, ContractError):
        return None
