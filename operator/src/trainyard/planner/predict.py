"""How long a gang's communication takes on the nodes that it has, in the order of its ranks; and where it is held up.

Groups of one axis of the mesh work side by side, so they share: the interfaces of a node among all rings that leave it, the
uplink of a domain among all that leave the domain. A ring is as fast as its slowest edge. Axes are added up, as if one followed
the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from trainyard.planner import collectives
from trainyard.planner.collectives import Collective, Group
from trainyard.planner.links import Link, Links
from trainyard.planner.traffic import GANG, Traffic
from trainyard.topology.tree import Tree

NOMINAL_BYTES: Final = 2**30
"""Size of the all-reduce that a gang's bus bandwidth is predicted for: large enough that latencies hardly count."""

NODE: Final = "node"
"""The bottleneck where it is the nodes' own interfaces."""
INSIDE: Final = "inside the node"
"""The bottleneck where it is the way between the processes of a node."""


@dataclass(frozen=True, slots=True)
class Timed:
    """One entry of the traffic with what it takes in each step."""

    traffic: Traffic
    seconds: float


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one step. exposed: communication that nothing is computed beside; share: of the step that is so."""

    compute_seconds: float
    exposed_seconds: float

    @property
    def seconds(self) -> float:
        return self.compute_seconds + self.exposed_seconds

    @property
    def share(self) -> float:
        """Between 0 and 1."""
        return self.exposed_seconds / self.seconds if self.seconds > 0.0 else 0.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a placement is worth.

    timed: the traffic with its seconds. bottleneck: the level whose uplinks hold up the ring over all nodes, `node` or `inside
    the node`. bus_bandwidth: of an all-reduce of 1 GiB over the whole gang, bytes a second; 0 for a single process.
    """

    timed: tuple[Timed, ...]
    bottleneck: str
    bus_bandwidth: float
    whole: Group = field(repr=False)

    @property
    def seconds(self) -> dict[str, float]:
        """Of communication in a step, by axis."""
        total: dict[str, float] = {}
        for timed in self.timed:
            total[timed.traffic.axis] = total.get(timed.traffic.axis, 0.0) + timed.seconds
        return total

    def step(self, compute_seconds: float) -> StepTime:
        """A step that computes for so long. What can overlap with computing does so as far as the computing lasts; whatever
        cannot, and the rest, is exposed."""
        beside = sum(timed.seconds for timed in self.timed if timed.traffic.overlaps)
        alone = sum(timed.seconds for timed in self.timed if not timed.traffic.overlaps)
        return StepTime(compute_seconds, alone + max(0.0, beside - compute_seconds))


class Predictor:
    """Of a gang on the nodes that it has, for whatever its processes send: any mesh of them goes over the same links.

    nodes: of the members in rank order; a node with several members stands there several times. processes_per_node: of each
    member. others: by number of a domain of the tree's index, how many jobs besides this one send over its uplink.
    A node that the tree does not hold shares no domain with any other.
    """

    def __init__(
        self,
        links: Links,
        tree: Tree,
        nodes: Sequence[str],
        processes_per_node: int = 1,
        others: Mapping[int, int] | None = None,
    ) -> None:
        self._network = network = _Network(links, tree, nodes, others or {})
        self._per_node, self._world = processes_per_node, len(nodes) * processes_per_node
        self._whole = network.rings([_Ring(network.sequence(range(len(nodes)), 1), self._world, 1)])[0]
        self._groups: dict[tuple[int, int, bool], list[Group]] = {(self._world, 1, False): [self._whole.group]}

    def step(self, traffic: Sequence[Traffic] = ()) -> Prediction:
        """The prediction for a step. traffic: with sizes and strides in ranks of processes; without any, one all-reduce of 1 GiB
        over all. Raises ValueError for an axis that does not divide the processes."""
        world, whole = self._world, self._whole
        message = collectives.seconds(Collective.ALL_REDUCE, whole.group, NOMINAL_BYTES)
        factor = collectives.bus_factor(Collective.ALL_REDUCE, world)
        wanted = traffic or (Traffic(GANG, Collective.ALL_REDUCE, world, 1, NOMINAL_BYTES),)
        return Prediction(
            timed=tuple(Timed(entry, self._seconds(entry)) for entry in wanted),
            bottleneck=whole.bottleneck,
            bus_bandwidth=factor * NOMINAL_BYTES / message if message > 0.0 else 0.0,
            whole=whole.group,
        )

    def _seconds(self, entry: Traffic) -> float:
        links = self._network.links
        if entry.collective is Collective.STORE:
            alone = Group(self._per_node, 1, links.node, links.inside)
            return collectives.seconds(entry.collective, alone, entry.bytes) * entry.count
        if entry.size < 2:
            return 0.0
        key = (entry.size, entry.stride, entry.collective is Collective.SEND_RECEIVE)
        if key not in self._groups:
            self._groups[key] = _groups(self._network, self._world, self._per_node, *key)
        slowest = max(collectives.seconds(entry.collective, group, entry.bytes) for group in self._groups[key])
        return slowest * entry.count


@dataclass(frozen=True, slots=True)
class Summary:
    """What the status says of a prediction. bus_bandwidth: bytes a second; communication_share: of a step, None where it is not
    known how long it computes."""

    bus_bandwidth: float
    communication_share: float | None
    bottleneck: str


def summary(prediction: Prediction, compute_seconds: float | None = None) -> Summary:
    """The numbers for the status. compute_seconds: of a step; None where nothing is known of the model."""
    share = None if compute_seconds is None else prediction.step(compute_seconds).share
    return Summary(prediction.bus_bandwidth, share, prediction.bottleneck)


@dataclass(frozen=True, slots=True)
class _Ring:
    """A group, or several that use the same nodes in the same order. nodes: positions, each once per stay, and one for all of a
    domain that the accelerators' links join; members: of one group; times: how many such groups there are. open: the last node
    sends nothing to the first, and all send both ways."""

    nodes: tuple[int, ...]
    members: int
    times: int
    open: bool = False

    def edges(self) -> Iterator[tuple[int, int]]:
        yield from pairwise(self.nodes)
        if self.open:
            yield from pairwise(self.nodes[::-1])
        elif len(self.nodes) > 1:
            yield self.nodes[-1], self.nodes[0]


@dataclass(frozen=True, slots=True)
class _Found:
    """A ring with what it can use of the network."""

    group: Group
    bottleneck: str


class _Network:
    """The domains around the nodes of one gang, by position; those of unknown nodes have numbers below zero."""

    def __init__(self, links: Links, tree: Tree, nodes: Sequence[str], others: Mapping[int, int]) -> None:
        index = tree.index
        self.links, self.index, self.others = links, index, others
        self.depth = len(tree.levels)
        unknown = {name: -n for n, name in enumerate(dict.fromkeys(n for n in nodes if n not in index.position), 1)}
        self.positions = [index.position[name] if name in index.position else unknown[name] for name in nodes]
        self.chains = {position: self._chain(position) for position in dict.fromkeys(self.positions)}
        self.latency = [links.edge(depth).latency_seconds for depth in range(self.depth + 1)]
        self.speaker, self.together = self._speakers()

    def _speakers(self) -> tuple[dict[int, int], dict[int, int]]:
        """For each node the one that stands for all that it is joined with; for each of those, how many it stands for."""
        if self.links.joined is None:
            return {p: p for p in self.chains}, dict.fromkeys(self.chains, 1)
        first: dict[int, int] = {}
        at = self.depth - self.links.joined
        speaker = {position: first.setdefault(chain[at], position) for position, chain in self.chains.items()}
        return speaker, Counter(speaker.values())

    def _chain(self, position: int) -> tuple[int, ...]:
        """The domains around a node, the narrowest first, without the whole cluster."""
        if position < 0:
            return (position,) * self.depth
        return tuple(self.index.around(position))[: self.depth]

    def sequence(self, ranks: Iterable[int], per_node: int) -> tuple[int, ...]:
        """The nodes on which these ranks are, in their order; neighbours on one node count once."""
        found: list[int] = []
        for rank in ranks:
            position = self.speaker[self.positions[rank // per_node]]
            if not found or found[-1] != position:
                found.append(position)
        if len(found) > 1 and found[0] == found[-1]:
            found.pop()
        return tuple(found)

    def crossed(self, a: int, b: int) -> Iterator[tuple[int, int]]:
        """The domains that the way from a to b leaves, with their depths, the narrowest first."""
        inner = 0 if self.links.joined is None else self.depth - self.links.joined
        for n, (ours, theirs) in enumerate(zip(self.chains[a], self.chains[b], strict=True)):
            if ours == theirs:
                return
            if n >= inner:
                yield ours, self.depth - n

    def rings(self, rings: Sequence[_Ring]) -> list[_Found]:
        """What each of some rings gets while all of them are busy."""
        leaving: Counter[tuple[int, int]] = Counter()  # (domain, depth); a node stands there with depth + 1
        for ring in rings:
            for a, b in ring.edges():
                leaving[a, self.depth + 1] += ring.times
                for crossed in self.crossed(a, b):
                    leaving[crossed] += ring.times
        share = {at: self._capacity(*at) / (flows + self.others.get(at[0], 0)) for at, flows in leaving.items()}
        return [self._found(ring, share) for ring in rings]

    def _capacity(self, domain: int, depth: int) -> float:
        if depth > self.depth:
            return self.links.node.bytes_per_second * self.together[domain]
        nodes = 1 if domain < 0 else self.index.domains[domain].end - self.index.domains[domain].first
        return self.links.capacity(depth, nodes)

    def _seen(self, depth: int, own: float) -> float:
        """What a ring can send out of a domain, where less was seen of one node than its share. own: of the node's interfaces."""
        seen = self.links.uplinks[depth - 1].per_node
        return float("inf") if seen is None else seen * own / self.links.node.bytes_per_second

    def _found(self, ring: _Ring, share: Mapping[tuple[int, int], float]) -> _Found:
        least, where, latency, count = float("inf"), self.depth + 1, 0.0, 0
        for a, b in ring.edges():
            count += 1
            narrowest = self.depth
            own = share[a, self.depth + 1]
            for at in ((a, self.depth + 1), *self.crossed(a, b)):
                carried = share[at]
                if at[1] <= self.depth:
                    narrowest = at[1] - 1
                    carried = min(carried, self._seen(at[1], own))
                if carried < least:
                    least, where = carried, at[1]
            latency += self.latency[narrowest]
        levels = self.links.levels
        between = Link(least, latency / count) if count else self.links.node
        group = Group(ring.members, max(1, len(ring.nodes)), between, self.links.inside, self.links.multicast)
        if count:
            return _Found(group, NODE if where > self.depth else levels[where - 1])
        joined = self.links.joined
        alone = joined is None or self.together[ring.nodes[0]] == 1
        return _Found(group, INSIDE if alone or joined is None else levels[joined - 1])


def _groups(network: _Network, world: int, per_node: int, size: int, stride: int, open_: bool) -> list[Group]:
    """The groups of an axis, those alike once."""
    if world % (size * stride):
        raise ValueError(f"an axis of {size} with stride {stride} does not divide {world} processes")
    alike = per_node if stride % per_node == 0 else 1  # the processes of a node then have the same neighbours
    rings: Counter[tuple[int, ...]] = Counter()
    for block in range(0, world, size * stride):
        for inner in range(0, stride, alike):
            first = block + inner
            rings[network.sequence(range(first, first + size * stride, stride), per_node)] += alike
    return list(
        dict.fromkeys(
            found.group for found in network.rings([_Ring(nodes, size, times, open_) for nodes, times in rings.items()])
        )
    )
