"""What an attempt consists of: the objects made of its reservation, again and again the same until all are there."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from trainyard.api.names import plan_name
from trainyard.api.training_job import NetworkStatus, PlannedPreflight, PlanSummary
from trainyard.contract.plan import Plan, digest
from trainyard.cycle import actions as act
from trainyard.cycle.outlook import site_of
from trainyard.cycle.proof import planned, section
from trainyard.cycle.wishes import likely_settings
from trainyard.lifecycle.roster import numbers
from trainyard.network.derive import settings_for
from trainyard.network.explain import told
from trainyard.network.settings import MOST_WARNINGS, Settings
from trainyard.planner import rank as ranks
from trainyard.planner.parallelism import estimate, mesh_of
from trainyard.planner.place import Placement
from trainyard.planner.traffic import Mesh
from trainyard.render.channel import compute_domain
from trainyard.render.objects import control, plan_map, service
from trainyard.render.plan import plan_for
from trainyard.render.pod import pods, trial_pod
from trainyard.topology.tree import Tree
from trainyard.world.inventory import Inventory
from trainyard.world.records import Job, Manifest, World


def make_members(
    world: World, tree: Tree, job: Job, present: Collection[int], left: Collection[int]
) -> list[act.Action]:
    """Make what an attempt that was opened lacks. present: node ranks whose pods exist. left: attempts whose plans nobody mounts
    any more.

    What the members need comes before them: a pod must find its plan, its key and the names of its peers when it starts. What is
    left of earlier attempts goes first, since pods may be refused again and again.
    """
    plan, settings = _plan(world, tree, job), _settings(world, job)
    made: list[act.Action] = [
        *(act.DeletePlan(job.namespace, plan_name(job.name, attempt)) for attempt in left),
        act.CreateControl(control(job), job.uid),
        act.Create(service(job)),
        act.Create(plan_map(job, plan)),
        *([act.Create(compute_domain(job))] if settings.channel else []),
    ]
    missing = (rank for rank in range(len(plan.members)) if rank not in present)
    return made + [act.Create(manifest) for manifest in pods(job, plan, missing, settings, world.launcher_image)]


def plan_of(world: World, tree: Tree, job: Job) -> Plan | None:
    """The plan of an opened attempt; None where it would be another now than the status says, and so nobody's to be told."""
    if job.status.reservation is None or job.status.plan is None:
        return None
    plan = _plan(world, tree, job)
    return plan if digest(plan) == job.status.plan.digest else None


def summary(world: World, tree: Tree, job: Job) -> PlanSummary:
    """The plan of an opened attempt in numbers."""
    assert job.spec is not None
    reserved = job.status.reservation
    assert reserved is not None
    placed = _placement(tree, job)
    site = site_of(world, tree, job, placed.nodes)
    mesh = mesh_of(job.spec, site)
    found = estimate(job.spec, site, mesh=mesh)
    predicted, share = found.summary, found.summary.communication_share
    proof = planned(world, tree, job, placed.nodes)
    return PlanSummary(
        nodes=len(placed.nodes),
        span=placed.span,
        spans=dict(placed.spans),
        ring_edges=dict(placed.crossings),
        mesh=dict(mesh.axes),
        digest=digest(_plan(world, tree, job, mesh, proof)),
        spares=reserved.spares,
        quality=reserved.quality,
        predicted_bus_bandwidth=float(f"{predicted.bus_bandwidth:.4g}"),
        communication_share=float(f"{share:.3g}") if share is not None else None,
        bottleneck=predicted.bottleneck,
        preflight=proof,
    )


def outdated(world: World, tree: Tree, job: Job) -> bool:
    """Whether the plan of an opened attempt would be another now than the status says: a node went, its labels changed, or the
    specification did, between the two."""
    plan = job.status.plan
    return plan is not None and digest(_plan(world, tree, job)) != plan.digest


def warnings(world: World, job: Job) -> tuple[str, ...]:
    """What the user had better change about the settings of the job's network libraries."""
    return _settings(world, job).warnings


def over_sockets(world: World, job: Job) -> str:
    """What of the job switches the fast network of its nodes off, "" where nothing does."""
    return _settings(world, job).over_sockets


def network_of(world: World, job: Job) -> NetworkStatus:
    """What the members of an opened attempt are told of their network, for the status."""
    settings = _settings(world, job)
    written = max((len(own) for own in settings.by_node.values()), default=0) + len(settings.settings)
    assert job.spec is not None
    assert job.status.reservation is not None
    return NetworkStatus(
        fabric=settings.network,
        settings=written,
        variables=told(settings, job.spec, tuple(dict.fromkeys(job.status.reservation.nodes))),
        warnings=settings.warnings[:MOST_WARNINGS],
    )


def obstacle(world: World, job: Job, names: Sequence[str] | None = None) -> str:
    """Why these nodes should not train together, "" where nothing is in the way. names: left out, those of the opened attempt."""
    if names is None:
        return _settings(world, job).problem
    assert job.spec is not None
    nodes = [world.nodes[name] for name in dict.fromkeys(names) if name in world.nodes]
    return settings_for(job.spec, nodes, world.fabrics).problem


def sample(world: World, inventory: Inventory, job: Job) -> Manifest:
    """A pod as the members will be, for the API server to look at."""
    reserved = job.status.reservation is not None
    settings = _settings(world, job) if reserved else likely_settings(inventory, world.fabrics, job)
    return trial_pod(job, settings, world.launcher_image)


def _plan(world: World, tree: Tree, job: Job, mesh: Mesh | None = None, proof: PlannedPreflight | None = None) -> Plan:
    """The same again and again: mesh and proof are those of the status, once they stand there."""
    assert job.spec is not None
    placed, known = _placement(tree, job), job.status.plan
    if mesh is None and known is not None and known.mesh:
        mesh = Mesh(**known.mesh)
    mesh = mesh or mesh_of(job.spec, site_of(world, tree, job, placed.nodes))
    asked = section(job, placed.nodes, known.preflight if known is not None else proof)
    return plan_for(job, job.status.attempt, placed, tree, numbers(job), mesh=mesh, preflight=asked)


def _placement(tree: Tree, job: Job) -> Placement:
    """What was reserved, as it lies in the tree. A node that has gone meanwhile lies nowhere, and its pod will not be bound."""
    assert job.status.reservation is not None
    nodes = job.status.reservation.nodes
    known = [node for node in nodes if node in tree.paths]
    return Placement(nodes, ranks.spans(tree, known), ranks.crossings(tree, known))


def _settings(world: World, job: Job) -> Settings:
    """By the network that the job's nodes are on."""
    assert job.spec is not None
    assert job.status.reservation is not None
    nodes = [world.nodes[name] for name in dict.fromkeys(job.status.reservation.nodes) if name in world.nodes]
    return settings_for(job.spec, nodes, world.fabrics)
