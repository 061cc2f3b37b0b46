"""What gangs found of the network before their first step, into the table of the Fabric that they are on.

Only gangs that passed or were warned say something of a level. One that failed names the nodes that are to blame, or nobody: a
bad node is not a bad level, and what a gang that is to start elsewhere saw is not what the others have.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from trainyard.api.fabric import FabricKind, ObservedBy, ObservedLink
from trainyard.api.training_job import PlannedPreflight, PreflightStatus
from trainyard.contract.preflight import Finding
from trainyard.cycle import actions as act
from trainyard.cycle.outlook import links_on
from trainyard.lifecycle.gang import Gang
from trainyard.network.container import Backend, pod_of
from trainyard.planner.links import joined_at
from trainyard.topology.fabrics import choose
from trainyard.topology.tree import Tree
from trainyard.world.observed import NODE, fresh, with_links
from trainyard.world.records import Fabric, Job, World

TAKEN_IN_SECONDS: Final = 600.0
"""For so long after a preflight what it found is taken in: an operator that was down longer has missed it, and one that is not
need not look at every job of the cluster in every cycle."""


def observe(world: World, tree: Tree, gangs: Mapping[str, Gang], now: float) -> list[act.Turn]:
    """What is to be written into the tables; nothing where they hold it already."""
    found: dict[str, list[ObservedLink]] = defaultdict(list)
    recent = [job for job in world.jobs.values() if _recent(job, now)]
    for job in sorted(recent, key=lambda job: job.key):
        nodes = [node for node in dict.fromkeys(gangs[job.uid].nodes) if node in world.nodes]
        rows = tuple(rows_of(tree, job, len(nodes)))
        fabric = choose([world.nodes[node] for node in nodes], world.fabrics.values()) if rows else None
        if fabric is not None and job.spec is not None and tells_of(fabric, pod_of(job.spec).backend):
            found[fabric.name] += rows
    turns = []
    for name, rows_found in sorted(found.items()):
        fabric = world.fabrics[name]
        if fabric.observed is None:
            continue  # a newer operator's words
        observed = with_links(fabric.observed, rows_found)
        if observed.links != fabric.observed.links:
            of = replace(fabric, observed=observed)
            observed = observed.but(summary=summary(world, tree, of, now))
            write = act.WriteObserved(name, fabric.uid, fabric.resource_version, observed)
            turns.append(act.Turn(fabric.uid, (write,)))
    return turns


def over_interfaces(tree: Tree) -> list[str]:
    """By depth, the levels at which nodes talk over their interfaces: within an NVLink domain they talk over that."""
    names = [*(level.name for level in tree.levels), NODE]
    return names[: joined_at(tree.levels)]


def tells_of(fabric: Fabric, backend: str) -> bool:
    """Whether what goes over a backend goes over the fabric: gloo's messages take sockets, whatever adapters there are."""
    return backend != Backend.GLOO or fabric.spec.kind is FabricKind.TCP


def summary(world: World, tree: Tree, fabric: Fabric, now: float) -> str:
    """By level, the share of what is declared that one node of a fabric was seen to send."""
    aged = fresh(World(nodes=world.nodes, fabrics={fabric.name: fabric}), now).fabrics[fabric.name]
    return links_on(world, tree, aged).seen[:1024]


def _recent(job: Job, now: float) -> bool:
    network = job.status.network
    found = network.preflight if network is not None else None
    return found is not None and found.time is not None and now - found.time <= TAKEN_IN_SECONDS


def rows_of(tree: Tree, job: Job, nodes: int) -> Iterator[ObservedLink]:
    """What the preflight of a job's attempt, on so many nodes, says of each level."""
    plan, network = job.status.plan, job.status.network
    found = network.preflight if network is not None else None
    if plan is None or plan.preflight is None or found is None or found.time is None or not nodes:
        return
    if found.finding not in (Finding.PASSED, Finding.WARNED):
        return
    names = [*(level.name for level in tree.levels), NODE]
    seen = dict(zip(names, found.edge_bytes_per_second, strict=False))
    if len(found.edge_bytes_per_second) not in (0, len(names)):
        return  # the labels tell of another tree than it was measured in
    held_up = _held_up(names, plan.preflight, found)
    for level in over_interfaces(tree):
        bandwidth = seen.get(level) or held_up.get(level, 0.0)
        if bandwidth > 0.0:
            yield ObservedLink(
                level=level,
                bandwidth=float(f"{bandwidth:.4g}"),
                by=ObservedBy.PREFLIGHT,
                job=job.key,
                nodes=nodes,
                time=found.time,
            )


def _held_up(names: list[str], planned: PlannedPreflight, found: PreflightStatus) -> dict[str, float]:
    """What an all-reduce that passed says of the level by which it is held up: that carried the same share of what it should.

    One that was warned of says nothing by itself. A single slow node slows all; one of a gang that passed can make the level seem
    slower by a fifth at most.
    """
    if found.finding != Finding.PASSED or not found.bus_bandwidth or not found.expected_bus_bandwidth:
        return {}
    expected = dict(zip(names, planned.edge_bytes_per_second, strict=False))
    if len(planned.edge_bytes_per_second) != len(names) or not expected.get(planned.bottleneck):
        return {}
    return {planned.bottleneck: expected[planned.bottleneck] * found.bus_bandwidth / found.expected_bus_bandwidth}
