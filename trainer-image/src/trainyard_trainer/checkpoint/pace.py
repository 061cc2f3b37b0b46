"""When to save, and what to do with a save that is under way when a stop is asked. All pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

MARGIN: Final = 1.25
"""How much longer than usual a save may take: its figure is a moving average."""


def gives_up(usual_seconds: float | None, elapsed_seconds: float, left_seconds: float) -> bool:
    """Whether a save of an earlier step is to be given up when all are to leave in `left_seconds`.

    usual_seconds: how long a save takes; None: none has ended yet. elapsed_seconds: of the one under way.

    The newest step is durable soonest where the older save is given up, and what was committed before stands meanwhile.
    But where there is time for the rest of the older save and not for a whole one, the older one is what can be had.
    """
    if usual_seconds is None:
        return False
    rest = max(usual_seconds - elapsed_seconds, 0.0)
    fits = usual_seconds * MARGIN <= left_seconds
    return fits or rest * MARGIN > left_seconds


ACCELERATOR_MTTF_SECONDS: Final = 1024 * 7.9 * 3600
"""Of one GPU with its share of a node: 7.9 hours for 1,024 of them (Kokolis et al., arXiv 2410.21680)."""
FIRST_SECONDS: Final = 60.0
"""To the first save of an attempt, which measures what the next ones cost."""
LEAST_SECONDS, MOST_SECONDS = 10.0, 1800.0
MOST_OVERHEAD: Final = 0.035
"""The share of the time that saves may cost at most (CheckFreq, FAST'21)."""
MOST_WRITING: Final = 0.5
"""The share of the time in which a save may be under way."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What saving and failing cost, as measured in this attempt.

    stall_seconds: of the training by one save. save_seconds: until it is durable. slower: by what part of their usual time
    steps take longer meanwhile. restart_seconds: from the start of the process to its first step.
    """

    stall_seconds: float
    save_seconds: float
    slower: float
    restart_seconds: float

    @property
    def seconds(self) -> float:
        """Of training that one save costs."""
        return self.stall_seconds + self.slower * self.save_seconds


def interval_seconds(cost: Cost, mttf_seconds: float) -> float:
    """Between two saves, so that saving and doing again after a failure cost least together: sqrt(2 cost (mttf + restart)) - cost
    (Young 1974; Daly 2003), within bounds.
    """
    best = math.sqrt(2 * cost.seconds * (mttf_seconds + cost.restart_seconds)) - cost.seconds
    least = max(LEAST_SECONDS, cost.save_seconds / MOST_WRITING, cost.seconds / MOST_OVERHEAD)
    return min(max(best, least), max(MOST_SECONDS, least))


def mttf_seconds(ranks: int, failures: int, over_seconds: float) -> float:
    """Mean time to the next failure: what so many accelerators are known for, or less where the job has failed more often."""
    known = ACCELERATOR_MTTF_SECONDS / ranks
    return min(known, over_seconds / failures) if failures and over_seconds > 0 else known
