"""All policies that are compared: the planner of this project and its rivals."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.planner.place import Placement, place
from trainyard.planner.request import Request
from trainyard.world.records import Resources
from trainyard.world.supply import Supply

from benchmarks.clusters import MEMBER
from benchmarks.rivals import kueue
from benchmarks.rivals.anywhere import Anywhere
from benchmarks.rivals.best_fit import BestFit
from benchmarks.rivals.kube_scheduler import LeastAllocated
from benchmarks.rivals.native import RequiredLabel
from benchmarks.rivals.rival import Rival

OURS = "trainyard"


class Trainyard:
    """The planner. member: what each member takes. segment: so many consecutive ranks are to share a domain of a level, 1 for
    none; otherwise the gang names no level."""

    name = OURS

    def __init__(self, member: Resources = MEMBER, segment: int = 1, level: str | None = None) -> None:
        self._member, self._segment, self._level = member, segment, level

    def place(self, supply: Supply, members: int) -> list[int] | None:
        """The plan's nodes in the order of the ranks."""
        request = Request("benchmark", members, self._member, segment=self._segment, segment_level=self._level)
        found = place(supply, request)
        if not isinstance(found, Placement):
            return None
        position = supply.index.position
        return [position[node] for node in found.nodes]


def rivals(seed: int) -> Sequence[Rival]:
    """The others. seed: of those that draw."""
    return (
        Anywhere(seed),
        LeastAllocated(seed),
        kueue.unconstrained(),
        kueue.least_free(),
        kueue.best_fit(),
        RequiredLabel(seed),
        BestFit(),
    )


def policies(seed: int) -> Sequence[Rival]:
    """All of them, ours first."""
    return (Trainyard(), *rivals(seed))
