"""How long something takes: the median of several runs, with the garbage collector as the operator sets it.

The collector stays on, since its work is part of the cost; what earlier runs left behind is collected before the clock starts.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from time import perf_counter, process_time
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Timing:
    """seconds: of each run, in order; cpu_seconds: what the process computed meanwhile, less where others had the processor."""

    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """What is quoted."""
        return median(self.seconds)

    @property
    def cpu(self) -> float:
        """The median of the processor's time: steadier where others want it too."""
        return median(self.cpu_seconds)

    @property
    def details(self) -> dict[str, Any]:
        """The rest, for whoever wants to see how steady the machine was."""
        return {
            "runs": len(self.seconds),
            "least": min(self.seconds),
            "most": max(self.seconds),
            "cpu": self.cpu,
            "load": os.getloadavg()[0],
        }


def timed(prepare: Callable[[int], T], run: Callable[[T], object], runs: int) -> Timing:
    """Time `run` on what `prepare` makes for the run of this number; preparing is not counted."""
    seconds, cpu_seconds = [], []
    for number in range(runs):
        made = prepare(number)
        gc.collect()
        begun, cpu_begun = perf_counter(), process_time()
        run(made)
        seconds.append(perf_counter() - begun)
        cpu_seconds.append(process_time() - cpu_begun)
    return Timing(tuple(seconds), tuple(cpu_seconds))


@contextmanager
def settled() -> Iterator[None]:
    """The collector as in the operator once its caches are full (controller/process.py): what is there is out of its sight,
    and it looks less often."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
