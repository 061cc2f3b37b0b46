"""What the end of an attempt counts as, and why it ended: the words of every verdict."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from trainyard.api.conditions import Reason
from trainyard.api.training_job import Failure


class Outcome(StrEnum):
    """What the end of an attempt counts as."""

    DONE = "Done"
    YIELDED = "Yielded"
    """Left because it was asked to; free."""
    FAILED = "Failed"
    """Counts against the failure budget."""
    REFUSED = "Refused"
    """A configuration that cannot work; never tried again."""
    LOST = "Lost"
    """A node or pod was taken away without notice; free, and counted as such."""
    UNFIT = "Unfit"
    """Nodes were found unfit before the first step; free, and the job does without them for a while."""
    DISPLACED = "Displaced"
    """It never began: somebody took its place before its pods were bound; free."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """An outcome with its reason. failure: the first thing that went wrong, where something did. unfit: names of the nodes that
    the job is to do without."""

    outcome: Outcome
    reason: Reason
    message: str
    failure: Failure | None = None
    unfit: tuple[str, ...] = ()
