"""The clusters and jobs on which the planner's speed is measured: sizes and shares as in the names of the figures, all from
seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from trainyard.planner.loss import loss
from trainyard.planner.preempt import Candidate
from trainyard.planner.request import Request
from trainyard.world.records import Node, Pod, Taint, World

from benchmarks.clusters import GPU, MEMBER, fat_tree, foreign, occupied, world

SIZES: Final = (1, 1, 2, 2, 4, 4, 8)
"""Of the jobs that hold nodes: the mean is just above 3."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How large the clusters are: 1 for the figures, less to see that a benchmark works at all. runs: of each timing."""

    factor: float = 1.0
    runs: int = 7

    def of(self, count: int, least: int = 1) -> int:
        """So many at this scale."""
        return max(least, round(count * self.factor))


def gang(nodes: int, level: str | None = None, required: bool = False) -> Request:
    """A gang with one member on each node."""
    return Request("benchmark/gang", nodes, MEMBER, level=level, required=required)


def half_taken(nodes: int, seed: int) -> World:
    """A fat tree with half of its nodes taken at random."""
    return occupied(fat_tree(nodes), 0.5, seed)


def pod_appears(before: World, number: int, seed: int) -> World:
    """The next world: a foreign pod is bound to a node that was free."""
    taken = {pod.node for pod in before.pods.values()}
    free = [name for name, node in before.nodes.items() if name not in taken and node.ready]
    pod = foreign(before.nodes[Random(seed + number).choice(free)], f"late-{number}")
    return replace(before, pods={**before.pods, pod.uid: pod})


def pod_ends(before: World, where: Callable[[str], bool]) -> World:
    """The next world: the first foreign pod on such a node is gone."""
    uid = next(uid for uid, pod in before.pods.items() if pod.namespace == "other" and where(pod.node))
    return replace(before, pods={key: pod for key, pod in before.pods.items() if key != uid})


def node_not_ready(before: World, number: int, seed: int) -> World:
    """The next world: a node turns NotReady."""
    name = Random(seed + number).choice([name for name, node in before.nodes.items() if node.ready])
    return replace(before, nodes={**before.nodes, name: replace(before.nodes[name], ready=False)})


def node_relabelled(before: World, number: int, seed: int) -> World:
    """The next world: somebody labels a node with something that has nothing to do with the network."""
    name = Random(seed + number).choice([*before.nodes])
    node = before.nodes[name]
    labels = {**node.labels, "example.com/note": str(number)}
    return replace(before, nodes={**before.nodes, name: replace(node, labels=labels)})


def node_leaves(before: World, number: int, seed: int) -> World:
    """The next world: a node on which nothing runs is gone."""
    taken = {pod.node for pod in before.pods.values()}
    name = Random(seed + number).choice([name for name in before.nodes if name not in taken])
    return replace(before, nodes={key: node for key, node in before.nodes.items() if key != name})


def started(before: World, nodes: Sequence[str], name: str = "gang") -> World:
    """The next world: a gang has its pods, one on each node."""
    pods = (Pod("team", f"{name}-{n}", f"uid-{name}-{n}", 0.0, node, "Running", MEMBER) for n, node in enumerate(nodes))
    return replace(before, pods={**before.pods, **{pod.uid: pod for pod in pods}})


def flawed(nodes: Sequence[Node], seed: int) -> tuple[Node, ...]:
    """The same nodes, of which 1 % are cordoned, 1 % tainted and 0.5 % not ready."""
    random = Random(seed)

    def flaw(node: Node) -> Node:
        drawn = random.random()
        if drawn < 0.01:
            return replace(node, unschedulable=True)
        if drawn < 0.02:
            return replace(node, taints=(Taint("example.com/broken", "", "NoSchedule"),))
        return replace(node, ready=False) if drawn < 0.025 else node

    return tuple(flaw(node) for node in nodes)


@dataclass(frozen=True, slots=True)
class Holding:
    """A job that holds nodes: as a victim may be, and with its pods."""

    candidate: Candidate
    pods: tuple[Pod, ...]


def holdings(nodes: Sequence[Node], jobs: int, seed: int, scattered: bool) -> tuple[Holding, ...]:
    """So many jobs that fill all of these nodes between them, of sizes drawn from SIZES and then adjusted.

    scattered: each job's nodes are drawn from all; else they are neighbours, as after good placement. One job in four may run
    with half of its nodes. All are saved every half an hour, and run for up to a day.
    """
    random = Random(seed)
    free = random.sample(nodes, len(nodes)) if scattered else [*nodes]
    return tuple(_holding(number, part, random) for number, part in enumerate(_parts(free, jobs, random)))


def _parts(nodes: Sequence[Node], jobs: int, random: Random) -> Iterator[Sequence[Node]]:
    sizes = [random.choice(SIZES) for _ in range(jobs)]
    while sum(sizes) < len(nodes):
        sizes[random.randrange(jobs)] += 1
    while sum(sizes) > len(nodes):
        sizes[max(range(jobs), key=sizes.__getitem__)] -= 1
    first = 0
    for size in sizes:
        yield nodes[first : first + size]
        first += size


def _holding(number: int, nodes: Sequence[Node], random: Random) -> Holding:
    name = f"job-{number}"
    started = -random.uniform(0, 86_400)
    saved = max(started, -random.uniform(0, 1800))
    candidate = Candidate(
        uid=f"uid-{name}",
        key=f"team/{name}",
        priority=random.choice([0, 0, 0, 10, 20]),
        started=started,
        usage={node.name: MEMBER for node in nodes},
        accelerators=MEMBER[GPU] * len(nodes),
        loss=loss(started, 0.0, checkpointed=saved),
        at_least=len(nodes) // 2 if len(nodes) > 1 and random.random() < 0.25 else None,
    )
    pods = tuple(
        Pod("team", f"{name}-{rank}", f"uid-{name}-{rank}", started, node.name, "Running", MEMBER)
        for rank, node in enumerate(nodes)
    )
    return Holding(candidate, pods)


def tenanted(nodes: Sequence[Node], held: Sequence[Holding]) -> World:
    """The world of these nodes and the pods of those who hold some."""
    return world(nodes, (pod for holding in held for pod in holding.pods))
