"""Who waits for whom to leave, and on which nodes: what the reservations in the statuses say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

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


def waited_for(world: World, jobs: Iterable[Job], job: Job) -> frozenset[str]:
    """Nodes that other jobs have reserved for their next attempt, or hold ready as spares where the job may not pass before them.
    Only who has given its nodes back is asked for: its pods that live on could not keep somebody else from starting."""
    if job.status.former is None:
        return frozenset()
    others = [other for other in jobs if other.uid != job.uid]
    reserved = (
        other.status.reservation.nodes
        for other in others
        if other.status.reservation is not None and other.status.reservation.attempt == other.status.attempt + 1
    )
    mine = _priority(world, job)
    ready = (
        other.status.plan.spares
        for other in others
        if other.status.plan is not None and other.status.started_at is not None and _priority(world, other) >= mine
    )
    return frozenset(node for nodes in chain(reserved, ready) for node in nodes)


def _priority(world: World, job: Job) -> int:
    return world.priority(job.spec.priority_class_name if job.spec is not None else None)
