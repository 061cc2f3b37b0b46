"""Who waits for whom to leave, and on which nodes: what the reservations in the statuses say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trainyard.world.records import Job


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


def waited_for(jobs: Iterable[Job], job: Job) -> frozenset[str]:
    """Nodes that other jobs have reserved for their next attempt. Only who has given its nodes back is asked for: its pods that
    live on could not keep somebody else from starting."""
    if job.status.former is None:
        return frozenset()
    reserved = (
        other.status.reservation.nodes
        for other in jobs
        if other.uid != job.uid
        and other.status.reservation is not None
        and other.status.reservation.attempt == other.status.attempt + 1
    )
    return frozenset(node for nodes in reserved for node in nodes)
