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


Waiting = tuple[Bucket, list[TorchDispatchMode], torch.futures.Future[Tensor]]


class Lane:
    """A thread that does one reduction after the other while the backward pass goes on.

    On a GPU the collectives are asynchronous by themselves, and all is done where it is called.
    """

    def __init__(self, reduction: Reduction) -> None:
        self._reduction = reduction
        self._waiting: queue.SimpleQueue[Waiting] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def sum(self, bucket: Bucket) -> torch.futures.Future[Tensor]:
        """The bucket's sum, when it is there."""
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        if bucket.flat.is_cuda:
            self._reduction(bucket)
            done.set_result(bucket.flat)
            return done
        if self._thread is None:  # not before: a fork would leave it behind
            self._thread = threading.Thread(target=self._work, name="reductions", daemon=True)
            self._thread.start()
        self._waiting.put((bucket, list(_get_current_dispatch_mode_stack()), done))
        return done

    def _work(self) -> None:
        while True:
            bucket, listening, done = self._waiting.get()
            try:
                with ExitStack() as stack:  # whoever counts what the step sends counts here too
                    for mode in listening:
                        stack.enter_context(mode)
                    self._reduction(bucket)
            except Exception as error:
                done.set_exception(error)  # type: ignore[arg-type]
            else:
                done.set_result(bucket.flat)
