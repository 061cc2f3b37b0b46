"""Saving beside the training: a copy of the state, and the ways to write it while the next steps are made.

On the CPU a thread writes. On a GPU it is DCP's process, which the training thread's interpreter does not slow down, and
the copy lies in pinned memory that both share (torch.distributed.checkpoint.staging). Where that process is lost, on any
rank, the thread takes its place: what killed it (a node short of memory, say) would kill the next one too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Thread
from types import ModuleType
from typing import Any, Final, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint._async_process_executor import _AsyncCheckpointProcess, _ProcessGroupInitInfo
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import save
from torch.multiprocessing import get_context

from trainyard_trainer.checkpoint.writer import Writer

State = Mapping[str, Tensor]

START_SECONDS: Final = 600.0
"""How long the process of a rank may take to import torch and to meet those of the others."""
ENDING_SECONDS: Final = 1.0
"""How long after the end of its pipe a process may still be asked for how it ended."""


class WriterLost(RuntimeError):
    """The process that writes has ended, or has lost those of the other ranks. here: this rank's own has ended."""

    def __init__(self, message: str, *, here: bool) -> None:
        super().__init__(message)
        self.here = here


class Background:
    """How the saves of one rank are written. in_process: by DCP's process instead of a thread, until it is lost.

    group: of all ranks, over gloo, used by saves alone: the training's collectives go on meanwhile.
    """

    def __init__(self, group: dist.ProcessGroup, *, in_process: bool) -> None:
        self._group = group
        self.in_process = in_process
        pinned = torch.cuda.is_available()
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=pinned,
                use_shared_memory=in_process,
                use_async_staging=True,
                use_non_blocking_copy=pinned,
            )
        )
        self._process: _Process | None = None
        self._unstarted: BaseException | None = None
        self._ready: Future[None] = Future()

    def warm(self, state: State) -> None:
        """Do once, before the first step, what would make the first save slow: allocate (and pin) the copy's memory, and
        start the process. Collective. Returns at once; the first save waits for the rest.
        """
        if self.in_process:
            try:
                self._process = process = _Process(_meeting(self._group))
                self._ready = run_beside(process.ready, "checkpoint-warm")
            except (OSError, CheckpointException) as error:  # maybe on this rank alone: the first save tells the others
                self._unstarted = error
        self.stage(state).result()

    def stage(self, state: State) -> Future[dict[str, Any]]:
        """Begin to copy the state. Nothing may write to it until the answer is there.

        The memory of the copy is that of the one before: that must have been written.
        """
        if torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()  # the copy's own stream does not wait for the last step's writes
        return cast("Future[dict[str, Any]]", self._stager.stage(dict(state)))

    def write(self, state: State, writer: Writer, *, staged: bool) -> Metadata:
        """Write by all ranks together, and wait for the end. staged: a copy, which a process may be handed.

        Raises WriterLost, on this rank and maybe not on all, where the process is lost: then all are to call
        `without_process`. What a rank could not write is DCP's own exception, on all ranks.
        """
        if not (self.in_process and staged):
            return cast(Metadata, save(dict(state), storage_writer=writer, process_group=self._group))
        process = self._process
        if process is None:
            raise WriterLost(f"the process that writes could not be started: {self._unstarted}", here=True)
        try:
            self._ready.result()
            return process.save(dict(state), storage_writer=writer)
        except Exception as error:
            ended = process.ended()
            raise WriterLost(
                ended or f"the process that writes has lost the others: {error}", here=bool(ended)
            ) from error

    def without_process(self) -> None:
        """From now on a thread writes."""
        self.in_process = False
        if self._process is not None:
            self._process.end()
            self._process = None


class _Process(_AsyncCheckpointProcess):
    """DCP's process, that imports torch and runs no script: multiprocessing would run this process's own once more in there,
    and one without `if __name__ == "__main__"` would join the gang a second time.
    """

    def __init__(self, meeting: _ProcessGroupInitInfo) -> None:
        self.ctx = get_context("spawn")
        self._process_pipe, theirs = self.ctx.Pipe()
        self._save_process = self.ctx.Process(
            target=self._checkpointing_subprocess, args=(meeting, theirs), daemon=True
        )
        with _no_script():
            self._save_process.start()
        theirs.close()  # the end of the process is the end of the pipe then

    def ready(self) -> None:
        """Wait until the processes of all ranks have met. To be called once."""
        self._wait_for_response(timeout=START_SECONDS)

    def ended(self) -> str:
        """How it has ended, "" where it has not."""
        self._save_process.join(ENDING_SECONDS)
        code = self._save_process.exitcode
        return "" if code is None else f"the process that writes has ended with {code}; from now on a thread writes"

    def end(self) -> None:
        self._save_process.kill()
        self._save_process.join()


def _meeting(group: dist.ProcessGroup) -> _ProcessGroupInitInfo:
    """Where the processes of all ranks meet. Collective."""
    if {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys() and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        # At the store that is there already, not at a port that somebody else may take meanwhile.
        os.environ.setdefault("DCP_USE_PREFIX_STORE", "1")
    meeting = _ProcessGroupInitInfo(group)
    if meeting.world_size == 1 and not meeting.use_prefix_store:
        meeting.tcp_store_master_addr = "127.0.0.1"
    return meeting


@contextmanager
def _no_script() -> Iterator[None]:
    """What multiprocessing starts meanwhile finds no script of this process to run again."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def run_beside(work: Any, name: str) -> Future[Any]:
    """Run in a thread that does not keep the process alive: one that waits for a dead volume could do so for ever."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except (Exception, CheckpointException) as error:
            future.set_exception(error)

    Thread(target=run, name=name, daemon=True).start()
    return future
