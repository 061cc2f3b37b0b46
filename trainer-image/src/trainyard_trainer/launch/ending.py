"""How the attempt ended for this pod: from what happened to the exit code and the last words. Pure and total.

The exit code is the one thing that reaches the operator even when nothing else does, so a code with a meaning is given only
where the reports confirm it: a worker's own 75 to 78 is an opinion, kept in the last words.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass

from trainyard.contract.exits import RESERVED, Exit
from trainyard.contract.network import Bearing, Sign, Trouble
from trainyard.contract.plan import Mark
from trainyard.contract.preflight import Finding, PreflightResult
from trainyard.contract.status import At, Commit, Fault, LastWords

from trainyard_trainer.launch.hang import Silence, sentence
from trainyard_trainer.report import Failed

LAUNCHER = -1
"""The rank of a fault that is the launcher's own."""

OBEDIENT = frozenset({-signal.SIGTERM, -signal.SIGKILL, 128 + signal.SIGTERM, 128 + signal.SIGKILL})
"""How a process ends that was told to: by the signal, or as shells say it."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A worker's end. code: its exit code, negative for a signal. time: seconds since the epoch.

    clock: the same by the launcher's monotonic clock, which says what came first: that of the day may be set meanwhile.
    told: the launcher had signalled it before. failed: the error it reported. tail: the last lines it wrote to stderr.
    """

    rank: int
    code: int
    time: float
    clock: float
    told: bool = False
    failed: Failed | None = None
    tail: str = ""

    @property
    def obeyed(self) -> bool:
        """Whether it ended by the launcher's own signal, which says nothing about the cause."""
        return self.told and self.code in OBEDIENT


@dataclass(frozen=True, slots=True)
class Notice:
    """When this pod first knew that it should stop, in seconds since the epoch, and why. clock: when, by the monotonic clock.

    Told by the operator, by a signal, or by its own workers: where another member was told, all ranks agree to stop.
    """

    time: float
    reason: str
    clock: float


@dataclass(frozen=True, slots=True)
class Hang:
    """The worker that is furthest behind. time: when that was found, since the epoch."""

    silence: Silence
    time: float


@dataclass(frozen=True, slots=True)
class Happened:
    """All that the ending is decided from. workers: by local rank; those that never started are missing.

    overdue: the deadline of a stop passed and the launcher killed who was left. error: what the launcher itself could not do;
    error_exit: how it then exits. saved: when the newest commit was heard of, by the monotonic clock. trouble: the likeliest
    cause that a library named. preflight: how it ended.
    """

    attempt: int
    node_rank: int
    workers: tuple[Ended, ...] = ()
    notice: Notice | None = None
    agreed_step: int | None = None
    commit: Commit | None = None
    saved: float | None = None
    resumed: Mark | None = None
    step: int = 0
    first_step_time: float | None = None
    hang: Hang | None = None
    overdue: bool = False
    error: Fault | None = None
    error_exit: Exit = Exit.FAILURE
    trouble: Trouble | None = None
    preflight: PreflightResult | None = None


def ending(happened: Happened) -> LastWords:
    """The last words; their `exit` is the launcher's exit code."""
    code, cause, fault = _verdict(happened)
    trouble = None
    if code in (Exit.FAILURE, Exit.HANG):
        trouble = happened.trouble
        if trouble is None or trouble.bearing != Bearing.ERROR:
            trouble = _of_signal(fault) or trouble
        cause = f"{cause}; {_named(trouble)}" if trouble is not None else cause
    failed = happened.preflight is not None and happened.preflight.finding == Finding.FAILED
    return LastWords(
        attempt=happened.attempt,
        node_rank=happened.node_rank,
        exit=int(code),
        cause=cause,
        step=happened.step,
        commit=happened.commit,
        resumed=happened.resumed,
        fault=fault,
        notice_time=happened.notice.time if happened.notice else None,
        first_step_time=happened.first_step_time,
        worker_exits=tuple(worker.code for worker in happened.workers),
        trouble=trouble,
        preflight=happened.preflight if failed else None,
        behind=_behind(happened.hang.silence) if code == Exit.HANG and happened.hang is not None else None,
    )


def may_go_on(happened: Happened, words: LastWords) -> bool:
    """Whether another attempt in the same pod makes sense: it failed, and neither was this pod to leave nor is it unable to start
    workers."""
    failed = words.exit in (Exit.FAILURE, Exit.HANG, Exit.PREFLIGHT)
    return failed and happened.notice is None and happened.error is None


def _behind(silence: Silence) -> At:
    beat = silence.seconds if silence.frozen else 0.0
    return At(silence.rank, silence.step, silence.entered, silence.waits_in, beat)


def first_fault(workers: Iterable[Ended], notice: Notice | None) -> Fault | None:
    """The first worker that ended badly of its own accord; one that says why comes before what it caused elsewhere."""
    bad = [worker for worker in workers if is_bad(worker, notice) and (_explains(worker) or not worker.obeyed)]
    return _fault(min(bad, key=lambda worker: (not _explains(worker), worker.clock))) if bad else None


def is_bad(worker: Ended, notice: Notice | None) -> bool:
    """Whether the others cannot go on after this end. A yield is one only after it was asked for."""
    asked_before = notice is not None and notice.clock <= worker.clock
    return worker.code != Exit.DONE and not (asked_before and worker.code == Exit.YIELDED)


def _verdict(happened: Happened) -> tuple[Exit, str, Fault | None]:
    fault = first_fault(happened.workers, happened.notice)
    asked = f"asked to stop ({happened.notice.reason})" if happened.notice else "asked to stop"
    if happened.error is not None:
        return happened.error_exit, happened.error.message, happened.error
    if happened.hang is not None:
        message = sentence(happened.hang.silence)
        return Exit.HANG, message, Fault(happened.hang.silence.rank, happened.hang.time, message)
    if happened.overdue:
        return Exit.FAILURE, f"{asked}, and still there at the deadline: killed", fault
    if any(_is_configuration(worker) for worker in happened.workers):
        return Exit.CONFIGURATION, fault.message if fault else "", fault
    if any(_is_preflight(worker) for worker in happened.workers):
        return Exit.PREFLIGHT, fault.message if fault else "", fault
    if fault is not None:
        return Exit.FAILURE, _sentence(fault), fault
    if not happened.workers:
        return Exit.FAILURE, "no worker was started", None
    if all(worker.code == Exit.DONE for worker in happened.workers):
        return Exit.DONE, f"all workers finished; {happened.step} steps are done", None
    if any(worker.obeyed for worker in happened.workers):
        return Exit.FAILURE, f"{asked}, and ended by that signal without a save", None
    if not _is_saved(happened):
        return Exit.FAILURE, f"{asked} and left, but no save since then is known to be durable", None
    return Exit.YIELDED, f"{asked}, saved and left after step {happened.step}", None


def _is_saved(happened: Happened) -> bool:
    """Whether what was done until the stop is durable: saved since the notice or at the agreed step, or nothing was done.

    A gang that is stopped before its first step leaves what it came from, so it has no commit of its own and loses nothing.
    """
    commit, notice = happened.commit, happened.notice
    if commit and notice and happened.saved is not None and happened.saved >= notice.clock:
        return True
    if happened.agreed_step is None:
        return False
    came_from = happened.resumed.step if happened.resumed else 0
    return happened.agreed_step == came_from or bool(commit and commit.step == happened.agreed_step)


def _is_configuration(worker: Ended) -> bool:
    """It said that its configuration is wrong, and left by that; or would have, had the launcher not been quicker."""
    said = worker.failed is not None and worker.failed.configuration
    return said and (worker.code == Exit.CONFIGURATION or worker.obeyed)


def _is_preflight(worker: Ended) -> bool:
    """It said that the preflight failed. Whose script does not know the code leaves by another one."""
    return worker.failed is not None and worker.failed.preflight and worker.code != Exit.DONE


def _explains(worker: Ended) -> bool:
    return _is_configuration(worker) or _is_preflight(worker)


def _of_signal(fault: Fault | None) -> Trouble | None:
    """A bus error is a page of shared memory that could not be had."""
    if fault is None or fault.signal != "SIGBUS":
        return None
    hint = "a page of shared memory could not be had: /dev/shm is full or small; mount an emptyDir with medium Memory there"
    return Trouble(Sign.SHM_TOO_SMALL.value, fault.rank, fault.time, "killed by SIGBUS", hint)


def _named(trouble: Trouble) -> str:
    """FabricError (mlx5_3, peer 10.0.0.5): the peer did not acknowledge in time..."""
    about = [part for part in (trouble.device, f"peer {trouble.peer}" if trouble.peer else None) if part]
    where = f" ({', '.join(about)})" if about else ""
    return f"{trouble.sign}{where}: {trouble.hint or trouble.message}"


def _fault(worker: Ended) -> Fault:
    name = signal_name(-worker.code) if worker.code < 0 else None
    if worker.failed:
        message = f"{worker.failed.error}: {worker.failed.message}"
    elif worker.tail:
        message = worker.tail
    else:
        message = "it said nothing"
    return Fault(worker.rank, worker.time, message, None if name else worker.code, name)


def _sentence(fault: Fault) -> str:
    how = f"was killed by {fault.signal}" if fault.signal else f"exited {fault.exit_code}"
    why = ""
    if fault.exit_code == Exit.YIELDED:
        why = ", a yield, though no stop had been asked"
    elif fault.exit_code in RESERVED:
        why = ", a code that the launcher alone gives"
    last_line = fault.message.strip().rsplit("\n", 1)[-1]
    return f"rank {fault.rank} {how}{why}: {last_line}"


def signal_name(number: int) -> str:
    """SIGKILL for 9; real-time signals have no name and keep the number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
