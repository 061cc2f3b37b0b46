"""Saving beside the training: a copy of the state, and the ways to write it while the next steps are made.

On the CPU a thread writes. On a GPU it is DCP's process, which the training thread's interpreter does not slow down, and
the copy lies in pinned memory that both share (torch.distributed.checkpoint.staging).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future
from threading import Thread
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.staging import AsyncStager, DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, async_save, save
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future as TorchFuture

from trainyard_trainer.checkpoint.writer import Writer

State = Mapping[str, Tensor]


class Background:
    """How the saves of one rank are written. in_process: by DCP's process instead of a thread.

    group: of all ranks, over gloo, used by saves alone: the training's collectives go on meanwhile.
    """

    def __init__(self, group: dist.ProcessGroup, *, in_process: bool) -> None:
        self._group = group
        self._in_process = in_process
        pinned = torch.cuda.is_available()
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=pinned,
                use_shared_memory=in_process,
                use_async_staging=True,
                use_non_blocking_copy=pinned,
            )
        )
        self._warm: Future[None] | None = None

    def warm(self, state: State) -> None:
        """Do once, before the first step, what would make the first save slow: allocate (and pin) the copy's memory, and
        start the process. Collective. Returns at once; the first save waits for the rest.
        """
        if self._in_process:
            if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
                # Meet at the store that is there already, not at a port that somebody else may take meanwhile.
                os.environ.setdefault("DCP_USE_PREFIX_STORE", "1")
            self._warm = run_beside(self._start_process, "checkpoint-warm")
        self.stage(state).result()

    def stage(self, state: State) -> Future[dict[str, Any]]:
        """Begin to copy the state. Nothing may write to it until the answer is there.

        The memory of the copy is that of the one before: that must have been written.
        """
        if torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()  # the copy's own stream does not wait for the last step's writes
        return cast("Future[dict[str, Any]]", self._stager.stage(dict(state)))

    def write(self, state: State, writer: Writer, *, staged: bool) -> Metadata:
        """Write by all ranks together, and wait for the end. staged: a copy, which a process may be handed."""
        if self._in_process and staged:
            if self._warm is not None:
                self._warm.result()
            return self._in_other_process(state, writer)
        return cast(Metadata, save(dict(state), storage_writer=writer, process_group=self._group))

    def _start_process(self) -> None:
        self._in_other_process({"warm": torch.zeros(1)}, _Nowhere())

    def _in_other_process(self, state: State, writer: StorageWriter) -> Metadata:
        response = async_save(
            dict(state),
            storage_writer=writer,
            process_group=self._group,
            async_checkpointer_type=AsyncCheckpointerType.PROCESS,
            async_stager=_Staged(),
        )
        return cast(Metadata, cast("Future[Any]", response).result())


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


class _Staged(AsyncStager):
    """What it is given is a copy already."""

    _synchronize_after_execute = False

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        return state_dict

    def synchronize_staging(self) -> None:
        return

    def close(self) -> None:
        return


class _Nowhere(StorageWriter):
    """Writes nothing: a save to it starts DCP's process and lets its ranks meet."""

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """There is nothing to begin anew."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """There is nothing to set up."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> TorchFuture[list[WriteResult]]:
        future: TorchFuture[list[WriteResult]] = TorchFuture()
        future.set_result([])
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Nothing was written."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True
