"""What tenants offer together where they share nodes.

Tenants whose cells are all their own are a web each, and their offers add up. Those of one node, or of one domain of segments, do
not: what one makes room for depends on the others. Such a web is counted out, combination by combination, and makes one offer
for each amount of room. One too large for that offers nested sets of tenants, those that give most for their price first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from math import prod
from typing import Final, NamedTuple

from trainyard.planner.victims.cover import Offer
from trainyard.planner.victims.tenancy import Moves, Tenancy

MOST_LOOKS: Final = 100_000
"""How often the combinations of one web may look at a node: about 0.1 s."""
MOST_LOOKS_IN_ALL: Final = 300_000
"""The same for all webs of one question. Counted work: the answer does not depend on how busy the machine is."""
MOST_CHOICES: Final = 16
"""Of so many ways to choose which nodes a shrinking tenant leaves, all are tried."""
MOST_SPOTS: Final = 8
"""On how many nodes a tenant is at most for which they are listed."""

Spots = Mapping[int, Sequence[int]]
"""By number of the tenant the positions that it has in a domain."""


class Web(NamedTuple):
    """Tenants whose offers add up with those of all others. moves: for each offer who does what."""

    offers: Sequence[Offer]
    moves: Sequence[Moves]


class Weaver:
    """The webs of one tenancy. looks: how often nodes may still be looked at."""

    def __init__(self, tenancy: Tenancy) -> None:
        self.tenancy = tenancy
        self.looks = MOST_LOOKS_IN_ALL

    def webs(self, depth: int, spots: Spots) -> Iterator[Web]:
        """Of the tenants of a domain of a depth; those without an offer are left out."""
        for members in _linked(self.tenancy, depth, spots):
            web = self._web(depth, {who: spots[who] for who in members})
            if web.offers:
                yield web

    def _web(self, depth: int, spots: Spots) -> Web:
        """The cheapest combination for each amount of room that one of them makes."""
        ways: list[list[tuple[int, Moves]]] = []
        for who, positions in spots.items():
            tenant = self.tenancy.tenants[who]
            mine: list[tuple[int, Moves]] = [(0, {}), (tenant.leave, {who: None})]
            if tenant.dispensable:
                some = choices(self.tenancy, who, positions, len(spots) == 1)
                mine += [(tenant.shrink, {who: left}) for left in some]
            ways.append(mine)
        looks = prod(map(len, ways)) * sum(map(len, spots.values()))
        if len(spots) > 1:
            if looks > min(MOST_LOOKS, self.looks):
                return self._nested(depth, spots)
            self.looks -= looks
        cheapest: dict[int, tuple[int, Moves]] = {}
        for combination in product(*ways):
            moves = {who: what for _, some in combination for who, what in some.items()}
            gain = self.tenancy.gain(depth, self.tenancy.left(moves, spots))
            cost = sum(amount for amount, _ in combination)
            if gain > 0 and (gain not in cheapest or cost < cheapest[gain][0]):
                cheapest[gain] = cost, moves
        return _frontier([(gain, cost, moves) for gain, (cost, moves) in cheapest.items()])

    def _nested(self, depth: int, spots: Spots) -> Web:
        """Sets of a large web, each in the next: the tenants of the cell that gives most for its price, then of the next cell."""
        tenancy = self.tenancy
        at = _cells(tenancy, depth, spots)

        def room(moves: Moves) -> int:
            return tenancy.gain(depth, tenancy.left(moves, spots))

        def ratio(cell: int) -> tuple[float, int]:
            gain, amount = room(dict.fromkeys(at[cell])), sum(tenancy.tenants[who].leave for who in at[cell])
            return amount / gain if gain else float("inf"), cell

        moves: dict[int, tuple[int, ...] | None] = {}
        sets: list[tuple[int, int, Moves]] = []
        for cell in sorted(at, key=ratio):
            moves.update(dict.fromkeys(at[cell]))
            sets.append((room(moves), sum(tenancy.tenants[who].leave for who in moves), dict(moves)))
        return _frontier([one for one in sets if one[0] > 0])


def choices(tenancy: Tenancy, who: int, positions: Sequence[int], alone: bool = False) -> list[tuple[int, ...]]:
    """Ways to choose the nodes that a tenant leaves when it shrinks, each as many as it can do without.

    All where they are few; else the one that makes most room while nobody else moves. That is also the best where nobody else is
    in its web (alone), and it has as many members on each node.
    """
    spots, most = tenancy.tenants[who].spots, tenancy.tenants[who].dispensable

    def worth(position: int) -> tuple[float, int]:
        more = tenancy.slots(position, (who,)) - tenancy.supply.slots[position]
        return -more / spots[position][1], position

    ordered = sorted((position for position in positions if spots[position][1] <= most), key=worth)
    even = len({spots[position][1] for position in ordered}) <= 1
    if len(ordered) <= MOST_SPOTS and not (alone and even and tenancy.segment == 1):
        every = _fullest(sorted(ordered), {position: spots[position][1] for position in ordered}, most)
        if len(every) <= MOST_CHOICES:
            return every
    some: list[int] = []
    for position in ordered:
        if spots[position][1] <= most:
            some.append(position)
            most -= spots[position][1]
    return [tuple(sorted(some))] if some else []


def _fullest(positions: Sequence[int], weights: Mapping[int, int], most: int) -> list[tuple[int, ...]]:
    """The sets of positions that weigh at most so much and to which none can be added."""
    found = []
    for size in range(1, len(positions) + 1):
        for some in combinations(positions, size):
            weight = sum(weights[position] for position in some)
            lightest = min((weights[p] for p in positions if p not in some), default=most + 1)
            if weight <= most < weight + lightest:
                found.append(some)
    return found


def _cells(tenancy: Tenancy, depth: int, spots: Spots) -> dict[int, list[int]]:
    """By cell the tenants that are in it."""
    at: dict[int, list[int]] = {}
    for who, positions in spots.items():
        for cell in dict.fromkeys(tenancy.cell(position, depth) for position in positions):
            at.setdefault(cell, []).append(who)
    return at


def _linked(tenancy: Tenancy, depth: int, spots: Spots) -> list[list[int]]:
    """The tenants in groups: those of one group share cells, directly or through others."""
    leader = {who: who for who in spots}

    def first(who: int) -> int:
        while leader[who] != who:
            leader[who] = who = leader[leader[who]]
        return who

    for some in _cells(tenancy, depth, spots).values():
        for who in some[1:]:
            a, b = sorted((first(some[0]), first(who)))
            leader[b] = a
    groups: dict[int, list[int]] = {}
    for who in spots:
        groups.setdefault(first(who), []).append(who)
    return list(groups.values())


def _frontier(sets: Sequence[tuple[int, int, Moves]]) -> Web:
    """Those for which nothing as cheap makes as much room."""
    offers: list[Offer] = []
    moves: list[Moves] = []
    least: int | None = None
    for gain, amount, some in sorted(sets, key=lambda one: (-one[0], one[1])):
        if least is None or amount < least:
            least = amount
            offers.append((gain, amount))
            moves.append(some)
    return Web(offers, moves)
