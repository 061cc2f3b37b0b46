"""A report as one line of JSON, and back.

The launcher trusts nothing that comes through the pipe: `decode` answers None for whatever is not a report, and skips
fields that it does not know, so that a trainer of another version, or a user's script, can do no harm. A line stays
below PIPE_BUF, which makes each write atomic: threads and processes may share a pipe.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing

from trainyard.contract.codec import LATEST, MOST_INTEGER

from trainyard_trainer.report.kinds import (
    Beat,
    CheckpointDurable,
    CheckpointStarted,
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

LINE_BYTES = 4096  # PIPE_BUF on Linux: writes up to this size are atomic (pipe(7))
TEXT_BYTES = 1500  # the longest text of one field
TEXTS_BYTES = 3200  # of all texts of a report together; what is left is for the names and numbers

KINDS: dict[str, type[Report]] = {
    "phase": PhaseChanged,
    "step": StepDone,
    "beat": Beat,
    "sent": SentInStep,
    "overlapped": Overlapped,
    "save-expected": SaveExpected,
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
    at = values["at"]
    if not isinstance(at, float) or not 0.0 <= at <= LATEST:
        return None  # in milliseconds, perhaps: the operator would not believe anything that the launcher said
    return report_class(**values)  # type: ignore[arg-type]


def _cut(text: str, room: int) -> str:
    """At most `room` bytes of JSON. The beginning of an error says what went wrong, its end where: keep both."""
    if len(json.dumps(text, ensure_ascii=False).encode("utf-8", "replace")) <= room:
        return text
    shorter = text
    while len(json.dumps(shorter, ensure_ascii=False).encode("utf-8", "replace")) > room:
        half = min(len(shorter) * 2 // 5, room // 2)
        shorter = f"{shorter[:half]} ... {shorter[-half:]}"
    return shorter


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
        return isinstance(value, int) and abs(value) <= MOST_INTEGER, value
    return isinstance(value, str), value
