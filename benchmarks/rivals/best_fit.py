"""Best fit with sorted ranks: a good choice of nodes that knows no cost, with the ranks in the order of the network.

The narrowest domain that has room for the gang; of several, the one with least. Within it the leaves with most room first, so
that few are used. Then the nodes are put in depth-first order.
"""

from __future__ import annotations

from trainyard.world.supply import Supply

from benchmarks.rivals.rival import with_room


class BestFit:
    """The yardstick of the figures."""

    name = "best-fit"

    def place(self, supply: Supply, members: int) -> list[int] | None:
        """Ties go to the domain that is first in natural order."""
        domains, free_in = supply.index.domains, supply.free_in
        for depths in reversed(supply.index.at_depth):
            roomy = [number for number in depths if free_in[number] >= members]
            if roomy:
                around = domains[min(roomy, key=free_in.__getitem__)]
                break
        else:
            return None
        leaves = [
            n
            for n in supply.index.at_depth[-1]
            if around.first <= domains[n].first and domains[n].end <= around.end and free_in[n]
        ]
        leaves.sort(key=free_in.__getitem__, reverse=True)
        chosen: list[int] = []
        for leaf in leaves:
            for position in with_room(supply, domains[leaf].first, domains[leaf].end):
                chosen += [position] * min(supply.slots[position], members - len(chosen))
            if len(chosen) == members:
                break
        return sorted(chosen)
