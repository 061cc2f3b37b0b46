"""How many members of one kind there is room for, node by node and domain by domain.

The planner's working surface: plain lists over the positions and the domains of a tree, so that a search counts without looking
at names, and a copy to try something on costs as much as copying four lists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from trainyard.topology.tree import Index, Tree


@dataclass(slots=True)
class Supply:
    """Room for members of one kind.

    slots: by position, members that fit now. whole: by position, members that would fit if the node were empty; 0 where it is not
    eligible. reasons: by position, why it is not; None where it is. free_in, whole_in: sums of slots and whole by number of the
    domain.
    """

    tree: Tree
    slots: list[int]
    whole: list[int]
    reasons: list[str | None]
    free_in: list[int]
    whole_in: list[int]

    @property
    def index(self) -> Index:
        """The tree by number."""
        return self.tree.index

    def put(self, position: int, slots: int) -> None:
        """Set how many members fit on a node now."""
        change = slots - self.slots[position]
        if change:
            self.slots[position] = slots
            _add(self.index, self.free_in, position, change)

    def declare(self, position: int, whole: int, reason: str | None) -> None:
        """Set how many members a node would take if it were empty, and if none, why."""
        self.reasons[position] = reason
        change = whole - self.whole[position]
        if change:
            self.whole[position] = whole
            _add(self.index, self.whole_in, position, change)

    def copy(self) -> Supply:
        """One to try something on."""
        return Supply(self.tree, self.slots[:], self.whole[:], self.reasons[:], self.free_in[:], self.whole_in[:])

    def without(self, nodes: Collection[str], reason: str | None = None) -> Supply:
        """The same without room on these nodes. reason: why they are not eligible either; without one they still are.

        Names that are not in the tree are passed over.
        """
        some = self.copy()
        for name in nodes:
            position = self.index.position.get(name)
            if position is None:
                continue
            some.put(position, 0)
            if reason is not None and some.reasons[position] is None:
                some.declare(position, 0, reason)
        return some

    def excluded(self) -> Mapping[str, int]:
        """Why nodes are not eligible, with how many, most first."""
        counted = Counter(reason for reason in self.reasons if reason is not None)
        return dict(sorted(counted.items(), key=lambda item: (-item[1], item[0])))


def supply(tree: Tree, slots: list[int], whole: list[int], reasons: list[str | None]) -> Supply:
    """The supply of a tree; the lists are by position and become the supply's own."""
    return Supply(tree, slots, whole, reasons, _sums(tree.index, slots), _sums(tree.index, whole))


def _sums(index: Index, amounts: list[int]) -> list[int]:
    sums = [0] * len(index.domains)
    for number in index.at_depth[-1]:
        domain = index.domains[number]
        sums[number] = sum(amounts[domain.first : domain.end])
    for depth in range(len(index.at_depth) - 2, -1, -1):
        for number in index.at_depth[depth]:
            children = index.domains[number].children
            sums[number] = sum(sums[children.start : children.stop])
    return sums


def _add(index: Index, sums: list[int], position: int, change: int) -> None:
    for number in index.around(position):
        sums[number] += change
