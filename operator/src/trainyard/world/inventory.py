"""What the cluster offers and what of it is taken, kept current by difference.

A cycle needs the tree of the network and the room on every node; at 10,000 nodes both take longer to compute than all of its
decisions. Between two cycles little changes, so the inventory compares records by identity and recounts what is another. It
is memory, not knowledge: one that was refreshed a thousand times answers like one made of the last world alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final

from trainyard.api.fabric import FabricSpec
from trainyard.topology.detection import Detected, detect, telling
from trainyard.topology.tree import Level, Tree, build
from trainyard.world.capacity import place_of
from trainyard.world.demand import Demand
from trainyard.world.kinds import kind, takes_accelerators
from trainyard.world.records import Fabric, Node, Pod, Resources, World
from trainyard.world.supply import Supply, supply

MOST_SUPPLIES: Final = 64
"""How many kinds of members are kept counted; those of jobs that are gone fall out."""


class Inventory:
    """The nodes, their tree and what is taken of them.

    Rooms and supplies made of it hold until the next `refresh`.
    """

    def __init__(self) -> None:
        self.tree = Tree()
        self.detected = Detected()
        self.nodes: Mapping[str, Node] = {}
        self._pods: Mapping[str, Pod] = {}
        self._fabrics: Mapping[str, Fabric] = {}
        self._used: dict[str, dict[str, int]] = {}
        self._supplies: dict[Demand, Supply] = {}
        self._kinds: tuple[str, ...] | None = None
        self.worked_out: dict[Hashable, object] = {}
        """What others worked out of these nodes and fabrics; forgotten as soon as one of them is another."""

    @classmethod
    def of(cls, world: World) -> Inventory:
        """The inventory of a world."""
        made = cls()
        made.refresh(world)
        return made

    def refresh(self, world: World) -> None:
        """Take in another world. Costs little where little is another."""
        touched = self._recount(world.pods) | self._renew(world.nodes, world.fabrics)
        index = self.tree.index
        positions = [index.position[name] for name in touched if name in index.position]
        for demand, counted in self._supplies.items():
            for position in positions:
                self._count(counted, demand, position)

    def free(self, node: str) -> Resources:
        """Room on a node: allocatable minus the requests of every live pod; below 0 where more is taken than there is."""
        used = self._used.get(node)
        if not used:
            return self.nodes[node].allocatable
        return {name: amount - used.get(name, 0) for name, amount in self.nodes[node].allocatable.items()}

    def supply(self, demand: Demand) -> Supply:
        """How many members of a kind fit. It is the inventory's own: copy it to change it."""
        found = self._supplies.pop(demand, None)
        if found is None:
            found = self._survey(demand)
            while len(self._supplies) >= MOST_SUPPLIES:
                self._supplies.pop(next(iter(self._supplies)))
        self._supplies[demand] = found  # the last one asked for is the last to fall out
        return found

    def _survey(self, demand: Demand) -> Supply:
        slots: list[int] = []
        whole: list[int] = []
        reasons: list[str | None] = []
        for name in self.tree.index.names:
            node = self.nodes[name]
            reason = demand.why_not(node)
            reasons.append(reason)
            whole.append(demand.fit(node.allocatable) if reason is None else 0)
            slots.append(demand.fit(self.free(name)) if reason is None else 0)
        kinds = self._kinds_of_nodes() if takes_accelerators(demand.requests) else ()
        return supply(self.tree, slots, whole, reasons, kinds)

    def _kinds_of_nodes(self) -> tuple[str, ...]:
        if self._kinds is None:
            self._kinds = tuple(kind(self.nodes[name]) for name in self.tree.index.names)
        return self._kinds

    def _count(self, counted: Supply, demand: Demand, position: int) -> None:
        node = self.nodes[self.tree.index.names[position]]
        reason = demand.why_not(node)
        counted.declare(position, demand.fit(node.allocatable) if reason is None else 0, reason)
        counted.put(position, demand.fit(self.free(node.name)) if reason is None else 0)

    def _recount(self, pods: Mapping[str, Pod]) -> set[str]:
        """Take in pods. Returns the nodes on which something is another."""
        before, touched = self._pods, set[str]()
        if pods is before:
            return touched
        for uid, pod in pods.items():
            old = before.get(uid)
            if old is not pod:
                if old is not None:
                    self._use(old, -1, touched)
                self._use(pod, 1, touched)
        for uid in before.keys() - pods.keys():
            self._use(before[uid], -1, touched)
        self._pods = pods
        return touched

    def _use(self, pod: Pod, sign: int, touched: set[str]) -> None:
        node = place_of(pod)
        if not node or not pod.live:
            return
        touched.add(node)
        used = self._used.setdefault(node, {})
        for name, amount in pod.requests.items():
            used[name] = used.get(name, 0) + sign * amount
        if not any(used.values()):
            del self._used[node]

    def _renew(self, nodes: Mapping[str, Node], fabrics: Mapping[str, Fabric]) -> set[str]:
        """Take in nodes and fabrics. Returns the nodes that are another."""
        before = self.nodes
        if nodes is before and fabrics is self._fabrics:
            return set()
        changed = {name for name, node in nodes.items() if before.get(name) is not node and before.get(name) != node}
        same_names = nodes.keys() == before.keys()
        redescribed = _described(fabrics) != _described(self._fabrics)
        self._fabrics = fabrics
        if changed or not same_names or redescribed:
            self.worked_out.clear()
        self.nodes = nodes
        relabelled = not same_names or any(_speaks_otherwise(before[name], nodes[name], fabrics) for name in changed)
        if not same_names or any(kind(before[name]) != kind(nodes[name]) for name in changed):
            self._kinds = None
            self._supplies.clear()
        if relabelled or redescribed:
            self.detected = detect(nodes.values(), fabrics.values())
            self._rebuild(nodes.values(), self.detected.levels)
        return changed

    def _rebuild(self, nodes: Iterable[Node], levels: Sequence[Level]) -> None:
        tree = build(nodes, levels)
        if (tree.levels, list(tree.paths.items())) != (self.tree.levels, list(self.tree.paths.items())):
            self.tree = tree
            self._supplies.clear()


def _speaks_otherwise(old: Node, new: Node, fabrics: Mapping[str, Fabric]) -> bool:
    """Whether what a node tells of its place, or which of the dialects counts, may be another."""
    if old.allocatable.keys() != new.allocatable.keys():
        return True
    return old.labels != new.labels and telling(old.labels, fabrics.values()) != telling(new.labels, fabrics.values())


def _described(fabrics: Mapping[str, Fabric]) -> Mapping[str, FabricSpec]:
    """What administrators say, without what was measured: that changes no place and no settings."""
    return {name: fabric.spec for name, fabric in fabrics.items()}
