"""How many members of one kind there is room for, node by node and domain by domain.

The planner's working surface: plain lists over the positions and the domains of a tree, so that a search counts without looking
at names, and a copy to try something on costs as much as copying four lists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from trainyard.topology.tree import Index, Tree


@dataclass(slots=True)
class Supply:
    """Room for members of one kind.

    slots: by position, members that fit now. whole: by position, members that would fit if the node were empty; 0 where it is not
    eligible. reasons: by position, why it is not; None where it is. free_in, whole_in: sums of slots and whole by number of the
    domain. kinds: by position, the kind of the node; () where all are of one.
    """

    tree: Tree
    slots: list[int]
    whole: list[int]
    reasons: list[str | None]
    free_in: list[int]
    whole_in: list[int]
    kinds: Sequence[str] = ()
    _parts: dict[str, Supply] | None = field(default=None, repr=False, compare=False)

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
            part = self._parts.get(self.kinds[position]) if self._parts else None
            if part is not None:
                part.put(position, slots)

    def declare(self, position: int, whole: int, reason: str | None) -> None:
        """Set how many members a node would take if it were empty, and if none, why."""
        self.reasons[position] = reason
        change = whole - self.whole[position]
        if change:
            self.whole[position] = whole
            _add(self.index, self.whole_in, position, change)
        self._tell_part(position, whole, reason, anew=change == whole)

    def copy(self) -> Supply:
        """One to try something on."""
        parts = self._parts and {kind: part.copy() for kind, part in self._parts.items()}
        return Supply(
            self.tree,
            self.slots[:],
            self.whole[:],
            self.reasons[:],
            self.free_in[:],
            self.whole_in[:],
            self.kinds,
            parts,
        )

    def by_kind(self) -> Sequence[Supply]:
        """The same apart for each kind of node that would take a member, in order of their names; itself where that is one, or
        none. The parts follow it."""
        if self._parts is None:
            names = {kind for kind, whole in zip(self.kinds, self.whole, strict=True) if whole} if self.kinds else set()
            self._parts = {kind: self._of(kind) for kind in sorted(names)} if len(names) > 1 else {}
        return tuple(self._parts.values()) or (self,)

    def _of(self, kind: str) -> Supply:
        here = [one == kind for one in self.kinds]
        return supply(
            self.tree,
            [slots if mine else 0 for slots, mine in zip(self.slots, here, strict=True)],
            [whole if mine else 0 for whole, mine in zip(self.whole, here, strict=True)],
            [reason if mine else reason or "of another kind" for reason, mine in zip(self.reasons, here, strict=True)],
        )

    def _tell_part(self, position: int, whole: int, reason: str | None, *, anew: bool) -> None:
        """Keep the parts as the whole is; where there may be another number of them they are made again when asked for."""
        if self._parts is None or not (self._parts or (anew and whole and self.kinds)):
            return
        part = self._parts.get(self.kinds[position])
        if part is not None:
            part.declare(position, whole, reason)
        if whole if part is None else not part.whole_in[0]:
            self._parts = None

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


def supply(
    tree: Tree, slots: list[int], whole: list[int], reasons: list[str | None], kinds: Sequence[str] = ()
) -> Supply:
    """The supply of a tree; the lists are by position and become the supply's own."""
    return Supply(tree, slots, whole, reasons, _sums(tree.index, slots), _sums(tree.index, whole), kinds)


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
