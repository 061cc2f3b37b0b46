"""Is a worker that trains stuck? Judged by its silence alone, after it has finished a first step. Pure.

A collective that a peer never joins ends by itself after the process-group timeout; what is caught here is what comes after
that: a timeout that does not end the process, a frozen process, a lock. Before the first step nothing is judged, since
compiling and connecting have no usual length.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trainyard_trainer.launch.progress import Progress
from trainyard_trainer.report import Phase

MARGIN_SECONDS = 60.0
"""Beyond the process-group timeout: time for the worker to notice it itself, say why, and end."""
STEPS_OF_SILENCE = 10.0
"""Steps, or saves, of the usual length that may pass without a word."""
UNMEASURED_SECONDS = 1800.0
"""For what has no measured length (a first save, an evaluation): half an hour is past anything but a dead volume."""


@dataclass(frozen=True, slots=True)
class Silence:
    """A worker that has been silent for longer than it may."""

    rank: int
    step: int
    seconds: float


def patience_seconds(progress: Progress, process_group_timeout_seconds: float) -> float | None:
    """How long this worker may be silent now; None: for ever."""
    if not progress.steps_begun or progress.phase is Phase.DONE:
        return None
    floor = process_group_timeout_seconds + MARGIN_SECONDS
    if progress.phase is Phase.SAVE:  # a save beside the training says nothing of it
        usual, floor = progress.smooth_save_seconds, max(floor, UNMEASURED_SECONDS)
    elif progress.phase in (None, Phase.TRAIN, Phase.WARM_UP):
        usual = progress.smooth_step_seconds
    else:
        usual, floor = None, max(floor, UNMEASURED_SECONDS)
    return max(floor, STEPS_OF_SILENCE * (usual or 0.0))


def furthest_behind(
    workers: Iterable[tuple[int, Progress]], process_group_timeout_seconds: float, now: float, awake_since: float
) -> Silence | None:
    """The worker to blame, if any is silent for too long: the one with the fewest steps, of equal ones the longest silent.

    workers: (rank, progress) of those that run. awake_since: when the launcher itself last woke from a freeze: silence
    before that proves nothing.
    """
    silent = []
    for rank, progress in workers:
        patience = patience_seconds(progress, process_group_timeout_seconds)
        if patience is None or progress.heard is None:
            continue
        seconds = now - max(progress.heard, awake_since)
        if seconds > patience:
            silent.append(Silence(rank, progress.step, seconds))
    return min(silent, key=lambda s: (s.step, -s.seconds), default=None)
