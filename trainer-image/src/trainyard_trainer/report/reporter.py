"""The worker's end of the pipe: whoever trains says what happens, and is never held up by it."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterable

from trainyard.contract.preflight import PreflightResult

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
from trainyard_trainer.report.wire import encode

REPORT_FD = "TRAINYARD_REPORT_FD"
NAMES_CHARACTERS = 700  # of names of nodes, which are ASCII
STALLED_SECONDS = 5.0  # how long a report that matters waits for room in the pipe


class Reporter:
    """Writes reports of one rank into the launcher's pipe; does nothing where there is no launcher.

    A report is never worth a stuck trainer: a step's and a beat are dropped when the pipe is full, any other waits
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

    def step(
        self,
        step: int,
        *,
        loss: float,
        tokens: int,
        step_seconds: float,
        grad_norm: float,
        digest: str,
        waited_seconds: float | None = None,
        data_seconds: float = 0.0,
        mfu: float | None = None,
    ) -> None:
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
                waited_seconds=waited_seconds,
                data_seconds=data_seconds,
                mfu=mfu,
            )
        )

    def beat(self, *, entered: int, waits_in: str, memory_bytes: int, cpu_seconds: float) -> None:
        self._send(
            Beat(
                at=self._clock(),
                rank=self._rank,
                entered=entered,
                waits_in=waits_in,
                memory_bytes=memory_bytes,
                cpu_seconds=cpu_seconds,
            )
        )

    def save_expected(self, seconds: float, basis: str) -> None:
        self._send(SaveExpected(at=self._clock(), rank=self._rank, seconds=seconds, basis=basis))

    def sent(
        self,
        axis: str,
        data: str,
        collective: str,
        *,
        size_bytes: int,
        count: int,
        predicted_bytes: float,
        level: str = "",
        wire_bytes: float = 0.0,
        predicted_wire_bytes: float = 0.0,
        seconds: float | None = None,
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
                level=level,
                wire_bytes=wire_bytes,
                predicted_wire_bytes=predicted_wire_bytes,
                seconds=seconds,
            )
        )

    def overlapped(self, communication_seconds: float, exposed_seconds: float, step_seconds: float) -> None:
        self._send(
            Overlapped(
                at=self._clock(),
                rank=self._rank,
                communication_seconds=communication_seconds,
                exposed_seconds=exposed_seconds,
                step_seconds=step_seconds,
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
        wait_seconds = 0.0 if isinstance(report, StepDone | Beat) else STALLED_SECONDS
        try:
            _, writable, _ = select.select([], [self._fd], [], wait_seconds)
            if writable:
                os.write(self._fd, line)
        except BlockingIOError:
            return
        except OSError:
            self._fd = None


def _whole_names(names: Iterable[str]) -> str:
    """Names with commas between, no more than are sent uncut: half a name names nobody."""
    listed = ""
    for name in names:
        longer = f"{listed},{name}" if listed else name
        if len(longer) > NAMES_CHARACTERS:
            break
        listed = longer
    return listed
