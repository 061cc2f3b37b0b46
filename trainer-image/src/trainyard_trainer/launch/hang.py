"""Is a worker stuck, and which one do the others wait for? Judged by what is not said any more. Pure.

Two silences count. A worker whose training says nothing for longer than its phase may take is stuck; a collective that a peer
never joins ends by itself after the process-group timeout, so what is caught here is what comes after that: a timeout that
does not end the process, a lock, a read that never returns. And a process whose heartbeat stops, whatever phase it is in, is
frozen.

Where one is stuck all are, each in its own way. The one to blame has done the fewest steps; of equal ones it is the frozen one,
then the one that does not wait in a collective while others do, then the one that has entered fewest collectives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trainyard_trainer.launch.progress import Progress
from trainyard_trainer.report import Phase

MARGIN_SECONDS = 60.0
"""Beyond the process-group timeout: time for the worker to notice it itself, say why, and end."""
STEPS_OF_SILENCE = 10.0
"""Steps, or saves, of the usual length that may pass without a word."""
UNMEASURED_SECONDS: Final[Mapping[Phase, float]] = {
    Phase.INIT: 7200.0,  # whatever a script prepares before it loads
    Phase.LOAD: 3600.0,
    Phase.WARM_UP: 3600.0,  # compiles, allocates, connects
    Phase.DATA: 1800.0,
    Phase.SAVE: 1800.0,
    Phase.EVAL: 1800.0,
}
"""For what has no measured length: past anything but a dead volume or a lock. Any word of the worker counts anew."""


@dataclass(frozen=True, slots=True)
class Silence:
    """The worker that the others wait for, and how long it has been silent.

    frozen: its heartbeat stopped as well. entered: collectives that it has entered. waits_in: the one that it waits in itself:
    whoever is missing there is in another pod. others: ranks that wait in `others_in`.
    """

    rank: int
    step: int
    seconds: float
    frozen: bool = False
    entered: int = 0
    waits_in: str = ""
    others: tuple[int, ...] = ()
    others_in: str = ""


def patience_seconds(progress: Progress, process_group_timeout_seconds: float) -> float | None:
    """How long this worker's training may be silent now; None: for ever."""
    phase = progress.phase
    if phase is Phase.DONE or (phase is None and not progress.steps_begun):
        return None
    floor = process_group_timeout_seconds + MARGIN_SECONDS
    if phase is Phase.SAVE:  # a save beside the training says nothing of it
        usual, floor = progress.smooth_save_seconds, max(floor, UNMEASURED_SECONDS[phase])
    elif progress.steps_begun and phase in (None, Phase.TRAIN, Phase.WARM_UP):
        usual = progress.smooth_step_seconds
    elif phase is not None and phase in UNMEASURED_SECONDS:
        usual, floor = None, max(floor, UNMEASURED_SECONDS[phase])
    else:
        return None
    return max(floor, STEPS_OF_SILENCE * (usual or 0.0))


def furthest_behind(
    workers: Iterable[tuple[int, Progress]], process_group_timeout_seconds: float, now: float, awake_since: float
) -> Silence | None:
    """The worker to blame, if any is silent for too long.

    workers: (rank, progress) of those that run. awake_since: when the launcher itself last woke from a freeze: silence
    before that proves nothing.
    """
    stuck: list[Silence] = []
    late = False
    for rank, progress in workers:
        if progress.heard is None or progress.phase is Phase.DONE:
            continue
        patience = patience_seconds(progress, process_group_timeout_seconds)
        quiet = now - max(progress.heard, awake_since)
        still = 0.0 if progress.beat is None else now - max(progress.beat, awake_since)
        frozen = still > process_group_timeout_seconds + MARGIN_SECONDS
        late |= frozen or (patience is not None and quiet > patience)
        if frozen or (patience is not None and quiet > patience / 2):  # all fall silent together, and one is the first
            stuck.append(Silence(rank, progress.step, quiet, frozen, progress.entered, progress.waits_in))
    return _blame(stuck) if late else None


def _blame(stuck: Sequence[Silence]) -> Silence:
    blamed = min(stuck, key=lambda s: (s.step, not s.frozen, bool(s.waits_in), s.entered, -s.seconds))
    # One that waits as well, in an earlier one than others, has not entered theirs.
    waiting = [one for one in stuck if one.waits_in and (not blamed.waits_in or one.entered > blamed.entered)]
    waiting = [one for one in waiting if one.rank != blamed.rank]
    if blamed.waits_in and not blamed.frozen and not waiting:
        return blamed
    return Silence(
        blamed.rank,
        blamed.step,
        blamed.seconds,
        blamed.frozen,
        blamed.entered,
        "",
        tuple(sorted(one.rank for one in waiting)),
        waiting[0].waits_in if waiting else "",
    )


def sentence(silence: Silence) -> str:
    """What is known of it, in words."""
    what = "frozen" if silence.frozen else "behind"
    said = f"rank {silence.rank} is {what}: silent for {silence.seconds:.0f} s after step {silence.step}"
    if silence.waits_in:
        return f"{said}, waiting in {silence.waits_in}, which another rank has not entered"
    if silence.others:
        ranks = ", ".join(map(str, silence.others[:8])) + (", ..." if len(silence.others) > 8 else "")
        who = f"rank {ranks} waits" if len(silence.others) == 1 else f"ranks {ranks} wait"
        return f"{said}; it has not entered {silence.others_in}, in which {who}"
    return said
