"""Who holds the nodes on which a gang could have more room, and how much there is when some of them have gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from trainyard.world.records import Resources
from trainyard.world.supply import Supply

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


@dataclass(slots=True)
class Tenancy:
    """The tenants of one kind of nodes, as one gang sees them.

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
        for position, gone in self.left(moves).items():
            supply.put(position, self.slots(position, gone))
        return supply

    def leave(self, who: int, supply: Supply, left: dict[int, tuple[int, ...]]) -> None:
        """Have one more tenant leave. supply: what was free before, and then is free after; left: by position who has left it."""
        for position in self.tenants[who].spots:
            left[position] = (*left.get(position, ()), who)
            supply.put(position, self.slots(position, left[position]))

    def left(self, moves: Moves, within: Mapping[int, Iterable[int]] | None = None) -> dict[int, tuple[int, ...]]:
        """By position who leaves it. within: of each the positions that count, all where nothing is said."""
        left: dict[int, tuple[int, ...]] = {}
        for who in sorted(moves):
            some = moves[who]
            if some is None:
                some = tuple(self.tenants[who].spots if within is None else within[who])
            for position in some:
                left[position] = (*left.get(position, ()), who)
        return left

    def slots(self, position: int, gone: tuple[int, ...]) -> int:
        """How many members a position has room for once these have left it."""
        if not gone:
            return self.supply.slots[position]
        known = self._slots.get((position, *gone))
        if known is None:
            more: dict[str, int] = {}
            for who in gone:
                for name, amount in self.tenants[who].spots[position][0].items():
                    more[name] = more.get(name, 0) + amount
            known = self._slots[position, *gone] = self.fit(position, more)
        return known

    def gain(self, depth: int, left: Mapping[int, tuple[int, ...]]) -> int:
        """How many more units a domain of a depth has room for when positions in it are left."""
        more: dict[int, int] = {}
        for position, gone in left.items():
            cell = self.cell(position, depth)
            more[cell] = more.get(cell, 0) + self.slots(position, gone) - self.supply.slots[position]
        if self.segment == 1:
            return sum(more.values())
        free = self.supply.free_in
        return sum((free[cell] + n) // self.segment - free[cell] // self.segment for cell, n in more.items())

    def around(self, position: int, depth: int) -> int:
        """The domain of a depth around a position."""
        domains, number = self.supply.index.domains, self.supply.index.innermost[position]
        while domains[number].depth > depth:
            number = domains[number].parent
        return number

    def cell(self, position: int, depth: int) -> int:
        """What the room of a position is counted together with, in a domain of a depth: itself, or the domain that its segment
        must share."""
        return position if self.segment == 1 else self.around(position, max(depth, self.segment_depth))

    def _cells(self, domain: int) -> Sequence[int]:
        domains, found = self.supply.index.domains, [domain]
        for _ in range(domains[domain].depth, self.segment_depth):
            found = [child for number in found for child in domains[number].children]
        return found
