"""Save and load by all ranks together: DCP writes and reshards, our record says what counts.

Every method here but `busy`, `staged` and `save_seconds` is collective: all ranks call it in the same order, and an error
on one of them is an error on all. One save is in flight at most; its own thread does all that has to do with it, over a
process group that nothing else uses meanwhile.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.optim import Optimizer
from trainyard.contract.plan import Axis, Lineage

from trainyard_trainer.checkpoint.agreement import Agreement
from trainyard_trainer.checkpoint.background import Background, WriterLost, run_beside
from trainyard_trainer.checkpoint.copies import Copies
from trainyard_trainer.checkpoint.files import Streams
from trainyard_trainer.checkpoint.keeping import Keeper
from trainyard_trainer.checkpoint.record import CommitRecord, Training
from trainyard_trainer.checkpoint.store import Problem, Store, Stored, Superseded, mismatch, nothing
from trainyard_trainer.checkpoint.writer import Reader, Writer, files_of, shapes
from trainyard_trainer.parallel.rendezvous import StoppedEarly
from trainyard_trainer.report import Reporter

log = logging.getLogger(__name__)
SMOOTHING: Final = 0.3
"""Weight of the newest save in `save_seconds`, as in the launcher's estimate."""


Holds = Callable[[CommitRecord, Mapping[str, Sequence[int]]], None]


class NothingVerifies(RuntimeError):
    """There is a history to continue, and nothing of it can be loaded. Starting over unasked would hide the loss.

    lasting: another try would find the same.
    """

    def __init__(self, message: str, lasting: bool) -> None:
        super().__init__(message)
        self.lasting = lasting


class LoadFailed(RuntimeError):
    """A checkpoint that verifies could not be read into the state. The message says what did not fit."""


class SaveFailed(RuntimeError):
    """The state was not saved. The message says which rank could not write what, and why; what was saved before stands."""


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


@dataclass(frozen=True, slots=True)
class What:
    """What a save is of. samples: digest of the step's sample ids."""

    step: int
    samples: str
    training: Training


@dataclass(frozen=True, slots=True)
class Flight:
    """A save that is under way. started: by the monotonic clock. copied: the state may change. cancelled: see Writer."""

    what: What
    started: float
    copied: Future[dict[str, Any]]
    cancelled: Tensor
    done: Future[Stored]


def _never() -> bool:
    return False


@dataclass(slots=True)
class Checkpoints:
    """The checkpoints of this attempt. `attempt` is in the store; lineage and keep are the plan's.

    Making one is collective. in_process: saves are written by a process of their own. copies_of: how copies are
    kept in the memory of the nodes; None: not at all. before_commit: what rank 0 makes durable together with a save.
    stop_asked: of this rank, before it has loaded anything. save_seconds: how long saves take, a moving average. flight:
    the save that was started and not finished.
    """

    store: Store
    lineage: Lineage
    keep: int
    job: str
    report: Reporter
    rank: int
    ranks: int
    mesh: tuple[Axis, ...]
    in_process: bool = False
    copies_of: Callable[[Agreement], Copies] | None = None
    before_commit: Callable[[], None] = nothing
    stop_asked: Callable[[], bool] = _never
    last: Stored | None = None
    save_seconds: float | None = None
    flight: Flight | None = None
    _keeper: Keeper = field(init=False)
    _all: Agreement = field(init=False)
    _copies: Copies | None = field(init=False)
    _background: Background = field(init=False)

    def __post_init__(self) -> None:
        self._keeper = Keeper(self.store, self.lineage, self.keep, self.job, self._warn)
        self._all = Agreement(self.rank, self.ranks)
        self._copies = self.copies_of(self._all) if self.copies_of is not None else None
        self._background = Background(self._all.group, in_process=self.in_process)

    # Load

    def load(
        self, state: Mapping[str, Tensor], fits: Callable[[CommitRecord], None], holds: Holds | None = None
    ) -> CommitRecord | None:
        """Fill `state` from the newest commit of the lineage that verifies; None where there is no history.

        Hashes are compared before anything is unpickled, each rank looking at a part of the files. A commit that does
        not verify is reported, and the one before it is tried. fits: makes room in `state` for a commit that is tried
        next, and raises where it is of something else. holds: told the shapes, by name, in a commit that verifies; leaves
        out of `state` what it may go without, and raises where the rest is of something else.

        Raises StoppedEarly where a stop is asked before anything was read into `state`, LoadFailed where what verifies does
        not fit into it, NothingVerifies where there is a history and none of it verifies, WrongFolder and Superseded as
        `Store.claim` does.
        """
        candidates, unreadable = self._all.on_first_rank(self._keeper.candidates)
        problems = [*unreadable]
        for stored in candidates:
            fits(stored.record)
            if self._read_copy(stored, state, holds):
                self._keeper.loaded(candidates[candidates.index(stored) :], verified=False)
                break
            problem = self._problem(stored)
            if problem is None:
                self._read(stored, state, self.store.streams, holds)
                self._keeper.loaded(candidates[candidates.index(stored) :])
                break
            problems.append(Problem(f"{stored.path}: {problem}", problem.lasting))
            self._warn("CheckpointUnverified", f"{stored.path}: {problem}; going back to the one before")
        else:
            if problems or self.lineage.resume:
                raise NothingVerifies(self._nothing_verifies(problems), all(problem.lasting for problem in problems))
            return None
        self.last = stored
        self.report.resumed_from(stored.record.step, stored.record.attempt, str(stored.path))
        return stored.record

    def reload(self, state: Mapping[str, Tensor]) -> CommitRecord | None:
        """Fill `state` from what this attempt saved or loaded last; None where there is nothing. None may be in flight.

        Raises LoadFailed where it does not verify any more, or cannot be read.
        """
        stored = self.last
        if stored is None:
            return None
        problem = self._problem(stored)
        if problem is not None:
            raise LoadFailed(f"{stored.path}: {problem}")
        self._read(stored, state, self.store.streams)
        return stored.record

    def _problem(self, stored: Stored) -> Problem | None:
        """What keeps a commit from being loaded from the store, the same on all ranks; each looks at a part of the files."""
        mine = stored.record.files[self.rank :: self.ranks]
        problem, stopped = None, False
        try:
            problem = mismatch(stored.path, mine, self.store.streams, self._look_up)
            self._look_up()
        except StoppedEarly:
            stopped = True
        said = self._all.gather((problem, stopped))
        if any(stopped for _, stopped in said):
            raise StoppedEarly(f"asked to stop while the checkpoint of step {stored.record.step} was looked at")
        return next((problem for problem, _ in said if problem is not None), None)

    def _look_up(self) -> None:
        """Raises StoppedEarly where this rank is asked to stop and has nothing to lose yet."""
        if self.last is None and self.stop_asked():
            raise StoppedEarly

    def _read_copy(self, stored: Stored, state: Mapping[str, Tensor], holds: Holds | None) -> bool:
        """Whether `state` was filled from the memory of the nodes. Where it could not, the store is read."""
        near = self._copies.near(stored, state) if self._copies is not None else None
        if near is None:
            return False
        try:
            self._read(stored, state, near, holds)
        except LoadFailed as error:
            self._warn("CopyNotLoaded", f"{error}; it is read from where it was saved")
            return False
        if self.rank == 0:
            log.info("step %s was loaded from the memory of the nodes", stored.record.step)
        return True

    def _read(self, stored: Stored, state: Mapping[str, Tensor], streams: Streams, holds: Holds | None = None) -> None:
        if holds is not None:
            try:
                saved = self._all.on_first_rank(lambda: shapes(Reader(stored.path, streams)))
            except OSError as error:
                raise LoadFailed(f"{stored.path}: {error}") from error
            holds(stored.record, saved)
        try:
            dcp_load(dict(state), storage_reader=Reader(stored.path, streams), process_group=self._all.group)
        except CheckpointException as error:
            raise LoadFailed(f"{stored.path}: {_first_failure(error, self.rank)}") from error

    def warm(self, state: Mapping[str, Tensor]) -> None:
        """Do before the first step what would make the first save slow."""
        self._background.warm(state)

    # Save

    @property
    def busy(self) -> bool:
        """Whether a save is under way, on this rank."""
        return self.flight is not None and not self.flight.done.done()

    def start(self, state: Mapping[str, Tensor], what: What) -> None:
        """Begin to save, and return. The state must not change before `staged` has returned.

        None may be in flight (`busy`, or not asked for its end yet).
        """
        if self.flight is not None:
            raise RuntimeError(f"the save of step {self.flight.what.step} has not been finished")
        started = time.monotonic()
        cancelled: Tensor = torch.zeros(1, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
        copied = self._background.stage(state)

        def work() -> Stored:
            return self._save(copied.result, what, cancelled, started, staged=True)

        self.flight = Flight(what, started, copied, cancelled, run_beside(work, "checkpoint"))

    def staged(self) -> None:
        """Wait until the state may change. An error of the copy is an error of the save, which says so at its end."""
        if self.flight is not None:
            self.flight.copied.exception()

    def finish(self) -> Stored | None:
        """Wait for the end of the save in flight, where there is one.

        Raises SaveFailed, on all ranks, where it is not durable; Superseded where a newer attempt has begun.
        """
        flight, self.flight = self.flight, None
        return flight.done.result() if flight is not None else None

    def cancel(self) -> None:
        """Give up the save in flight: it fails, unless all ranks have written by now. To be finished all the same."""
        if self.flight is not None:
            self.flight.cancelled.fill_(1)

    def save(self, state: Mapping[str, Tensor], what: What) -> Stored:
        """Save, and return when it is durable. Nothing is copied: the state does not change meanwhile."""
        if self.flight is not None:
            raise RuntimeError(f"the save of step {self.flight.what.step} has not been finished")
        uncancelled = torch.zeros(1, dtype=torch.uint8)
        return self._save(lambda: state, what, uncancelled, time.monotonic(), staged=False)

    def _save(
        self, copy: Callable[[], Mapping[str, Tensor]], what: What, cancelled: Tensor, started: float, *, staged: bool
    ) -> Stored:
        """All that there is to a save, from an empty directory to what has become expendable."""
        self._agree(copy, what)
        try:
            path = self._all.on_first_rank(lambda: self.store.begin(what.step))
        except OSError as error:
            raise SaveFailed(f"{self.store.root}: step {what.step}: {error}") from error
        self.report.checkpoint_started(what.step, self.store.attempt, str(path))
        try:
            # The save at the end of a gang is in no hurry to be loaded: its pods go.
            keeps = self._copies if staged else None
            streams = keeps.tee(self.store.streams) if keeps is not None else self.store.streams
            written = self._written(copy(), Writer(path, streams, cancelled), staged)
            record = self._record(what, written)
            stored = self._all.on_first_rank(lambda: self._commit(path, record))
        except (OSError, SaveFailed) as error:
            if self.rank == 0:
                self._keeper.discard(path)
            said = error if isinstance(error, SaveFailed) else _first_failure(error, self.rank)
            raise SaveFailed(f"{path}: {said}") from error
        self.last = stored
        self._keeper.saved(stored)
        seconds = time.monotonic() - started
        before = self.save_seconds
        self.save_seconds = seconds if before is None else before + SMOOTHING * (seconds - before)
        self.report.checkpoint_durable(what.step, record.attempt, str(path), size_bytes=record.bytes, seconds=seconds)
        self._keeper.retain(delete=self.rank == 0)
        if keeps is not None:
            keeps.committed(stored)
        return stored

    def _agree(self, copy: Callable[[], Mapping[str, Tensor]], what: What) -> None:
        """All ranks have their copy, of the same step. A rank that had not would leave the others waiting in DCP."""
        problem: BaseException | None = None
        try:
            copy()
        except Exception as error:
            problem = error
        for rank, (step, failed) in enumerate(self._all.gather((what.step, problem and repr(problem)))):
            if failed is not None or step != what.step:
                raise SaveFailed(f"step {what.step}: rank {rank}: {failed or f'saves step {step}'}") from problem

    def _written(self, state: Mapping[str, Tensor], writer: Writer, staged: bool) -> Metadata:
        """Write, and hear from all ranks how it went: one that lost its process would leave the others waiting at the commit.

        Raises SaveFailed on all ranks where any could not write.
        """
        written: Metadata | None = None
        problem: BaseException | None = None
        try:
            written = self._background.write(state, writer, staged=staged)
        except (OSError, CheckpointException, WriterLost) as error:
            problem = error
        lost = isinstance(problem, WriterLost)
        here = isinstance(problem, WriterLost) and problem.here
        said = self._all.gather((problem and _first_failure(problem, self.rank), lost, here))
        if any(lost for _, lost, _ in said):
            self._background.without_process()
        failures = sorted((not here, text) for text, _, here in said if text is not None)  # where it began comes first
        if written is None or failures:
            raise SaveFailed(failures[0][1]) from problem
        return written

    def _commit(self, path: PurePath, record: CommitRecord) -> Stored:
        self.before_commit()
        return self.store.commit(path, record)

    def _record(self, what: What, written: Any) -> CommitRecord:
        return CommitRecord(
            attempt=self.store.attempt,
            step=what.step,
            parent=self.last.record.mark if self.last else None,
            parent_path=str(self.last.path) if self.last else "",
            files=files_of(written),
            world_size=self.ranks,
            mesh=self.mesh,
            job=self.job,
            samples=what.samples,
            training=what.training,
            time=time.time(),
        )

    def _nothing_verifies(self, problems: list[Problem]) -> str:
        resume = self.lineage.resume
        missing = f"no commit of step {resume.step} by attempt {resume.attempt} is there" if resume else ""
        return (
            f"{self.store.root}: attempt {self.store.attempt} has a history to continue, and nothing of it can be loaded: "
            f"{'; '.join(map(str, problems)) or missing}; "
            f"put back the volume or the files, or train from the beginning as another job"
        )

    def _warn(self, reason: str, message: str) -> None:
        if self.rank == 0:
            log.warning("%s: %s", reason, message)
            self.report.warned(reason, message)


def _first_failure(error: BaseException, rank: int) -> str:
    """What went wrong where. DCP's own exception, which is no `Exception`, holds the errors of all ranks by rank."""
    if isinstance(error, CheckpointException) and error.failures:
        rank, (error, _) = next(iter(error.failures.items()))
    if isinstance(error, WriterLost):
        return f"rank {rank}: {error}"
    return f"rank {rank}: {type(error).__name__}: {error}"


__all__ = ["Checkpoints", "LoadFailed", "NothingVerifies", "SaveFailed", "Superseded", "What", "tensors"]
