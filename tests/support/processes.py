"""Real ranks for a test: forked from the test's own process, which has imported torch, so that a gang starts in a blink.

Each rank gets torchrun's environment, a report file and an output file of its own. The key-value store lives in the test's
process on a port that the kernel chose, as an elastic agent's would.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch._C._distributed_c10d import TCPStore
from trainyard.contract import env
from trainyard.contract.plan import Axis, Checkpoints, Lineage, Mark, Member, Plan, encode
from trainyard_trainer.preload import preload
from trainyard_trainer.report import REPORT_FD, Report, decode

torch.set_num_threads(1)  # a fork does not take OpenMP's threads along
preload()

PR_SET_PDEATHSIG = 1  # linux/prctl.h

TINY = {
    "model": {"preset": "tiny"},
    "data": {"files": [__file__], "sequenceLength": 16, "globalBatch": 6, "microBatch": 2},
    "optimizer": {"warmupSteps": 2},
    "steps": 6,
}
"""A training whose step takes milliseconds. Six samples divide over 1, 2, 3 and 6 ranks, and over 4 they do not."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a rank ended. code: exit code, negative for a signal. result: what its work returned."""

    code: int
    result: Any
    output: str
    reports: tuple[Report, ...]


class Gang:
    """Ranks that were started and are to be waited for."""

    def __init__(self, folder: Path, store: TCPStore | None) -> None:
        self.folder = folder
        self.pids: dict[int, int] = {}
        self._store = store

    def kill(self, rank: int, number: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.pids[rank], number)

    def reports(self, rank: int) -> tuple[Report, ...]:
        try:
            lines = (self.folder / f"rank-{rank}.reports").read_bytes().splitlines()
        except FileNotFoundError:
            return ()
        return tuple(report for report in map(decode, lines) if report is not None)

    def until(self, seen: Callable[[], bool], seconds: float = 60.0) -> None:
        """Wait for something that the ranks bring about."""
        deadline = time.monotonic() + seconds
        while not seen():
            if time.monotonic() > deadline:
                self.end()
                raise AssertionError(f"did not happen within {seconds} s; the ranks said:\n{self.said()}")
            time.sleep(0.01)

    def wait(self, seconds: float = 100.0) -> list[Ended]:
        """Every rank's end, by rank. Who is still there after `seconds` is killed, and the test fails."""
        codes: dict[int, int] = {}
        deadline = time.monotonic() + seconds
        try:
            while len(codes) < len(self.pids):
                for rank in self.pids.keys() - codes.keys():
                    done, status = os.waitpid(self.pids[rank], os.WNOHANG)
                    if done:
                        codes[rank] = os.waitstatus_to_exitcode(status)
                if time.monotonic() > deadline:
                    late = sorted(self.pids.keys() - codes.keys())
                    raise AssertionError(f"ranks {late} are still there after {seconds} s; they said:\n{self.said()}")
                time.sleep(0.005)
        finally:
            for rank in codes:
                del self.pids[rank]
            self.end()
        return [self._ended(rank, codes[rank]) for rank in sorted(codes)]

    def end(self) -> None:
        """Leave nothing behind."""
        for pid in self.pids.values():
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        self.pids.clear()

    def said(self) -> str:
        return "\n".join(f"{path.name}:\n{path.read_text()}" for path in sorted(self.folder.glob("*.out")))

    def _ended(self, rank: int, code: int) -> Ended:
        result = self.folder / f"rank-{rank}.result"
        return Ended(
            code=code,
            result=pickle.loads(result.read_bytes()) if result.exists() else None,
            output=(self.folder / f"rank-{rank}.out").read_text(),
            reports=self.reports(rank),
        )


def start(
    work: Callable[[int], Any],
    ranks: int,
    folder: Path,
    environments: Mapping[int, Mapping[str, str]] | None = None,
    only: Sequence[int] | None = None,
) -> Gang:
    """Fork `ranks` processes; each calls work(rank) and exits with what it returns if that is a code, else with 0.

    folder: new for each gang. environments: additions by rank. only: the ranks that start at all.
    """
    folder.mkdir(parents=True)
    store = TCPStore("127.0.0.1", 0, None, is_master=True, timeout=timedelta(seconds=60), wait_for_workers=False)
    gang = Gang(folder, store)
    # They start together: one forked while another speaks to the store would inherit a lock that its thread holds just then.
    waits, go = os.pipe()
    gc.freeze()  # what is here before a fork is looked through by no collection after it, so its memory stays shared
    for rank in range(ranks) if only is None else only:
        environment = {
            "RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            **((environments or {}).get(rank, {})),
        }
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            os.close(go)
            os.read(waits, 1)
            _child(work, rank, folder, environment)
        gang.pids[rank] = pid
    os.close(go)
    os.close(waits)
    gc.unfreeze()
    return gang


def run(work: Callable[[int], Any], ranks: int, folder: Path, **keywords: Any) -> list[Ended]:
    """Start a gang and wait for its end."""
    return start(work, ranks, folder, **keywords).wait()


def _child(work: Callable[[int], Any], rank: int, folder: Path, environment: Mapping[str, str]) -> None:
    code = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a test that is killed leaves no ranks behind
        output = os.open(folder / f"rank-{rank}.out", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        reports = os.open(folder / f"rank-{rank}.reports", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.environ.update(environment)
        os.environ[REPORT_FD] = str(reports)
        torch.set_num_threads(1)  # makes the pool of threads anew that a fork breaks, before two threads do so at once
        result = work(rank)
        (folder / f"rank-{rank}.result").write_bytes(pickle.dumps(result))
        code = int(result) if isinstance(result, int) and not isinstance(result, bool) else 0
    except BaseException:
        with contextlib.suppress(OSError):
            traceback.print_exc()
    finally:
        # Whatever happens, a rank never returns into the test.
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def plan_file(
    path: Path,
    folder: Path,
    *,
    attempt: int = 1,
    ranks: int = 2,
    history: Sequence[tuple[int, int]] = (),
    resume: tuple[int, int] | None = None,
    trainer: Mapping[str, Any] = TINY,
    mesh: Sequence[Axis] = (),
    every_steps: int | None = None,
    every_auto: bool = False,
    keep: int = 3,
    grace_seconds: float = 120.0,
    copies_bytes: int = 0,
) -> dict[str, str]:
    """Write plan.json as the operator would, one process a member; the answer is the environment that points to it."""
    plan = Plan(
        namespace="lab",
        job="job",
        uid="6f1c",
        attempt=attempt,
        service="job",
        processes_per_node=1,
        members=tuple(Member(n, f"node-{n}") for n in range(ranks)),
        mesh=tuple(mesh) or (Axis("shard", ranks),),
        process_group_timeout_seconds=60.0,
        lineage=Lineage(tuple(Mark(*mark) for mark in history), Mark(*resume) if resume else None),
        checkpoints=Checkpoints(
            str(folder),
            every_steps=every_steps,
            every_auto=every_auto,
            keep=keep,
            grace_seconds=grace_seconds,
            copies_bytes=copies_bytes,
        ),
        trainer=dict(trainer),
    )
    path.write_text(encode(plan))
    return {env.PLAN: str(path), "TORCHELASTIC_RUN_ID": f"{plan.uid}-{attempt}"}
