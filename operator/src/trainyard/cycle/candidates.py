"""Who could be asked to give way, what that frees, and what it costs them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from trainyard.api.template import requested_accelerators, trainer_container
from trainyard.api.training_job import TrainingJobSpec, TrainingJobStatus
from trainyard.cycle.parties import usage_of
from trainyard.cycle.wishes import member_requests
from trainyard.lifecycle.gang import Gang
from trainyard.lifecycle.needs import Decision
from trainyard.planner.loss import Loss, loss
from trainyard.planner.preempt import Candidate
from trainyard.world.capacity import place_of
from trainyard.world.records import Job, World


def candidates(
    world: World, jobs: Iterable[Job], gangs: Mapping[str, Gang], decisions: Mapping[str, Decision], now: float
) -> tuple[Candidate, ...]:
    """The jobs that could be asked to leave: they hold nodes, and nobody has asked them yet.

    Members whose pods are still to be made count with the rest: their room is promised, and free once the job leaves.
    """
    found = []
    for job in jobs:
        status = decisions[job.uid].status
        if job.spec is None or job.deleted is not None or status.started_at is None:
            continue
        if status.stop is not None or status.ending is not None:
            continue
        live = [pod for pod in gangs[job.uid].pods if pod.live]
        unmade = _unmade(status, gangs[job.uid])
        named = job.spec.priority_class_name
        if named is None or named in world.priority_classes:
            priority = world.priority(named)
        else:  # the class was deleted; the pods keep what it gave them
            priority = max((pod.priority for pod in live), default=0)
        members = Counter([*(place_of(pod) for pod in live), *unmade])
        requests = member_requests(world, job.with_status(status)) if unmade else {}
        found.append(
            Candidate(
                uid=job.uid,
                key=job.key,
                priority=priority,
                started=status.started_at,
                usage=usage_of([(place_of(pod), pod.requests) for pod in live] + [(node, requests) for node in unmade]),
                accelerators=members.total() * accelerators(job.spec),
                loss=loss_of(job.spec, status, now),
                at_least=job.spec.fewest_nodes if job.spec.fewest_nodes < members.total() else None,
                members=members,
            )
        )
    return tuple(found)


def _unmade(status: TrainingJobStatus, gang: Gang) -> list[str]:
    """The nodes of members of a started attempt whose pods are still to be made."""
    reserved = status.reservation.nodes if status.reservation is not None else ()
    return [reserved[seat.rank] for seat in gang.seats if seat.pod is None and seat.rank < len(reserved)]


def accelerators(spec: TrainingJobSpec) -> int:
    """Of each member; its processes where it has none."""
    container = trainer_container(spec.template)
    return (requested_accelerators(container) if container is not None else 0) or spec.processes


def loss_of(spec: TrainingJobSpec, status: TrainingJobStatus, now: float) -> Loss:
    """What a running job loses when it gives way now, by what was measured on it."""
    assert status.started_at is not None
    saved = status.checkpoint
    started = status.running_at
    return loss(
        started if started is not None else status.started_at,
        now,
        saves=spec.checkpoint.saves,
        checkpointed=saved.time if saved is not None and saved.attempt == status.attempt else None,
        save_seconds=saved.seconds or None if saved is not None else None,
        restart_seconds=started - status.started_at if started is not None else None,
    )
