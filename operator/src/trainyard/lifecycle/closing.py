"""The end of an attempt: what of it is history, what the job pays for it, and whether another attempt follows."""

from __future__ import annotations

from trainyard.api.conditions import ConditionType, Phase, Reason
from trainyard.api.prose import count
from trainyard.api.training_job import LineageMark, Pending, ResumePoint, TrainingJobSpec, TrainingJobStatus
from trainyard.lifecycle import conditions, deadlines
from trainyard.lifecycle.gang import Gang, came_from, speechless
from trainyard.lifecycle.outcome import Outcome, Verdict
from trainyard.lifecycle.repair import former
from trainyard.world.records import Job

MOST_MARKS = 1000
"""Of the history, the newest: as many as checkpoint.keep may hold. Years of yields must fit into the job's object."""

UNKNOWN = -1
"""A mark whose step nobody could say: the newest commit of that attempt that verifies counts."""


def close(
    job: Job, gang: Gang, verdict: Verdict, now: float, wanted: frozenset[str] = frozenset()
) -> TrainingJobStatus:
    """The status after the current attempt: no attempt is open in it, and all that must outlive the pods is written down.

    wanted: the nodes that others wait for.
    """
    status = job.status
    ran = max(0.0, now - status.running_at) if status.running_at is not None else 0.0
    status = _closed(status).but(ran_seconds=status.ran_seconds + ran)
    status = _pay(job, status, gang, verdict, now)
    status = _history(job, status, gang)
    status = status.but(former=former(job, gang, verdict, now, wanted))
    if verdict.reason in (Reason.HANG, Reason.COLLECTIVE_TIMEOUT):  # what was measured before says nothing about now
        status = status.but(proven=())
    return _next(job, status, verdict, now)


def fail(job: Job, status: TrainingJobStatus, reason: Reason, message: str, now: float) -> TrainingJobStatus:
    """No attempt follows, and none is open any more: what still runs of one is an earlier attempt's, and is taken down."""
    status = _closed(status).but(phase=Phase.FAILED, ended_at=now, pending=None, not_before=None, former=None)
    put = conditions.put
    status = put(status, ConditionType.FAILED, True, reason, message, now, job.generation)
    status = put(status, ConditionType.RUNNING, False, reason, message, now, job.generation)
    return put(status, ConditionType.PLACED, False, reason, "holds no nodes", now, job.generation)


def _closed(status: TrainingJobStatus) -> TrainingJobStatus:
    """The status without an open attempt."""
    status = conditions.without(status, ConditionType.STRAGGLER)
    return status.but(
        started_at=None,
        running_at=None,
        reservation=None,
        stop=None,
        ending=None,
        ready_nodes=0,
        leave_by=None,
        straggler=None,
    )


def ran_out(spec: TrainingJobSpec, status: TrainingJobStatus) -> bool:
    """Whether the closed attempts together ran as long as the job may."""
    return spec.max_runtime_seconds is not None and status.ran_seconds >= spec.max_runtime_seconds


def run_out(job: Job, status: TrainingJobStatus, message: str, now: float) -> TrainingJobStatus:
    """The end of a job that ran as long as it may. message: how its last attempt ended."""
    assert job.spec is not None
    return fail(job, status, Reason.MAX_RUNTIME, f"ran for spec.maxRuntime ({job.spec.max_runtime}); {message}", now)


def progressed(job: Job, gang: Gang, now: float) -> bool:
    """Whether the attempt did a step of its own; what it loaded when it began is none.

    A script that reports no steps is given the benefit of the doubt once it has trained for a while.
    """
    since = job.status.running_at
    if speechless(job, gang) and since is not None:
        return now - since >= deadlines.PLAUSIBLE
    return gang.step > came_from(job, gang)


def _pay(job: Job, status: TrainingJobStatus, gang: Gang, verdict: Verdict, now: float) -> TrainingJobStatus:
    restarts = status.restarts
    fruitless = 0 if progressed(job, gang, now) else restarts.fruitless + 1
    match verdict.outcome:
        case Outcome.DONE:
            return status
        case Outcome.YIELDED:
            restarts = restarts.but(preemptions=restarts.preemptions + 1)
        case Outcome.LOST:
            restarts = restarts.but(nodes_lost=restarts.nodes_lost + 1)
        case Outcome.UNFIT:
            restarts = restarts.but(unfit=restarts.unfit + 1)
        case Outcome.FAILED | Outcome.REFUSED:
            assert job.spec is not None
            since = now - job.spec.restart.per_seconds
            times = (*(t for t in restarts.failure_times if t > since), now)
            restarts = restarts.but(failures=restarts.failures + 1, failure_times=times[-1001:])
        case Outcome.DISPLACED:
            pass
    pause = deadlines.back_off(fruitless)
    return status.but(
        restarts=restarts.but(fruitless=fruitless),
        last_failure=verdict.failure or status.last_failure,
        not_before=now + pause if pause else None,
    )


def _history(job: Job, status: TrainingJobStatus, gang: Gang) -> TrainingJobStatus:
    """Put the attempt into the lineage as far as it counts.

    Where every member left its last words, the newest commit they name is the end of it, and an attempt without a commit is
    no history at all. Where one could not be asked, a commit may exist that nobody here has heard of: the trainer looks.
    A mark that an earlier attempt left open is closed as soon as a member has said which commit it resumed from.
    """
    attempt = status.attempt
    lineage = resolve(status.lineage, gang)[-MOST_MARKS + 1 :]
    saved = gang.commit if gang.commit is not None and gang.commit.attempt == attempt else None
    all_spoke = bool(gang.seats) and all(seat.words is not None for seat in gang.seats)
    # A gang whose pods are all gone tells nothing; that all of it trained once stands in the status.
    began = job.status.running_at is not None or any(
        seat.status is not None or seat.ended is not None or seat.running is not None for seat in gang.seats
    )
    if all_spoke and saved is not None:
        mark = LineageMark(attempt=attempt, step=saved.step)
        resume = ResumePoint(attempt=attempt, step=saved.step, path=saved.path)
        return status.but(lineage=(*lineage, mark), resume=resume)
    if all_spoke or not began:
        return status.but(lineage=lineage)
    return status.but(lineage=(*lineage, LineageMark(attempt=attempt, step=UNKNOWN)), resume=None)


def resolve(lineage: tuple[LineageMark, ...], gang: Gang) -> tuple[LineageMark, ...]:
    """End the history at the commit that a member of the gang resumed from.

    It closes a mark that was left open, and shortens the history where the trainer had to fall back: from then on nothing
    later of an earlier attempt counts, whoever may still write it.
    """
    resumed = gang.resumed
    if resumed is None or all(mark.attempt != resumed.attempt for mark in lineage):
        return lineage
    kept = (mark for mark in lineage if mark.attempt <= resumed.attempt)
    return tuple(mark.but(step=resumed.step) if mark.attempt == resumed.attempt else mark for mark in kept)


def _next(job: Job, status: TrainingJobStatus, verdict: Verdict, now: float) -> TrainingJobStatus:
    assert job.spec is not None
    put, generation = conditions.put, job.generation
    if verdict.outcome is Outcome.DONE:
        status = status.but(phase=Phase.SUCCEEDED, ended_at=now, pending=None, not_before=None, former=None)
        status = put(status, ConditionType.COMPLETED, True, Reason.COMPLETED, verdict.message, now, generation)
        status = put(status, ConditionType.RUNNING, False, Reason.COMPLETED, verdict.message, now, generation)
        return put(status, ConditionType.PLACED, False, Reason.COMPLETED, "holds no nodes any more", now, generation)
    if verdict.outcome is Outcome.REFUSED:
        return fail(job, status, Reason.INVALID_CONFIGURATION, verdict.message, now)
    if ran_out(job.spec, status):
        return run_out(job, status, verdict.message, now)
    budget = job.spec.restart
    if verdict.outcome is Outcome.FAILED and len(status.restarts.failure_times) > budget.failures:
        message = (
            f"{count(len(status.restarts.failure_times), 'failure')} within {budget.per}, and spec.restart.failures forgives "
            f"{budget.failures}; the last one: {verdict.message}"
        )
        return fail(job, status, Reason.FAILURE_BUDGET_SPENT, message, now)
    waits = Pending(reason=verdict.reason, message=f"to be placed again: {verdict.message}", since=now)
    status = status.but(phase=Phase.PENDING, pending=waits)
    status = put(status, ConditionType.RUNNING, False, verdict.reason, verdict.message, now, generation)
    return put(status, ConditionType.PLACED, False, verdict.reason, "its nodes were given back", now, generation)
