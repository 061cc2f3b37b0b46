"""What room there is, for the jobs of one cycle in the order in which they may have it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from trainyard.world.capacity import free
from trainyard.world.records import Resources, World
from trainyard.world.resources import fits


@dataclass(slots=True)
class Room:
    """Two views of the same nodes. now: what is free this instant. soon: what will be, when all that is leaving has left.

    kept: nodes that an earlier job of the queue is gathering; (its priority, whether it may preempt, the nodes, its key).
    version: another one whenever either view is.
    """

    now: dict[str, dict[str, int]]
    soon: dict[str, dict[str, int]]
    kept: list[tuple[int, bool, frozenset[str], str]] = field(default_factory=list)
    version: int = 0

    def take(self, nodes: Iterable[str], requests: Resources) -> None:
        """Promise one member's room on each node."""
        self.version += 1
        for node in nodes:
            soon, present = self.soon.get(node), self.now.get(node)
            if soon is None or present is None:
                continue
            for name, amount in requests.items():
                soon[name] = max(0, soon.get(name, 0) - amount)
                present[name] = min(present.get(name, 0), soon[name])

    def give(self, usage: Mapping[str, Resources]) -> None:
        """Count on what a victim of this cycle will leave behind."""
        self.version += 1
        for node, amounts in usage.items():
            soon = self.soon.get(node)
            if soon is None:
                continue
            for name, amount in amounts.items():
                soon[name] = soon.get(name, 0) + amount

    def holds(self, nodes: Iterable[str], requests: Resources, soon: bool = False) -> bool:
        """Whether each of the nodes has room for a member."""
        view = self.soon if soon else self.now
        return all(node in view and fits(requests, view[node]) for node in nodes)

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


def survey(world: World, leaving: Collection[str]) -> Room:
    """The room of a world. leaving: uids of the pods whose end is decided."""
    return Room(now=free(world), soon=free(world, without=leaving))
