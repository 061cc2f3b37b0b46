"""Nodes that a job found unfit before its first step, and those that it found fit: what it remembers of either, and for how long.

What is said about a node goes on this job's list alone: one job's script could otherwise take nodes from everybody.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from trainyard.api.conditions import Reason
from trainyard.api.model import rfc3339
from trainyard.api.training_job import Avoided, Proven, TrainingJobStatus
from trainyard.lifecycle import deadlines

MOST_AVOIDED: Final = 64
MOST_PROVEN: Final = 2048
"""Names of nodes that are remembered, so that they fit into the job's object; a larger gang is measured at every start."""
MOST_PREFLIGHTS: Final = 16


def avoided(status: TrainingJobStatus, now: float) -> frozenset[str]:
    """Names of the nodes that the job does without now."""
    return frozenset(one.node for one in status.avoid if now < one.until)


def avoid(
    status: TrainingJobStatus, nodes: Collection[str], reason: Reason, message: str, now: float
) -> TrainingJobStatus:
    """The status with nodes that the current attempt found unfit; who was on the list already stays there for longer."""
    if not nodes:
        return status
    new = tuple(
        Avoided(
            node=node,
            reason=reason,
            message=message[:500],
            attempt=status.attempt,
            time=now,
            until=now + deadlines.AVOID,
        )
        for node in dict.fromkeys(nodes)
    )
    kept = [one for one in status.avoid if one.node not in nodes and now < one.until]
    proven = tuple(one.but(nodes=tuple(node for node in one.nodes if node not in nodes)) for one in status.proven)
    return status.but(avoid=(*kept, *new)[-MOST_AVOIDED:], proven=proven)


def said(status: TrainingJobStatus, now: float) -> str:
    """Which nodes the job does without, why and until when; "" for none."""
    parts = []
    for until, message in dict.fromkeys((one.until, one.message) for one in status.avoid if now < one.until):
        nodes = [one.node for one in status.avoid if (one.until, one.message) == (until, message)]
        parts.append(f"{_some(nodes)} until {rfc3339(round(until))} ({message})")
    return f"the job does without {'; '.join(parts)}" if parts else ""


def left_out(nodes: Collection[str], now: float) -> str:
    """That the job does without these nodes from now on, to end a sentence with; "" for none."""
    return f"; the job does without {_some(nodes)} until {rfc3339(round(now + deadlines.AVOID))}" if nodes else ""


def _some(nodes: Collection[str]) -> str:
    names = list(nodes)
    return ", ".join(names) if len(names) <= 8 else f"{', '.join(names[:8])} and {len(names) - 8} more"


def free_again(status: TrainingJobStatus, now: float) -> float | None:
    """When the first of these nodes may be had again."""
    return min((one.until for one in status.avoid if now < one.until), default=None)


def prove(status: TrainingJobStatus, nodes: Collection[str], now: float) -> TrainingJobStatus:
    """The status with nodes that passed the current attempt's preflight. What was not measured again stays as it was."""
    known = proven(status)
    new = tuple(node for node in dict.fromkeys(nodes) if node not in known)
    remembered = sum(len(one.nodes) for one in status.proven)
    if not new or remembered + len(new) > MOST_PROVEN:
        return status
    passed = Proven(attempt=status.attempt, time=now, nodes=new)
    return status.but(proven=(*status.proven, passed)[-MOST_PREFLIGHTS:])


def proven(status: TrainingJobStatus) -> frozenset[str]:
    """Names of the nodes that an earlier attempt measured within the hour before the current one: the same all its life."""
    assert status.started_at is not None
    since = status.started_at - deadlines.PROVEN
    return frozenset(
        node for one in status.proven if one.attempt < status.attempt and one.time > since for node in one.nodes
    )


def forget(status: TrainingJobStatus, now: float) -> TrainingJobStatus:
    """The status without what is too old to matter to the next attempt."""
    return status.but(
        avoid=tuple(one for one in status.avoid if now < one.until),
        proven=tuple(one for one in status.proven if one.time > now - deadlines.PROVEN and one.nodes),
    )
