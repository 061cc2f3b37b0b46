"""kube-scheduler's own gangs with a topology constraint (KEP-5732): one required label.

For each value of the label one placement: all nodes with that value, wherever in the network they are, since the value and
not the path counts. Of the placements that have room for the whole gang the tightest is taken, and in it the pods are
scheduled one by one as ever. A gang for which no value has room waits: there is no preference and no second level. The label
here is the narrowest one of which some value could ever hold the gang, as a careful user would write it; all placements are
looked at, as in small clusters.
"""

from __future__ import annotations

from trainyard.topology.tree import Index
from trainyard.world.supply import Supply

from benchmarks.rivals.kube_scheduler import LeastAllocated


class RequiredLabel:
    """The rule, with the state of the scheduler that places the pods."""

    name = "required-label"

    def __init__(self, seed: int) -> None:
        self._scheduler = LeastAllocated(seed)

    def place(self, supply: Supply, members: int) -> list[int] | None:
        """None also where the cluster has room enough and no single value of the label has."""
        index = supply.index
        for depth in range(len(index.at_depth) - 1, -1, -1):
            groups = placements(index, depth)
            if any(sum(supply.whole_in[n] for n in group) >= members for group in groups):
                break
        free = [sum(supply.free_in[n] for n in group) for group in groups]
        roomy = [number for number, room in enumerate(free) if room >= members]
        if not roomy:
            return None
        tightest = groups[min(roomy, key=free.__getitem__)]
        nodes = [p for n in tightest for p in range(index.domains[n].first, index.domains[n].end)]
        return self._scheduler.each(supply, nodes, members)


def placements(index: Index, depth: int) -> list[list[int]]:
    """The domains of a depth by the value of its label, in the order of the values as text; at depth 0 all nodes."""
    by_value: dict[str, list[int]] = {}
    for number in index.at_depth[depth]:
        by_value.setdefault(index.domains[number].path[-1] if depth else "", []).append(number)
    return [by_value[value] for value in sorted(by_value)]
