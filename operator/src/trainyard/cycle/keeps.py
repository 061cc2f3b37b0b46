"""Nodes that are kept for jobs before the queue is served: for those that take their place again, and as spares."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from trainyard.api.conditions import Reason
from trainyard.api.training_job import TrainingJobSpec, TrainingJobStatus
from trainyard.cycle.claims import Claim, claims
from trainyard.cycle.room import Keep
from trainyard.lifecycle.gang import Gang
from trainyard.lifecycle.needs import Decision
from trainyard.lifecycle.outcome import Outcome
from trainyard.lifecycle.repair import comes_back_at_once
from trainyard.world.records import Job, World

AGAIN: Final = "which takes its place again"
SPARES: Final = "whose spares they are"


def keeps(
    world: World, jobs: Iterable[Job], gangs: Mapping[str, Gang], decisions: Mapping[str, Decision], now: float
) -> Iterator[Keep]:
    """What is kept from equals and from jobs of lower priority, whatever the order of the queue.

    An attempt that a fault ends does not give its nodes away: from then on, and for a while after, they are kept for the next
    one, so that the gang is not scattered because a node failed. Spares are kept as long as an attempt holds nodes, and over
    such an end.
    """
    everyone = list(jobs)
    claimed = claims(job.with_status(decisions[job.uid].status) for job in everyone)
    for job in everyone:
        status = decisions[job.uid].status
        if job.spec is None or job.deleted is not None:
            continue
        priority = world.priority(job.spec.priority_class_name)
        spares = frozenset(status.plan.spares if status.plan is not None else ())
        if status.started_at is not None:
            yield Keep(job.key, priority, True, spares, SPARES)
            claim = claimed.get((job.uid, status.attempt), Claim())
            left = frozenset(gangs[job.uid].nodes) - claim.nodes - {""}
            if _comes_back(job.spec, status, left):
                yield Keep(job.key, priority, True, left, AGAIN)
        elif status.former is not None and comes_back_at_once(status, now):
            nodes = (frozenset(status.former.nodes) | spares) - {*status.former.lost, ""}
            yield Keep(job.key, priority, True, nodes, AGAIN, wake=status.former.until)


def _comes_back(spec: TrainingJobSpec, status: TrainingJobStatus, left: Collection[str]) -> bool:
    """Whether an attempt that is on its way out is followed by one in its place. left: its nodes that nobody waits for."""
    if spec.suspend or (status.ending is None and status.stop is None):
        return False
    if status.ending is not None:
        return status.ending.outcome != Outcome.REFUSED
    assert status.stop is not None
    if status.stop.reason == Reason.PREEMPTED:
        return spec.fewest_nodes <= len(left)
    return status.stop.reason == Reason.DISRUPTED
