"""A gang that runs with fewer nodes than it wants saves and starts again with all of them, once there is room for that.

A restart costs about a minute of the whole gang, so it is not done for less than all, nor soon after the last start, nor while
anybody else waits for nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trainyard.api.conditions import Reason
from trainyard.api.training_job import Stop
from trainyard.cycle.parties import seeker_of, usage_of
from trainyard.cycle.room import Room
from trainyard.cycle.waiting import Waiting
from trainyard.lifecycle import deadlines
from trainyard.lifecycle.gang import Gang
from trainyard.lifecycle.needs import Decision
from trainyard.lifecycle.roster import size
from trainyard.planner.place import Placement, place
from trainyard.world.capacity import place_of
from trainyard.world.records import Job, World


def due_to_grow(job: Job) -> float | None:
    """From when on a gang may start again with more nodes; None for one that has all, or is not running undisturbed."""
    status = job.status
    if job.spec is None or status.running_at is None or status.started_at is None or job.deleted is not None:
        return None
    if status.stop is not None or status.ending is not None or size(job) >= job.spec.nodes:
        return None
    return status.running_at + deadlines.GROW


def may_grow(
    jobs: Iterable[Job],
    decisions: Mapping[str, Decision],
    served: Mapping[str, Waiting | Exception],
    now: float,
) -> list[Job]:
    """The gangs that would like more nodes and are not in anybody's way, oldest first as the jobs are; with the statuses that
    count. One of them may be asked, so that none counts on the room of another."""
    current = [job.with_status(decisions[job.uid].status) for job in jobs]
    if _anybody_waits(current, served):
        return []
    dues = ((job, due_to_grow(job)) for job in current)
    return [job for job, due in dues if due is not None and due <= now]


def asked_to_grow(world: World, job: Job, gang: Gang, room: Room, now: float) -> Stop | None:
    """What a gang is asked for which there is room for all of its nodes, its own included; None where there is not.

    room: as it is when the queue was served.
    """
    assert job.spec is not None
    seeker = seeker_of(world, job, room, now, gang.nodes)
    view = room.now.fork()
    view.give(usage_of((place_of(pod), pod.requests) for pod in gang.pods if pod.live))
    if not isinstance(place(view.supply(seeker.request.demand).without(seeker.kept), seeker.request), Placement):
        return None
    deadline = now + job.spec.checkpoint.grace_seconds
    return Stop(attempt=job.status.attempt, reason=Reason.GROWING, requested_at=now, deadline=deadline)


def _anybody_waits(jobs: Iterable[Job], served: Mapping[str, Waiting | Exception]) -> bool:
    """Whether somebody could use the room, or is growing already."""
    growing = any(job.status.stop is not None and job.status.stop.reason == Reason.GROWING for job in jobs)
    outcomes = (outcome for outcome in served.values() if isinstance(outcome, Waiting))
    return growing or any(
        outcome.status.pending is not None and outcome.status.pending.reason in _FOR_NODES for outcome in outcomes
    )


_FOR_NODES = (
    Reason.INSUFFICIENT_NODES,
    Reason.NO_DOMAIN_FITS,
    Reason.BEHIND_OTHERS,
    Reason.WAITING_FOR_VICTIMS,
    Reason.BACKING_OFF,
    Reason.CHECKING,
)
