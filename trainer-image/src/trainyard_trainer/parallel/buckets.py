"""Buckets of gradients, and the lane in which a sum of several steps goes on beside the backward pass.

One bucket after the other, in the same order on every rank: collectives of two buckets that overtake each other would add up
one's numbers with the other's.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that are summed at once. Its methods are those by which torch's communication hooks know a bucket of DDP.

    flat: all numbers in one row; parts: views of it, one for each parameter. number: the same for the same parameters in each
    step; last: of a step.
    """

    flat: Tensor
    parts: Sequence[Tensor]
    number: int
    last: bool

    def buffer(self) -> Tensor:
        return self.flat

    def gradients(self) -> list[Tensor]:
        return list(self.parts)

    def index(self) -> int:
        return self.number

    def is_last(self) -> bool:
        return self.last


Reduction = Callable[[Bucket], None]
"""Puts the sum over all replicas in the place of a bucket's numbers. Called by all of them, for the same buckets in one order."""


class _Waiting(NamedTuple):
    """filled: the event at which the gradients are in the bucket; a CPU has none."""

    bucket: Bucket
    filled: Any
    listening: list[TorchDispatchMode]
    done: torch.futures.Future[Tensor]


class Lane:
    """A thread that does one reduction after the other while the backward pass goes on.

    On a GPU the reductions are on a stream of their own, which waits for a bucket's gradients and is waited for by whoever waits
    for its sum. They have a thread there too: torch's PowerSGD waits on the host for all that the device was given.
    """

    def __init__(self, reduction: Reduction) -> None:
        self._reduction = reduction
        self._waiting: queue.SimpleQueue[_Waiting] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stream: Any = None

    def sum(self, bucket: Bucket) -> torch.futures.Future[Tensor]:
        """The bucket's sum, when it is there."""
        device = bucket.flat.device
        of_device = torch.get_device_module(device)
        # Whoever waits for such a future lets its own stream wait for the one in which the result was set.
        done: torch.futures.Future[Tensor] = torch.futures.Future(devices=None if device.type == "cpu" else [device])
        filled = of_device.current_stream(device).record_event()
        if self._thread is None:  # not before: a fork would leave it behind
            self._thread = threading.Thread(target=self._work, name="reductions", daemon=True)
            self._thread.start()
            self._stream = of_device.Stream()
        self._waiting.put(_Waiting(bucket, filled, list(_get_current_dispatch_mode_stack()), done))
        return done

    def _work(self) -> None:
        while True:
            bucket, filled, listening, done = self._waiting.get()
            with torch.get_device_module(bucket.flat.device).stream(self._stream):
                self._stream.wait_event(filled)
                try:
                    with ExitStack() as stack:  # whoever counts what the step sends counts here too
                        for mode in listening:
                            stack.enter_context(mode)
                        self._reduction(bucket)
                except Exception as error:
                    done.set_exception(error)  # type: ignore[arg-type]
                else:
                    done.set_result(bucket.flat)
