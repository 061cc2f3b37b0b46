"""A placement to the plan of an attempt: who is who, what is saved where, what is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainyard.api.model import duration_seconds
from trainyard.api.names import RENDEZVOUS_PORT, service_name
from trainyard.api.parallelism import AUTO
from trainyard.api.template import mount_path, trainer_container
from trainyard.api.training_job import TrainingJobSpec, TrainingJobStatus
from trainyard.contract.plan import Axis, Checkpoints, Domain, Lineage, Mark, Member, Plan
from trainyard.contract.preflight import Preflight
from trainyard.planner.links import Links, links_of
from trainyard.planner.machines import Accelerator
from trainyard.planner.mesh import Site
from trainyard.planner.parallelism import mesh_of
from trainyard.planner.place import Placement
from trainyard.planner.traffic import Mesh
from trainyard.topology.tree import Path, Tree
from trainyard.world.records import Job
from trainyard.world.resources import parse_quantity

KEPT_PORTS = 8
"""So many attempts in a row meet at ports of their own, next to the usual one."""
CHECKPOINTS_FOLDER = "/checkpoints"
"""Where the volume for checkpoints is mounted if the template does not mount it."""


def plan_for(
    job: Job,
    attempt: int,
    placement: Placement,
    tree: Tree,
    members: Sequence[int],
    lineage: Lineage | None = None,
    links: Links | None = None,
    accelerator: Accelerator | None = None,
    mesh: Mesh | None = None,
    preflight: Preflight | None = None,
) -> Plan:
    """The plan of an attempt. members: their numbers in rank order. The job's spec must make sense.

    lineage: which checkpoints count; that of the job's status where it is left out. links, accelerator: of its nodes, for a mesh
    that is left to the planner; links are assumed where they are left out. mesh: where it was settled before.
    preflight: what the gang is to prove before its first step.
    """
    spec = _spec(job)
    site = Site(links or links_of(None, tree.levels), tree, placement.nodes, spec.processes, accelerator)
    domains, narrowest = _domains(tree, placement.nodes)
    return Plan(
        namespace=job.namespace,
        job=job.name,
        uid=job.uid,
        attempt=attempt,
        service=service_name(job.name),
        processes_per_node=spec.processes,
        members=tuple(Member(n, node, narrowest[node]) for n, node in zip(members, placement.nodes, strict=True)),
        mesh=tuple(Axis(name, size) for name, size in (mesh or mesh_of(spec, site)).axes),
        levels=tuple(level.name for level in tree.levels),
        domains=domains,
        rendezvous_port=rendezvous_port(job.status, attempt),
        lineage=lineage_of(job.status) if lineage is None else lineage,
        checkpoints=_checkpoints(job),
        trainer=_trainer(spec),
        preflight=preflight,
    )


def rendezvous_port(status: TrainingJobStatus, attempt: int) -> int:
    """Where pods were kept, rank 0 may be who it was: another port keeps out whoever is left of the attempt before, also where a
    script meets at a store that knows no attempts."""
    return RENDEZVOUS_PORT if status.roster is None else RENDEZVOUS_PORT + 1 + attempt % KEPT_PORTS


def lineage_of(status: TrainingJobStatus) -> Lineage:
    """Which checkpoints count, as the status remembers it."""
    resume = status.resume
    return Lineage(
        history=tuple(Mark(mark.attempt, mark.step) for mark in status.lineage),
        resume=None if resume is None else Mark(resume.attempt, resume.step),
    )


def checkpoint_folder(job: Job) -> str | None:
    """Where the trainer container sees the job's checkpoints: a folder of its own on the volume or below the URL that the job
    names, None without either.

    The job's uid is part of the folder: a job made again under the same name never continues what another one wrote.
    """
    spec = _spec(job)
    container = trainer_container(spec.template)
    if container is None:
        return None
    at = spec.checkpoint.url
    if spec.checkpoint.volume is not None:
        at = mount_path(container, spec.checkpoint.volume) or CHECKPOINTS_FOLDER
    return None if at is None else f"{at.rstrip('/')}/{job.namespace}.{job.name}.{job.uid[:8]}"


def _checkpoints(job: Job) -> Checkpoints | None:
    folder = checkpoint_folder(job)
    if folder is None:
        return None
    spec = _spec(job)
    policy = spec.checkpoint
    failures, over_seconds = observed(job.status.restarts.failure_times, duration_seconds(spec.restart.per))
    return Checkpoints(
        folder=folder,
        every_steps=policy.every_steps,
        every_seconds=policy.every_seconds,
        every_auto=policy.every == AUTO,
        failures=failures,
        over_seconds=over_seconds,
        keep=policy.keep,
        grace_seconds=policy.grace_seconds,
        copies_bytes=0 if policy.memory is None else parse_quantity(policy.memory, "memory"),
    )


def observed(failure_times: Sequence[float], window_seconds: float) -> tuple[int, float]:
    """How often the job failed, in how many seconds: what its next failure is expected by.

    failure_times: those that still count, oldest first. Two or more say it by the time between them; the window in which
    they are counted bounds it, and is all that is known of a single one.
    """
    failures = len(failure_times)
    if failures < 2:
        return failures, failures * window_seconds
    between = (failure_times[-1] - failure_times[0]) / (failures - 1)
    return failures, min(window_seconds, between * failures)


def _trainer(spec: TrainingJobSpec) -> Mapping[str, Any] | None:
    """The built-in trainer's configuration as far as it was said; None for one's own script."""
    if spec.training is None:
        return None
    return spec.trainer.to_manifest() if spec.trainer is not None else {}


def _domains(tree: Tree, nodes: Sequence[str]) -> tuple[tuple[Domain, ...], Mapping[str, int]]:
    """The domains of these nodes, each once and after its parent; and by node the index of its narrowest, -1 for none.

    Where a node's labels end, its path ends: a domain that nobody knows is not written down.
    """
    index: dict[Path, int] = {(): -1}
    domains: list[Domain] = []
    for node in nodes:
        path = tree.known(node)
        for depth in range(1, len(path) + 1):
            if path[:depth] not in index:
                index[path[:depth]] = len(domains)
                domains.append(Domain(depth - 1, path[depth - 1], index[path[: depth - 1]]))
    return tuple(domains), {node: index[tree.known(node)] for node in nodes}


def _spec(job: Job) -> TrainingJobSpec:
    if job.spec is None:
        raise ValueError(f"{job.key}: nothing can be made of a job whose specification makes no sense")
    return job.spec
