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


def grow(once: Callable[[int], float], message_bytes: int, allowance_seconds: float, times: int = 1) -> Timed:
    """once: sends so many bytes, and answers how long that took: the same for all that take part. times: it does so.

    A size that seems to take too long for the next one to fit is sent again first: a process that was not scheduled for a moment
    looks like a slow network. What it lost then does not count against the time, which may become twice the allowance by that.
    """
    spent, reached = 0.0, Timed(0, 0.0)
    for part in STEPS:
        size = max(message_bytes // part, FLOAT_BYTES)
        seconds = once(size)
        if spent + (1 + GROWTH) * times * seconds > allowance_seconds:
            seconds = min(seconds, once(size))
        spent, reached = spent + times * seconds, Timed(size, seconds)
        if spent + GROWTH * times * seconds > allowance_seconds:
            break
    for _ in range(REPEATS):
        if spent + times * reached.seconds > allowance_seconds:
            break
        seconds = once(reached.bytes)
        spent, reached = spent + times * seconds, Timed(reached.bytes, min(reached.seconds, seconds))
    return reached


def all_reduce(group: dist.ProcessGroup, device: torch.device) -> Callable[[int], float]:
    """One all-reduce of so many bytes; the time of the slowest rank."""

    def once(size: int) -> float:
        message = torch.zeros(size // FLOAT_BYTES, device=device)
        _reduce(group, torch.zeros(1, device=device))  # all begin together
        _wait(device)
        began = time.perf_counter()
        _reduce(group, message)
        _wait(device)
        seconds = torch.tensor([time.perf_counter() - began], dtype=torch.float64, device=device)
        _reduce(group, seconds, dist.ReduceOp.MAX)
        return float(seconds)

    return once


WAYS: Final = 2
"""There and back, one after the other: traffic both ways at once holds up its own acknowledgements in a slow link's queue."""


def with_peer(group: dist.ProcessGroup, rank: int, peer: int, device: torch.device) -> Callable[[int], float]:
    """So many bytes to another rank of the group, then as many from it; the time of the slower way, until the other has said that
    all is there: what is sent is soon in buffers, and not yet on the other side."""

    def timed(message: torch.Tensor, word: torch.Tensor) -> float:
        began = time.perf_counter()
        _send(group, message, peer)
        _receive(group, word, peer)
        _wait(device)
        return time.perf_counter() - began

    def answered(message: torch.Tensor, word: torch.Tensor) -> None:
        _receive(group, message, peer)
        _wait(device)
        _send(group, word, peer)

    def once(size: int) -> float:
        message, word = torch.zeros(size // FLOAT_BYTES, device=device), torch.zeros(1, device=device)
        mine, theirs = (torch.zeros(1, dtype=torch.float64, device=device) for _ in range(2))
        if rank < peer:
            _receive(group, word, peer)  # the other may still be with another
            mine += timed(message, word)
            answered(message, word)
            _send(group, mine, peer)
            _receive(group, theirs, peer)
        else:
            _send(group, word, peer)
            answered(message, word)
            mine += timed(message, word)
            _receive(group, theirs, peer)
            _send(group, mine, peer)
        return max(float(mine), float(theirs))

    return once


# By the group's own methods: those of torch.distributed know only groups that all ranks have made together.


def _reduce(group: dist.ProcessGroup, value: torch.Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> None:
    group.allreduce([value], op).wait()


def _send(group: dist.ProcessGroup, value: torch.Tensor, rank: int) -> None:
    group.send([value], rank, 0).wait()


def _receive(group: dist.ProcessGroup, value: torch.Tensor, rank: int) -> None:
    group.recv([value], rank, 0).wait()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
