"""What a worker tells its launcher: one JSON object per line on the pipe whose number is in TRAINYARD_REPORT_FD.

Standard library only, since the launcher (PID 1) reads what the trainer writes. The launcher trusts nothing that comes
through the pipe: `decode` answers None for whatever is not a report, and skips
fields that it does not know, so that a trainer of another version, or a user's script, can do no harm. A line stays
below PIPE_BUF, which makes each write atomic: threads and processes may share a pipe.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import select
import time
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from trainyard.contract.preflight import PreflightResult

REPORT_FD = "TRAINYARD_REPORT_FD"
LINE_BYTES = 4096  # PIPE_BUF on Linux: writes up to this size are atomic (pipe(7))
TEXT_BYTES = 1500  # the longest text of one field
NAMES_CHARACTERS = 700  # of names of nodes, which are ASCII
TEXTS_BYTES = 3200  # of all texts of a report together; what is left is for the names and numbers
STALLED_SECONDS = 5.0  # how long a report that matters waits for room in the pipe


class Phase(StrEnum):
    """What a worker is doing. Every second of a worker's life belongs to exactly one phase."""

    IMPORT = "import"
    INIT = "init"  # process group, mesh, model
    LOAD = "load"
    WARM_UP = "warm-up"  # the first step of this process, which compiles, allocates and connects
    TRAIN = "train"
    SAVE = "save"
    EVAL = "eval"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What all reports carry.

    at: when it was said, in seconds since the epoch, by the worker's clock.
    rank: the global rank of the worker.
    """

    at: float
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseChanged(Report):
    """The worker enters a phase. `step` is the number of steps that are done."""

    phase: Phase
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone(Report):
    """A step of training is done on all ranks.

    step: steps done, this one included: the first step reports 1.
    loss: mean over the tokens of the global batch; None if it is not a finite number.
    tokens: tokens that counted for the loss, over all ranks.
    step_seconds: wall time of the step on this rank.
    grad_norm: norm of the whole gradient before clipping; None if it is not finite.
    digest: hex digest of the sample ids of the global batch, the same at any world size.
    """

    step: int
    loss: float | None
    tokens: int
    step_seconds: float
    grad_norm: float | None
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SentInStep(Report):
    """What a step of this rank sends along an axis of the mesh: logical bytes, counted in one step; all steps send alike.

    data: which of the five classes: gradients, activations, parameter shards, training state, control. count: collectives.
    predicted_bytes: by the planner's formulas.
    """

    axis: str
    data: str
    collective: str
    bytes: int
    count: int
    predicted_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStarted(Report):
    """A save of the state after `step` began."""

    step: int
    attempt: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDurable(Report):
    """The commit record of a checkpoint is on the volume and synced: it survives whatever happens next.

    path: the checkpoint's directory.
    bytes: of all of its files, over all ranks.
    seconds: from the start of the save until now.
    """

    step: int
    attempt: int
    path: str
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAcknowledged(Report):
    """All ranks agreed to stop after `step`, the last step that is done."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumedFrom(Report):
    """Training continues from a checkpoint that verified: written by `attempt` after `step`, in directory `path`."""

    step: int
    attempt: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(Report):
    """The worker ends because of an error.

    error: the exception's class name.
    configuration: the user's configuration or data is at fault, and trying again cannot help (exit code 78).
    preflight: the gang failed its preflight (exit code 77); PreflightDone says the figures.
    """

    error: str
    message: str
    configuration: bool = False
    preflight: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned(Report):
    """Training goes on, but somebody should know: a checkpoint that did not verify, a history with a gap.

    reason: one CamelCase word to count by.
    """

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightDone(Report):
    """The preflight is over, with the same result on all ranks; fields as in `contract.preflight.PreflightResult`.

    nodes: names with commas between, as many as have room. edges: numbers with commas between.
    """

    finding: str
    message: str
    seconds: float
    bus_bandwidth: float | None
    expected_bus_bandwidth: float | None
    nodes: str
    edges: str


KINDS: dict[str, type[Report]] = {
    "phase": PhaseChanged,
    "step": StepDone,
    "sent": SentInStep,
    "checkpoint-started": CheckpointStarted,
    "checkpoint-durable": CheckpointDurable,
    "stop-acknowledged": StopAcknowledged,
    "resumed": ResumedFrom,
    "failed": Failed,
    "warned": Warned,
    "preflight": PreflightDone,
}
_NAMES = {report_class: kind for kind, report_class in KINDS.items()}
_FIELDS = {report_class: typing.get_type_hints(report_class) for report_class in KINDS.values()}


def encode(report: Report) -> bytes:
    """One line of at most LINE_BYTES.

    Long texts are cut; numbers that are not finite become null, so that every JSON reader understands the line.
    """
    record: dict[str, object] = {"kind": _NAMES[type(report)]}
    texts = sum(1 for wanted in _FIELDS[type(report)].values() if wanted is str)
    room = min(TEXT_BYTES, TEXTS_BYTES // max(texts, 1))
    for field in dataclasses.fields(report):
        value = getattr(report, field.name)
        if isinstance(value, float) and not math.isfinite(value):
            value = None
        elif isinstance(value, str):
            value = _cut(value, room)
        record[field.name] = value
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"


def decode(line: bytes | str) -> Report | None:
    """The report in a line, or None if there is none in it.

    Never raises; unknown fields are skipped, a field of the wrong type spoils the report.
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        return None
    report_class = KINDS.get(record["kind"])
    if report_class is None:
        return None
    values: dict[str, object] = {}
    for field in dataclasses.fields(report_class):
        if field.name not in record:
            if field.default is dataclasses.MISSING:
                return None
            continue
        fits, value = _typed(record[field.name], _FIELDS[report_class][field.name])
        if not fits:
            return None
        values[field.name] = value
    return report_class(**values)  # type: ignore[arg-type]


class Reporter:
    """Writes reports of one rank into the launcher's pipe; does nothing where there is no launcher.

    A report is never worth a stuck trainer: a step's report is dropped when the pipe is full, any other waits
    STALLED_SECONDS for room, and a launcher that is gone is forgotten.
    """

    def __init__(self, rank: int, fd: int | None, clock: Callable[[], float] = time.time) -> None:
        self._rank = rank
        self._fd = fd
        self._clock = clock
        if fd is not None:
            os.set_blocking(fd, False)

    @classmethod
    def from_environment(cls, rank: int) -> Reporter:
        """The pipe that TRAINYARD_REPORT_FD names, if it is one that can be written."""
        text = os.environ.get(REPORT_FD, "")
        try:
            fd = int(text)
            os.fstat(fd)
        except (ValueError, OSError):
            return cls(rank, None)
        return cls(rank, fd)

    def phase(self, phase: Phase, step: int) -> None:
        self._send(PhaseChanged(at=self._clock(), rank=self._rank, phase=phase, step=step))

    def step(self, step: int, *, loss: float, tokens: int, step_seconds: float, grad_norm: float, digest: str) -> None:
        self._send(
            StepDone(
                at=self._clock(),
                rank=self._rank,
                step=step,
                loss=loss,
                tokens=tokens,
                step_seconds=step_seconds,
                grad_norm=grad_norm,
                digest=digest,
            )
        )

    def sent(
        self, axis: str, data: str, collective: str, *, size_bytes: int, count: int, predicted_bytes: float
    ) -> None:
        self._send(
            SentInStep(
                at=self._clock(),
                rank=self._rank,
                axis=axis,
                data=data,
                collective=collective,
                bytes=size_bytes,
                count=count,
                predicted_bytes=predicted_bytes,
            )
        )

    def checkpoint_started(self, step: int, attempt: int, path: str) -> None:
        self._send(CheckpointStarted(at=self._clock(), rank=self._rank, step=step, attempt=attempt, path=path))

    def checkpoint_durable(self, step: int, attempt: int, path: str, *, size_bytes: int, seconds: float) -> None:
        self._send(
            CheckpointDurable(
                at=self._clock(),
                rank=self._rank,
                step=step,
                attempt=attempt,
                path=path,
                bytes=size_bytes,
                seconds=seconds,
            )
        )

    def stop_acknowledged(self, step: int) -> None:
        self._send(StopAcknowledged(at=self._clock(), rank=self._rank, step=step))

    def resumed_from(self, step: int, attempt: int, path: str) -> None:
        self._send(ResumedFrom(at=self._clock(), rank=self._rank, step=step, attempt=attempt, path=path))

    def failed(self, error: BaseException, *, configuration: bool = False, preflight: bool = False) -> None:
        self._send(
            Failed(
                at=self._clock(),
                rank=self._rank,
                error=type(error).__name__,
                message=str(error),
                configuration=configuration,
                preflight=preflight,
            )
        )

    def warned(self, reason: str, message: str) -> None:
        self._send(Warned(at=self._clock(), rank=self._rank, reason=reason, message=message))

    def preflight(self, result: PreflightResult) -> None:
        self._send(
            PreflightDone(
                at=self._clock(),
                rank=self._rank,
                finding=result.finding,
                message=result.message,
                seconds=result.seconds,
                bus_bandwidth=result.bus_bandwidth,
                expected_bus_bandwidth=result.expected_bus_bandwidth,
                nodes=_whole_names(result.nodes),
                edges=",".join(f"{edge:.4g}" for edge in result.edge_bytes_per_second),
            )
        )

    def _send(self, report: Report) -> None:
        if self._fd is None:
            return
        line = encode(report)
        wait_seconds = 0.0 if isinstance(report, StepDone) else STALLED_SECONDS
        try:
            _, writable, _ = select.select([], [self._fd], [], wait_seconds)
            if writable:
                os.write(self._fd, line)
        except BlockingIOError:
            return
        except OSError:
            self._fd = None


def _cut(text: str, room: int) -> str:
    """At most `room` bytes of JSON. The beginning of an error says what went wrong, its end where: keep both."""
    if len(json.dumps(text, ensure_ascii=False).encode("utf-8", "replace")) <= room:
        return text
    shorter = text
    while len(json.dumps(shorter, ensure_ascii=False).encode("utf-8", "replace")) > room:
        half = min(len(shorter) * 2 // 5, room // 2)
        shorter = f"{shorter[:half]} ... {shorter[-half:]}"
    return shorter


def _whole_names(names: Iterable[str]) -> str:
    """Names with commas between, no more than are sent uncut: half a name names nobody."""
    listed = ""
    for name in names:
        longer = f"{listed},{name}" if listed else name
        if len(longer) > NAMES_CHARACTERS:
            break
        listed = longer
    return listed


def _typed(value: object, wanted: object) -> tuple[bool, object]:
    """Whether a JSON value is of the wanted type, and the value as that type.

    An integer is a number too; a truth value is not an integer.
    """
    if isinstance(wanted, types.UnionType):
        for alternative in typing.get_args(wanted):
            fits, typed = _typed(value, alternative)
            if fits:
                return True, typed
        return False, None
    if wanted is types.NoneType:
        return value is None, None
    if wanted is bool:
        return isinstance(value, bool), value
    if wanted is Phase:
        try:
            return True, Phase(str(value))
        except ValueError:
            return False, None
    if isinstance(value, bool):
        return False, None
    if wanted is float:
        if isinstance(value, int | float):
            try:
                number = float(value)
            except OverflowError:
                return False, None
            return math.isfinite(number), number
        return False, None
    if wanted is int:
        return isinstance(value, int), value
    return isinstance(value, str), value
