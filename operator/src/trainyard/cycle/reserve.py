"""Nodes that are reserved for a job until those who hold them have left."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from trainyard.api.conditions import Reason
from trainyard.api.training_job import Reservation, Victim
from trainyard.cycle.keeps import SPARES
from trainyard.cycle.parties import Parties, Seeker, leaving, seeker_of, still_there
from trainyard.cycle.plans import make_way
from trainyard.cycle.quality import quality_of
from trainyard.cycle.room import Keep, Room
from trainyard.cycle.waiting import Waiting, wait
from trainyard.lifecycle import deadlines
from trainyard.lifecycle.needs import Decision
from trainyard.planner.place import Placement
from trainyard.world.records import Job, World


def reserved(waiting: Iterable[Job], decisions: Mapping[str, Decision], now: float) -> dict[str, frozenset[str]]:
    """By key of a job that waits, the nodes that its reservation names, as long as that stands."""
    found: dict[str, frozenset[str]] = {}
    for job in waiting:
        status = decisions[job.uid].status
        reservation = status.reservation
        if reservation is not None and reservation.attempt == status.attempt + 1 and now < reservation.deadline:
            found[job.key] = frozenset(reservation.nodes)
    return found


def standing_of(world: World, seeker: Seeker, room: Room, now: float) -> Reservation | None:
    """The job's reservation, if it still is for the next attempt, in time, and its nodes still are to be had."""
    reservation = seeker.job.status.reservation
    if reservation is None or reservation.attempt != seeker.job.status.attempt + 1 or now >= reservation.deadline:
        return None
    request, demand = seeker.request, seeker.request.demand
    mine = [world.nodes.get(name) if name not in seeker.kept else None for name in dict.fromkeys(reservation.nodes)]
    good = all(node is not None and node.name not in request.avoid and demand.why_not(node) is None for node in mine)
    return reservation if good and room.holds(reservation.nodes, demand, soon=True) else None


def keep_reserved(world: World, job: Job, room: Room, now: float) -> None:
    """A job that is barred for a moment (it was edited, or a new operator has the API server asked again) keeps the nodes that
    others already leave for it; the reservation's own deadline ends that."""
    if job.status.reservation is None:
        return
    seeker = seeker_of(world, job, room, now, job.status.reservation.nodes)
    standing = standing_of(world, seeker, room, now)
    if standing is not None:
        promise(seeker, standing.nodes, standing.spares, room)


def promise(seeker: Seeker, nodes: Collection[str], spares: Collection[str], room: Room) -> tuple[str, ...]:
    """Take nodes for a job, and hold ready those of the spares that still can be had. Returns these."""
    room.take(nodes, seeker.request.requests)
    supply = room.soon.supply(seeker.request.demand)
    barred = room.reserved_for_others(seeker.job.key).union(seeker.kept)
    positions = {spare: supply.index.position.get(spare) for spare in spares if spare not in barred}
    held = tuple(spare for spare, position in positions.items() if position is not None and supply.slots[position])
    room.keep(Keep(seeker.job.key, seeker.priority, True, frozenset(held), SPARES))
    return held


def take(seeker: Seeker, parties: Parties, room: Room, now: float) -> Waiting | None:
    """Take the nodes of jobs of lower priority, if that helps."""
    found = make_way(seeker, seeker.kept, parties, room)
    if found is None:
        return None
    giving_way = {*found.victims, *found.shrink}
    parties.claimed.update(giving_way)
    room.give(found.freed)
    return reserve(seeker, found.placement, giving_way, parties, room, now)


def reserve(
    seeker: Seeker,
    found: Placement,
    victims: Collection[str],
    parties: Parties,
    room: Room,
    now: float,
    said: str = "",
) -> Waiting:
    """Keep nodes until those who must leave them have left: these victims, and who leaves anyway. said: how they were found."""
    job = seeker.job
    held = promise(seeker, found.nodes, found.spares, room)
    victims = {*victims, *leaving(found.nodes, parties)}
    named = tuple(
        Victim(namespace=other.namespace, name=other.name, uid=other.uid, attempt=other.status.attempt)
        for other in parties.jobs
        if other.uid in victims
    )
    graces = [other.spec.checkpoint.grace_seconds for other in parties.jobs if other.uid in victims and other.spec]
    # A victim has its grace to answer the request, and its pods have it once more when they are deleted.
    deadline = now + 2 * max(graces, default=0.0) + deadlines.RESERVATION
    reservation = Reservation(
        attempt=job.status.attempt + 1,
        nodes=found.nodes,
        victims=named,
        deadline=deadline,
        reason=Reason.WAITING_FOR_VICTIMS,
        message=said,
        spares=held,
        quality=quality_of(found),
    )
    return await_victims(job.with_status(job.status.but(reservation=reservation)), reservation, parties, now)


def await_victims(job: Job, reservation: Reservation, parties: Parties, now: float) -> Waiting:
    """A job whose nodes are reserved, and who it still waits for."""
    there = [victim for victim in reservation.victims if still_there(victim, parties)]
    who = ", ".join(f"{victim.namespace}/{victim.name}" for victim in there) or "pods that are ending"
    message = f"{len(reservation.nodes)} nodes are reserved; {who} must leave them first"
    kept = job.status.but(reservation=reservation)
    waiting = wait(job.with_status(kept), Reason.WAITING_FOR_VICTIMS, message, (), now, kept)
    return Waiting(waiting.status, waiting.actions, reservation.deadline)
