"""Attempts that end before they have begun: a member has no place, or a pod that was kept does not play. Nobody is charged."""

from __future__ import annotations

from trainyard.api.conditions import Reason
from trainyard.lifecycle import deadlines
from trainyard.lifecycle.gang import Gang, Seat, overdue
from trainyard.lifecycle.outcome import Outcome, Verdict
from trainyard.world.records import Job


def untaken(job: Job, gang: Gang, now: float) -> Verdict | None:
    """A pod that was kept does not play in this attempt, which so has not begun: the next one does without that pod."""
    if job.status.stop is not None:
        return None
    for seat in gang.seats:
        why = "" if seat.taken or seat.node_lost is not None else _why_untaken(seat, job, now)
        if why:
            pod = seat.pod.name if seat.pod is not None else f"member {seat.member}"
            message = f"{pod} was kept for attempt {job.status.attempt} and is replaced: {why}"
            return Verdict(Outcome.DISPLACED, Reason.HANDOVER_FAILED, message)
    return None


def _why_untaken(seat: Seat, job: Job, now: float) -> str:
    """Why nothing comes of a member that has not taken the plan yet; "" while something may."""
    if seat.pod is None:
        return "it is gone"
    if seat.pod.over or seat.pod.deleted is not None:
        return "it ended before it had taken the plan"
    if seat.refused and seat.answer is not None:
        return f"its launcher does not take the plan: {seat.answer.plan_refused}"
    if not overdue(seat, job, now):
        return ""
    if seat.answer is not None and not seat.answer.plan_sent:
        return "it was not given the plan, which could not be made again as it was"
    return "its launcher does not answer"


def displaced(gang: Gang, now: float) -> Verdict | None:
    for seat in gang.seats:
        pod = seat.pod
        if pod is None or pod.node or not pod.unscheduled or now - pod.created < deadlines.UNSCHEDULED:
            continue
        wanted = pod.membership.node if pod.membership is not None else "its node"
        return Verdict(
            Outcome.DISPLACED, Reason.NODE_TAKEN, f"{pod.name} cannot be bound to {wanted}: {pod.unscheduled}"
        )
    return None
