"""Which tenants make room for a gang at the least price.

Each domain that could hold the gang is a knapsack to be covered (`cover`): it lacks so many units of room, and every web of
tenants (`webs`) offers some.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from trainyard.planner.victims.cover import cover, least_price, price
from trainyard.planner.victims.tenancy import Moves, Tenancy
from trainyard.planner.victims.webs import Weaver, Web, choices

TIE: Final = 1 << 40
"""Prices that are the same but for the remainder by this are a tie: the remainder is only preference."""


class Solution(NamedTuple):
    """Who makes which moves, what all of it costs, and the depth of the domain that then has room."""

    moves: Moves
    price: int
    depth: int


class _Prospect(NamedTuple):
    """A domain that could have room. bound: no way to make it costs less; lack: how many units it lacks."""

    bound: float
    domain: int
    lack: int
    webs: Sequence[Web]


def solutions(tenancy: Tenancy, allowed: Collection[int]) -> list[Solution]:
    """The cheapest moves of these tenants that make room, and those of other domains that tie with them.

    First in the domains that the gang may not leave, then in narrower ones, where its place would be a better one.
    """
    found: list[Solution] = []
    ceiling, weaver = float("inf"), Weaver(tenancy)
    for depth in range(tenancy.depth, len(tenancy.supply.index.at_depth)):
        prospects = _prospects(weaver, depth, allowed)
        for prospect in sorted(prospects, key=lambda one: (one.bound, one.domain)):
            if prospect.bound >= ceiling:
                break
            groups = [web.offers for web in prospect.webs]
            chosen = cover(prospect.lack, groups)
            if chosen is None:
                continue
            moves = {who: what for n, k in chosen.items() for who, what in prospect.webs[n].moves[k].items()}
            found.append(Solution(moves, price(groups, chosen), depth))
            ceiling = min(ceiling, (found[-1].price // TIE + 1) * TIE)
    return [one for one in found if one.price < ceiling]


def _prospects(weaver: Weaver, depth: int, allowed: Collection[int]) -> Iterator[_Prospect]:
    """The domains of a depth that could have room."""
    tenancy, supply = weaver.tenancy, weaver.tenancy.supply
    here: dict[int, dict[int, list[int]]] = {}
    for who in sorted(allowed):
        for position in tenancy.tenants[who].spots:
            here.setdefault(tenancy.around(position, depth), {}).setdefault(who, []).append(position)
    for domain, spots in sorted(here.items()):
        touched = {position for positions in spots.values() for position in positions}
        more = sum(supply.whole[position] - supply.slots[position] for position in touched)
        if (supply.free_in[domain] + more) // tenancy.segment >= tenancy.need:
            lack, webs = tenancy.need - tenancy.units(domain), list(weaver.webs(depth, spots))
            yield _Prospect(least_price(lack, [web.offers for web in webs]), domain, lack, webs)


def trimmed(tenancy: Tenancy, moves: Moves) -> Moves:
    """The same without what is not needed: who can stay stays, who can shrink does, and keeps the nodes that it can.

    What costs most is tried first. Where all webs were counted out, only shrinking tenants may have nodes too many.
    """
    trim = _Trim(tenancy, moves)
    for who in sorted(moves, key=trim.dearest):
        trim.attempt(who, ())
    for who in sorted(trim.kept):
        tenant = tenancy.tenants[who]
        if trim.kept[who] is None and tenant.dispensable and tenant.shrink < tenant.leave:
            any(trim.attempt(who, some) for some in _fewer(tenancy, who))
        for position in reversed(trim.kept[who] or ()):
            trim.attempt(who, tuple(other for other in trim.kept[who] or () if other != position))
    return trim.kept


def _fewer(tenancy: Tenancy, who: int) -> Iterator[tuple[int, ...]]:
    """What a tenant could leave instead of everything, in each of the domains that the gang may not leave."""
    here: dict[int, list[int]] = {}
    for position in tenancy.tenants[who].spots:
        here.setdefault(tenancy.around(position, tenancy.depth), []).append(position)
    for positions in here.values():
        yield from choices(tenancy, who, positions)


class _Trim:
    """Moves that suffice, and become fewer. kept: those that are left; supply: what is free then; left: who leaves a position."""

    def __init__(self, tenancy: Tenancy, moves: Moves) -> None:
        self.tenancy = tenancy
        self.kept = dict(moves)
        self.supply = tenancy.after(moves)
        self.left = tenancy.left(moves)

    def dearest(self, who: int) -> tuple[int, int]:
        """What costs most comes first."""
        tenant = self.tenancy.tenants[who]
        return -(tenant.leave if self.kept[who] is None else tenant.shrink), who

    def attempt(self, who: int, fewer: tuple[int, ...]) -> bool:
        """Have one leave no more than these positions, if that still suffices; () lets it stay as it is."""
        spots, leaving = self.tenancy.tenants[who].spots, frozenset(fewer)
        left = {position: self._left(position, who, position in leaving) for position in spots}
        before = {position: self.supply.slots[position] for position in spots}
        for position, gone in left.items():
            self.supply.put(position, self.tenancy.slots(position, gone))
        if self.tenancy.suffices(self.supply):
            self.left.update(left)
            if fewer:
                self.kept[who] = fewer
            else:
                del self.kept[who]
            return True
        for position, slots in before.items():
            self.supply.put(position, slots)
        return False

    def _left(self, position: int, who: int, leaves: bool) -> tuple[int, ...]:
        others = [other for other in self.left.get(position, ()) if other != who]
        return tuple(sorted((*others, who))) if leaves else tuple(others)
