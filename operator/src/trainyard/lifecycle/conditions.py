"""Conditions in the usual Kubernetes shape: the transition time moves only when the status does."""

from __future__ import annotations

from trainyard.api.conditions import ConditionType, Reason
from trainyard.api.training_job import Condition, TrainingJobStatus


def put(
    status: TrainingJobStatus,
    kind: ConditionType,
    value: bool | None,
    reason: Reason,
    message: str,
    now: float,
    generation: int,
) -> TrainingJobStatus:
    """The status with one condition set. value: True, False, or None for Unknown."""
    text = {True: "True", False: "False", None: "Unknown"}[value]
    before = find(status, kind)
    since = before.last_transition_time if before is not None and before.status == text else now
    new = Condition(
        type=kind,
        status=text,
        reason=reason,
        message=message[:32768],
        last_transition_time=since,
        observed_generation=generation,
    )
    if before == new:
        return status
    others = [c for c in status.conditions if c.type != kind]
    return status.but(conditions=tuple(sorted((*others, new), key=lambda c: c.type)))


def find(status: TrainingJobStatus, kind: ConditionType) -> Condition | None:
    """The condition of a type."""
    return next((c for c in status.conditions if c.type == kind), None)


def without(status: TrainingJobStatus, kind: ConditionType) -> TrainingJobStatus:
    """The status without a condition that says nothing now."""
    kept = tuple(c for c in status.conditions if c.type != kind)
    return status if kept == status.conditions else status.but(conditions=kept)
