"""What a worker tells its launcher: one JSON object per line on the pipe whose number is in TRAINYARD_REPORT_FD.

Standard library only, since the launcher (PID 1) reads what the trainer writes. `kinds` are the reports, `wire` is their form
as a line, `reporter` writes them.
"""

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
from trainyard_trainer.report.reporter import NAMES_CHARACTERS, REPORT_FD, STALLED_SECONDS, Reporter
from trainyard_trainer.report.wire import KINDS, LINE_BYTES, TEXT_BYTES, TEXTS_BYTES, decode, encode

__all__ = [
    "KINDS",
    "LINE_BYTES",
    "NAMES_CHARACTERS",
    "REPORT_FD",
    "STALLED_SECONDS",
    "TEXTS_BYTES",
    "TEXT_BYTES",
    "Beat",
    "CheckpointDurable",
    "CheckpointStarted",
    "Failed",
    "Overlapped",
    "Phase",
    "PhaseChanged",
    "PreflightDone",
    "Report",
    "Reporter",
    "ResumedFrom",
    "SaveExpected",
    "SentInStep",
    "StepDone",
    "StopAcknowledged",
    "Warned",
    "decode",
    "encode",
]
