"""By how much a job is behind when it has lost nodes, whichever way it is repaired.

Behind are GPU-seconds of work at a horizon, against one to which nothing had happened:

    accelerators x (unsaved + stop + horizon x (1 - members left / members x step before / step after))

unsaved and stop are the seconds since the last durable checkpoint and from the last step to the next one; the latter is longer
for a gang that moves, all of whose pods are new. A step that becomes faster makes it less, also below zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from trainyard.planner.cost import touched
from trainyard.planner.loss import RESTART_SECONDS
from trainyard.planner.outlook import PLAIN, Outlook
from trainyard.topology.tree import Index

HORIZON_SECONDS: Final = 3600.0
"""For how long a repair is lived with, as long as nothing better is known: another failure, a preemption, a new start."""

MOVE_SECONDS: Final = 2 * RESTART_SECONDS
"""From the last step to the next one when all pods are new: theirs have to end first."""

COMMUNICATION_SHARE: Final = 0.125
"""How much of a step is communication that nothing is computed beside, where that is not predicted: a ring that is three times
slower, as one that leaves its domain is where nothing is known of the links, makes the step 1.25 times as long."""

Pace = Callable[[Sequence[str]], float]
"""Predicted seconds of a step on these nodes in rank order."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a repair is weighed with.

    accelerators: of the gang when it was whole, 0 for one a member. pace: None where it cannot be predicted.
    """

    accelerators: int = 0
    unsaved_seconds: float = 0.0
    stop_seconds: float = RESTART_SECONDS
    move_seconds: float = MOVE_SECONDS
    horizon_seconds: float = HORIZON_SECONDS
    pace: Pace | None = None


USUAL: Final = Terms()
"""Nothing is known of the job."""


def behind(members: int, left: int, slower: float, stop_seconds: float, terms: Terms = USUAL) -> float:
    """GPU-seconds. members: before; left: after; slower: step time after over that before."""
    lost = terms.horizon_seconds * (1 - left / members / slower)
    return (terms.accelerators or members) * (terms.unsaved_seconds + stop_seconds + lost)


def slowdown(
    index: Index, before: Sequence[str], after: Sequence[str], terms: Terms = USUAL, outlook: Outlook = PLAIN
) -> float:
    """Step time after over that before; 1 where nothing is known of before.

    before, after: nodes in rank order; those of before that are not in the tree are passed over. Where it is not predicted, only
    the slowest edge of the ring makes a difference.
    """
    before = [node for node in before if node in index.position]
    if not before:
        return 1.0
    if terms.pace is not None:
        usual = terms.pace(before)
        return terms.pace(after) / usual if usual > 0.0 else 1.0
    edges = outlook.edges(len(index.at_depth) - 1)

    def slowest(nodes: Sequence[str]) -> float:
        spread = touched(index, (index.position[node] for node in nodes))
        return edges.pace(max(depth for depth, domains in enumerate(spread[:-1]) if domains == 1))

    return 1 - COMMUNICATION_SHARE + COMMUNICATION_SHARE * slowest(after) / slowest(before)
