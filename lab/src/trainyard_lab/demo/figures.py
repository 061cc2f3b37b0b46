"""The table at the end: what was lost, how long things took, and what the planned order was worth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trainyard.planner.rank import crossings
from trainyard.topology.tree import Level, Tree, build

from trainyard_lab.demo.observe import Snapshot
from trainyard_lab.fabric import Node, Topology
from trainyard_lab.labels import LEAF, SPINE, labels


@dataclass(frozen=True, slots=True)
class Labelled:
    """A node as the topology reads it."""

    name: str
    labels: Mapping[str, str]


def tree_of(topology: Topology) -> Tree:
    """The lab's network as the operator sees it."""
    nodes = (Labelled(node.name, labels(node)) for node in topology.nodes)
    return build(nodes, (Level("spine", SPINE), Level("leaf", LEAF)))


def ring_edges(tree: Tree, nodes: Sequence[str], order: Sequence[int]) -> int:
    """How many edges of the closed ring leave a leaf when ranks follow an order of these nodes."""
    return crossings(tree, [nodes[rank] for rank in order])["leaf"]


def ring_seconds(topology: Topology, nodes: Sequence[str], order: Sequence[int], message_bytes: float) -> float:
    """The ring model of an all-reduce: 2 (n - 1) / n of the message over each edge, links shared by the edges that cross them.

    The slowest link decides: a node's own, or a leaf's or spine's uplink divided among the ring edges that leave through it
    (each direction by itself). Bandwidth alone; latency is nothing beside these messages.
    """
    by_name = {node.name: node for node in topology.nodes}
    ring = [by_name[nodes[rank]] for rank in order]
    load = _uplinks(ring)
    bits = 8 * 2 * (len(ring) - 1) / len(ring) * message_bytes
    rates = [float(topology.node_bits_per_second)]
    rates += [_rate(topology, link) / count for link, count in load.items()]
    return bits / min(rates)


def _uplinks(ring: Sequence[Node]) -> Mapping[tuple[str, str], int]:
    """For each uplink how many edges of the closed ring go up through it. What goes up once comes down once."""
    load: dict[tuple[str, str], int] = {}
    for here, there in zip(ring, (*ring[1:], ring[0]), strict=True):
        if here.leaf != there.leaf:
            load["leaf", here.leaf] = load.get(("leaf", here.leaf), 0) + 1
        if here.spine != there.spine:
            load["spine", here.spine] = load.get(("spine", here.spine), 0) + 1
    return load


def _rate(topology: Topology, link: tuple[str, str]) -> float:
    return topology.leaf_bits_per_second if link[0] == "leaf" else topology.spine_bits_per_second


@dataclass(frozen=True, slots=True)
class Times:
    """Instants of a preemption in seconds since the epoch, None where they were not seen.

    notice: the victim's stop was recorded. durable: its checkpoint was. free: the urgent job's attempt was opened, which is
    when its nodes were free. first_step: the urgent job finished its first step.
    """

    notice: float | None = None
    durable: float | None = None
    free: float | None = None
    first_step: float | None = None

    @property
    def to_durable(self) -> float | None:
        """Seconds from notice to durable checkpoint."""
        return _between(self.notice, self.durable)

    @property
    def to_first_step(self) -> float | None:
        """Seconds from nodes free to first new step."""
        return _between(self.free, self.first_step)


def times(seen: Iterable[Snapshot], victim: str, urgent: str) -> Times:
    """Read off the looks: the first time that a fact was there, as the cluster dated it."""
    notice = durable = free = first_step = None
    for snapshot in seen:
        v, u = snapshot.jobs.get(victim), snapshot.jobs.get(urgent)
        if v is not None and v.attempt == 1:
            notice = notice or v.instant("stop", "requestedAt")
        if v is not None and notice is not None and durable is None:
            saved = v.instant("checkpoint", "time")
            durable = saved if saved is not None and saved >= notice else None
        if u is not None:
            free = free or u.instant("startedAt")
        spoken = [pod.words.first_step_time for pod in snapshot.members(urgent) if pod.words is not None]
        first_step = first_step or min((t for t in spoken if t is not None), default=None)
    return Times(notice, durable, free, first_step)


def _between(earlier: float | None, later: float | None) -> float | None:
    return None if earlier is None or later is None else later - earlier


def table(rows: Sequence[tuple[str, str]]) -> str:
    """Two columns with a rule above and below."""
    left = max(len(name) for name, _ in rows)
    right = max(len(value) for _, value in rows)
    rule = "-" * (left + right + 2)
    return "\n".join([rule, *(f"{name:<{left}}  {value}" for name, value in rows), rule])


def seconds(value: float | None) -> str:
    """With one decimal; `not seen` where a look came too late."""
    return "not seen" if value is None else f"{value:.1f} s"
