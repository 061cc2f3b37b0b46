"""What an attempt that ended before its time leaves to the next: its nodes in rank order, and which of them it was ended for.

The survivors are where the checkpoints, the images and the neighbours are: the next attempt keeps them, each with its rank, and
replaces only what was lost, so that a second failure costs one more node and not the whole place.
"""

from __future__ import annotations

from trainyard.api.conditions import Reason
from trainyard.api.training_job import Former
from trainyard.lifecycle import deadlines
from trainyard.lifecycle.gang import Gang
from trainyard.lifecycle.verdict import Outcome, Verdict
from trainyard.world.records import Job

FAILED_AGAIN = 2
"""From how many attempts in a row on that a node on which a member failed first is held to be the cause."""


def former(job: Job, gang: Gang, verdict: Verdict, now: float) -> Former | None:
    """What the next attempt may go on from; None where the job gave its nodes to others, or is done."""
    taken_away = verdict.outcome is Outcome.YIELDED and verdict.reason is not Reason.DISRUPTED
    if taken_away or verdict.outcome in (Outcome.DONE, Outcome.REFUSED) or not gang.pods:
        return None
    nodes = tuple(
        seat.pod.membership.node if seat.pod is not None and seat.pod.membership is not None else ""
        for seat in gang.seats
    )
    return Former(
        attempt=job.status.attempt,
        nodes=nodes,
        lost=tuple(dict.fromkeys(lost(job, gang, verdict, now))),
        until=now + deadlines.RESERVATION,
    )


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
        blamed = verdict.reason in (Reason.PREFLIGHT_FAILED, Reason.LAUNCHER_SILENT)
        if blamed or failure.times >= FAILED_AGAIN:
            found.append(failure.node)
    return found
