"""What one job needs next, given its gang: the whole policy between its start and its end.

A decision is a status and the actions that follow from it. The status is written first, so that a successor who finds only the
status does the same again: every action is idempotent, and none depends on the operator remembering that it was taken.
Starting is not decided here: who gets which nodes is a question between jobs, and the cycle's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from trainyard.api.conditions import ConditionType, Phase, Reason
from trainyard.api.training_job import Ending, Progress, SavedCheckpoint, Stop, TrainingJobStatus
from trainyard.contract.exits import Exit
from trainyard.lifecycle import closing, conditions, deadlines
from trainyard.lifecycle.gang import Gang, Seat, abandoned, is_open, runs_own_script
from trainyard.lifecycle.verdict import Outcome, Verdict, alarm, outcome, why_not_running
from trainyard.world.records import Job, Pod, Terminated


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete a member. grace_seconds: None for its own; 0 removes the object at once, as its kubelet never will."""

    pod: Pod
    grace_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class ReleasePod:
    """Take the finalizer off a pod whose last words were read."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class AskStop:
    """Tell a launcher of the recorded stop."""

    pod: Pod
    stop: Stop


@dataclass(frozen=True, slots=True)
class MakeMembers:
    """Make what is missing of the attempt that the reservation is for."""


@dataclass(frozen=True, slots=True)
class HoldJob:
    """Put our finalizer on the job."""


@dataclass(frozen=True, slots=True)
class ReleaseJob:
    """Take our finalizer off the job."""


@dataclass(frozen=True, slots=True)
class Tell:
    """An Event on the job."""

    kind: str
    reason: Reason
    message: str


PodNeed = DeletePod | ReleasePod | AskStop
Need = PodNeed | MakeMembers | HoldJob | ReleaseJob | Tell


@dataclass(frozen=True, slots=True)
class Decision:
    """status: what the job's status should be. needs: what follows, in order. queue: whether the job waits for nodes.

    wake: when to look again even if nothing happens; None: only when something does.
    """

    status: TrainingJobStatus
    needs: tuple[Need, ...] = ()
    queue: bool = False
    wake: float | None = None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a job's decision needs to know besides itself.

    wanted_by: the jobs whose reservations name this attempt as a victim. blind: the operator reaches no launcher of several
    jobs at once, so silence is its own trouble. leaving: the job's namespace is being deleted. refusal: what the API server said
    when it would not take the next member of this attempt, "" where it took it.
    """

    wanted_by: tuple[str, ...] = ()
    blind: bool = False
    leaving: bool = False
    refusal: str = ""


def decide(job: Job, gang: Gang, around: Surroundings, now: float) -> Decision:
    """Total: every state has an answer, and every wait a deadline."""
    if job.deleted is not None:
        return _tear_down(job, gang, around, now)
    if left_alone(job):
        return _leave_alone(job)
    if job.status.phase is not None and job.status.phase.ended and not _edited_after_refusal(job):
        return _settle(job, gang, now)
    if job.spec is None:
        return _refuse(job, Reason.INVALID_SPEC, "; ".join(str(error) for error in job.errors), now)
    if not job.held:
        return Decision(job.status, (HoldJob(),))
    if is_open(job):
        return _tend(job, gang, around, now)
    swept = _sweep(job, gang, now)
    if closing.ran_out(job.spec, job.status):
        spent = closing.run_out(job, job.status.but(observed_generation=job.generation), "no attempt may follow", now)
        return Decision(spent, (*swept, _told_of_failure(spent)))
    if job.spec.suspend:
        return _wake_for(_suspended(job, swept, now), gang.others, now)
    return _wake_for(Decision(_observed(job, job.status, now), swept, queue=True), gang.others, now)


def left_alone(job: Job) -> bool:
    """The status is this operator's memory, and it cannot read it: perhaps a newer version wrote it. What it does not understand
    it does not touch, neither the job nor its pods."""
    return job.deleted is None and any(error.path.startswith("status") for error in job.errors)


def _leave_alone(job: Job) -> Decision:
    message = "; ".join(str(error) for error in job.errors)
    said = f"{message}; a newer operator may have written it: run that one, or delete the job"
    return Decision(job.status, (Tell("Warning", Reason.UNREADABLE_STATUS, said),))


def refuse(job: Job, reason: Reason, message: str, now: float) -> Decision:
    """The user's mistake: answered in a condition, and not tried again before the specification changes."""
    return _refuse(job, reason, message, now)


def _observed(job: Job, status: TrainingJobStatus, now: float) -> TrainingJobStatus:
    """The status of a job that waits: it has a phase, an age in the queue, and speaks of the newest specification."""
    queued = status.queued_at if status.queued_at is not None else job.created
    status = status.but(observed_generation=job.generation, queued_at=queued, phase=Phase.PENDING, ended_at=None)
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


def _refuse(job: Job, reason: Reason, message: str, now: float) -> Decision:
    status = job.status.but(observed_generation=job.generation)
    status = conditions.put(status, ConditionType.ACCEPTED, False, reason, message, now, job.generation)
    status = closing.fail(job, status, reason, message, now)
    return Decision(status, (Tell("Warning", reason, message),))


def _suspended(job: Job, swept: tuple[Need, ...], now: float) -> Decision:
    status = _observed(job, job.status, now).but(phase=Phase.SUSPENDED, pending=None, reservation=None)
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
        found = alarm(job, gang, digest, around.blind, now) or _unmade(job, gang, around, now)
        if found is not None:
            status = _record_ending(status, found, now)
            told.append(Tell("Warning", found.reason, found.message))
    if status.ending is None and status.stop is None:
        stop = _reason_to_stop(job, gang, around, now)
        if stop is not None:
            status = status.but(stop=stop)
            told.append(Tell("Normal", Reason(stop.reason), _asked(stop, around)))

    whole = job.with_status(status)
    all_made = all(seat.pod is not None for seat in gang.seats)
    leaving = status.ending is not None or status.stop is not None
    if all_made or leaving:
        # Members that were never made need not be: the attempt is whole, or on its way out.
        status = status.but(reservation=None)

    if (leaving or all_made) and gang.seats and all(seat.settled(now) for seat in gang.seats):
        recorded = _recorded(status)
        verdict = recorded or outcome(job.with_status(status), gang, now)
        closed = closing.close(whole, gang, verdict, now)
        kind = "Normal" if verdict.outcome in (Outcome.DONE, Outcome.YIELDED) else "Warning"
        if recorded is None:
            told.append(Tell(kind, verdict.reason, verdict.message))
        if closed.phase is Phase.FAILED:
            told.append(_told_of_failure(closed))
        return Decision(_saved(closed, gang), (*told, *_sweep(job, gang, now)))

    going: list[Need] = []
    if status.ending is not None:
        going += _take_down(gang, deadlines.BROKEN_GRACE)
    elif status.stop is not None:
        going += _ask_to_leave(gang, status.stop, now)
    made = () if status.reservation is None else (MakeMembers(),)
    # The first need that the API server refuses ends the turn: who has to leave must not wait for what can be tidied up later,
    # and new pods come last, since the old ones may take the quota that they need.
    needs = (*told, *going, *_sweep(job, gang, now), *_after_last_words(gang.pods, now), *made)
    status = _report(job, gang, around, status, now)
    return Decision(status, needs, wake=_next_deadline(job, gang, status, now))


def _told_of_failure(status: TrainingJobStatus) -> Tell:
    failed = conditions.find(status, ConditionType.FAILED)
    assert failed is not None
    return Tell("Warning", Reason(failed.reason), failed.message)


def _unmade(job: Job, gang: Gang, around: Surroundings, now: float) -> Verdict | None:
    """Members that the API server does not take: nobody's failure (a quota, a webhook), but others could use the nodes."""
    missing = sum(seat.pod is None for seat in gang.seats)
    if job.status.reservation is None or job.status.started_at is None or not missing:
        return None
    if around.leaving:
        return Verdict(Outcome.DISPLACED, Reason.NAMESPACE_TERMINATING, "the namespace is being deleted")
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
    return status.but(ending=ending, last_failure=verdict.failure or status.last_failure)


def _recorded(status: TrainingJobStatus) -> Verdict | None:
    ending = status.ending
    if ending is None:
        return None
    return Verdict(Outcome(ending.outcome), Reason(ending.reason), ending.message)


def _take_down(gang: Gang, grace_seconds: int | None) -> list[Need]:
    return [
        DeletePod(seat.pod, grace_seconds)
        for seat in gang.seats
        if seat.pod is not None and seat.ended is None and seat.pod.deleted is None
    ]


def _ask_to_leave(gang: Gang, stop: Stop, now: float) -> list[PodNeed]:
    """Ask every launcher until it has noticed. Where none can be asked, or the time is over, the deletion's SIGTERM asks."""
    needs: list[PodNeed] = []
    for seat in gang.seats:
        pod = seat.pod
        if pod is None or seat.ended is not None or pod.deleted is not None:
            continue
        unstarted = seat.running is None
        if unstarted or now >= stop.deadline or seat.unreached(now):
            needs.append(DeletePod(pod))
        elif not _noticed(seat) and (seat.answer is None or now - seat.answer.stop_sent >= deadlines.ASK_AGAIN):
            needs.append(AskStop(pod, stop))
    return _side_by_side(needs)


def _side_by_side(needs: Iterable[PodNeed]) -> list[PodNeed]:
    """What is done to pods, kind by kind: neighbours of one kind are carried out at once, and a launcher that is slow to answer
    must not stand before the next that is to be asked."""
    kinds = (ReleasePod, AskStop, DeletePod)
    return sorted(needs, key=lambda need: kinds.index(type(need)))


def _noticed(seat: Seat) -> bool:
    return seat.status is not None and seat.status.notice_time is not None


# What the status says of a running attempt ------------------------------------------------------------------------------


def _report(job: Job, gang: Gang, around: Surroundings, status: TrainingJobStatus, now: float) -> TrainingJobStatus:
    ready = sum(1 for seat in gang.seats if _trains(job, seat, now))
    count = len(gang.seats)
    if ready == count and status.running_at is None and status.ending is None:
        status = status.but(running_at=now)
    if status.ending is not None or status.stop is not None:
        phase = Phase.YIELDING
    else:
        phase = Phase.RUNNING if status.running_at is not None else Phase.STARTING
    status = status.but(phase=phase, ready_nodes=ready, pending=None, lineage=closing.resolve(status.lineage, gang))
    status = _conditions(job, gang, around, status, ready, now)
    fresh = _progress(_saved(status, gang), gang, now)
    if fresh.but(progress=None, checkpoint=None) == job.status.but(progress=None, checkpoint=None):
        last = job.status.progress
        if last is not None and last.time is not None and now - last.time < deadlines.PROGRESS:
            return job.status
    return fresh


def _trains(job: Job, seat: Seat, now: float) -> bool:
    """It runs, and its launcher says that the workers train; or it runs and cannot be asked, or trained before it fell silent."""
    if seat.running is None:
        return False
    if seat.status is not None:
        spoken = seat.status.first_step_time is not None or seat.status.phase in ("training", "saving", "stopping")
        return spoken or runs_own_script(job)
    return seat.unreached(now) or job.status.running_at is not None


def _saved(status: TrainingJobStatus, gang: Gang) -> TrainingJobStatus:
    commit, known = gang.commit, status.checkpoint
    if commit is None or (known is not None and (known.attempt, known.step) >= (commit.attempt, commit.step)):
        return status
    return status.but(
        checkpoint=SavedCheckpoint(
            step=commit.step,
            attempt=commit.attempt,
            path=commit.path,
            bytes=commit.bytes,
            seconds=commit.seconds,
            time=commit.time or None,
        )
    )


def _progress(status: TrainingJobStatus, gang: Gang, now: float) -> TrainingJobStatus:
    leader = next((seat.status for seat in gang.seats if seat.rank == 0), None)
    if leader is None or leader.step == 0:
        return status
    new = Progress(
        step=leader.step,
        loss=_short(leader.loss),
        tokens_per_second=_short(leader.tokens_per_second),
        step_seconds=_short(leader.step_seconds),
        time=now,
    )
    old = status.progress
    if old is not None and new.but(time=old.time) == old:
        return status
    return status.but(progress=new)


def _short(value: float | None) -> float | None:
    """Five digits: people read it, in a column of kubectl."""
    return None if value is None else float(f"{value:.5g}")


def _conditions(
    job: Job, gang: Gang, around: Surroundings, status: TrainingJobStatus, ready: int, now: float
) -> TrainingJobStatus:
    put, generation, count = conditions.put, job.generation, len(gang.seats)
    held = f"attempt {status.attempt} holds {count} nodes"
    status = put(status, ConditionType.PLACED, True, Reason.GANG_STARTED, held, now, generation)
    if status.phase is Phase.YIELDING:
        why = status.ending or status.stop
        assert why is not None
        message = getattr(why, "message", "") or f"asked to save and leave: {why.reason}"
        status = put(status, ConditionType.RUNNING, False, Reason(why.reason), message, now, generation)
    elif status.phase is Phase.RUNNING:
        status = put(
            status, ConditionType.RUNNING, True, Reason.ALL_RUNNING, f"all {count} members train", now, generation
        )
    else:
        first = next((seat for seat in gang.seats if not _trains(job, seat, now)), None)
        why_not = f"; rank {first.rank}: {_not_yet(first)}" if first is not None else ""
        if around.refusal and not all(seat.pod for seat in gang.seats):
            why_not = f"; the API server does not take the others: {around.refusal}"
        message = f"{ready} of {count} members train{why_not}"
        status = put(status, ConditionType.RUNNING, False, Reason.MEMBERS_STARTING, message, now, generation)
    return _controlled(gang, around, status, now, generation)


def _not_yet(seat: Seat) -> str:
    if seat.running is None:
        return why_not_running(seat)
    return f"its workers are {seat.status.phase}" if seat.status is not None else "its launcher has not answered yet"


def _controlled(
    gang: Gang, around: Surroundings, status: TrainingJobStatus, now: float, generation: int
) -> TrainingJobStatus:
    put = conditions.put
    if around.blind:
        message = "no launcher of several jobs answers: the operator's own network is in trouble, the jobs go on"
        return put(status, ConditionType.CONTROLLED, False, Reason.OPERATOR_UNREACHABLE, message, now, generation)
    unreached = [seat for seat in gang.seats if seat.unreached(now)]
    if unreached:
        error = unreached[0].answer.error if unreached[0].answer is not None else "it was not asked yet"
        message = (
            f"{len(unreached)} of {len(gang.seats)} launchers never answered (rank {unreached[0].rank}: {error}); a yield goes "
            f"by SIGTERM alone. Is the operator allowed to reach port 9400 of the pods (NetworkPolicy)?"
        )
        return put(status, ConditionType.CONTROLLED, False, Reason.LAUNCHER_UNREACHABLE, message, now, generation)
    if all(seat.status is not None for seat in gang.seats):
        return put(
            status, ConditionType.CONTROLLED, True, Reason.LAUNCHERS_ANSWER, "all launchers answer", now, generation
        )
    return status


def _next_deadline(job: Job, gang: Gang, status: TrainingJobStatus, now: float) -> float | None:
    """The next instant at which time alone changes the decision."""
    assert job.spec is not None
    due: list[float] = []
    if status.stop is not None:
        due += [status.stop.deadline, now + deadlines.ASK_AGAIN]
    if status.started_at is not None and status.running_at is None:
        last_made = max((pod.created for pod in gang.pods), default=0.0)
        due += [status.started_at + deadlines.START, max(status.started_at, last_made) + deadlines.UNMADE + 0.001]
    limit = job.spec.max_runtime_seconds
    if limit is not None and status.running_at is not None:
        due.append(status.running_at + limit - status.ran_seconds)
    for seat in gang.seats:
        due.extend(_seat_deadlines(seat))
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
        due += [seat.ended.finished + deadlines.WORDS, seat.ended.finished + deadlines.FINISH + 0.001]
    if seat.running is not None:
        if answer is not None:
            due.append(max(seat.running.started, answer.asked) + deadlines.UNREACHED + 0.001)
        if seat.heard is not None:
            due.append(seat.heard + deadlines.SILENT + 0.001)
    return due


# What is left of earlier attempts, of ended jobs and of deleted ones ------------------------------------------------------


def _after_last_words(pods: tuple[Pod, ...], now: float) -> list[Need]:
    """Do not keep a pod that somebody deletes for longer than it takes to read its last words."""
    return [ReleasePod(pod) for pod in pods if pod.held and pod.deleted is not None and _spoke_long_ago(pod, now)]


def _spoke_long_ago(pod: Pod, now: float) -> bool:
    finished = getattr(pod.trainer, "finished", None)
    return isinstance(finished, float | int) and now - finished > deadlines.WORDS


def _lingers(pod: Pod, now: float) -> bool:
    """Its trainer ended, and its sidecars keep the pod, and with it the room on its node."""
    until = _lingers_at(pod)
    return until is not None and now >= until


def _lingers_at(pod: Pod) -> float | None:
    """From when on a pod that is there for its logs has sidecars to blame for still being live; None for any other."""
    if not pod.live or not isinstance(pod.trainer, Terminated) or pod.deleted is not None:
        return None
    return pod.trainer.finished + deadlines.LINGER


def _sweep(job: Job, gang: Gang, now: float) -> tuple[Need, ...]:
    """Pods of closed attempts: end those that still run, let go of those that ended, remove all but the one that failed first.

    The one that failed first stays for its logs until the next attempt fails.
    """
    failure = job.status.last_failure
    keep = failure.pod if failure is not None else None
    needs: list[PodNeed] = []
    for pod in gang.others:
        if pod.held and (pod.over or abandoned(pod, now)):
            needs.append(ReleasePod(pod))
        if pod.deleted is None and (not pod.over or pod.name != keep or _lingers(pod, now)):
            needs.append(DeletePod(pod, deadlines.BROKEN_GRACE))
    return tuple(_side_by_side(needs))


def _settle(job: Job, gang: Gang, now: float) -> Decision:
    """The job has ended: its pods stay for their logs, without a hold on them; what still runs is taken down."""
    of_pods: list[PodNeed] = []
    for pod in gang.others:
        if pod.held and (pod.over or abandoned(pod, now)):
            of_pods.append(ReleasePod(pod))
        if pod.deleted is None and (not pod.over or _lingers(pod, now)):
            of_pods.append(DeletePod(pod, deadlines.BROKEN_GRACE))
    needs: list[Need] = [*_side_by_side(of_pods)]
    if job.held and all(not pod.held and pod.over and _lingers_at(pod) is None for pod in gang.others):
        needs.append(ReleaseJob())
    status = (
        job.status
        if job.status.observed_generation == job.generation
        else job.status.but(observed_generation=job.generation)
    )
    return _wake_for(Decision(status, tuple(needs)), gang.others, now)


def _tear_down(job: Job, gang: Gang, around: Surroundings, now: float) -> Decision:
    """The job was deleted: its pods get SIGTERM and their grace, then nothing of it stays.

    A pod whose kubelet does not answer is removed by force when its grace is over: the names of its members are never used
    again, and its late writes belong to no lineage, so that nothing can come of it.
    """
    assert job.deleted is not None
    pods = (*gang.pods, *gang.others)
    of_pods: list[PodNeed] = []
    for pod in pods:
        margin = 0.0 if around.leaving else deadlines.KILLED
        late = pod.killed is not None and now > pod.killed + margin
        if pod.held and (pod.over or late):
            of_pods.append(ReleasePod(pod))
        if late and not pod.over:
            of_pods.append(DeletePod(pod, 0))
        if pod.deleted is None:
            of_pods.append(DeletePod(pod))
    needs: list[Need] = [*_side_by_side(of_pods)]
    if job.held and all(not pod.held for pod in pods):
        needs.append(ReleaseJob())
    due = [pod.killed + (0.0 if around.leaving else deadlines.KILLED) + 0.001 for pod in pods if pod.killed is not None]
    return Decision(job.status, tuple(needs), wake=min((d for d in due if d > now), default=None))


def _wake_for(decision: Decision, pods: tuple[Pod, ...], now: float) -> Decision:
    due = [pod.killed + deadlines.KILLED + 0.001 for pod in pods if pod.killed is not None and pod.held]
    due += [at for at in map(_lingers_at, pods) if at is not None]
    due += [decision.wake] if decision.wake is not None else []
    wake = min((d for d in due if d > now), default=None)
    return Decision(decision.status, decision.needs, decision.queue, wake)
