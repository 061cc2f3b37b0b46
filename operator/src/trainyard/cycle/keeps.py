"""Nodes that are kept for jobs before the queue is served: for those that take their place again, and as spares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from trainyard.api.training_job import TrainingJobStatus
from trainyard.cycle.room import Keep
from trainyard.lifecycle.needs import Decision
from trainyard.world.records import Job, World


def keeps(world: World, jobs: Iterable[Job], decisions: Mapping[str, Decision], now: float) -> Iterator[Keep]:
    """What is kept from equals and from jobs of lower priority, whatever the order of the queue.

    An attempt that a fault ended has not given its nodes away: for a while they are kept for the next one, so that the gang is
    not scattered because a node failed. Spares are kept as long as an attempt holds nodes, and over such an end.
    """
    for job in jobs:
        decision = decisions[job.uid]
        status = decision.status
        if job.spec is None or job.deleted is not None:
            continue
        priority = world.priority(job.spec.priority_class_name)
        spares = frozenset(status.plan.spares if status.plan is not None else ())
        if status.started_at is not None:
            yield Keep(job.key, priority, True, spares, "whose spares they are")
        elif decision.queue and status.former is not None and comes_back_at_once(status, now):
            nodes = (frozenset(status.former.nodes) | spares) - {*status.former.lost, ""}
            yield Keep(job.key, priority, True, nodes, "which takes its place again", wake=status.former.until)


def comes_back_at_once(status: TrainingJobStatus, now: float) -> bool:
    """Whether the nodes of the attempt that ended are kept: not while the job backs off for longer than that would last."""
    former = status.former
    if former is None or former.attempt != status.attempt or now >= former.until:
        return False
    return status.not_before is None or status.not_before < former.until
