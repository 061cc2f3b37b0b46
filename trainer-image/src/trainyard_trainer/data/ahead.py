"""The samples of the next step, fetched beside the present one.

A rank that waits for its samples within a step holds up the others in a collective, and nobody can leave. So they are waited for
between two steps: after a step's own work and before the sum in which all ranks agree whether to go on. A rank whose volume does
not answer looks at its stop flag meanwhile, and comes to that sum without samples once it was asked to stop: all leave after the
step that is done.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from trainyard_trainer.data.batches import Batch, Batches
from trainyard_trainer.report import Phase, Reporter

POLL_SECONDS: Final = 0.05
"""Between two looks at the stop flag."""
STALL_SECONDS: Final = 1.0
"""A wait longer than this is said to be one for samples."""


class Ahead:
    """Fetches one step at a time in a thread of its own; a read that never returns keeps nobody from leaving.

    pin: into memory from which a GPU copies by itself, while the host goes on. From other memory the host copies first.
    """

    def __init__(
        self, batches: Batches, stop_asked: Callable[[], bool], report: Reporter, *, pin: bool = False
    ) -> None:
        self._batches, self._stop_asked, self._report, self._pin = batches, stop_asked, report, pin
        self._there = threading.Event()
        self._fetched: tuple[int, Sequence[Batch] | BaseException] = (0, ())

    def fetch(self, step: int) -> None:
        """Begin to fetch the samples of a step."""
        self._there.clear()
        threading.Thread(target=self._run, args=(step,), name=f"samples-{step}", daemon=True).start()

    def wait(self, done: int, then: Phase) -> float:
        """Until they are there, or this rank is asked to stop; the answer is how long that took. done: steps that are. then: the
        phase that a wait worth telling interrupts: the first step's patience is not that of the others."""
        began, said = time.perf_counter(), False
        while not self._there.wait(POLL_SECONDS) and not self._stop_asked():
            if not said and time.perf_counter() - began > STALL_SECONDS:
                self._report.phase(Phase.DATA, done)
                said = True
        if said:
            self._report.phase(then, done)
        return time.perf_counter() - began

    def take(self, step: int) -> Sequence[Batch]:
        """The samples of a step. Raises what fetching them raised."""
        self._there.wait()
        fetched, batches = self._fetched
        assert fetched == step, f"step {fetched} was fetched, and {step} is asked for"
        if isinstance(batches, BaseException):
            raise batches
        return batches

    def _run(self, step: int) -> None:
        try:
            fetched = self._batches.step(step)
            self._fetched = step, [_pinned(batch) for batch in fetched] if self._pin else list(fetched)
        except BaseException as error:  # told to whoever waits for the samples
            self._fetched = step, error
        self._there.set()


def _pinned(batch: Batch) -> Batch:
    return Batch(*(None if part is None else part.pin_memory() for part in batch))  # type: ignore[arg-type]
