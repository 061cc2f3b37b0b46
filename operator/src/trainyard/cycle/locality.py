"""How far a gang may spread at an instant: a required level holds until its deadline, then a broader one."""

from __future__ import annotations

from typing import NamedTuple

from trainyard.api.training_job import Placement, TrainingJobStatus
from trainyard.planner.place import CLUSTER
from trainyard.topology.tree import Tree


class Locality(NamedTuple):
    """The level that counts now. level: None for the narrowest that fits. next: the level that is enough from `due` on; None
    where none follows."""

    level: str | None
    required: bool
    next: str = ""
    due: float | None = None


def locality(placement: Placement, status: TrainingJobStatus, now: float) -> Locality:
    """What counts for a job that waits. Its deadlines count from the beginning of this wait, not of its first."""
    within = placement.within
    if within is None:
        return Locality(None, False)
    level, since = within.level, status.waiting_since
    for relaxation in placement.relax:
        due = (since if since is not None else now) + relaxation.after_seconds
        if now < due:
            return Locality(*_wanted(level, within.required), relaxation.level, due)
        level = relaxation.level
    return Locality(*_wanted(level, within.required))


def _wanted(level: str, required: bool) -> tuple[str | None, bool]:
    return (None, False) if level == CLUSTER and required else (level, required)


def unknown_level(placement: Placement, tree: Tree) -> str | None:
    """What is wrong with the levels of `relax` and `segments` on this cluster, with the field's path; None where nothing is."""
    known = ", ".join(level.name for level in tree.levels) or "none"
    segments = placement.segments
    if segments is not None and segments.required and tree.depth(segments.level) is None:
        at = "spec.placement.segments.level"
        return f"{at}: no level is called {segments.level}; the cluster's levels are: {known}"
    if placement.within is None or not placement.relax:
        return None
    before, depth = placement.within.level, tree.depth(placement.within.level)
    if depth is None:
        return f"spec.placement.within.level: no level is called {before}; the cluster's levels are: {known}"
    for n, relaxation in enumerate(placement.relax):
        at = f"spec.placement.relax[{n}].level"
        broader = tree.depth(relaxation.level)
        if broader is None and relaxation.level != CLUSTER:
            return f"{at}: no level is called {relaxation.level}; the cluster's levels are: {known}, {CLUSTER}"
        if (broader or 0) >= depth:
            return (
                f"{at}: {relaxation.level} is not broader than {before}; the levels, broadest first: {CLUSTER}, {known}"
            )
        before, depth = relaxation.level, broader or 0
    return None
