"""What the queue says of a job that waits."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.api.conditions import ConditionType, Phase, Reason
from trainyard.api.model import rfc3339
from trainyard.api.training_job import Pending, TrainingJobStatus
from trainyard.cycle import actions as act
from trainyard.lifecycle import conditions
from trainyard.world.records import Job


@dataclass(frozen=True, slots=True)
class Waiting:
    """What the queue decided for a job that waits. wake: when to look again if nothing happens."""

    status: TrainingJobStatus
    actions: tuple[act.Action, ...] = ()
    wake: float | None = None


def wait(
    job: Job,
    reason: Reason,
    message: str,
    unblock: tuple[str, ...],
    now: float,
    status: TrainingJobStatus | None = None,
) -> Waiting:
    """A job that waits for a reason; told once for each. status: what to go on from, instead of the job's."""
    status = status if status is not None else job.status
    before = status.pending
    same = before is not None and before.reason == reason
    since = before.since if same and before is not None else now
    pending = Pending(reason=reason, message=message, unblock=unblock, since=since)
    status = status.but(phase=Phase.PENDING, pending=pending)
    status = conditions.put(status, ConditionType.PLACED, False, reason, message, now, job.generation)
    return Waiting(status, () if same else told(job, reason, message, "Normal"))


def back_off(job: Job, now: float) -> Waiting:
    """A job whose last attempts brought no new step."""
    assert job.status.not_before is not None
    count = job.status.restarts.fruitless
    message = (
        f"{count} attempts in a row brought no new step; the next one is due at {rfc3339(round(job.status.not_before))}"
    )
    ended = conditions.find(job.status, ConditionType.RUNNING)
    if ended is not None and ended.message:
        message += f"; the last one: {ended.message}"
    waiting = wait(job, Reason.BACKING_OFF, message, (), now)
    return Waiting(waiting.status, waiting.actions, job.status.not_before)


def doubt(job: Job, value: bool | None, reason: Reason, message: str, now: float) -> TrainingJobStatus:
    """The status with the condition Accepted."""
    return conditions.put(job.status, ConditionType.ACCEPTED, value, reason, message, now, job.generation)


def told(job: Job, reason: Reason, message: str, kind: str = "Warning") -> tuple[act.Action, ...]:
    """An Event on the job."""
    return (act.Announce(job.namespace, job.name, job.uid, kind, reason, message),)
