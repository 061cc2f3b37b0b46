"""What room there is, for the jobs of one cycle in the order in which they may have it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from trainyard.world.capacity import place_of
from trainyard.world.demand import Demand
from trainyard.world.inventory import Inventory
from trainyard.world.records import Resources, World
from trainyard.world.room import Room as View


@dataclass(frozen=True, slots=True)
class Keep:
    """Nodes that are kept for a job. From its equals; from_lower: from all of lower priority as well.

    why: behind the key, in messages. until: when they are needed; who is sure to be gone by then may use them meanwhile; None
    where nobody knows. wake: when they are not kept any more, whatever happens.
    """

    key: str
    priority: int
    from_lower: bool
    nodes: frozenset[str]
    why: str
    until: float | None = None
    wake: float | None = None

    def binds(self, key: str, priority: int) -> bool:
        """Whether a job of this key and priority has to keep off."""
        return key != self.key and (priority == self.priority or (self.from_lower and priority < self.priority))


class Kept(Mapping[str, Keep]):
    """Nodes that a job may not have, each with what it is kept for. number: the same for the same nodes, within one cycle."""

    def __init__(self, number: int, keeps: Iterable[Keep]) -> None:
        self.number = number
        self._by_node = {node: keep for keep in keeps for node in keep.nodes}

    def __getitem__(self, node: str) -> Keep:
        return self._by_node[node]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_node)

    def __len__(self) -> int:
        return len(self._by_node)


NOTHING: Final = Kept(-1, ())


@dataclass(slots=True)
class Room:
    """Two views of the same nodes. now: what is free this instant. soon: what will be, when all that is leaving has left.

    kept: nodes that a job of the queue is gathering, takes its place again on, or holds ready to replace its own. reserved: by
    key of a job that waits, the nodes that others leave for it already.
    """

    now: View
    soon: View
    kept: list[Keep] = field(default_factory=list)
    reserved: Mapping[str, frozenset[str]] = field(default_factory=dict)
    _known: dict[tuple[int, ...], Kept] = field(default_factory=dict)

    @property
    def version(self) -> int:
        """Another one whenever either view is."""
        return self.now.version + self.soon.version

    def take(self, nodes: Iterable[str], requests: Resources) -> None:
        """Promise one member's room on each node.

        It is taken from both views: what waits for somebody to leave may not use up what is free meanwhile either.
        """
        nodes = list(nodes)
        self.now.take(nodes, requests)
        self.soon.take(nodes, requests)

    def give(self, usage: Mapping[str, Resources]) -> None:
        """Count on what a victim of this cycle will leave behind."""
        self.soon.give(usage)

    def holds(self, nodes: Collection[str], demand: Demand, soon: bool = False) -> bool:
        """Whether the nodes have room for a member each time they are named."""
        return (self.soon if soon else self.now).holds(nodes, demand)

    def keep(self, keep: Keep) -> None:
        """Keep nodes for a job."""
        if keep.nodes:
            self.kept.append(keep)

    def kept_from(self, key: str, priority: int, gone_by: float | None = None) -> Kept:
        """Nodes that a job may not have, each with what it is kept for.

        gone_by: when the job is sure to have left, if it starts now; None: never.
        """
        binding = tuple(
            n for n, keep in enumerate(self.kept) if keep.binds(key, priority) and not _in_time(gone_by, keep.until)
        )
        return self.among(binding)

    def among(self, binding: tuple[int, ...]) -> Kept:
        """What these keep, by their numbers."""
        if not binding:
            return NOTHING
        if binding not in self._known:
            self._known[binding] = Kept(len(self._known), (self.kept[n] for n in binding))
        return self._known[binding]

    def never_lent(self, kept: Kept) -> Kept:
        """Of these, what is kept until nobody knows when."""
        numbers = {id(keep) for keep in kept.values() if keep.until is None}
        return self.among(tuple(n for n, keep in enumerate(self.kept) if id(keep) in numbers))

    def reserved_for_others(self, key: str) -> frozenset[str]:
        """Nodes that others leave for somebody else than this job: it may start on them, but nothing is to be gathered there, or
        they would be left in vain, and again and again."""
        return frozenset[str]().union(*(nodes for other, nodes in self.reserved.items() if other != key))

    def lent(self, key: str, priority: int, nodes: Iterable[str]) -> float | None:
        """When the first of these nodes, which are kept for others, is needed; None where none is."""
        wanted = frozenset(nodes)
        return min(
            (k.until for k in self.kept if k.until and k.binds(key, priority) and k.nodes & wanted), default=None
        )


def _in_time(gone_by: float | None, until: float | None) -> bool:
    return gone_by is not None and until is not None and gone_by <= until


def rooms(inventory: Inventory, world: World, leaving: Iterable[str]) -> Room:
    """The room of a world. leaving: uids of the pods whose end is decided."""
    room = Room(now=View(inventory), soon=View(inventory))
    for uid in leaving:
        pod = world.pods.get(uid)
        if pod is not None and pod.live:
            room.soon.give({place_of(pod): pod.requests})
    return room
