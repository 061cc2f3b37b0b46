"""Which pods outlive an attempt that failed, for the next one to begin in them.

To make a pod anew costs its scheduling, its volumes, its image and the import of the libraries; its launcher can begin the next
attempt where it is. So whoever still answers stays, with its node and its number, until the next attempt has taken it over or has
no use for it. Whoever leaves its nodes to others, yields or is suspended keeps nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from trainyard.api.conditions import Reason
from trainyard.api.training_job import TrainingJobStatus
from trainyard.lifecycle import deadlines, roster
from trainyard.lifecycle.gang import Gang, Seat, overdue
from trainyard.lifecycle.needs import Surroundings
from trainyard.lifecycle.outcome import Outcome, Verdict
from trainyard.lifecycle.repair import comes_back_at_once, lost
from trainyard.world.records import Job, Pod, Running

_ENDS: Final = (Outcome.FAILED, Outcome.LOST, Outcome.UNFIT)
_DISPLACED: Final = (Reason.NODE_TAKEN, Reason.HANDOVER_FAILED, Reason.LABELS_CHANGED, Reason.SPEC_CHANGED)
_ELSEWHERE: Final = (Reason.PREFLIGHT_FAILED, Reason.NODES_UNLIKE)
"""Where no node is to blame for one of these, the choice of all of them is: the next attempt is placed anew."""


def staying(
    job: Job, status: TrainingJobStatus, gang: Gang, around: Surroundings, verdict: Verdict, now: float
) -> frozenset[int]:
    """The node ranks whose pods stay where the verdict ends the attempt."""
    if status.stop is not None or not _in_place(job, around, verdict):
        return frozenset()
    out = frozenset(lost(job.with_status(status), gang, verdict, now))
    return frozenset(seat.rank for seat in gang.seats if _can_stay(seat, out, job, now))


def _in_place(job: Job, around: Surroundings, verdict: Verdict) -> bool:
    if job.spec is None or job.spec.suspend or around.leaving or around.wanted_by:
        return False
    if verdict.reason is Reason.RANK_MISMATCH:
        return False
    if verdict.outcome is Outcome.DISPLACED:
        return verdict.reason in _DISPLACED
    return verdict.outcome in _ENDS and not (verdict.outcome is Outcome.FAILED and verdict.reason in _ELSEWHERE)


def _can_stay(seat: Seat, out: Collection[str], job: Job, now: float) -> bool:
    """It lives on a node that is not given up, and its launcher can be told. One that was not asked yet, by an operator that has
    just taken over, is waited for."""
    pod = seat.pod
    if pod is None or pod.membership is None or not _lives(pod):
        return False
    if seat.node_lost is not None or seat.doubted is not None:
        return False
    if pod.membership.node in out or seat.refused or overdue(seat, job, now):
        return False
    if seat.answer is None:
        return bool(pod.ip)
    heard = seat.answer.time if seat.said is not None else seat.answer.asked
    return now - heard <= deadlines.heard(roster.size(job))


def settled(seat: Seat, staying: Collection[int], now: float) -> bool:
    """Nothing more is to be expected of this seat in this attempt: it has ended, or it can be told of the next."""
    return seat.settled(now) or (seat.rank in staying and seat.said is not None)


def spared(job: Job, pods: Iterable[Pod], around: Surroundings, now: float) -> tuple[Pod, ...]:
    """Of the pods of an attempt that is over those that the next may begin in, by member; () where none follows at once."""
    former = job.status.former
    if former is None or not comes_back_at_once(job.status, now) or job.deleted is not None:
        return ()
    if job.spec is None or job.spec.suspend or around.leaving:
        return ()
    playing, there = frozenset(roster.numbers(job)), frozenset(former.nodes)
    out = {*former.lost, *around.reserved_nodes}  # and of another form: what it would be made as now is not what it is
    found = [
        pod
        for pod in pods
        if pod.membership is not None
        and pod.membership.member in playing
        and pod.membership.node in there
        and pod.membership.node not in out
        and pod.uid not in around.misfits
        and _lives(pod)
    ]
    return tuple(sorted(found, key=lambda pod: pod.membership.rank if pod.membership is not None else 0))


def _lives(pod: Pod) -> bool:
    return isinstance(pod.trainer, Running) and pod.live and pod.deleted is None and not pod.disrupted
