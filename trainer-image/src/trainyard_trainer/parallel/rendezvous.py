"""All ranks meet, or leave together.

torch's own start blocks until everybody is there, deaf to a stop that is asked meanwhile. Here the ranks meet at a
key-value store first, each looking at its stop flag while it waits. One compare-and-set settles whether the gang goes
on or leaves, so that no rank is left behind in a collective that the others never enter. Rank 0, which holds the store,
leaves last: what was settled is to reach the others first.
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
LEAVE_SECONDS = 5.0
"""How long rank 0 waits, before it leaves with the store, for those that have come to read why; and how long they wait
for their own stop where the store is lost: all members of a gang are told at once, and not at the same instant."""
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
    try:
        _agree(store, place, deadline, timeout_seconds, stop_asked)
    except dist.DistError as error:
        raise _without_store(place, stop_asked, error) from None
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


def _agree(store: Store, place: Place, deadline: float, timeout_seconds: float, stop_asked: Callable[[], bool]) -> None:
    """Return once all ranks are there. Raises what `meet` does, and DistError where the store is lost."""
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
        _leave(store, place)
        raise StoppedEarly(f"asked to stop with {arrived} of {place.ranks} ranks there")


def _leave(store: Store, place: Place) -> None:
    """Say that this rank has read the verdict; who holds the store waits until all that have come have said so."""
    left = store.add("left", 1)
    until = time.monotonic() + LEAVE_SECONDS
    while place.hosts_store and left < store.add("arrived", 0) and time.monotonic() < until:
        time.sleep(POLL_SECONDS / 10)
        left = store.add("left", 0)


def _without_store(place: Place, stop_asked: Callable[[], bool], error: Exception) -> Exception:
    """What it means that rank 0 has left with the store before all ranks were there."""
    until = time.monotonic() + LEAVE_SECONDS
    while not (asked := stop_asked()) and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
    if asked:
        return StoppedEarly(f"asked to stop, and rank 0 at {place.address}:{place.port} has left")
    return RanksMissing(f"rank {place.rank} lost rank 0 at {place.address}:{place.port} before all had come: {error}")


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
