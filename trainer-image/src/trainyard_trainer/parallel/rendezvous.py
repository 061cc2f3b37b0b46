"""All ranks meet, or leave together.

torch's own start blocks until everybody is there, deaf to a stop that is asked meanwhile. Here the ranks meet at a
key-value store first, each looking at its stop flag while it waits. One compare-and-set settles whether the gang goes
on or leaves, so that no rank is left behind in a collective that the others never enter.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import PrefixStore, Store

from trainyard_trainer.waiting import TIMING

CONNECT_SECONDS = 2.0
"""How long one try to reach rank 0 may take; between two tries the stop flag is looked at."""
POLL_SECONDS = 0.1
GO, STOP = "go", "stop"


class StoppedEarly(Exception):
    """A stop was asked before all ranks were there: nothing was loaded, nothing was done, nothing is lost."""


class RanksMissing(TimeoutError):
    """Not all ranks came in time. The message says how many did."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank stands and whom it meets.

    hosts_store: rank 0 makes the store itself, unless an agent (torchrun) has made it. run: unique to the attempt: a
        rank
    of another one that reaches the same store still never counts.
    """

    rank: int
    ranks: int
    address: str
    port: int
    run: str
    hosts_store: bool

    @classmethod
    def of(cls, environment: Mapping[str, str], rank: int, ranks: int) -> Place:
        return cls(
            rank=rank,
            ranks=ranks,
            address=environment.get("MASTER_ADDR", "127.0.0.1"),
            port=int(environment.get("MASTER_PORT", "0")),
            run=f"{environment.get('TORCHELASTIC_RUN_ID', '')}/{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}",
            hosts_store=rank == 0 and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
        )


def meet(place: Place, device: torch.device, timeout_seconds: float, stop_asked: Callable[[], bool]) -> None:
    """Join the process group: gloo for tensors on the CPU, NCCL for those on a GPU. Collectives time out likewise.

    Raises StoppedEarly on every rank where any was asked to stop before all had come, RanksMissing where they never
    come.
    """
    deadline = time.monotonic() + timeout_seconds
    store = PrefixStore(f"trainyard/{place.run}", _connect(place, deadline, timeout_seconds, stop_asked))
    arrived = store.add("arrived", 1)
    verdict = ""
    while not verdict:
        if arrived == place.ranks:
            verdict = _settle(store, GO)
        elif stop_asked():
            verdict = _settle(store, STOP)
        elif time.monotonic() > deadline:
            raise RanksMissing(
                f"rank {place.rank} waited {timeout_seconds:.0f} s at {place.address}:{place.port}: "
                f"{arrived} of {place.ranks} ranks came"
            )
        else:
            time.sleep(POLL_SECONDS)
            verdict = store.get("verdict").decode() if store.check(["verdict"]) else ""
            arrived = store.add("arrived", 0)
    if verdict == STOP:
        raise StoppedEarly(f"asked to stop with {arrived} of {place.ranks} ranks there")
    if device.type == "cuda":
        os.environ.setdefault(TIMING, "1")  # read when the group is made
    dist.init_process_group(
        backend="cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        store=PrefixStore("group", store),
        rank=place.rank,
        world_size=place.ranks,
        timeout=timedelta(seconds=timeout_seconds),
        device_id=device if device.type == "cuda" else None,
    )


def _settle(store: Store, wish: str) -> str:
    """The first to call decides for all."""
    settled: bytes = store.compare_set("verdict", "", wish)
    return settled.decode()


def _connect(place: Place, deadline: float, timeout_seconds: float, stop_asked: Callable[[], bool]) -> Store:
    full = timedelta(seconds=timeout_seconds)
    if place.hosts_store:
        # Its own name may not resolve yet, and it need not: the store listens on every address.
        return TCPStore("127.0.0.1", place.port, None, is_master=True, timeout=full, wait_for_workers=False)
    while True:
        try:
            store = TCPStore(
                place.address, place.port, None, is_master=False, timeout=timedelta(seconds=CONNECT_SECONDS)
            )
        except dist.DistError as error:
            if stop_asked():
                raise StoppedEarly(f"asked to stop before rank 0 answered at {place.address}:{place.port}") from None
            if time.monotonic() > deadline:
                raise RanksMissing(
                    f"rank {place.rank} did not reach rank 0 at {place.address}:{place.port} "
                    f"in {timeout_seconds:.0f} s: {error}"
                ) from None
            time.sleep(POLL_SECONDS)
        else:
            store.set_timeout(full)
            return store
