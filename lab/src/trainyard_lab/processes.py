"""Child processes that can be found again after a crash, and that are never mistaken for another's.

Every process is started with its own name and its run directory in one environment variable. `find` reads that
variable from /proc, so what runs is known without a file of process ids: nothing to go stale, nothing missing when
the starter was killed between a start and its record, and no id that meanwhile belongs to somebody else. Signals go
through a pidfd whose identity was checked after it was opened, so not even a reused id can be hit.
"""

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "TRAINYARD_LAB_PROCESS"
POLL_SECONDS = 0.05
LOG_LINES_SHOWN = 15
TIE = ("setpriv", "--pdeathsig", "KILL")


class ProcessError(Exception):
    """A process did not start, or ended before it was ready; the message ends with its last log lines."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process of a run directory.

    name: unique in the run directory; its log is ``logs/<name>.log`` there.
    started_ticks: field 22 of /proc/PID/stat; together with the pid it names a process for good.
    """

    name: str
    run_dir: Path
    pid: int
    started_ticks: int

    @property
    def log(self) -> Path:
        return log_path(self.run_dir, self.name)


def log_path(run_dir: Path, name: str) -> Path:
    return run_dir / "logs" / f"{name}.log"


def start(
    run_dir: Path,
    name: str,
    command: Sequence[str | Path],
    *,
    dies_with_parent: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Process:
    """Start a program in a session of its own, its output appended to its log.

    dies_with_parent: the kernel kills it when the thread that called this ends, however that happens: for tests.
    environment: added to this process's own.
    """
    run_dir = run_dir.resolve()
    log = log_path(run_dir, name)
    log.parent.mkdir(parents=True, exist_ok=True)
    tied = [*TIE, "--"] if dies_with_parent else []
    with log.open("ab") as out:
        child = subprocess.Popen(
            [*tied, *map(str, command)],
            env={**os.environ, **(environment or {}), MARK: _mark(run_dir, name)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            cwd=run_dir,
        )
    # From here on the child is known by /proc alone; without this Popen's destructor would warn that it still runs.
    child.returncode = 0
    _wait_until_known(child.pid)
    stat = _stat(child.pid)
    if stat is None:
        raise ProcessError(f"{name} ended at once:\n{log_tail(log)}")
    return Process(name, run_dir, child.pid, stat.started_ticks)


def find(run_dir: Path) -> dict[str, Process]:
    """The processes of a run directory that are alive, whoever started them, by name."""
    found: dict[str, Process] = {}
    prefix = f"{MARK}={_mark(run_dir.resolve(), '')}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # gone meanwhile, or another user's
        marks = [item for item in environment if item.startswith(prefix)]
        stat = _stat(int(entry.name))
        if marks and stat is not None and stat.alive and stat.leads_session:
            name = marks[0].removeprefix(prefix).decode()
            found[name] = Process(name, run_dir.resolve(), int(entry.name), stat.started_ticks)
    return found


def is_alive(process: Process) -> bool:
    """Whether this very process still runs: a reused pid is not it, and a zombie does not run."""
    stat = _stat(process.pid)
    return stat is not None and stat.alive and stat.started_ticks == process.started_ticks


def _same(process: Process) -> bool:
    """Whether the pid is still this very process's. It is while its first thread is a zombie too, and that may have others."""
    stat = _stat(process.pid)
    return stat is not None and stat.started_ticks == process.started_ticks


def send_signal(process: Process, number: signal.Signals) -> None:
    """Does nothing if the process is gone."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        with suppress(ProcessLookupError):
            if _same(process):
                signal.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)


def stop(process: Process, grace_seconds: float = 10) -> None:
    """SIGTERM, then SIGKILL after the grace; returns when the process is gone."""
    for number, patience in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, 30)):
        send_signal(process, number)
        if _wait_for_end(process, patience):
            return
    raise ProcessError(f"{process.name} (pid {process.pid}) is still there 30 s after SIGKILL")


def _wait_for_end(process: Process, seconds: float) -> bool:
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    try:
        if _same(process):
            # A pidfd becomes readable when all threads of its process have ended, child of ours or not: until then others than a
            # first one that is a zombie hold its sockets.
            poller = select.poll()
            poller.register(handle, select.POLLIN)
            if not poller.poll(seconds * 1000):
                return False
    finally:
        os.close(handle)
    _reap(process.pid)
    return True


def _reap(pid: int) -> None:
    with suppress(ChildProcessError):  # another process's child: its own parent reaps it
        os.waitpid(pid, os.WNOHANG)


def wait_until(ready: Callable[[], bool], what: str, *, deadline_seconds: float, needs: Sequence[Process] = ()) -> None:
    """Wait until `ready` says so; fails at once if a process that it `needs` ends.

    what: the thing waited for, for the message ("the API server's /readyz").
    """
    deadline = time.monotonic() + deadline_seconds
    while not ready():
        for process in needs:
            if not is_alive(process):
                raise ProcessError(f"{process.name} ended before {what} was ready:\n{log_tail(process.log)}")
        if time.monotonic() > deadline:
            logs = "\n".join(f"{process.name}:\n{log_tail(process.log)}" for process in needs)
            raise ProcessError(f"{what} was not ready within {deadline_seconds:g} s\n{logs}")
        time.sleep(POLL_SECONDS)


def log_tail(log: Path) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:])
    except FileNotFoundError:
        return f"(there is no {log})"


def _mark(run_dir: Path, name: str) -> str:
    # The line break keeps /run/lab from being taken for /run/lab-2.
    return f"{run_dir}\n{name}"


def _wait_until_known(pid: int) -> None:
    """Wait until the program itself runs: before, `find` could miss it, and it could outlive a starter it is tied to."""
    while (stat := _stat(pid)) is not None and stat.alive:
        # Both are empty for a moment while one program takes the other's place.
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        if command and MARK.encode() in environment and not command.startswith("\0".join(TIE).encode()):
            return
        time.sleep(0.001)


@dataclass(frozen=True, slots=True)
class _Stat:
    alive: bool
    leads_session: bool
    started_ticks: int


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The second field is the program's name in brackets and may itself hold blanks and brackets.
    fields = text[text.rindex(")") + 2 :].split()
    return _Stat(alive=fields[0] not in ("Z", "X"), leads_session=int(fields[3]) == pid, started_ticks=int(fields[19]))
