"""How long something takes: the median of several runs, with the garbage collector as the operator sets it.

The collector stays on, since its work is part of the cost; what earlier runs left behind is collected before the clock starts.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Timing:
    """seconds: of each run, in order."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """What is quoted."""
        return median(self.seconds)

    @property
    def details(self) -> dict[str, Any]:
        """The rest, for whoever wants to see how steady the machine was."""
        return {"runs": len(self.seconds), "least": min(self.seconds), "most": max(self.seconds)}


def timed(prepare: Callable[[int], T], run: Callable[[T], object], runs: int) -> Timing:
    """Time `run` on what `prepare` makes for the run of this number; preparing is not counted."""
    seconds = []
    for number in range(runs):
        made = prepare(number)
        gc.collect()
        begun = perf_counter()
        run(made)
        seconds.append(perf_counter() - begun)
    return Timing(tuple(seconds))


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
