"""Who waits for whom to leave, and on which nodes: what the reservations in the statuses say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from trainyard.world.records import Job, World


@dataclass(frozen=True, slots=True)
class Claim:
    """On one attempt. by: the jobs whose reservations name it as a victim; nodes: those that they wait for."""

    by: tuple[str, ...] = ()
    nodes: frozenset[str] = frozenset()


def claims(jobs: Iterable[Job]) -> Mapping[tuple[str, int], Claim]:
    """By uid and attempt, who has to leave."""
    found: dict[tuple[str, int], Claim] = {}
    for job in jobs:
        reservation = job.status.reservation
        if reservation is None or job.deleted is not None or job.spec is None or job.spec.suspend:
            continue
        for victim in reservation.victims:
            before = found.get((victim.uid, victim.attempt), Claim())
            nodes = before.nodes.union(reservation.nodes)
            found[victim.uid, victim.attempt] = Claim((*before.by, job.key), nodes)
    return found


class Hold(NamedTuple):
    """Nodes that a job, by uid, will need. priority: of those that have to keep off with it and below; None: everybody has to."""

    uid: str
    nodes: tuple[str, ...]
    priority: int | None


def holds(world: World, jobs: Iterable[Job]) -> tuple[Hold, ...]:
    """What jobs have reserved for their next attempt, and what they hold ready as spares. Few do either, of however many jobs."""
    found: list[Hold] = []
    for job in jobs:
        reservation, plan = job.status.reservation, job.status.plan
        if reservation is not None and reservation.attempt == job.status.attempt + 1:
            found.append(Hold(job.uid, reservation.nodes, None))
        if plan is not None and plan.spares and job.status.started_at is not None and job.spec is not None:
            found.append(Hold(job.uid, plan.spares, world.priority(job.spec.priority_class_name)))
    return tuple(found)


def waited_for(world: World, held: Iterable[Hold], job: Job) -> frozenset[str]:
    """Nodes that others need before this job. Only who has given its nodes back is asked for: its pods that live on could not
    keep somebody else from starting."""
    if job.status.former is None or job.spec is None:
        return frozenset()
    mine = world.priority(job.spec.priority_class_name)
    return frozenset(
        node
        for hold in held
        if hold.uid != job.uid and (hold.priority is None or hold.priority >= mine)
        for node in hold.nodes
    )
