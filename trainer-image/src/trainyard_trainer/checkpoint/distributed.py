"""Save and load by all ranks together: DCP writes and reshards, our record says what counts.

Every method here is collective: all ranks call it in the same order, and an error on one of them is an error on all.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.optim import Optimizer
from trainyard.contract.plan import Axis, Lineage, Mark

from trainyard_trainer.checkpoint.record import CommitRecord, StoredFile, Training, expendable, history
from trainyard_trainer.checkpoint.store import Folder, Stored, mismatch, owner
from trainyard_trainer.report import Reporter

log = logging.getLogger(__name__)
T = TypeVar("T")


class NothingVerifies(RuntimeError):
    """There is a history to continue, and nothing of it can be loaded. Starting over unasked would hide the loss."""


class LoadFailed(RuntimeError):
    """A checkpoint that verifies could not be read into the state. The message says what did not fit."""


class SaveFailed(RuntimeError):
    """A rank could not write its part. The message says which, and why."""


def tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """All state of a training as tensors by name, in place: loading into them changes model and optimizer.

    Names are those of the parameters, never positions, so that a checkpoint fits any world size and any mesh.
    """
    state: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        state[f"model.{name}"] = parameter.detach()
        for key, value in optimizer.state[parameter].items():
            state[f"optimizer.{name}.{key}"] = value
    return state


@dataclass(slots=True)
class Checkpoints:
    """The checkpoints of this attempt. `attempt` is in the folder; lineage and keep are the plan's."""

    folder: Folder
    lineage: Lineage
    keep: int
    job: str
    report: Reporter
    rank: int
    ranks: int
    mesh: tuple[Axis, ...]
    last: Stored | None = None
    _good: list[Mark] = field(default_factory=list)
    _line: list[Stored] = field(default_factory=list)

    def load(self, state: Mapping[str, Tensor], fits: Callable[[CommitRecord], None]) -> CommitRecord | None:
        """Fill `state` from the newest commit of the lineage that verifies; None where there is no history.

        Hashes are compared before anything is unpickled, each rank looking at a part of the files. A commit that does
        not
        verify is reported, and the one before it is tried. fits: raises where a commit is of something else than
        `state`.
        Raises LoadFailed where what verifies does not fit into `state`, NothingVerifies where there is a history and
        none of it verifies.
        """
        candidates, unreadable = self._on_first_rank(self._candidates)
        for stored in candidates:
            mine = stored.record.files[self.rank :: self.ranks]
            problem = next((p for p in self._gather(mismatch(stored.path, mine)) if p), None)
            if problem is None:
                break
            self._warn("CheckpointUnverified", f"{stored.path}: {problem}; going back to the one before")
        else:
            if candidates or unreadable or self.lineage.resume:
                raise NothingVerifies(
                    f"{self.folder.root}: attempt {self.folder.attempt} has a history to continue, and nothing of it can be "
                    f"loaded: {len(candidates)} commits do not verify, {unreadable} records cannot be read"
                )
            return None
        fits(stored.record)
        try:
            dcp_load(dict(state), storage_reader=FileSystemReader(stored.path))
        except CheckpointException as error:
            raise LoadFailed(f"{stored.path}: {_first_failure(error, self.rank)}") from error
        self._line = list(candidates[candidates.index(stored) :])
        self._good = [stored.record.mark]
        self.last = stored
        self.report.resumed_from(stored.record.step, stored.record.attempt, str(stored.path))
        return stored.record

    def save(self, state: Mapping[str, Tensor], step: int, samples: str, training: Training) -> Stored:
        """Write the state after `step`, commit it, and delete what has become expendable. On return it is durable.

        samples: digest of the step's sample ids.
        """
        started = time.monotonic()
        path = self._on_first_rank(lambda: self.folder.begin(step))
        self.report.checkpoint_started(step, self.folder.attempt, str(path))
        writer = _HashingWriter(path)
        problem = None
        try:
            dcp_save(dict(state), storage_writer=writer)
        except (Exception, CheckpointException) as error:
            problem = _first_failure(error, self.rank)
        parts = self._gather((problem, writer.hashing.files()))
        for problem, _ in parts:
            if problem is not None:
                raise SaveFailed(f"{path}: {problem}")
        record = CommitRecord(
            attempt=self.folder.attempt,
            step=step,
            parent=self.last.record.mark if self.last else None,
            parent_path=str(self.last.path) if self.last else "",
            files=tuple(sorted((file for _, files in parts for file in files), key=lambda file: file.name)),
            world_size=self.ranks,
            mesh=self.mesh,
            job=self.job,
            samples=samples,
            training=training,
            time=time.time(),
        )
        self.last = self._on_first_rank(lambda: self.folder.commit(path, record))
        self._line.insert(0, self.last)
        self._good.append(self.last.record.mark)
        seconds = time.monotonic() - started
        self.report.checkpoint_durable(
            step, record.attempt, str(path), size_bytes=self.last.record.bytes, seconds=seconds
        )
        self._retain()
        return self.last

    def _retain(self) -> None:
        gone = set(expendable([s.record.mark for s in self._line], self._good, self.keep, self.lineage.resume))
        if self.rank == 0:
            for stored in self._line:
                if stored.record.mark in gone:
                    try:
                        self.folder.delete(stored.path)
                    except OSError as error:
                        self._warn("CheckpointNotDeleted", f"{stored.path}: {error}")
        self._line = [stored for stored in self._line if stored.record.mark not in gone]

    def _candidates(self) -> tuple[tuple[Stored, ...], int]:
        """On the first rank: claim the folder, and inherit what may be resumed from, newest first.

        Also how many records of the history cannot be read.
        """
        self.folder.claim()
        found = self.folder.find()
        earlier = {mark.attempt for mark in self.lineage.history}
        unreadable = [(path, problem) for path, problem in found.unreadable if owner(path) in earlier]
        for path, problem in unreadable:
            self._warn("CheckpointUnreadable", f"{path}: {problem}")
        ours = [stored for stored in found.commits if stored.record.job == self.job]
        line = history([stored.record for stored in ours], self.lineage)
        places = {stored.record.mark: stored for stored in ours}
        resume = self.lineage.resume
        if resume is not None and (not line or line[0].mark != resume):
            self._warn(
                "CheckpointMissing",
                f"{self.folder.root}: no commit of step {resume.step} by attempt {resume.attempt} is there",
            )
        self.folder.clear(found.unfinished, earlier)
        inherited = (self.folder.inherit(places[record.mark]) for record in line)
        return tuple(stored for stored in inherited if stored is not None), len(unreadable)

    def _warn(self, reason: str, message: str) -> None:
        if self.rank == 0:
            log.warning("%s: %s", reason, message)
            self.report.warned(reason, message)

    def _gather(self, value: T) -> list[T]:
        """Every rank's value, on every rank, by rank."""
        values: list[Any] = [None] * self.ranks
        dist.all_gather_object(values, value)
        return values

    def _on_first_rank(self, work: Callable[[], T]) -> T:
        """Do something on rank 0 alone; all ranks get its result, or its error."""
        outcome: list[Any] = [None, None]
        if self.rank == 0:
            try:
                outcome[0] = work()
            except Exception as error:
                outcome[1] = error
        dist.broadcast_object_list(outcome, src=0)
        if outcome[1] is not None:
            raise outcome[1]
        result: T = outcome[0]
        return result


def _first_failure(error: BaseException, rank: int) -> str:
    """What went wrong where. DCP's own exception, which is no `Exception`, holds the errors of all ranks by rank."""
    if isinstance(error, CheckpointException) and error.failures:
        rank, (error, _) = next(iter(error.failures.items()))
    return f"rank {rank}: {type(error).__name__}: {error}"


class _HashingWriter(FileSystemWriter):
    """Writes as DCP does, and hashes the very bytes that it hands to the file system."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, sync_files=True, overwrite=False)
        self.hashing = _HashingFileSystem()
        self.fs = self.hashing


class _HashingFileSystem(FileSystem):
    def __init__(self) -> None:
        self._written: dict[str, tuple[int, str]] = {}

    def files(self) -> tuple[StoredFile, ...]:
        return tuple(StoredFile(name, size, digest) for name, (size, digest) in self._written.items())

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[io.IOBase, None, None]:
        with Path(path).open(mode) as raw:
            stream = _HashingStream(raw)  # type: ignore[arg-type]
            yield stream
        self._written[Path(path).name] = (stream.size, stream.digest.hexdigest())

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        super().rename(path, new_path)
        self._written[Path(new_path).name] = self._written.pop(Path(path).name)


class _HashingStream(io.BufferedIOBase):
    """Append only: what a hash is of must have been written in order."""

    def __init__(self, raw: io.BufferedWriter) -> None:
        self._raw = raw
        self.digest = hashlib.sha256()
        self.size = 0

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self.digest.update(view)
        self.size += view.nbytes
        return self._raw.write(view)

    def tell(self) -> int:
        return self.size

    def seekable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def flush(self) -> None:
        if not self._raw.closed:
            self._raw.flush()

    def fileno(self) -> int:
        return self._raw.fileno()

    def close(self) -> None:
        self.flush()
        super().close()
