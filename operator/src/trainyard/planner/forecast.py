"""When a gang would start if those who hold nodes left at stated times.

The head of the queue is promised that time, and whoever ends before it may use the nodes meanwhile: back-fill that does not
delay the head, as EASY does it (Lifka, "The ANL/IBM SP scheduling system", 1995). It is as true as the times are: proven where
they are limits that are enforced, an estimate where they are estimates.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from trainyard.planner.advice.suppose import Supposition
from trainyard.planner.outlook import PLAIN, Outlook
from trainyard.planner.place import Placement
from trainyard.planner.request import Request
from trainyard.world.records import Resources
from trainyard.world.room import Room

End = tuple[float, Mapping[str, Resources]]
"""When somebody leaves, and what that frees, by node. A time that has passed means now, since it may be at any moment."""


class Start(NamedTuple):
    """The first time at which a gang has a place, and which."""

    time: float
    placement: Placement


def earliest(
    room: Room,
    request: Request,
    ends: Sequence[End],
    now: float,
    without: Collection[str] = (),
    outlook: Outlook = PLAIN,
) -> Start | None:
    """The first of the times at which the gang has a place; `now` where it has one already; None where all of the ends do not
    make one.

    room: as it is now. without: nodes that the gang may not have at any time. outlook: as `place` has it. Nobody else is supposed
    to start meanwhile. More room never takes a place away, so the counts of the domains are followed from end to end, and where
    they are not the whole truth (a gang in segments, or of one kind of nodes) the rest of the ends is halved: one plan for each
    halving.
    """
    supposed = Supposition(room, request, frozenset(without), outlook)
    steps = [(now, list[Mapping[str, Resources]]()), *_by_time(ends, now)]
    for n, (time, freed) in enumerate(steps):
        for usage in freed:
            supposed.give(usage)
        if supposed.roomy():
            found = supposed.plan()
            return Start(time, found) if found is not None else _halved(supposed, steps[n + 1 :])
    return None


def _by_time(ends: Sequence[End], now: float) -> list[tuple[float, list[Mapping[str, Resources]]]]:
    ordered = sorted(((max(now, time), usage) for time, usage in ends), key=lambda end: end[0])
    return [(time, [usage for _, usage in some]) for time, some in groupby(ordered, key=lambda end: end[0])]


def _halved(supposed: Supposition, steps: Sequence[tuple[float, list[Mapping[str, Resources]]]]) -> Start | None:
    """The first of the steps after which there is a place. supposed: as it is before the first; there is none then."""
    found: Start | None = None
    while steps:
        middle = (
            len(steps) // 2 if found is not None else len(steps) - 1
        )  # at first: is there a place after all of them
        tried = supposed.fork()
        for _, freed in steps[: middle + 1]:
            for usage in freed:
                tried.give(usage)
        placement = tried.plan()
        if placement is not None:
            found, steps = Start(steps[middle][0], placement), steps[:middle]
        elif found is None:
            return None
        else:
            supposed, steps = tried, steps[middle + 1 :]
    return found
