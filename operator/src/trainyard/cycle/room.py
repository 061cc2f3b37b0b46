"""What room there is, for the jobs of one cycle in the order in which they may have it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from trainyard.world.capacity import place_of
from trainyard.world.demand import Demand
from trainyard.world.inventory import Inventory
from trainyard.world.records import Resources, World
from trainyard.world.room import Room as View


@dataclass(slots=True)
class Room:
    """Two views of the same nodes. now: what is free this instant. soon: what will be, when all that is leaving has left.

    kept: nodes that an earlier job of the queue is gathering; (its priority, whether it may preempt, the nodes, its key).
    """

    now: View
    soon: View
    kept: list[tuple[int, bool, frozenset[str], str]] = field(default_factory=list)

    @property
    def version(self) -> int:
        """Another one whenever either view is."""
        return self.now.version + self.soon.version

    def take(self, nodes: Collection[str], requests: Resources) -> None:
        """Promise one member's room on each node.

        It is taken from both views: what waits for somebody to leave may not use up what is free meanwhile either.
        """
        self.now.take(nodes, requests)
        self.soon.take(nodes, requests)

    def give(self, usage: Mapping[str, Resources]) -> None:
        """Count on what a victim of this cycle will leave behind."""
        self.soon.give(usage)

    def holds(self, nodes: Collection[str], demand: Demand, soon: bool = False) -> bool:
        """Whether each of the nodes has room for a member."""
        return (self.soon if soon else self.now).holds(nodes, demand)

    def keep(self, priority: int, preempts: bool, nodes: Collection[str], key: str) -> None:
        """Keep free nodes for a job that waits for more of them: from its equals, and from all below if it cannot preempt."""
        self.kept.append((priority, preempts, frozenset(nodes), key))

    def kept_from(self, priority: int) -> dict[str, str]:
        """Nodes that a job of this priority may not have, each with the key of the job that they are kept for."""
        return {
            node: key
            for other, preempts, nodes, key in self.kept
            if other == priority or (other > priority and not preempts)
            for node in nodes
        }


def rooms(inventory: Inventory, world: World, leaving: Iterable[str]) -> Room:
    """The room of a world. leaving: uids of the pods whose end is decided."""
    room = Room(now=View(inventory), soon=View(inventory))
    for uid in leaving:
        pod = world.pods.get(uid)
        if pod is not None and pod.live:
            room.soon.give({place_of(pod): pod.requests})
    return room
