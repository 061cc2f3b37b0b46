"""What is known of a worker from its reports: a fold, one report at a time.

A report is a claim by a program that may be anybody's. It moves figures; it never moves the launcher.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from trainyard.contract.plan import Mark
from trainyard.contract.preflight import PreflightResult
from trainyard.contract.status import At, Commit, WorkerPhase

from trainyard_trainer.report import (
    Beat,
    CheckpointDurable,
    Failed,
    Overlapped,
    Phase,
    PhaseChanged,
    PreflightDone,
    Report,
    ResumedFrom,
    SaveExpected,
    SentInStep,
    StepDone,
    StopAcknowledged,
    Warned,
)

SMOOTHING = 0.3
"""Weight of the newest value in a moving average: about the last five steps or saves count."""
KEPT_WARNINGS = 8
COUNTED_REASONS = 32
"""More reasons than this are counted as OTHER_REASON: each one is a series in somebody's Prometheus."""
OTHER_REASON = "Other"
COMPARED_STEPS = 20
"""Over so many steps a rank's own time is looked at before it is compared with others': one slow step is nobody's fault."""
LONGEST_PATH = 1024
"""Characters of a checkpoint's path; a longer one is not repeated (last words have 3,500 bytes for everything)."""

MOST_SENT = 32
"""Series of what is sent: four axes, five classes and as many collectives make some 15; a program may claim anything."""

LONGEST_NAME = 80
"""Characters of a collective's name."""

MOST_BYTES = 2**62
"""More than any step sends, and still a float."""


class SentAlong(NamedTuple):
    """Which data goes along which axis of the mesh, how, and over which level of the network."""

    axis: str
    data: str
    collective: str
    level: str = ""


class SentBytes(NamedTuple):
    """Of a step: as a worker counted and as the planner predicts, logical and on the wire; and seconds on their way, None where
    they were not measured."""

    counted: float
    predicted: float
    wire: float = 0.0
    predicted_wire: float = 0.0
    seconds: float | None = None


class Overlap(NamedTuple):
    """Seconds of a step in which anything was on its way, in which training waited for it, and of the step."""

    communication: float
    exposed: float
    step: float


WORKER_PHASES: Mapping[Phase, WorkerPhase] = {
    Phase.IMPORT: WorkerPhase.STARTING,
    Phase.INIT: WorkerPhase.STARTING,
    Phase.LOAD: WorkerPhase.LOADING,
    Phase.WARM_UP: WorkerPhase.TRAINING,
    Phase.TRAIN: WorkerPhase.TRAINING,
    Phase.DATA: WorkerPhase.TRAINING,
    Phase.EVAL: WorkerPhase.TRAINING,
    Phase.SAVE: WorkerPhase.SAVING,
    Phase.DONE: WorkerPhase.ENDED,
}


@dataclass(frozen=True, slots=True)
class Progress:
    """One worker, as far as it has spoken. Times named `_time` are seconds since the epoch, by the worker's clock.

    heard: when its last report but a beat was read (the launcher's monotonic clock); None: it never spoke. beat: the same of its
    last beat, which is said whatever the training does. entered, waits_in: collectives entered, and the one that it waits in.
    phase_since: when its present phase began. phase_seconds: time spent in each phase that is over.
    step: steps done. smooth_step_seconds, smooth_save_seconds: moving averages, None before the first.
    commit: the newest durable checkpoint of this attempt; saved: when it was heard of (the launcher's monotonic clock).
    agreed_step: where all ranks agreed to stop.
    saves: checkpoints that became durable. warnings: the newest; warned: how many of each reason. preflight: how it ended.
    sent: bytes of a step along each axis of the mesh, counted and predicted. overlap: how much of that time is hidden.
    own_recent: seconds of the last COMPARED_STEPS steps in which it did not wait for others. data_seconds: how long it waited
    for samples, all together. mfu: of the last step. memory_bytes: most memory taken. heartbeat_cpu_seconds: of who beats.
    save_expected: seconds of a save by an estimate, and what that rests on; None: no estimate was made.
    """

    heard: float | None = None
    beat: float | None = None
    entered: int = 0
    waits_in: str = ""
    phase: Phase | None = None
    phase_since: float | None = None
    phase_seconds: Mapping[Phase, float] = field(default_factory=dict)
    step: int = 0
    steps_reported: int = 0
    step_seconds_sum: float = 0.0
    last_step_seconds: float | None = None
    smooth_step_seconds: float | None = None
    first_step_time: float | None = None
    last_step_time: float | None = None
    loss: float | None = None
    grad_norm: float | None = None
    tokens_per_second: float | None = None
    tokens: int = 0
    saves: int = 0
    smooth_save_seconds: float | None = None
    commit: Commit | None = None
    saved: float | None = None
    agreed_step: int | None = None
    resumed: Mark | None = None
    failed: Failed | None = None
    warnings: tuple[str, ...] = ()
    warned: Mapping[str, int] = field(default_factory=dict)
    preflight: PreflightResult | None = None
    sent: Mapping[SentAlong, SentBytes] = field(default_factory=dict)
    overlap: Overlap | None = None
    own_recent: tuple[float, ...] = ()
    waited_seconds: float = 0.0
    data_seconds: float = 0.0
    mfu: float | None = None
    memory_bytes: int | None = None
    heartbeat_cpu_seconds: float = 0.0
    save_expected: tuple[float, str] | None = None

    @property
    def steps_begun(self) -> bool:
        """Whether it has finished a step: from then on its silence means something."""
        return self.steps_reported > 0

    @property
    def own_seconds(self) -> float | None:
        """Of a step, what it did not wait for others: the median of the last COMPARED_STEPS; None before there are as many."""
        return statistics.median(self.own_recent) if len(self.own_recent) == COMPARED_STEPS else None


def heard(progress: Progress, report: Report, attempt: int, now: float) -> Progress:
    """What is known after one more report, read at `now` (monotonic). A claim about another attempt's commit is not ours."""
    if isinstance(report, Beat):
        return replace(
            progress,
            beat=now,
            entered=min(max(report.entered, 0), MOST_BYTES),
            waits_in=report.waits_in[:LONGEST_NAME],
            memory_bytes=min(max(report.memory_bytes, 0), MOST_BYTES),
            heartbeat_cpu_seconds=max(report.cpu_seconds, 0.0),
        )
    progress = replace(progress, heard=now)
    match report:
        case PhaseChanged(phase=phase):
            return _enter(progress, phase, report.at)
        case StepDone():
            return _step(progress, report)
        case CheckpointDurable():
            return _durable(progress, report, attempt, now)
        case StopAcknowledged(step=step):
            return replace(progress, agreed_step=step)
        case ResumedFrom(attempt=origin, step=step):
            return replace(progress, resumed=Mark(origin, step), step=max(progress.step, step))
        case Failed() if progress.failed is None or not progress.failed.preflight:
            return replace(progress, failed=report)  # an error that only passes a failed preflight on adds nothing
        case Warned(reason=reason, message=message):
            return _warn(progress, reason, message)
        case SentInStep(axis=axis, data=data, collective=collective):
            if len(progress.sent) == MOST_SENT:
                return progress
            return replace(
                progress, sent={**progress.sent, SentAlong(axis, data, collective, report.level): _sent(report)}
            )
        case Overlapped():
            seconds = (report.communication_seconds, report.exposed_seconds, report.step_seconds)
            return replace(progress, overlap=Overlap(*(max(each, 0.0) for each in seconds)))
        case PreflightDone():
            return replace(progress, preflight=_preflight(report))
        case SaveExpected(seconds=seconds, basis=basis):
            return replace(progress, save_expected=(max(seconds, 0.0), basis[:LONGEST_NAME]))
    return progress


def step_of(all_progress: Iterable[Progress]) -> int:
    """The last step that all of them have done."""
    return min((progress.step for progress in all_progress), default=0)


def phase_of(all_progress: Iterable[Progress], *, stopping: bool) -> WorkerPhase:
    """The slowest of them speaks for the pod; once a stop was asked, those that train or wait are stopping."""
    order = list(WorkerPhase)
    phases = [WORKER_PHASES[p.phase] if p.phase else WorkerPhase.STARTING for p in all_progress]
    slowest = min(phases, key=order.index, default=WorkerPhase.STARTING)
    if stopping and slowest not in (WorkerPhase.SAVING, WorkerPhase.ENDED):
        return WorkerPhase.STOPPING
    return slowest


def newest_commit(all_progress: Iterable[Progress]) -> Commit | None:
    """The newest durable checkpoint that any of them knows of."""
    commits = [progress.commit for progress in all_progress if progress.commit]
    return max(commits, key=lambda commit: (commit.step, commit.time), default=None)


def last_saved(all_progress: Iterable[Progress]) -> float | None:
    """When any of them last had a checkpoint made durable, by the launcher's monotonic clock."""
    return max((progress.saved for progress in all_progress if progress.saved is not None), default=None)


@dataclass(frozen=True, slots=True)
class Durable:
    """How long until a save would be durable. basis: what it rests on."""

    seconds: float
    basis: str


MEASURED = "saves of this attempt"
"""The basis of an estimate that is one no more."""


def durable_in(all_progress: Iterable[Progress], now: float) -> Durable | None:
    """How long from `now` (seconds since the epoch) until a save would be durable: the rest of the step, then a save.

    The longest of all counts. A save takes as long as those of this attempt did, and before the first of them as the trainer
    expected when it began. None while neither is known.
    """
    longest: Durable | None = None
    for progress in all_progress:
        if progress.smooth_save_seconds is not None:
            save, basis = progress.smooth_save_seconds, MEASURED
        elif progress.save_expected is not None:
            save, basis = progress.save_expected
        else:
            continue
        step = progress.smooth_step_seconds or 0.0
        begun = now if progress.last_step_time is None else progress.last_step_time
        rest = min(max(begun + step - now, 0.0), step)
        if longest is None or rest + save > longest.seconds:
            longest = Durable(rest + save, basis)
    return longest


def at(rank: int, progress: Progress, now: float) -> At:
    """Where a worker is, for whoever compares it with others. now: by the launcher's monotonic clock."""
    return At(
        rank=rank,
        step=progress.step,
        entered=progress.entered,
        waits_in=progress.waits_in,
        beat_seconds=None if progress.beat is None else round(max(now - progress.beat, 0.0), 1),
        own_seconds=progress.own_seconds,
    )


def phase_seconds(progress: Progress, now: float) -> dict[str, float]:
    """Seconds of this attempt by phase, the one under way until `now` (seconds since the epoch). Waiting for samples within a
    step counts as such, and not as training."""
    spent = dict(progress.phase_seconds)
    if progress.phase is not None and progress.phase_since is not None:
        spent[progress.phase] = spent.get(progress.phase, 0.0) + max(now - progress.phase_since, 0.0)
    moved = min(progress.data_seconds, spent.get(Phase.TRAIN, 0.0))
    if moved:
        spent[Phase.TRAIN] -= moved
        spent[Phase.DATA] = spent.get(Phase.DATA, 0.0) + moved
    return {str(phase): round(seconds, 3) for phase, seconds in spent.items()}


def _enter(progress: Progress, phase: Phase, at: float) -> Progress:
    spent = dict(progress.phase_seconds)
    if progress.phase is not None and progress.phase_since is not None:
        spent[progress.phase] = spent.get(progress.phase, 0.0) + max(at - progress.phase_since, 0.0)
    return replace(progress, phase=phase, phase_since=at, phase_seconds=spent)


def _step(progress: Progress, report: StepDone) -> Progress:
    seconds = max(report.step_seconds, 0.0)
    return replace(
        progress,
        step=report.step,
        steps_reported=progress.steps_reported + 1,
        step_seconds_sum=progress.step_seconds_sum + seconds,
        last_step_seconds=seconds,
        smooth_step_seconds=_smooth(progress.smooth_step_seconds, seconds),
        first_step_time=progress.first_step_time or report.at,
        last_step_time=report.at,
        loss=report.loss,
        grad_norm=report.grad_norm,
        tokens_per_second=report.tokens / seconds if seconds > 0 else None,
        tokens=progress.tokens + max(report.tokens, 0),
        own_recent=_own(progress, report, seconds),
        waited_seconds=progress.waited_seconds + min(max(report.waited_seconds or 0.0, 0.0), seconds),
        data_seconds=progress.data_seconds + min(max(report.data_seconds, 0.0), seconds),
        mfu=report.mfu if report.mfu is not None and 0.0 <= report.mfu <= 1.0 else None,
    )


def _own(progress: Progress, report: StepDone, seconds: float) -> tuple[float, ...]:
    """The first step of a process compiles and connects: it is compared with nothing."""
    if report.waited_seconds is None or not progress.steps_begun:
        return progress.own_recent
    own = max(seconds - max(report.waited_seconds, 0.0), 0.0)
    return (*progress.own_recent, own)[-COMPARED_STEPS:]


def _durable(progress: Progress, report: CheckpointDurable, attempt: int, now: float) -> Progress:
    if report.attempt != attempt:
        return progress
    path = report.path if len(report.path) <= LONGEST_PATH else ""
    commit = Commit(attempt, report.step, path, report.bytes, max(report.seconds, 0.0), report.at)
    return replace(
        progress,
        commit=commit,
        saved=now,
        saves=progress.saves + 1,
        smooth_save_seconds=_smooth(progress.smooth_save_seconds, commit.seconds),
    )


def _warn(progress: Progress, reason: str, message: str) -> Progress:
    counted = reason if reason in progress.warned or len(progress.warned) < COUNTED_REASONS else OTHER_REASON
    warned = {**progress.warned, counted: progress.warned.get(counted, 0) + 1}
    return replace(progress, warned=warned, warnings=(*progress.warnings, f"{reason}: {message}")[-KEPT_WARNINGS:])


def _sent(report: SentInStep) -> SentBytes:
    """What a worker claims, bounded."""

    def bounded(figure: float) -> float:
        return float(min(max(figure, 0.0), MOST_BYTES))

    return SentBytes(
        counted=bounded(report.bytes),
        predicted=bounded(report.predicted_bytes),
        wire=bounded(report.wire_bytes),
        predicted_wire=bounded(report.predicted_wire_bytes),
        seconds=None if report.seconds is None else bounded(report.seconds),
    )


def _preflight(report: PreflightDone) -> PreflightResult:
    """What a worker claims, bounded."""
    return PreflightResult(
        finding=report.finding[:20],
        message=report.message,
        seconds=report.seconds,
        bus_bandwidth=report.bus_bandwidth,
        expected_bus_bandwidth=report.expected_bus_bandwidth,
        nodes=tuple(name for name in report.nodes.split(",") if name),
        edge_bytes_per_second=tuple(_number(text) for text in report.edges.split(",") if text),
    )


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0


def _smooth(before: float | None, value: float) -> float:
    return value if before is None else before + SMOOTHING * (value - before)
