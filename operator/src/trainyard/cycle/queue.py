"""Who gets which nodes: the jobs that wait, in the order of priority, then age.

Each is given, in this order: the nodes it has reserved already; nodes that are free; nodes that somebody leaves anyway; the
nodes of jobs of lower priority, if those help. One that gets nothing says why in numbers, and the free nodes of the domain
that it is nearest to filling are kept from younger jobs of its priority, so that a large job is not starved by small ones.
Jobs of lower priority may use them meanwhile: they can be asked to leave.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trainyard.api.conditions import ConditionType, Reason
from trainyard.api.template import pod_spec
from trainyard.api.training_job import TrainingJobStatus
from trainyard.cycle.gate import gate
from trainyard.cycle.memory import Memory
from trainyard.cycle.parties import Parties, Seeker, candidates, leaving, seeker_of
from trainyard.cycle.plans import find
from trainyard.cycle.reserve import await_victims, keep_reserved, reserve, standing_of, take
from trainyard.cycle.room import Room
from trainyard.cycle.start import start
from trainyard.cycle.waiting import Waiting, back_off, wait
from trainyard.lifecycle import conditions
from trainyard.lifecycle.gang import Gang
from trainyard.lifecycle.needs import Decision
from trainyard.planner.place import Placement, Shortfall
from trainyard.topology.tree import Tree
from trainyard.world.records import Job, World
from trainyard.world.resources import pod_requests


def serve(
    world: World,
    jobs: Iterable[Job],
    gangs: Mapping[str, Gang],
    decisions: Mapping[str, Decision],
    room: Room,
    tree: Tree,
    now: float,
) -> dict[str, Waiting | Exception]:
    """Serve the queue. room is used up on the way; jobs whose decision is not to queue only take theirs from it.

    A job that cannot be served because of a bug of ours has the exception in its place.
    """
    everyone = list(jobs)
    _count_unmade(everyone, gangs, decisions, room)
    waiting = [job for job in everyone if decisions[job.uid].queue]
    served: dict[str, Waiting | Exception] = {}
    parties = Parties(tuple(everyone), gangs, decisions, candidates(world, everyone, gangs, decisions), set(), Memory())
    for job in sorted(waiting, key=lambda job: _turn(world, job, decisions[job.uid].status)):
        current = job.with_status(decisions[job.uid].status)
        try:
            barred = gate(world, current, now)
            if barred is not None:
                keep_reserved(world, current.with_status(barred.status), room, now)
            served[job.uid] = barred or _serve_one(world, tree, current, parties, room, now)
        except Exception as error:
            served[job.uid] = error
    return served


def _turn(world: World, job: Job, status: TrainingJobStatus) -> tuple[int, float, str, str]:
    assert job.spec is not None
    age = status.queued_at if status.queued_at is not None else job.created
    return (-world.priority(job.spec.priority_class_name), age, job.namespace, job.name)


def _count_unmade(
    jobs: Iterable[Job], gangs: Mapping[str, Gang], decisions: Mapping[str, Decision], room: Room
) -> None:
    """Members of started attempts whose pods are still to be made have their room already."""
    for job in jobs:
        reservation = decisions[job.uid].status.reservation
        if job.spec is None or reservation is None or decisions[job.uid].queue:
            continue
        missing = [seat.rank for seat in gangs[job.uid].seats if seat.pod is None]
        nodes = [reservation.nodes[rank] for rank in missing if rank < len(reservation.nodes)]
        room.take(nodes, pod_requests(pod_spec(job.spec.template)))


def _serve_one(world: World, tree: Tree, job: Job, parties: Parties, room: Room, now: float) -> Waiting:
    assert job.spec is not None
    accepted = "the specification makes sense, and the API server takes its pods"
    job = job.with_status(
        conditions.put(job.status, ConditionType.ACCEPTED, True, Reason.VALID, accepted, now, job.generation)
    )
    if job.status.not_before is not None and now < job.status.not_before:
        return back_off(job, now)
    seeker = seeker_of(world, job, room)
    standing = standing_of(world, seeker, room, now)
    if standing is not None:
        ready = room.holds(standing.nodes, seeker.request.demand)
        room.take(standing.nodes, seeker.request.requests)
        return start(world, tree, job, standing.nodes, now) if ready else await_victims(job, standing, parties, now)
    kept = frozenset(seeker.kept)
    found = find(seeker, kept, parties, room)
    if isinstance(found, Placement):
        room.take(found.nodes, seeker.request.requests)
        return start(world, tree, job, found.nodes, now)
    later = find(seeker, kept, parties, room, soon=True)
    if isinstance(later, Placement):
        room.take(later.nodes, seeker.request.requests)
        return reserve(job, later.nodes, leaving(later.nodes, parties), parties, now)
    taken = take(seeker, kept, parties, room, now) if seeker.preempts else None
    return taken if taken is not None else _stay(seeker, found, parties, room, now)


def _stay(seeker: Seeker, short: Shortfall, parties: Parties, room: Room, now: float) -> Waiting:
    job = seeker.job
    without = job.with_status(job.status.but(reservation=None))
    if seeker.kept and isinstance(find(seeker, frozenset(), parties, room), Placement):
        older = ", ".join(sorted(set(seeker.kept.values())))
        message = f"{short.message}; {len(seeker.kept)} more are kept for {older}, which came first"
        return wait(without, Reason.BEHIND_OTHERS, message, (f"{older} starts or is deleted",), now)
    if short.could_ever_fit:
        room.keep(seeker.priority, seeker.preempts, short.holds, job.key)
    # By what was asked for, not by what is free just now: the reason of a wait should not change with every pod that ends.
    reason = Reason.NO_DOMAIN_FITS if seeker.request.required else Reason.INSUFFICIENT_NODES
    return wait(without, reason, short.message, short.unblock, now)
