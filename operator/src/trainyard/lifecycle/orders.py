"""What is done to the members of an attempt: take them down, ask them to leave, give the plan to those that were kept."""

from __future__ import annotations

from collections.abc import Collection

from trainyard.api.training_job import Stop, TrainingJobStatus
from trainyard.lifecycle import deadlines
from trainyard.lifecycle.gang import Gang, Seat
from trainyard.lifecycle.needs import AskStop, DeletePod, HandPlan, Need, PodNeed, Relabel, side_by_side


def take_down(gang: Gang, stay: Collection[int], grace_seconds: int | None) -> list[Need]:
    """End every pod of a gang that is broken. stay: node ranks whose pods the next attempt may begin in."""
    return [
        DeletePod(seat.pod, grace_seconds)
        for seat in gang.seats
        if seat.pod is not None and not seat.pod.over and seat.pod.deleted is None and seat.rank not in stay
    ]


def hand_over(gang: Gang, now: float) -> list[Need]:
    """Give the plan to every launcher that was kept, until it says that it has begun."""
    return [
        HandPlan(seat.pod)
        for seat in gang.seats
        if seat.pod is not None
        and not seat.taken
        and not seat.refused
        and seat.running is not None
        and (seat.answer is None or now - seat.answer.plan_sent >= deadlines.ASK_AGAIN)
    ]


def relabel(gang: Gang, status: TrainingJobStatus) -> list[Need]:
    """Pods that were kept say what they play in now, for whoever selects them by their labels."""
    digest = status.plan.digest if status.plan is not None else ""
    found: list[Need] = []
    for seat in gang.seats:
        says = seat.pod.membership if seat.pod is not None else None
        if seat.pod is None or says is None or seat.pod.deleted is not None:
            continue
        if (says.attempt, says.rank, says.plan_digest) != (status.attempt, seat.rank, digest):
            found.append(Relabel(seat.pod, seat.rank))
    return found


def ask_to_leave(gang: Gang, stop: Stop, now: float) -> list[PodNeed]:
    """Ask every launcher until it has noticed. Where none can be asked, or the time is over, the deletion's SIGTERM asks."""
    needs: list[PodNeed] = []
    for seat in gang.seats:
        pod = seat.pod
        if pod is None or pod.over or pod.deleted is not None:
            continue
        unstarted = seat.running is None or not seat.taken
        if unstarted or now >= stop.deadline or seat.unreached(now):
            needs.append(DeletePod(pod))
        elif not _noticed(seat) and (seat.answer is None or now - seat.answer.stop_sent >= deadlines.ASK_AGAIN):
            needs.append(AskStop(pod, stop))
    return side_by_side(needs)


def _noticed(seat: Seat) -> bool:
    return seat.status is not None and seat.status.notice_time is not None
