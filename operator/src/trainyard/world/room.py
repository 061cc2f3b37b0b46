"""What is free on the nodes, with what is promised or counted on besides: a view to plan on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from trainyard.world.demand import Demand
from trainyard.world.inventory import Inventory
from trainyard.world.records import Resources
from trainyard.world.supply import Supply


class Room:
    """A view of an inventory that can be taken from and given to; the inventory itself stays as it is.

    version: another one whenever the view is.
    """

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self.version = 0
        self._extra: dict[str, dict[str, int]] = {}
        self._supplies: dict[Demand, Supply] = {}

    def free(self, node: str) -> Resources:
        """Room on a node; {} for one that is not known. Below 0 where more is promised than there is."""
        if node not in self.inventory.nodes:
            return {}
        free, extra = self.inventory.free(node), self._extra.get(node)
        if not extra:
            return free
        return {name: amount + extra.get(name, 0) for name, amount in free.items()}

    def take(self, nodes: Iterable[str], requests: Resources) -> None:
        """Promise the room of one member on each of these nodes; a node that is named twice gives it twice."""
        for node in nodes:
            self._change(node, requests, -1)
        self.version += 1

    def give(self, usage: Mapping[str, Resources]) -> None:
        """Count on what somebody will leave behind, by node."""
        for node, amounts in usage.items():
            self._change(node, amounts, 1)
        self.version += 1

    def holds(self, nodes: Collection[str], demand: Demand) -> bool:
        """Whether the nodes have room for one member each time they are named; whether they would take one is not asked."""
        wanted: dict[str, int] = {}
        for node in nodes:
            wanted[node] = wanted.get(node, 0) + 1
        return all(_fit(demand.requests, self.free(node)) >= count for node, count in wanted.items())

    def fork(self) -> Room:
        """A view that begins as this one is, to try something on."""
        forked = Room(self.inventory)
        forked._extra = {node: dict(extra) for node, extra in self._extra.items()}
        forked._supplies = {demand: counted.copy() for demand, counted in self._supplies.items()}
        return forked

    def supply(self, demand: Demand) -> Supply:
        """How many members of a kind fit. It follows what is taken and given; copy it to change it otherwise."""
        found = self._supplies.get(demand)
        if found is None:
            found = self._supplies[demand] = self.inventory.supply(demand).copy()
            for node in self._extra:
                self._count(found, demand, node)
        return found

    def slots_with(self, demand: Demand, node: str, extra: Resources) -> int:
        """How many members of a kind would fit on a node with so much more room; 0 where it is not eligible."""
        position = self.inventory.tree.index.position.get(node)
        if position is None or self.supply(demand).reasons[position] is not None:
            return 0
        free = self.free(node)
        return demand.fit({name: amount + extra.get(name, 0) for name, amount in free.items()})

    def _change(self, node: str, amounts: Resources, sign: int) -> None:
        if node not in self.inventory.nodes:
            return
        extra = self._extra.setdefault(node, {})
        for name, amount in amounts.items():
            extra[name] = extra.get(name, 0) + sign * amount
        for demand, counted in self._supplies.items():
            self._count(counted, demand, node)

    def _count(self, counted: Supply, demand: Demand, node: str) -> None:
        position = self.inventory.tree.index.position.get(node)
        if position is not None and counted.reasons[position] is None:
            counted.put(position, demand.fit(self.free(node)))


def _fit(requests: Resources, room: Resources) -> int:
    return min((room.get(name, 0) // amount for name, amount in requests.items() if amount > 0), default=1 << 30)
