"""kube-scheduler by its defaults: pod by pod, the least allocated of a sample of nodes (v1.36, schedule_one.go).

From where it stopped last it looks at nodes in turn until enough are found that would take the pod: all in a cluster of fewer
than 100, else a share that falls with the size (50 % less 1 % for every 125 nodes, at least 5 %), but never fewer than 100.
Of these the node with the largest free share of its allocatable wins (LeastAllocated), and among equals one drawn at random.
The members of a gang are scheduled in the order of their index, so that the ranks are as random as the nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from trainyard.world.supply import Supply

FEWEST: Final = 100
"""A cluster, or a sample, of fewer nodes than this is looked at whole (minFeasibleNodesToFind)."""


class LeastAllocated:
    """The scheduler with its memory: where it stopped, and its random stream."""

    name = "least-allocated"

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._next = 0

    def place(self, supply: Supply, members: int) -> list[int] | None:
        """None, and nothing remembered, where the whole gang has no room: as with gang scheduling."""
        if supply.free_in[0] < members:
            return None
        return self.each(supply, range(len(supply.slots)), members)

    def each(self, supply: Supply, nodes: Sequence[int], members: int) -> list[int]:
        """So many pods one after another on these nodes, which have the room for it."""
        left = {position: supply.slots[position] for position in nodes}
        whole = supply.whole
        wanted = enough(len(nodes))
        chosen: list[int] = []
        for _ in range(members):
            best, ties, found = -1.0, list[int](), 0
            start = self._next % len(nodes)
            for step in range(len(nodes)):
                position = nodes[(start + step) % len(nodes)]
                if left[position] <= 0:
                    continue
                found += 1
                score = (left[position] - 1) / whole[position]
                if score > best:
                    best, ties = score, [position]
                elif score == best:
                    ties.append(position)
                if found == wanted:
                    break
            self._next = (start + step + 1) % len(nodes)
            chosen.append(self._random.choice(ties))
            left[chosen[-1]] -= 1
        return chosen


def enough(nodes: int) -> int:
    """After how many nodes that would take the pod the search ends."""
    if nodes < FEWEST:
        return nodes
    return max(FEWEST, nodes * max(5, 50 - nodes // 125) // 100)
