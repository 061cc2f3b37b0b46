"""What a search for a gang's place counts with: bins with room, in groups, in broader domains.

A bin is the narrowest thing that a ring pays for leaving: a narrowest domain where a node has one member at most, a node where
it may have several, a domain of segments where the gang comes in segments. Which of its nodes a bin gives is nobody's cost and
decided last. A group is a domain whose children are bins; that groups nest in broader domains is all that else is to know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from trainyard.topology.tree import Index


@dataclass(frozen=True, slots=True)
class Ground:
    """Room by domain and by bin.

    depth: of the bins; one more than the tree's levels where they are nodes. room: members that fit, by number of the domain,
    down to the bins. slots: by position; the room of the bins where they are nodes. unit: members that are placed together; all
    room is whole units of it.
    """

    index: Index
    depth: int
    room: Sequence[int]
    slots: Sequence[int]
    unit: int = 1

    @property
    def nodes(self) -> bool:
        """Whether the bins are nodes: then a bin's number is the number of domains plus its position."""
        return self.depth == len(self.index.at_depth)

    def roomy(self, depth: int, members: int, within: int = 0) -> list[int]:
        """The domains of a depth inside one that have room for so many, or the nodes, where these are the bins."""
        if depth == len(self.index.at_depth):
            first, domain = len(self.index.domains), self.index.domains[within]
            return [first + p for p in range(domain.first, domain.end) if self.slots[p] >= members]
        room = self.room
        return [number for number in self.inside(within, depth) if room[number] >= members]

    def inside(self, within: int, depth: int) -> range:
        """The domains of a depth inside one."""
        domains = self.index.domains
        if within == 0:
            return self.index.at_depth[depth]
        numbers = range(within, within + 1)
        for _ in range(domains[within].depth, depth):
            numbers = range(domains[numbers.start].children.start, domains[numbers.stop - 1].children.stop)
        return numbers

    def held(self, number: int) -> int:
        """The room of a domain or bin."""
        domains = len(self.index.domains)
        return self.room[number] if number < domains else self.slots[number - domains]

    def parent(self, number: int) -> int:
        """The domain around a domain or bin; -1 around the whole cluster."""
        domains = self.index.domains
        return domains[number].parent if number < len(domains) else self.index.innermost[number - len(domains)]

    def group(self, number: int) -> Group:
        """The bins of a domain, the roomiest first, then in the order of the tree."""
        domain = self.index.domains[number]
        if self.nodes:
            first = len(self.index.domains)
            bins = [(self.slots[p], first + p) for p in range(domain.first, domain.end) if self.slots[p]]
        else:
            bins = [(self.room[child], child) for child in domain.children if self.room[child]]
        bins.sort(key=lambda one: -one[0])
        sizes = tuple([size for size, _ in bins])
        rising = tuple([-size for size in sizes])
        return Group(number, sizes, tuple([bin for _, bin in bins]), (0, *accumulate(sizes)), rising)

    def groups(self, scope: int, members: int) -> list[Group]:
        """The groups inside a domain that is broader than a group or is one; those without room are left out.

        members: of the gang. Of nodes that share no domain with others, as those without labels, no more are of use.
        """
        domains, room = self.index.domains, self.room
        apart = self.depth - 2 - domains[scope].depth
        alone = 0
        found: list[Group] = []
        for number in self.inside(scope, self.depth - 1):
            if room[number] == 1:
                around = number
                for _ in range(apart):
                    around = domains[around].parent
                alone += room[around] == 1
                if alone > members and room[around] == 1:
                    continue
            if room[number]:
                found.append(self.group(number))
        return found


@dataclass(frozen=True, slots=True)
class Group:
    """A domain of bins. sizes: the room of its bins, falling; bins: their numbers; within: the room of the first n bins together,
    n from 0; rising: the sizes negated, so that a bisection finds how many are larger than a given one."""

    number: int
    sizes: tuple[int, ...]
    bins: tuple[int, ...]
    within: tuple[int, ...]
    rising: tuple[int, ...]

    @property
    def room(self) -> int:
        """The room of all of them."""
        return self.within[-1]

    def counts(self) -> dict[int, int]:
        """How many bins there are of each size, the largest first."""
        counts: dict[int, int] = {}
        for size in self.sizes:
            counts[size] = counts.get(size, 0) + 1
        return counts
