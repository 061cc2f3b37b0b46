"""What the gang of an attempt is to prove before its first step: how fast it should be, and which of its nodes are measured.

Worked out once, when the attempt is opened, and kept in its status: a plan is made several times, and must be the same each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from trainyard.api.fabric import FabricKind
from trainyard.api.training_job import PlannedPreflight
from trainyard.contract.preflight import Preflight
from trainyard.cycle.outlook import site_of
from trainyard.lifecycle import unfit
from trainyard.network.container import Backend, pod_of
from trainyard.planner import collectives
from trainyard.planner.collectives import Collective, Group
from trainyard.planner.links import Links
from trainyard.planner.machines import UNKNOWN, UNKNOWN_TCP
from trainyard.topology.fabrics import choose
from trainyard.topology.tree import Tree
from trainyard.world.capacity import place_of
from trainyard.world.kinds import takes_accelerators
from trainyard.world.records import Job, World

LEAST_BYTES: Final = 4 * 2**20
MOST_BYTES: Final = 2**30
"""A fast network shows what it can only then: 32 B200 reach 229 GB/s at 256 MiB and 362 at 1 GiB, where the model says 297 and
357 (tests/unit/planner/measured.py)."""
LONG_ENOUGH_SECONDS: Final = 0.02
"""A message that takes less is mostly latency, which the model knows worse than bandwidth."""
LOST_SECONDS: Final = 30.0
"""A message is lost no earlier: an adapter sends one again after 4 to 17 s (timeouts of 20 to 22), TCP after seconds as well."""
LOST_TIMES: Final = 8
"""How often the whole message goes by in a measurement, from its smallest part to its repetitions, and some more."""
LOST_SECONDS_PER_RANK: Final = 0.005
"""A communicator takes longer to be made the more ranks it has."""


def planned(world: World, tree: Tree, job: Job, nodes: Sequence[str]) -> PlannedPreflight | None:
    """What a gang on these nodes, in rank order, should reach; None where it proves nothing.

    By the specification alone, though plans are made by what was observed: else a link that gets slower and slower would pass
    each time, as slow as it was the last. Nothing is expected of a network that nobody described: a guess would blame nodes for
    being what they are.
    """
    assert job.spec is not None
    if not job.spec.network.preflight or len(nodes) < 2:
        return None
    site = site_of(world, tree, job, nodes, as_said=True)
    found = site.predictor.step()
    links, whole = site.links, found.whole
    if not _described(world, job, nodes, links):
        return PlannedPreflight(message_bytes=LEAST_BYTES)
    size = LEAST_BYTES
    while size < MOST_BYTES and _seconds(whole, size) < LONG_ENOUGH_SECONDS:
        size *= 2
    return PlannedPreflight(
        message_bytes=size,
        expected_seconds=float(f"{_seconds(whole, size):.6g}"),
        edge_bytes_per_second=tuple(_edges(links)),
        alone=links.declared and _all_declared(tree, nodes, links) and not _shared(world, tree, job, nodes),
        bottleneck=found.bottleneck,
    )


def section(job: Job, nodes: Sequence[str], asked: PlannedPreflight | None) -> Preflight | None:
    """The plan's section, of the nodes of an opened attempt in rank order. Who passed within the hour is not measured again."""
    if asked is None:
        return None
    fit = unfit.proven(job.status)
    fresh = tuple(rank for rank, node in enumerate(nodes) if node not in fit)
    assert job.spec is not None
    ranks = len(nodes) * job.spec.processes
    sent = LOST_TIMES * (asked.expected_seconds or 0.0)
    return Preflight(
        message_bytes=asked.message_bytes,
        expected_seconds=asked.expected_seconds,
        edge_bytes_per_second=asked.edge_bytes_per_second,
        nodes=None if len(fresh) == len(nodes) else fresh,
        alone=asked.alone,
        lost_seconds=round(LOST_SECONDS + LOST_SECONDS_PER_RANK * ranks + sent, 3),
    )


def _seconds(whole: Group, size: int) -> float:
    return collectives.seconds(Collective.ALL_REDUCE, whole, size)


def _described(world: World, job: Job, nodes: Iterable[str], links: Links) -> bool:
    """Whether what the collectives run over is known: that of the machine, or as an administrator said. Collectives of gloo take
    sockets, whatever adapters the machine has."""
    assert job.spec is not None
    if pod_of(job.spec).backend is Backend.NCCL:
        return links.declared or links.source not in (UNKNOWN.source, UNKNOWN_TCP.source)
    fabric = choose([world.nodes[name] for name in nodes if name in world.nodes], world.fabrics.values())
    return links.declared and fabric is not None and fabric.spec.kind is FabricKind.TCP


def _edges(links: Links) -> Iterable[float]:
    """Nothing is said of a way up whose links nobody described, nor of one that does not go over the nodes' interfaces."""
    for depth in range(len(links.levels) + 1):
        joined = links.joined is not None and depth >= links.joined
        known = not joined and all(uplink.declared for uplink in links.uplinks[depth:])
        yield float(f"{links.edge(depth).bytes_per_second:.6g}") if known else 0.0


def _all_declared(tree: Tree, nodes: Sequence[str], links: Links) -> bool:
    """Whether all links that the gang uses are."""
    paths = {tree.paths.get(node, ()) for node in nodes}
    return all(
        uplink.declared or len({path[:depth] for path in paths}) == 1
        for depth, uplink in enumerate(links.uplinks, start=1)
    )


def _shared(world: World, tree: Tree, job: Job, nodes: Sequence[str]) -> bool:
    """Whether others may be sending over the same links: other trainers on these nodes; gangs across domains, if this one is."""
    ours = frozenset(nodes)
    for pod in world.pods.values():
        own = pod.membership is not None and pod.membership.job_uid == job.uid
        trains = pod.membership is not None or takes_accelerators(pod.requests)
        if pod.live and not own and trains and place_of(pod) in ours:
            return True
    if len({tree.paths.get(node, ()) for node in nodes}) == 1:
        return False
    others = (other.status for other in world.jobs.values() if other.uid != job.uid)
    return any(
        status.started_at is not None and status.plan is not None and any(n > 1 for n in status.plan.spans.values())
        for status in others
    )
