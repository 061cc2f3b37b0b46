"""Who gets which nodes: the jobs that wait, in the order of priority, then age.

Each is given, in this order: the nodes it has reserved already; those that its last attempt had, with what a fault took
replaced; nodes that are free; nodes that somebody leaves anyway; the
nodes of jobs of lower priority, if those help; fewer nodes than it wants, if it may run smaller. One that gets nothing says why
in numbers. What it is waiting for is kept from younger jobs of its priority, so that a large job is not starved by small ones:
the nodes on which it can start at the latest where that time is known, and whoever is sure to have left by then may use them
meanwhile; else the free nodes of the domain that it is nearest to filling. Jobs of lower priority may use either: they can be
asked to leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from trainyard.api.conditions import ConditionType, Reason
from trainyard.api.training_job import TrainingJobStatus
from trainyard.cycle.again import Again, again
from trainyard.cycle.candidates import candidates
from trainyard.cycle.gate import gate, is_asked
from trainyard.cycle.keeps import keeps
from trainyard.cycle.members import obstacle
from trainyard.cycle.outlook import View
from trainyard.cycle.parties import Parties, Seeker, ends, least, seeker_of, seekers_of
from trainyard.cycle.plans import find, find_fewer
from trainyard.cycle.quality import quality_of
from trainyard.cycle.reserve import await_victims, keep_reserved, promise, reserve, reserved, standing_of, take
from trainyard.cycle.reuse import Reused, held_by, reused, room_with
from trainyard.cycle.room import Room
from trainyard.cycle.start import Chosen, start
from trainyard.cycle.stay import hold, stay
from trainyard.cycle.waiting import Waiting, back_off, wait
from trainyard.cycle.wishes import member_requests, wished
from trainyard.lifecycle import conditions
from trainyard.lifecycle.gang import Gang
from trainyard.lifecycle.needs import Decision
from trainyard.planner.place import Placement, Shortfall
from trainyard.topology.tree import Tree
from trainyard.world.records import Job, World


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
    _count_unmade(world, everyone, gangs, decisions, room)
    for keep in keeps(world, everyone, gangs, decisions, now):
        room.keep(keep)
    waiting = [job for job in everyone if decisions[job.uid].queue]
    room.reserved = reserved(waiting, decisions, now)
    served: dict[str, Waiting | Exception] = {}
    parties = Parties(
        jobs=tuple(everyone),
        gangs=gangs,
        decisions=decisions,
        view=View(world, tree, tuple(job.with_status(decisions[job.uid].status) for job in everyone), gangs),
        candidates=candidates(world, everyone, gangs, decisions, now),
        ends=ends(everyone, gangs, decisions),
    )
    for job in sorted(waiting, key=lambda job: turn(world, job, decisions[job.uid].status)):
        current = job.with_status(decisions[job.uid].status)
        try:
            barred = gate(world, room.now.inventory, current, now)
            if barred is not None:
                keep_reserved(world, current.with_status(barred.status), room, now)
                if is_asked(barred) and current.status.reservation is None:
                    hold(seekers_of(world, current, room, now), parties, room, now)
            served[job.uid] = barred or _serve_one(world, tree, current, parties, room, now)
        except Exception as error:
            served[job.uid] = error
    return served


def turn(world: World, job: Job, status: TrainingJobStatus) -> tuple[int, float, str, str]:
    """What orders the queue, the least first: priority, then age."""
    assert job.spec is not None
    age = status.queued_at if status.queued_at is not None else job.created
    return (-world.priority(job.spec.priority_class_name), age, job.namespace, job.name)


def _count_unmade(
    world: World, jobs: Iterable[Job], gangs: Mapping[str, Gang], decisions: Mapping[str, Decision], room: Room
) -> None:
    """Members of started attempts whose pods are still to be made have their room already."""
    for job in jobs:
        reservation = decisions[job.uid].status.reservation
        if job.spec is None or reservation is None or decisions[job.uid].queue:
            continue
        missing = [seat.rank for seat in gangs[job.uid].seats if seat.pod is None]
        nodes = [reservation.nodes[rank] for rank in missing if rank < len(reservation.nodes)]
        if nodes:
            room.take(nodes, member_requests(world, job.with_status(decisions[job.uid].status)))


def _serve_one(world: World, tree: Tree, job: Job, parties: Parties, room: Room, now: float) -> Waiting:
    assert job.spec is not None
    accepted = "the specification makes sense, and the API server takes its pods"
    job = job.with_status(
        conditions.put(job.status, ConditionType.ACCEPTED, True, Reason.VALID, accepted, now, job.generation)
    )
    if job.status.not_before is not None and now < job.status.not_before:
        return back_off(job, now)
    barred = wished(room.now.inventory, world.fabrics, job).problem
    if barred:
        return wait(job.with_status(job.status.but(reservation=None)), Reason.NETWORK_UNCLEAR, barred, (), now)
    reserved = job.status.reservation
    if reserved is not None:
        seeker = seeker_of(world, job, room, now, reserved.nodes)
        standing = standing_of(world, seeker, room, now)
        if standing is not None:
            again = reused(world, job, standing.nodes, parties)
            ready = room_with(room, again, standing.nodes, seeker.request.demand)
            room.now.give(held_by(again) if ready else {})
            held = promise(seeker, standing.nodes, standing.spares, room)
            if ready:
                return start(world, tree, job, Chosen.reserved(standing, held, again), now)
            return await_victims(job, standing, parties, now)
    return _seek(world, tree, seekers_of(world, job, room, now), parties, room, now)


def _seek(world: World, tree: Tree, seekers: Sequence[Seeker], parties: Parties, room: Room, now: float) -> Waiting:
    """seekers: the same job on each network that its gang may be on. A way that costs others nothing on one of them comes before
    any that does on another."""
    job = seekers[0].job
    former = job.status.former
    found = _cheapest(seekers, lambda seeker: find(seeker, seeker.kept, parties, room))
    grows = len(former.nodes) < seekers[0].request.nodes if former is not None else False
    if former is not None and not (grows and found is not None):
        seeker = seeker_of(world, job, room, now, former.nodes)
        resumed = again(seeker, parties, room)
        if resumed is not None:
            return _resume(world, tree, seeker, resumed, parties, room, now)
    if found is not None:
        return _begin(world, tree, *found, parties, room, now)
    lenders = [seeker for seeker in seekers if seeker.firm is not seeker.kept]
    lent = _cheapest(lenders, lambda seeker: find(seeker, seeker.firm, parties, room))
    if lent is not None:
        return _begin(world, tree, *lent, parties, room, now)
    later = _cheapest(seekers, lambda seeker: find(seeker, seeker.kept, parties, room, soon=True))
    if later is not None:
        return reserve(*later, (), parties, room, now)
    for seeker in seekers:
        taken = take(seeker, parties, room, now) if seeker.preempts else None
        if taken is not None:
            return taken
    fewer = _largest(seekers, lambda seeker: find_fewer(seeker, seeker.kept, parties, room))
    if fewer is not None:
        return _begin(world, tree, *fewer, parties, room, now)
    fewer = _largest(seekers, lambda seeker: find_fewer(seeker, seeker.kept, parties, room, soon=True))
    if fewer is not None:
        return reserve(*fewer, (), parties, room, now)
    return _torn(world, seekers, parties, room, now) or _stay(seekers, parties, room, now)


def _cheapest(
    seekers: Iterable[Seeker], ask: Callable[[Seeker], Placement | Shortfall]
) -> tuple[Seeker, Placement] | None:
    """The network on which the gang's communication costs least; of equals that with most nodes."""
    answers = [(seeker, ask(seeker)) for seeker in seekers]
    found = [(seeker, place) for seeker, place in answers if isinstance(place, Placement)]
    return min(found, key=lambda one: round(one[1].cost.total, 9), default=None)


def _largest(seekers: Iterable[Seeker], ask: Callable[[Seeker], Placement | None]) -> tuple[Seeker, Placement] | None:
    """The network on which most members have a place; of equals that with most nodes."""
    answers = [(seeker, ask(seeker)) for seeker in seekers]
    found = [(seeker, place) for seeker, place in answers if place is not None]
    return max(found, key=lambda one: len(one[1].nodes), default=None)


def _torn(world: World, seekers: Sequence[Seeker], parties: Parties, room: Room, now: float) -> Waiting | None:
    """A gang for which there is room on several networks together, and on none of them alone."""
    if len(seekers) < 2:
        return None
    job, apart = seekers[0].job, seekers[0].request
    together = replace(seekers[0], request=replace(apart, among=None, requests=least(seekers)))
    found = find(together, together.kept, parties, room)
    problem = obstacle(world, job, found.nodes) if isinstance(found, Placement) else ""
    if not problem:
        return None
    return wait(job.with_status(job.status.but(reservation=None)), Reason.NETWORK_UNCLEAR, problem, (), now)


def _stay(seekers: Sequence[Seeker], parties: Parties, room: Room, now: float) -> Waiting:
    """What a job says that has no place on any network: of the one on which least is missing."""

    def missing(answer: tuple[Seeker, Placement | Shortfall]) -> tuple[bool, int]:
        short = answer[1]
        return (not short.could_ever_fit, -short.eligible) if isinstance(short, Shortfall) else (True, 0)

    answers = [(seeker, find(seeker, seeker.kept, parties, room)) for seeker in seekers]
    seeker, short = min(answers, key=missing)
    assert isinstance(short, Shortfall)
    return stay(seeker, short, parties, room, now)


def _begin(
    world: World,
    tree: Tree,
    seeker: Seeker,
    found: Placement,
    parties: Parties,
    room: Room,
    now: float,
    said: str = "",
    again: Reused | None = None,
) -> Waiting:
    """Start on nodes that are free, or held by pods that play again. Those that are lent have to be left in time."""
    again = again or {}
    room.now.give(held_by(again))
    held = promise(seeker, found.nodes, found.spares, room)
    lent_until = room.lent(seeker.job.key, seeker.priority, found.nodes)
    chosen = Chosen(found.nodes, held, lent_until, said, quality_of(found), again)
    return start(world, tree, seeker.job, chosen, now)


def _resume(
    world: World, tree: Tree, seeker: Seeker, resumed: Again, parties: Parties, room: Room, now: float
) -> Waiting:
    """Go on in the place of the last attempt: in its pods where they live, else as soon as they have ended."""
    found = resumed.placement
    again = reused(world, seeker.job, found.nodes, parties)
    if room_with(room, again, found.nodes, seeker.request.demand):
        return _begin(world, tree, seeker, found, parties, room, now, resumed.said, again)
    return reserve(seeker, found, (), parties, room, now, resumed.said)
