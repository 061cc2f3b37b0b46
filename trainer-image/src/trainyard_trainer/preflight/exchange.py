"""How fast is it? Messages of growing size over the process group, until the whole size or the time is reached.

A network that is slow is found out with little data: every size is four times the one before, and the next one is sent only if it
fits in what is left of the time. All that take part share the time of the slowest, so all decide alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist

STEPS: Final = (64, 16, 4, 1)
"""Parts of the message that are sent, the smallest first."""
GROWTH: Final = 4
REPEATS: Final = 2
"""More messages of the largest size that was reached: the fastest counts, since whatever else goes on only slows."""
FLOAT_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Timed:
    """The largest message that was sent, and its best time."""

    bytes: int
    seconds: float

    @property
    def bytes_per_second(self) -> float:
        """Of the message, whatever was done with it."""
        return self.bytes / self.seconds if self.seconds > 0.0 else float("inf")


def grow(once: Callable[[int], float], message_bytes: int, allowance_seconds: float) -> Timed:
    """once: sends so many bytes, and answers how long that took: the same for all that take part."""
    spent, reached = 0.0, Timed(0, 0.0)
    for part in STEPS:
        size = max(message_bytes // part, FLOAT_BYTES)
        seconds = once(size)
        spent, reached = spent + seconds, Timed(size, seconds)
        if spent + GROWTH * seconds > allowance_seconds:
            break
    for _ in range(REPEATS):
        if spent + reached.seconds > allowance_seconds:
            break
        seconds = once(reached.bytes)
        spent, reached = spent + seconds, Timed(reached.bytes, min(reached.seconds, seconds))
    return reached


def all_reduce(group: dist.ProcessGroup, device: torch.device) -> Callable[[int], float]:
    """One all-reduce of so many bytes; the time of the slowest rank."""

    def once(size: int) -> float:
        message = torch.zeros(size // FLOAT_BYTES, device=device)
        dist.all_reduce(torch.zeros(1, device=device), group=group)  # all begin together
        _wait(device)
        began = time.perf_counter()
        dist.all_reduce(message, group=group)
        _wait(device)
        seconds = torch.tensor([time.perf_counter() - began], dtype=torch.float64, device=device)
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX, group=group)
        return float(seconds)

    return once


def with_peer(group: dist.ProcessGroup, peer: int, device: torch.device) -> Callable[[int], float]:
    """So many bytes to another rank while as many come from it; the time of the slower of the two."""

    def swap(value: torch.Tensor) -> torch.Tensor:
        theirs = torch.empty_like(value)
        operations = [
            dist.P2POp(dist.isend, value, peer, group),
            dist.P2POp(dist.irecv, theirs, peer, group),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        _wait(device)
        return theirs

    def once(size: int) -> float:
        message = torch.zeros(size // FLOAT_BYTES, device=device)
        swap(torch.zeros(1, device=device))  # both begin together
        began = time.perf_counter()
        swap(message)
        mine = torch.tensor([time.perf_counter() - began], dtype=torch.float64, device=device)
        return max(float(mine), float(swap(mine)))

    return once


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
