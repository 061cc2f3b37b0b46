"""What one job needs next, given its gang: the whole policy between its start and its end.

A decision is a status and the actions that follow from it. The status is written first, so that a successor who finds only the
status does the same again: every action is idempotent, and none depends on the operator remembering that it was taken.
Starting is not decided here: who gets which nodes is a question between jobs, and the cycle's.
"""

from __future__ import annotations

from typing import Final

from trainyard.api.conditions import ConditionType, Phase, Reason
from trainyard.api.training_job import Ending, Failure, Stop, TrainingJobStatus
from trainyard.contract.exits import Exit
from trainyard.lifecycle import closing, conditions, deadlines, unfit
from trainyard.lifecycle.gang import Gang, Seat, is_open
from trainyard.lifecycle.handover import settled, spared, staying
from trainyard.lifecycle.hearing import compare, hear
from trainyard.lifecycle.leftovers import after_last_words, settle, sweep, tear_down, wake_for
from trainyard.lifecycle.needs import (
    Decision,
    HoldJob,
    MakeMembers,
    Need,
    Surroundings,
    Tell,
)
from trainyard.lifecycle.orders import ask_to_leave, hand_over, relabel, take_down
from trainyard.lifecycle.outcome import Outcome, Verdict
from trainyard.lifecycle.report import report, with_checkpoint
from trainyard.lifecycle.verdict import alarm, outcome
from trainyard.world.records import Job


def decide(job: Job, gang: Gang, around: Surroundings, now: float) -> Decision:
    """Total: every state has an answer, and every wait a deadline."""
    if job.deleted is not None:
        return tear_down(job, gang, around, now)
    if left_alone(job):
        return _leave_alone(job)
    if job.status.phase is not None and job.status.phase.ended and not _edited_after_refusal(job):
        return settle(job, gang, now)
    if job.spec is None:
        return refuse(job, Reason.INVALID_SPEC, "; ".join(str(error) for error in job.errors), now)
    if not job.held:
        return Decision(job.status, (HoldJob(),))
    if is_open(job):
        return _tend(job, gang, around, now)
    kept = spared(job, gang.others, around, now)
    swept = sweep(job, gang, now, kept)
    if closing.ran_out(job.spec, job.status):
        swept = sweep(job, gang, now)
        spent = closing.run_out(job, job.status.but(observed_generation=job.generation), "no attempt may follow", now)
        return Decision(spent, (*swept, _told_of_failure(spent)))
    if job.spec.suspend:
        return wake_for(_suspended(job, swept, now), gang.others, now)
    until = job.status.former.until if kept and job.status.former is not None else None
    waits = Decision(_observed(job, job.status, now), swept, queue=True, wake=until, kept=kept)
    return wake_for(waits, gang.others, now)


def left_alone(job: Job) -> bool:
    """The status is this operator's memory, and it cannot read it: perhaps a newer version wrote it. What it does not understand
    it does not touch, neither the job nor its pods."""
    return job.deleted is None and any(error.path.startswith("status") for error in job.errors)


def _leave_alone(job: Job) -> Decision:
    message = "; ".join(str(error) for error in job.errors)
    said = f"{message}; a newer operator may have written it: run that one, or delete the job"
    return Decision(job.status, (Tell("Warning", Reason.UNREADABLE_STATUS, said),))


def _observed(job: Job, status: TrainingJobStatus, now: float) -> TrainingJobStatus:
    """The status of a job that waits: it has a phase, an age in the queue, and speaks of the newest specification."""
    queued, since = status.queued_at, status.waiting_since
    status = status.but(
        observed_generation=job.generation,
        queued_at=queued if queued is not None else job.created,
        waiting_since=since if since is not None else now if queued is not None else job.created,
        phase=Phase.PENDING,
        ended_at=None,
    )
    status = conditions.without(status, ConditionType.FAILED)
    suspended = conditions.find(status, ConditionType.SUSPENDED)
    if suspended is not None and suspended.status == "True":
        put = conditions.put
        status = put(status, ConditionType.SUSPENDED, False, Reason.RESUMED_BY_USER, "resumed", now, job.generation)
    return status


_REFUSALS: Final = (Reason.INVALID_SPEC, Reason.TEMPLATE_REFUSED, Reason.PRIORITY_CLASS_NOT_FOUND)
"""What a job fails for before it had an attempt: another specification may be a better one."""


def _edited_after_refusal(job: Job) -> bool:
    failed = conditions.find(job.status, ConditionType.FAILED)
    return failed is not None and failed.reason in _REFUSALS and job.status.observed_generation < job.generation


def refuse(job: Job, reason: Reason, message: str, now: float) -> Decision:
    """The user's mistake: answered in a condition, and not tried again before the specification changes."""
    status = job.status.but(observed_generation=job.generation)
    status = conditions.put(status, ConditionType.ACCEPTED, False, reason, message, now, job.generation)
    status = closing.fail(job, status, reason, message, now)
    return Decision(status, (Tell("Warning", reason, message),))


def _suspended(job: Job, swept: tuple[Need, ...], now: float) -> Decision:
    status = _observed(job, job.status, now).but(
        phase=Phase.SUSPENDED, pending=None, reservation=None, former=None, waiting_since=None
    )
    message = f"spec.suspend is true; resumes {_resumes_at(status)} when it is false again"
    put = conditions.put
    status = put(status, ConditionType.SUSPENDED, True, Reason.SUSPENDED_BY_USER, message, now, job.generation)
    return Decision(status, swept)


def _resumes_at(status: TrainingJobStatus) -> str:
    if status.resume is not None:
        return f"at step {status.resume.step}"
    return "at the newest checkpoint" if status.lineage else "at step 0"


# An attempt under way -------------------------------------------------------------------------------------------------


def _tend(job: Job, gang: Gang, around: Surroundings, now: float) -> Decision:
    status = job.status.but(observed_generation=job.generation)
    told: list[Need] = []

    if status.ending is None:
        digest = status.plan.digest if status.plan is not None else ""
        blind = around.blind or around.disrupted or gang.unheard(now)
        found = alarm(job, gang, digest, blind, now, around.unlike) or _unmade(job, gang, around, now)
        if found is not None:
            status = _record_ending(status, found, now)
            told.append(Tell("Warning", found.reason, found.message + unfit.left_out(found.unfit, now)))
    status, news = hear(status, gang, around, now)
    told += news
    status, news = compare(status, gang, now, job.generation)
    told += news
    if status.ending is None and status.stop is None:
        stop = _reason_to_stop(job, gang, around, now)
        if stop is not None:
            status = status.but(stop=stop)
            told.append(Tell("Normal", Reason(stop.reason), _asked(stop, around)))

    whole = job.with_status(status)
    all_made = all(seat.pod is not None and seat.taken for seat in gang.seats)
    leaving = status.ending is not None or status.stop is not None
    if all_made or (leaving and status.roster is None):
        # Members that were never made need not be: the attempt is whole, or on its way out. Who was kept and has not taken its
        # plan is told from the others by the reservation.
        status = status.but(reservation=None)
    recorded = _recorded(status)
    stay = staying(job, status, gang, around, recorded, now) if recorded is not None else frozenset[int]()

    if (leaving or all_made) and gang.seats and all(settled(seat, stay, now) for seat in gang.seats):
        verdict = recorded or outcome(job.with_status(status), gang, now)
        closed = closing.close(whole, gang, verdict, now, around.wanted_nodes)
        kind = "Normal" if verdict.outcome in (Outcome.DONE, Outcome.YIELDED) else "Warning"
        if recorded is None:
            told.append(Tell(kind, verdict.reason, verdict.message))
        if closed.phase is Phase.FAILED:
            told.append(_told_of_failure(closed))
        return Decision(with_checkpoint(closed, gang), (*told, *sweep(job, gang, now)))

    going: list[Need] = []
    if status.ending is not None:
        going += take_down(gang, stay, deadlines.BROKEN_GRACE)
    elif status.stop is not None:
        going += ask_to_leave(gang, status.stop, now)
    else:
        going += hand_over(gang, now)
    unmade = any(seat.pod is None for seat in gang.seats)
    made = (MakeMembers(),) if status.reservation is not None and unmade and not leaving else ()
    named = () if status.roster is None or leaving else relabel(gang, status)
    # The first need that the API server refuses ends the turn: who has to leave must not wait for what can be tidied up later,
    # and new pods come last, since the old ones may take the quota that they need.
    needs = (*told, *going, *sweep(job, gang, now), *after_last_words(gang.pods, now), *made, *named)
    status = report(job, gang, around, status, now)
    return Decision(status, needs, wake=_next_deadline(job, gang, status, now))


def _told_of_failure(status: TrainingJobStatus) -> Tell:
    failed = conditions.find(status, ConditionType.FAILED)
    assert failed is not None
    return Tell("Warning", Reason(failed.reason), failed.message)


def _unmade(job: Job, gang: Gang, around: Surroundings, now: float) -> Verdict | None:
    """Members that the API server does not take: nobody's failure (a quota, a webhook), but others could use the nodes. And a
    plan that is out of date before anybody plays by it."""
    missing = sum(seat.pod is None for seat in gang.seats)
    if job.status.reservation is None or job.status.started_at is None:
        return None
    if missing and around.leaving:
        return Verdict(Outcome.DISPLACED, Reason.NAMESPACE_TERMINATING, "the namespace is being deleted")
    if around.outdated and job.status.observed_generation < job.generation:
        message = "the specification changed before every member had its plan; the next attempt goes by the new one"
        return Verdict(Outcome.DISPLACED, Reason.SPEC_CHANGED, message)
    if around.outdated:
        message = "a node went, or its labels changed, before the first member had its plan"
        return Verdict(Outcome.DISPLACED, Reason.LABELS_CHANGED, message)
    if not missing:
        return None
    last_made = max((pod.created for pod in gang.pods), default=0.0)
    if around.refusal and now - max(job.status.started_at, last_made) > deadlines.UNMADE:
        message = f"{missing} of {len(gang.seats)} pods cannot be made: {around.refusal}"
        return Verdict(Outcome.DISPLACED, Reason.API_REFUSES, message)
    return None


def _reason_to_stop(job: Job, gang: Gang, around: Surroundings, now: float) -> Stop | None:
    assert job.spec is not None
    reason: Reason | None = None
    running = job.status.running_at
    limit = job.spec.max_runtime_seconds
    if job.spec.suspend:
        reason = Reason.SUSPENDED_BY_USER
    elif around.wanted_by:
        reason = Reason.PREEMPTED
    elif around.leaving or any(_going(seat) for seat in gang.seats):
        reason = Reason.DISRUPTED
    elif limit is not None and running is not None and job.status.ran_seconds + now - running >= limit:
        reason = Reason.MAX_RUNTIME
    elif job.status.leave_by is not None and now >= job.status.leave_by:
        reason = Reason.NODES_LENT
    if reason is None:
        return None
    deadline = now + job.spec.checkpoint.grace_seconds
    return Stop(attempt=job.status.attempt, reason=reason, requested_at=now, deadline=deadline)


def _going(seat: Seat) -> bool:
    """Somebody else takes this member away: all must leave together, or the others would wait for it in a collective."""
    if seat.pod is None or (seat.ended is not None and seat.ended.exit_code == Exit.DONE):
        return False
    return seat.pod.deleted is not None or seat.pod.disrupted


def _asked(stop: Stop, around: Surroundings) -> str:
    by = f" for {', '.join(around.wanted_by)}" if around.wanted_by else ""
    return f"attempt {stop.attempt} is asked to save and leave{by} within {stop.deadline - stop.requested_at:.0f} s"


def _record_ending(status: TrainingJobStatus, verdict: Verdict, now: float) -> TrainingJobStatus:
    ending = Ending(
        attempt=status.attempt,
        outcome=verdict.outcome,
        reason=verdict.reason,
        message=verdict.message[:2000],
        time=now,
    )
    status = status.but(ending=ending, last_failure=_in_a_row(verdict.failure, status.last_failure))
    return unfit.avoid(status, verdict.unfit, verdict.reason, verdict.message, now)


def _in_a_row(failure: Failure | None, before: Failure | None) -> Failure | None:
    """What failed, and how often in a row it was on that node."""
    if failure is None or before is None or not failure.node or failure.node != before.node:
        return failure or before
    return failure.but(times=before.times + 1) if failure.attempt == before.attempt + 1 else failure


def _recorded(status: TrainingJobStatus) -> Verdict | None:
    ending = status.ending
    if ending is None:
        return None
    return Verdict(Outcome(ending.outcome), Reason(ending.reason), ending.message)


def _next_deadline(job: Job, gang: Gang, status: TrainingJobStatus, now: float) -> float | None:
    """The next instant at which time alone changes the decision."""
    assert job.spec is not None
    due: list[float] = []
    if status.stop is not None:
        due += [status.stop.deadline, now + deadlines.ASK_AGAIN]
    if status.started_at is not None and status.running_at is None:
        last_made = max((pod.created for pod in gang.pods), default=0.0)
        due += [status.started_at + deadlines.START, max(status.started_at, last_made) + deadlines.UNMADE + 0.001]
    if status.leave_by is not None:
        due.append(status.leave_by)
    limit = job.spec.max_runtime_seconds
    if limit is not None and status.running_at is not None:
        due.append(status.running_at + limit - status.ran_seconds)
    for seat in gang.seats:
        due.extend(_seat_deadlines(seat))
    if any(not seat.taken for seat in gang.seats):
        due.append(now + deadlines.ASK_AGAIN)
    if status.ending is not None:
        due.append(now + deadlines.heard(len(gang.seats)))
    later = [instant for instant in due if instant > now]
    return min(later, default=None)


def _seat_deadlines(seat: Seat) -> list[float]:
    pod, answer = seat.pod, seat.answer
    if pod is None:
        return []
    due = [pod.created + deadlines.UNSCHEDULED] if not pod.node else []
    if pod.killed is not None and seat.ended is None:
        due.append(pod.killed + deadlines.KILLED + 0.001)
    if seat.ended is not None:
        due += [
            seat.ended.finished + deadlines.GATHER + 0.001,
            seat.ended.finished + deadlines.WORDS,
            seat.ended.finished + deadlines.FINISH + 0.001,
        ]
    if seat.running is not None:
        if answer is not None:
            due.append(max(seat.running.started, answer.asked) + deadlines.UNREACHED + 0.001)
        if seat.heard is not None:
            due.append(seat.heard + deadlines.SILENT + 0.001)
    return due
