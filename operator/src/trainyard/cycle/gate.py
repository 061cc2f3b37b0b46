"""What has to be true before a job may have nodes at all."""

from __future__ import annotations

from collections.abc import Iterable

from trainyard.api.conditions import ConditionType, Reason
from trainyard.api.template import containers, trainer_container
from trainyard.api.training_job import Pending, TrainingJobSpec
from trainyard.contract.torchrun import Untranslatable, asked
from trainyard.cycle import actions as act
from trainyard.cycle.locality import unknown_level
from trainyard.cycle.members import sample
from trainyard.cycle.waiting import Waiting, doubt, told, wait
from trainyard.lifecycle import conditions, deadlines
from trainyard.lifecycle.decide import refuse
from trainyard.world.inventory import Inventory
from trainyard.world.records import Job, Trial, Verdict, World


def gate(world: World, inventory: Inventory, job: Job, now: float) -> Waiting | None:
    """Why a job may not have nodes now, whatever is free; None where it may."""
    assert job.spec is not None
    status = job.status
    if world.namespace_leaving(job.namespace):
        without = job.with_status(status.but(reservation=None))
        return wait(without, Reason.NAMESPACE_TERMINATING, f"namespace {job.namespace} is being deleted", (), now)
    priority = job.spec.priority_class_name
    if priority is not None and priority not in world.priority_classes:
        known = _names(world.priority_classes)
        message = f"spec.priorityClassName: there is no PriorityClass {priority}; the cluster has {known}"
        doubtful = conditions.put(
            status, ConditionType.ACCEPTED, False, Reason.PRIORITY_CLASS_NOT_FOUND, message, now, job.generation
        )
        unblock = (f"create PriorityClass {priority}",)
        return wait(job.with_status(doubtful), Reason.PRIORITY_CLASS_NOT_FOUND, message, unblock, now)
    misplaced = unknown_level(job.spec.placement, inventory.tree)
    if misplaced is not None:
        doubtful = conditions.put(
            status, ConditionType.ACCEPTED, False, Reason.UNKNOWN_LEVEL, misplaced, now, job.generation
        )
        return wait(job.with_status(doubtful), Reason.UNKNOWN_LEVEL, misplaced, (), now)
    mistaken = _mistaken_command(job.spec)
    if mistaken is not None:
        refused = refuse(job, Reason.TEMPLATE_REFUSED, mistaken, now)
        return Waiting(refused.status, told(job, Reason.TEMPLATE_REFUSED, mistaken))
    return _tried(world, inventory, job, now)


def is_asked(barred: Waiting) -> bool:
    """Whether all that bars a job is that the API server has not answered yet, which it does in a moment."""
    accepted = conditions.find(barred.status, ConditionType.ACCEPTED)
    return accepted is not None and accepted.reason == Reason.CHECKING


def _mistaken_command(spec: TrainingJobSpec) -> str | None:
    """What of a command of torchrun's the launcher cannot do, with the field's path; None where all is well."""
    trains = trainer_container(spec.template)
    command = [*trains.get("command", ()), *trains.get("args", ())] if trains and trains.get("command") else []
    try:
        if command:
            asked(command, spec.processes)
    except Untranslatable as problem:
        return f"spec.template.spec.containers[{containers(spec.template).index(trains)}].command: {problem}"
    return None


def _names(found: Iterable[str]) -> str:
    return ", ".join(sorted(found)) or "none"


def _tried(world: World, inventory: Inventory, job: Job, now: float) -> Waiting | None:
    trial = world.trials.get(job.uid)
    if trial is None or trial.generation != job.generation:
        message = "the API server is asked whether it takes the pods"
        checking = doubt(job, None, Reason.CHECKING, message, now)
        if checking.pending is None:
            checking = checking.but(pending=Pending(reason=Reason.CHECKING, message=message, since=now))
        return Waiting(checking, (_ask(world, inventory, job),))
    if trial.verdict is Verdict.REFUSED:
        refused = refuse(job, Reason(trial.reason), trial.message, now)
        return Waiting(refused.status, told(job, Reason(trial.reason), trial.message))
    if trial.verdict is Verdict.WAIT:
        return _try_again(world, inventory, job, trial, now)
    return None


def _ask(world: World, inventory: Inventory, job: Job) -> act.TryPod:
    return act.TryPod(job.uid, job.generation, sample(world, inventory, job))


def _try_again(world: World, inventory: Inventory, job: Job, trial: Trial, now: float) -> Waiting:
    reason = Reason(trial.reason or Reason.API_REFUSES)
    doubtful = job.with_status(doubt(job, False, reason, trial.message, now))
    due = trial.time + deadlines.TRY_AGAIN
    waiting = wait(doubtful, reason, trial.message, (), now)
    actions = (*waiting.actions, _ask(world, inventory, job)) if now >= due else waiting.actions
    return Waiting(waiting.status, actions, due if now < due else now + deadlines.TRY_AGAIN)
