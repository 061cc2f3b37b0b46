"""What an attempt that ended before its time leaves to the next: its nodes in rank order, and which of them it was ended for.

The survivors are where the checkpoints, the images and the neighbours are: the next attempt keeps them, each with its rank, and
replaces only what was lost, so that a second failure costs one more node and not the whole place.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.api.conditions import Reason
from trainyard.api.training_job import Former, TrainingJobStatus
from trainyard.lifecycle import deadlines, unfit
from trainyard.lifecycle.gang import Gang
from trainyard.lifecycle.outcome import Outcome, Verdict
from trainyard.world.records import Job

FAILED_AGAIN = 2
"""From how many attempts in a row on that a node on which a member failed first is held to be the cause."""


def former(job: Job, gang: Gang, verdict: Verdict, now: float, wanted: frozenset[str] = frozenset()) -> Former | None:
    """What the next attempt may go on from; None where the job gave its nodes to others, or is done.

    wanted: nodes that others wait for. A job that may run smaller and has enough left goes on without them.
    """
    if verdict.outcome in (Outcome.DONE, Outcome.REFUSED) or not gang.pods:
        return None
    if verdict.outcome is Outcome.FAILED and verdict.reason in (Reason.PREFLIGHT_FAILED, Reason.NODES_UNLIKE):
        return None  # not one of its nodes is to blame: their choice is
    nodes = gang.nodes
    if verdict.outcome is Outcome.YIELDED and not _stays(job, verdict, [node for node in nodes if node not in wanted]):
        return None
    return Former(
        attempt=job.status.attempt,
        nodes=nodes,
        lost=tuple(dict.fromkeys([*lost(job, gang, verdict, now), *(node for node in nodes if node in wanted)])),
        until=now + deadlines.RESERVATION,
    )


def comes_back_at_once(status: TrainingJobStatus, now: float) -> bool:
    """Whether the nodes of the attempt that ended are kept: not while the job backs off for longer than that would last."""
    former = status.former
    if former is None or former.attempt != status.attempt or now >= former.until:
        return False
    return status.not_before is None or status.not_before < former.until


def _stays(job: Job, verdict: Verdict, left: Sequence[str]) -> bool:
    """Whether a job that saved and left may have its nodes back. left: those that nobody waits for."""
    if verdict.reason is Reason.DISRUPTED:
        return True
    fewest = job.spec.fewest_nodes if job.spec is not None else 0
    return verdict.reason is Reason.PREEMPTED and 0 < fewest <= len(left)


def lost(job: Job, gang: Gang, verdict: Verdict, now: float) -> list[str]:
    """Names of the nodes that the attempt was ended for, in rank order.

    A member that fails is its own fault until one fails first on the same node again: most failures are the script's.
    """
    found: list[str] = []
    for seat in gang.seats:
        if seat.pod is None or seat.pod.membership is None:
            continue
        unbound = verdict.outcome is Outcome.DISPLACED and bool(seat.pod.unscheduled) and not seat.pod.node
        silent = verdict.reason is Reason.LAUNCHER_SILENT and seat.silent(now)
        if seat.node_lost is not None or unbound or silent:
            found.append(seat.pod.membership.node)
    failure = job.status.last_failure
    if failure is not None and failure.attempt == job.status.attempt and failure.node:
        blamed = verdict.reason is Reason.LAUNCHER_SILENT or failure.times >= FAILED_AGAIN
        found += [failure.node] if blamed else []
    out = unfit.avoided(job.status, now)
    found += [node for node in gang.nodes if node in out]
    return found
