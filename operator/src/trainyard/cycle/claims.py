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
