"""The worker processes: start them, hear them, signal them, and leave none behind.

Each worker leads a process group of its own, so that a signal reaches what it started too. What leaves that group is adopted
by the launcher (PID 1, or a child subreaper) and ended with it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from trainyard_trainer.launch.ending import Ended
from trainyard_trainer.launch.network.signs import Ear, Signs
from trainyard_trainer.launch.output import Console, Stream
from trainyard_trainer.launch.progress import Progress
from trainyard_trainer.report import LINE_BYTES, Report, decode

REPORT_FD = 3
"""Number of the report pipe in every worker."""
READ_BYTES = 64 * 1024
DRAIN_READS = 64
"""Reads of a dead worker's report pipe: what a process that it left behind still writes is not waited for."""
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h

UNIGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that the interpreter ignores; a worker gets their default back."""


class Reports:
    """The reading end of a worker's report pipe."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.unreadable = 0
        self._partial = b""
        self._skipping = False
        os.set_blocking(fd, False)

    def read(self) -> tuple[list[Report], bool]:
        """The reports that have come, and whether more may come. One read: a worker that floods holds up nobody."""
        try:
            chunk = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return [], True
        if not chunk:
            return [], False
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        if self._skipping and lines:
            lines, self._skipping = lines[1:], False
        if len(self._partial) > LINE_BYTES:
            self.unreadable += not self._skipping
            self._partial, self._skipping = b"", True
        reports = [decode(line) for line in lines]
        self.unreadable += reports.count(None)
        return [report for report in reports if report is not None], True

    def close(self) -> None:
        """Hear no more."""
        os.close(self.fd)

    def drain(self) -> list[Report]:
        """What a worker that has ended had still said."""
        said: list[Report] = []
        for _ in range(DRAIN_READS):
            reports, more = self.read()
            said += reports
            if not more or not reports:
                break
        return said


@dataclass(slots=True)
class Worker:
    """One worker process. code: its exit code (negative: signal) once it is reaped; ended_time, ended_clock: when that was,
    since the epoch and by the monotonic clock."""

    rank: int
    local_rank: int
    pid: int
    reports: Reports
    out: Stream
    err: Stream
    progress: Progress = field(default_factory=Progress)
    told: bool = False
    code: int | None = None
    ended_time: float = 0.0
    ended_clock: float = 0.0

    @property
    def alive(self) -> bool:
        """Whether it was not reaped yet."""
        return self.code is None

    def ended(self, code: int) -> None:
        """It was reaped, or given up, just now."""
        self.code, self.ended_time, self.ended_clock = code, time.time(), time.monotonic()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its whole group. Before it is reaped its pid cannot be anybody else's."""
        if self.alive:
            self.told = True
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                return

    def end(self) -> Ended | None:
        """Its end, if it has ended."""
        if self.code is None:
            return None
        return Ended(
            self.rank,
            self.code,
            self.ended_time,
            self.ended_clock,
            told=self.told,
            failed=self.progress.failed,
            tail=self.err.tail(),
        )


class Ends(NamedTuple):
    """The writing ends of a worker's pipes, as descriptors."""

    out: int
    err: int
    reports: int


def start(
    rank: int, local_rank: int, prefix: bytes, console: Console, signs: Signs, begin: Callable[[Ends], int]
) -> Worker:
    """Start one worker: `begin` makes the process and answers its pid. OSError where it cannot. signs: of what it prints."""
    readers, writers = zip(*(os.pipe() for _ in Ends._fields), strict=True)
    out, err, reports = readers
    try:
        pid = begin(Ends(*writers))
    except OSError:
        for fd in readers:
            os.close(fd)
        raise
    finally:
        for fd in writers:
            os.close(fd)
    said, complained = (Stream(fd, prefix, console, Ear(rank, signs)) for fd in (out, err))
    return Worker(rank, local_rank, pid, Reports(reports), said, complained)


def spawn(command: Sequence[str], environment: Mapping[str, str]) -> Callable[[Ends], int]:
    """How to start a process of its own group that runs a command. OSError where the command cannot be executed."""

    def begin(ends: Ends) -> int:
        return os.posix_spawnp(
            command[0],
            list(command),
            environment,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, ends.out, 1),
                (os.POSIX_SPAWN_DUP2, ends.err, 2),
                (os.POSIX_SPAWN_DUP2, ends.reports, REPORT_FD),
            ],
            setpgroup=0,
            setsigdef=UNIGNORED,
        )

    return begin


def reap() -> dict[int, int]:
    """All children that have ended, ours and adopted ones: pid to exit code (negative: signal)."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


def children(but: int | None = None) -> list[int]:
    """Pids of all our children, adopted ones too. but: of one that is to stay."""
    me = os.getpid()
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            stat = Path(entry.path, "stat").read_bytes()
        except OSError:
            continue
        # pid (name) state ppid ...: the name may hold anything, a closing parenthesis too.
        if int(stat.rpartition(b")")[2].split()[1]) == me and int(entry.name) != but:
            found.append(int(entry.name))
    return found


def adopt_orphans() -> bool:
    """Become the parent of whatever our descendants leave behind, as PID 1 is by nature. Whether that worked."""
    return bool(ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def private_folder() -> Path:
    """A folder for the files through which workers are asked, in memory where there is some: a pod's root may be read-only."""
    for place in ("/dev/shm", None):
        try:
            return Path(tempfile.mkdtemp(prefix="trainyard-", dir=place))
        except OSError as error:
            problem = error
    raise problem
