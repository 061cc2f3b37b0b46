"""Which domains take the ranks that have lost their nodes, while all others stay where they are.

A rank that is seated in the domain that it was in leaves the ring as it was. Elsewhere it costs edges that leave domains, and
its neighbours decide how many: so ranks are seated one after the other, each wherever there is room, and a branch is left as soon
as it has more edges, broadest level first, than the best way known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from trainyard.topology.tree import Index

MOST_DOMAINS: Final = 12
"""How many domains with room are tried for a rank: its own, those of its neighbours, then the nearest. Where there are no more
the answer is exact."""

MOST_TOGETHER: Final = 64
"""How many ranks are seated together; the next so many find these where they are."""

MOST_STATES: Final = 5_000
"""How many seats are tried, about 0.1 s; after that the best way so far counts. Counted work: the answer does not depend on how
busy the machine is."""

Edges = tuple[int, ...]
"""By level, broadest first, how many edges of the closed ring leave a domain of it."""


@dataclass(frozen=True, slots=True)
class Gang:
    """A gang some of whose ranks have no node. All domains are narrowest ones, by number.

    seated: by rank its domain, -1 for one without a node; homes: of each rank without a node the domain that it was in, -1 where
    that is not known. room: how many members a domain can take; it is not known for others. spares: of these, how many on nodes
    that are held for the gang. within: the domain of any level that no rank may leave; segment, segment_depth: how many ranks in
    turn must share a domain of which depth.
    """

    index: Index
    seated: Sequence[int]
    homes: Mapping[int, int]
    room: Mapping[int, int]
    spares: Mapping[int, int] = field(default_factory=dict)
    within: int = 0
    segment: int = 1
    segment_depth: int = 0


@dataclass(frozen=True, slots=True)
class Filling:
    """domains: of each rank that had none. edges: of the whole ring. exact: whether no other is better."""

    domains: Mapping[int, int]
    edges: Edges
    exact: bool


def fill(gang: Gang) -> Filling | None:
    """The domains for the ranks without a node; None where there is no room for all.

    Fewest edges of the ring that leave a domain, broadest level first; then fewest domains that the gang was not in; then most
    spares; then where least room is left over.
    """
    search = _Search(gang)
    ranks = sorted(gang.homes)
    for first in range(0, len(ranks), MOST_TOGETHER):
        if not search.together(ranks[first : first + MOST_TOGETHER]):
            return None
    domains = {rank: search.seated[rank] for rank in ranks}
    return Filling(domains, edges(gang.index, search.seated), search.exact)


def edges(index: Index, seated: Sequence[int]) -> Edges:
    """Of a ring over ranks in these narrowest domains."""
    search = _Search(Gang(index, seated, {}, {}))
    crossed = [search.crossed(a, b) for a, b in zip(seated, (*seated[1:], *seated[:1]), strict=True)]
    return tuple(map(sum, zip(*crossed, strict=True)))


def fit(
    groups: Iterable[Sequence[int]], slots: Mapping[int, int], worse: Callable[[int], tuple[bool, bool]]
) -> dict[int, int]:
    """Positions for ranks, as far as they go.

    groups: ranks that shared a node; they share one again where one has room. slots: by position; worse: which to take last. Of
    those that are as good the one with least room that does, so that the large stay whole.
    """
    left, given = dict(slots), dict[int, int]()
    for group in sorted(groups, key=lambda group: (-len(group), *group)):
        ranks = list(group)
        while ranks and left:
            enough = [position for position, room in left.items() if room >= len(ranks)]
            if enough:
                best = min(enough, key=lambda position: (worse(position), left[position], position))
            else:
                best = min(left, key=lambda position: (-left[position], worse(position), position))
            taken = min(len(ranks), left[best])
            given.update(dict.fromkeys(ranks[:taken], best))
            ranks = ranks[taken:]
            left[best] -= taken
            if not left[best]:
                del left[best]
    return given


def home_of(index: Index, positions: Sequence[int], rank: int) -> int:
    """The domain that a rank was in, by where the gang's nodes are; that of the nearest rank whose node is known, where its own
    is not in the tree any more; -1 where none is. positions: by rank, -1 for a node that is not in the tree."""
    for distance in range(len(positions)):
        for other in (rank - distance, rank + distance):
            position = positions[other % len(positions)]
            if position >= 0:
                return index.innermost[position]
    return -1


def ancestor(index: Index, domain: int, depth: int) -> int:
    """The domain of a depth around a domain; itself where it is no narrower."""
    while index.domains[domain].depth > depth:
        domain = index.domains[domain].parent
    return domain


class _Search:
    def __init__(self, gang: Gang) -> None:
        self.gang = gang
        self.depth = len(gang.index.at_depth) - 1
        self.seated = list(gang.seated)
        self.room = dict(gang.room)
        self.states = 0
        self.exact = len(gang.homes) <= MOST_TOGETHER
        self._ranks: Sequence[int] = ()
        self._best: tuple[Edges, Edges, int, int] | None = None
        self._domains: tuple[int, ...] = ()
        self._old: set[int] = set()
        self._chains: dict[int, tuple[int, ...]] = {}
        self._crossed: dict[tuple[int, int], Edges] = {}
        self._likely: dict[tuple[int, int, int], list[int]] = {}

    def together(self, ranks: Sequence[int]) -> bool:
        """Seat these; False where there is no way."""
        self._ranks, self._best = ranks, None
        self._old = {around for domain in {*self.seated} if domain >= 0 for around in self.chain(domain)}
        self._likely.clear()
        self._run(0, (0,) * self.depth)
        if self._best is None:
            return False
        for rank, domain in zip(ranks, self._domains, strict=True):
            self.seated[rank] = domain
            self.room[domain] -= 1
        return True

    def chain(self, domain: int) -> tuple[int, ...]:
        """The domains around a narrowest one and itself, broadest first, without the whole cluster."""
        known = self._chains.get(domain)
        if known is None:
            chain, at = [], domain
            while self.gang.index.domains[at].depth:
                chain.append(at)
                at = self.gang.index.domains[at].parent
            known = self._chains[domain] = tuple(reversed(chain))
        return known

    def crossed(self, a: int, b: int) -> Edges:
        """What an edge from one domain to another leaves, by level."""
        known = self._crossed.get((a, b))
        if known is None:
            known = tuple(int(x != y) for x, y in zip(self.chain(a), self.chain(b), strict=True))
            self._crossed[a, b] = self._crossed[b, a] = known
        return known

    def _run(self, n: int, crossed: Edges) -> None:
        """Seat the n-th rank, and those after it. crossed: what those before it have cost."""
        if self._best is not None and crossed > self._best[0]:
            return
        if n == len(self._ranks):
            self._reached(crossed)
            return
        rank, tried = self._ranks[n], 0
        for domain in self._options(rank):
            if self.room[domain] < 1 or not self._joins(rank, domain):
                continue
            tried += 1
            self.states += 1
            if tried > MOST_DOMAINS or self.states > (MOST_STATES if self._best is not None else 10 * MOST_STATES):
                self.exact = False
                return
            self.seated[rank] = domain
            self.room[domain] -= 1
            more = [self.crossed(domain, other) for other in self._neighbours(rank) if other >= 0]
            self._run(n + 1, tuple(map(sum, zip(crossed, *more, strict=True))))
            self.room[domain] += 1
            self.seated[rank] = -1

    def _neighbours(self, rank: int) -> tuple[int, ...]:
        ranks = len(self.seated)
        if ranks <= 2:  # both neighbours of one of two are the other, and the ring has an edge to it and one back
            return () if ranks == 1 else (self.seated[1 - rank],) * 2
        return self.seated[rank - 1], self.seated[(rank + 1) % ranks]

    def _joins(self, rank: int, domain: int) -> bool:
        """Whether the ranks of its segment are in the same domain as far as they are seated."""
        segment, depth = self.gang.segment, self.gang.segment_depth
        if segment == 1:
            return True
        first = rank - rank % segment
        there = ancestor(self.gang.index, domain, depth)
        mates = (mate for mate in self.seated[first : first + segment] if mate >= 0)
        return all(ancestor(self.gang.index, mate, depth) == there for mate in mates)

    def _reached(self, crossed: Edges) -> None:
        used = [self.seated[rank] for rank in self._ranks]
        by_level = [0] * self.depth
        for number in {around for domain in used for around in self.chain(domain)} - self._old:
            by_level[self.gang.index.domains[number].depth - 1] += 1
        spares = sum(min(self.gang.spares.get(domain, 0), used.count(domain)) for domain in set(used))
        value = crossed, tuple(by_level), -spares, sum(self.room[domain] for domain in set(used))
        if self._best is None or value < self._best:
            self._best, self._domains = value, tuple(used)

    def _options(self, rank: int) -> list[int]:
        """The domains that a rank may have, the likeliest first."""
        index, home, ranks = self.gang.index, self.gang.homes[rank], len(self.seated)
        beside = (self.seated[rank - 1], self.seated[(rank + 1) % ranks])
        known = self._likely.get((home, *beside))
        if known is None:
            depth = index.domains[self.gang.within].depth
            own = self.chain(home) if home >= 0 else ()

            def likely(domain: int) -> tuple[bool, bool, int, int, bool, int, int]:
                chain = self.chain(domain)
                shared = sum(a == b for a, b in zip(chain, own, strict=False))
                old = sum(around in self._old for around in chain)
                spare = self.gang.spares.get(domain, 0) > 0
                return domain != home, domain not in beside, -shared, -old, not spare, -self.gang.room[domain], domain

            inside = (d for d, room in self.gang.room.items() if room and ancestor(index, d, depth) == self.gang.within)
            known = self._likely[home, *beside] = sorted(inside, key=likely)
        return known
