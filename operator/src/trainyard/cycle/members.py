"""What an attempt consists of: the objects made of its reservation, again and again the same until all are there."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from trainyard.api.training_job import PlanSummary
from trainyard.contract.plan import Plan, digest
from trainyard.cycle import actions as act
from trainyard.lifecycle.gang import first_member
from trainyard.network.choice import Unclear, choose_network, likeliest
from trainyard.network.derive import derive
from trainyard.network.settings import Settings
from trainyard.planner import rank as ranks
from trainyard.planner.place import Placement
from trainyard.render.objects import control, plan_map, service
from trainyard.render.plan import plan_for
from trainyard.render.pod import pods, trial_pod
from trainyard.topology.tree import Tree
from trainyard.world.records import Job, Manifest, World


def make_members(world: World, tree: Tree, job: Job, present: Collection[int]) -> list[act.Action]:
    """Make what an attempt that was opened lacks. present: node ranks whose pods exist.

    What the members need comes before them: a pod must find its plan, its key and the names of its peers when it starts.
    """
    plan, settings = _plan(tree, job), _settings(world, job)
    made: list[act.Action] = [
        act.CreateControl(control(job), job.uid),
        act.Create(service(job)),
        act.Create(plan_map(job, plan)),
    ]
    missing = (rank for rank in range(len(plan.members)) if rank not in present)
    return made + [act.Create(manifest) for manifest in pods(job, plan, missing, settings)]


def summary(tree: Tree, job: Job) -> PlanSummary:
    """The plan of an opened attempt in numbers."""
    placed = _placement(tree, job)
    return PlanSummary(
        nodes=len(placed.nodes),
        span=placed.span,
        spans=dict(placed.spans),
        ring_edges=dict(placed.crossings),
        digest=digest(_plan(tree, job)),
        spares=job.status.reservation.spares if job.status.reservation is not None else (),
    )


def warnings(world: World, job: Job) -> tuple[str, ...]:
    """What the user had better change about the settings of the job's network libraries."""
    return _settings(world, job).warnings


def sample(world: World, job: Job) -> Manifest:
    """A pod as the members will be, for the API server to look at."""
    return trial_pod(job, _settings(world, job))


def _plan(tree: Tree, job: Job) -> Plan:
    return plan_for(job, job.status.attempt, _placement(tree, job), tree, first_member(job))


def _placement(tree: Tree, job: Job) -> Placement:
    """What was reserved, as it lies in the tree. A node that has gone meanwhile lies nowhere, and its pod will not be bound."""
    assert job.status.reservation is not None
    nodes = job.status.reservation.nodes
    known = [node for node in nodes if node in tree.paths]
    return Placement(nodes, ranks.spans(tree, known), ranks.crossings(tree, known))


def _settings(world: World, job: Job) -> Settings:
    """By the network that the job's nodes are on; while it has none, by that of most nodes.

    Nodes that are on several are the problem of the job, which the settings tell of; they are then those of the most.
    """
    assert job.spec is not None
    reserved = job.status.reservation
    names = tuple(world.nodes) if reserved is None else dict.fromkeys(reserved.nodes)
    nodes = [world.nodes[name] for name in names if name in world.nodes]
    network = likeliest(nodes, world.fabrics)
    settings = derive(network, job.spec, nodes)
    clear = choose_network(nodes, world.fabrics) if reserved is not None else network
    if isinstance(clear, Unclear):
        return replace(settings, problem=clear.message, warnings=(clear.message, *settings.warnings))
    return settings
