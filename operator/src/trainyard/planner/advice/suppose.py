"""Room for one gang as it would be if something were otherwise: a job gone, a node back, a taint tolerated.

What is said to help is planned before it is said, on one of these. It follows the supply of one demand alone, so that a guess
costs as much as the nodes that it changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from trainyard.planner.outlook import PLAIN, Outlook
from trainyard.planner.place import AVOIDED, Placement, place, required_depth
from trainyard.planner.request import Request
from trainyard.world.records import Resources
from trainyard.world.room import Room


class Supposition:
    """What one gang would find; it begins as the room is, and the room stays as it is.

    without: nodes that it may not have, besides those that it avoids, whatever is free on them: they are kept for others.
    barred: their positions.
    """

    def __init__(self, room: Room, request: Request, without: Collection[str] = (), outlook: Outlook = PLAIN) -> None:
        self.room, self.request, self.outlook = room, request, outlook
        self.demand = request.demand
        self.supply = room.supply(self.demand).without(request.avoid, AVOIDED)
        self.supply = self.supply.without(without) if without else self.supply
        self.barred = frozenset(
            position for node in without if (position := self.supply.index.position.get(node)) is not None
        )
        self._given: dict[str, dict[str, int]] = {}

    def fork(self) -> Supposition:
        """Another that begins as this one is."""
        forked = object.__new__(Supposition)
        forked.room, forked.request, forked.outlook = self.room, self.request, self.outlook
        forked.demand, forked.barred = self.demand, self.barred
        forked.supply = self.supply.copy()
        forked._given = {node: dict(amounts) for node, amounts in self._given.items()}
        return forked

    def give(self, usage: Mapping[str, Resources]) -> None:
        """Suppose that somebody left this behind, by node. What lies on nodes that it may not have helps nobody."""
        position, reasons = self.supply.index.position, self.supply.reasons
        for node, amounts in usage.items():
            at = position.get(node)
            if at is None or reasons[at] is not None or at in self.barred:
                continue
            given = self._given.setdefault(node, {})
            for name, amount in amounts.items():
                given[name] = given.get(name, 0) + amount
            self.supply.put(at, self.room.slots_with(self.demand, node, given))

    def empty(self, positions: Iterable[int]) -> None:
        """Suppose that nobody else was on these nodes."""
        for position in positions:
            self.supply.put(position, self.supply.whole[position])

    def admit(self, positions: Iterable[int]) -> None:
        """Suppose that these nodes were eligible, with the room that they have."""
        nodes, names = self.room.inventory.nodes, self.supply.index.names
        for position in positions:
            name = names[position]
            self.supply.declare(position, self.demand.fit(nodes[name].allocatable), None)
            self.supply.put(position, self.demand.fit(self.room.free(name)))

    def roomy(self) -> range | list[int]:
        """The domains that have room for the gang by number, and that it may not spread out of: [] where none has.

        None having any, the gang has no place. One having it is not enough where parts of the gang must stay together.
        """
        depth = required_depth(self.supply.tree, self.request)
        if depth is None:
            return []
        return [n for n in self.supply.index.at_depth[depth] if self.supply.free_in[n] >= self.request.nodes]

    def plan(self) -> Placement | None:
        """The gang's nodes, if there were some."""
        found = place(self.supply, replace(self.request, avoid=frozenset()), self.outlook)
        return found if isinstance(found, Placement) else None
