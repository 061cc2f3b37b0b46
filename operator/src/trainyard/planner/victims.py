"""Which tenants of nodes make room for a gang at the least price.

Each domain that could hold the gang is a knapsack to be covered: it lacks so many units of room, and every tenant offers some.
What tenants offer adds up, except where several sit on one node (or, for a gang in segments, in one domain of segments): those
form a web, all of whose combinations are counted out, and which then makes one offer for each amount of room. Webs too large
for that offer nested sets of tenants, those that give most for their price first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from math import prod
from typing import Final, NamedTuple

from trainyard.planner.cover import Offer, cover, least_price, price
from trainyard.world.records import Resources
from trainyard.world.supply import Supply

MOST_LOOKS: Final = 100_000
"""How often the combinations of one web may look at a node: about 0.1 s."""
MOST_LOOKS_IN_ALL: Final = 300_000
"""The same for all webs of one question. Counted work: the answer does not depend on how busy the machine is."""
MOST_CHOICES: Final = 16
"""Of so many ways to choose which nodes a shrinking tenant leaves, all are tried."""
TIE: Final = 1 << 40
"""Prices that are the same but for the remainder by this are a tie: the remainder is only preference."""

Moves = Mapping[int, tuple[int, ...] | None]
"""By number of the tenant what it gives. None: all that it has; else the positions that it leaves, staying on the others."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """One who holds nodes on which the gang could have more room.

    spots: by position, what it takes there and how many of its members that are. leave: the price of leaving. shrink: that of
    going on with fewer members; dispensable: how many it can do without, 0 where it cannot shrink.
    """

    spots: Mapping[int, tuple[Resources, int]]
    leave: int
    shrink: int = 0
    dispensable: int = 0


class Solution(NamedTuple):
    """Who makes which moves, what all of it costs, and the depth of the domain that then has room."""

    moves: Moves
    price: int
    depth: int


class _Web(NamedTuple):
    """Tenants whose offers add up with those of all others, and what they offer together."""

    offers: Sequence[Offer]
    moves: Sequence[Moves]


@dataclass(slots=True)
class Tenancy:
    """Where tenants could make room for one gang.

    supply: what is free for it. fit: how many members a position would hold with so much more room. members: of the gang; depth:
    of the domains that it may not leave. segment: how many members must share a domain of depth `segment_depth`; 1: none must.
    """

    supply: Supply
    fit: Callable[[int, Resources], int]
    members: int
    depth: int
    tenants: Sequence[Tenant]
    segment: int = 1
    segment_depth: int = 0
    looks: int = MOST_LOOKS_IN_ALL
    _slots: dict[tuple[int, ...], int] = field(default_factory=dict)

    @property
    def need(self) -> int:
        """How many units of room the gang needs in its domain. A unit is a segment."""
        return -(-self.members // self.segment)

    def units(self, domain: int, supply: Supply | None = None) -> int:
        """How many units a domain has room for."""
        free = (supply or self.supply).free_in
        if self.segment == 1:
            return free[domain]
        return sum(free[number] // self.segment for number in self._cells(domain))

    def suffices(self, supply: Supply | None = None) -> bool:
        """Whether some domain has room for the gang."""
        return any(self.units(number, supply) >= self.need for number in self.supply.index.at_depth[self.depth])

    def after(self, moves: Moves) -> Supply:
        """What is free once these moves are made."""
        supply = self.supply.copy()
        for position, gone in self._left(moves).items():
            supply.put(position, self._after(position, gone))
        return supply

    def solutions(self, allowed: Collection[int]) -> list[Solution]:
        """The cheapest moves of these tenants that make room, and those of other domains that tie with them.

        First in the domains that the gang may not leave, then in narrower ones, where its place would be a better one.
        """
        found: list[Solution] = []
        ceiling = float("inf")
        for depth in range(self.depth, len(self.supply.index.at_depth)):
            prospects = [
                (least_price(lack, [web.offers for web in webs]), domain, lack, webs)
                for domain, lack, webs in self._prospects(depth, allowed)
            ]
            for bound, _, lack, webs in sorted(prospects, key=lambda prospect: prospect[:2]):
                if bound >= ceiling:
                    break
                groups = [web.offers for web in webs]
                chosen = cover(lack, groups)
                if chosen is None:
                    continue
                moves = {who: what for n, k in chosen.items() for who, what in webs[n].moves[k].items()}
                found.append(Solution(moves, price(groups, chosen), depth))
                ceiling = min(ceiling, (found[-1].price // TIE + 1) * TIE)
        return [one for one in found if one.price < ceiling]

    def trimmed(self, moves: Moves) -> Moves:
        """The same without what is not needed: who can stay stays, who can shrink does, and keeps the nodes that it can.

        What costs most is tried first. A solution of small webs only has nodes too many, if anything.
        """
        kept = dict(moves)
        supply = self.after(kept)

        def would_do(tried: Mapping[int, tuple[int, ...] | None], who: int) -> bool:
            spots = self.tenants[who].spots
            before = {position: supply.slots[position] for position in spots}
            left = self._left(tried)
            for position in spots:
                supply.put(position, self._after(position, left.get(position, ())))
            if self.suffices(supply):
                return True
            for position, slots in before.items():
                supply.put(position, slots)
            return False

        def dearest(who: int) -> tuple[int, int]:
            tenant = self.tenants[who]
            return -(tenant.leave if kept[who] is None else tenant.shrink), who

        for who in sorted(kept, key=dearest):
            without = {other: what for other, what in kept.items() if other != who}
            if would_do(without, who):
                kept = without
        for who in sorted(kept):
            tenant = self.tenants[who]
            if kept[who] is None and tenant.dispensable and tenant.shrink < tenant.leave:
                for some in self._everywhere(who):
                    if would_do({**kept, who: some}, who):
                        kept[who] = some
                        break
            for position in reversed(kept[who] or ()):
                fewer = tuple(other for other in kept[who] or () if other != position)
                if fewer and would_do({**kept, who: fewer}, who):
                    kept[who] = fewer
        return kept

    # What a domain is offered ---------------------------------------------------------------------------------------------

    def _prospects(self, depth: int, allowed: Collection[int]) -> Iterator[tuple[int, int, list[_Web]]]:
        """The domains of a depth that could have room, what each lacks, and who offers what there."""
        here: dict[int, dict[int, list[int]]] = {}
        most: dict[int, int] = {}
        for who in sorted(allowed):
            for position in self.tenants[who].spots:
                domain = self._around(position, depth)
                positions = here.setdefault(domain, {}).setdefault(who, [])
                positions.append(position)
        for domain, tenants in sorted(here.items()):
            touched = {position for positions in tenants.values() for position in positions}
            more = sum(self.supply.whole[position] - self.supply.slots[position] for position in touched)
            most[domain] = (self.supply.free_in[domain] + more) // self.segment
            if most[domain] >= self.need:
                yield domain, self.need - self.units(domain), list(self._webs(domain, tenants))

    def _webs(self, domain: int, tenants: Mapping[int, Sequence[int]]) -> Iterator[_Web]:
        depth = self.supply.index.domains[domain].depth
        at: dict[int, list[int]] = {}
        for who, positions in tenants.items():
            for cell in dict.fromkeys(self._cell(position, depth) for position in positions):
                at.setdefault(cell, []).append(who)
        leader = {who: who for who in tenants}

        def first(who: int) -> int:
            while leader[who] != who:
                leader[who] = who = leader[leader[who]]
            return who

        for some in at.values():
            for who in some[1:]:
                a, b = sorted((first(some[0]), first(who)))
                leader[b] = a
        webs: dict[int, list[int]] = {}
        for who in tenants:
            webs.setdefault(first(who), []).append(who)
        for members in webs.values():
            web = self._counted_out(depth, {who: tenants[who] for who in members})
            if web.offers:
                yield web

    def _counted_out(self, depth: int, web: Mapping[int, Sequence[int]]) -> _Web:
        """The cheapest combination of a web's tenants for each amount of room that one of them makes."""
        ways: list[list[tuple[int, Moves]]] = []
        for who, positions in web.items():
            tenant = self.tenants[who]
            mine: list[tuple[int, Moves]] = [(0, {}), (tenant.leave, {who: None})]
            if tenant.dispensable:
                mine += [(tenant.shrink, {who: some}) for some in self._choices(who, positions, len(web) == 1)]
            ways.append(mine)
        looks = prod(map(len, ways)) * sum(map(len, web.values()))
        if len(web) > 1:
            if looks > min(MOST_LOOKS, self.looks):
                return self._nested(depth, web)
            self.looks -= looks
        cheapest: dict[int, tuple[int, Moves]] = {}
        for combination in product(*ways):
            moves = {who: what for _, some in combination for who, what in some.items()}
            gain, cost = self._gain(depth, moves, web), sum(amount for amount, _ in combination)
            if gain > 0 and (gain not in cheapest or cost < cheapest[gain][0]):
                cheapest[gain] = cost, moves
        return _frontier([(gain, cost, moves) for gain, (cost, moves) in cheapest.items()])

    def _nested(self, depth: int, web: Mapping[int, Sequence[int]]) -> _Web:
        """Sets of a large web, each in the next: the tenants of the cell that gives most for its price, then of the next cell."""
        at: dict[int, set[int]] = {}
        for who, positions in web.items():
            for position in positions:
                at.setdefault(self._cell(position, depth), set()).add(who)

        def ratio(cell: int) -> tuple[float, int]:
            gain = self._gain(depth, dict.fromkeys(at[cell]), web)
            return sum(self.tenants[who].leave for who in at[cell]) / gain if gain else float("inf"), cell

        moves: dict[int, tuple[int, ...] | None] = {}
        sets: list[tuple[int, int, Moves]] = []
        for cell in sorted(at, key=ratio):
            moves.update(dict.fromkeys(sorted(at[cell])))
            gain = self._gain(depth, moves, web)
            sets.append((gain, sum(self.tenants[who].leave for who in moves), dict(moves)))
        return _frontier([one for one in sets if one[0] > 0])

    def _choices(self, who: int, positions: Sequence[int], alone: bool = False) -> list[tuple[int, ...]]:
        """Ways to choose the nodes that a tenant leaves when it shrinks: each as many as it can do without.

        All where they are few; else the one that makes most room while nobody else moves. That is also the best where nobody else
        is in its web, and it has as many members on each node.
        """
        spots, most = self.tenants[who].spots, self.tenants[who].dispensable

        def give(position: int) -> tuple[float, int]:
            more = self._after(position, (who,)) - self.supply.slots[position]
            return -more / spots[position][1], position

        ordered = sorted((p for p in positions if spots[p][1] <= most), key=give)
        even = len({spots[position][1] for position in ordered}) <= 1
        if not (alone and even and self.segment == 1):
            subsets = [()] if not ordered else _fullest(ordered, {p: spots[p][1] for p in ordered}, most)
            if subsets and len(subsets) <= MOST_CHOICES:
                return [some for some in subsets if some]
        some: list[int] = []
        for position in ordered:
            if spots[position][1] <= most:
                some.append(position)
                most -= spots[position][1]
        return [tuple(sorted(some))] if some else []

    def _everywhere(self, who: int) -> Iterator[tuple[int, ...]]:
        """The same for each of the domains that the gang may not leave."""
        here: dict[int, list[int]] = {}
        for position in self.tenants[who].spots:
            here.setdefault(self._around(position, self.depth), []).append(position)
        for positions in here.values():
            yield from self._choices(who, positions)

    # Counting -------------------------------------------------------------------------------------------------------------

    def _gain(self, depth: int, moves: Moves, web: Mapping[int, Sequence[int]]) -> int:
        """How many more units a domain of a depth has room for after moves of a web's tenants in it."""
        more: dict[int, int] = {}
        for position, gone in self._left(moves, web).items():
            cell = self._cell(position, depth)
            more[cell] = more.get(cell, 0) + self._after(position, gone) - self.supply.slots[position]
        if self.segment == 1:
            return sum(more.values())
        free = self.supply.free_in
        return sum((free[cell] + n) // self.segment - free[cell] // self.segment for cell, n in more.items())

    def _left(self, moves: Moves, web: Mapping[int, Sequence[int]] | None = None) -> dict[int, tuple[int, ...]]:
        """By position who leaves it."""
        left: dict[int, tuple[int, ...]] = {}
        for who in sorted(moves):
            positions = moves[who]
            if positions is None:
                positions = tuple(self.tenants[who].spots) if web is None else tuple(web[who])
            for position in positions:
                left[position] = (*left.get(position, ()), who)
        return left

    def _after(self, position: int, gone: tuple[int, ...]) -> int:
        """How many members a position has room for once these have left it."""
        known = self._slots.get((position, *gone))
        if known is None:
            more: dict[str, int] = {}
            for who in gone:
                for name, amount in self.tenants[who].spots[position][0].items():
                    more[name] = more.get(name, 0) + amount
            known = self._slots[position, *gone] = self.fit(position, more) if gone else self.supply.slots[position]
        return known

    def _around(self, position: int, depth: int) -> int:
        domains, number = self.supply.index.domains, self.supply.index.innermost[position]
        while domains[number].depth > depth:
            number = domains[number].parent
        return number

    def _cell(self, position: int, depth: int) -> int:
        """What its room is counted together with, in a domain of a depth: itself, or the domain that its segment must share."""
        return position if self.segment == 1 else self._around(position, max(depth, self.segment_depth))

    def _cells(self, domain: int) -> Sequence[int]:
        domains, found = self.supply.index.domains, [domain]
        for _ in range(domains[domain].depth, self.segment_depth):
            found = [child for number in found for child in domains[number].children]
        return found


def _frontier(sets: Sequence[tuple[int, int, Moves]]) -> _Web:
    """Those for which nothing as cheap makes as much room."""
    offers: list[Offer] = []
    moves: list[Moves] = []
    least: int | None = None
    for gain, amount, some in sorted(sets, key=lambda one: (-one[0], one[1])):
        if least is None or amount < least:
            least = amount
            offers.append((gain, amount))
            moves.append(some)
    return _Web(offers, moves)


def _fullest(positions: Sequence[int], weights: Mapping[int, int], most: int) -> list[tuple[int, ...]]:
    """The sets of positions that weigh at most so much and to which none can be added; [] where there may be too many."""
    if len(positions) > 8:
        return [tuple(sorted(positions))] if sum(weights.values()) <= most else []
    found = []
    for size in range(1, len(positions) + 1):
        for some in combinations(sorted(positions), size):
            weight = sum(weights[position] for position in some)
            rest = min((weights[p] for p in positions if p not in some), default=most + 1)
            if weight <= most < weight + rest:
                found.append(some)
    return found
