"""What a training script asks and says while it runs under Trainyard: who am I, am I to stop, save this, load that.

    with Session.open(assignment) as session:
        done = session.load(model, optimizer, training)
        while done < steps and not session.should_stop():
            ...
            loss, tokens = session.sum_over_ranks(loss, tokens)
            ...
            session.step_done(...)
            if session.should_save(done):
                session.save(...)  # goes on beside the next steps
        session.save(..., wait=True)

A stop is asked of some ranks, at different moments, and all must leave after the same step: one that left alone would
strand the others in a collective. So the flag of each rank travels in the one small sum that a step makes anyway, and what
`should_stop` answers is the sum's answer, equal on all ranks.

It runs without a cluster too: without a plan there is nothing to resume but what the folder holds, and SIGTERM asks to stop.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import TimeoutError as StillThere
from contextlib import contextmanager
from functools import partial
from typing import Final, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer
from trainyard.contract.codec import dumps
from trainyard.contract.plan import Axis, Lineage, Mark, Plan
from trainyard.contract.plan import Checkpoints as Settings

from trainyard_trainer.asked import Requests
from trainyard_trainer.checkpoint.copies import Copies
from trainyard_trainer.checkpoint.distributed import Checkpoints, SaveFailed, What, tensors
from trainyard_trainer.checkpoint.expected import expected_seconds, state_bytes
from trainyard_trainer.checkpoint.measured import Measured
from trainyard_trainer.checkpoint.pace import gives_up
from trainyard_trainer.checkpoint.places import Root, last_attempt, root_of, store_at
from trainyard_trainer.checkpoint.record import CommitRecord, Training
from trainyard_trainer.checkpoint.refusals import compare, lasting_errors_are_the_users
from trainyard_trainer.configuration import Assignment, local_environment
from trainyard_trainer.copied import Copied
from trainyard_trainer.heartbeat import Heartbeat
from trainyard_trainer.history import Chronicle
from trainyard_trainer.machine import pick_device, threads
from trainyard_trainer.parallel.joining import joined
from trainyard_trainer.report import Phase, Reporter
from trainyard_trainer.waiting import Entered, Waits

log = logging.getLogger(__name__)
DRAIN_SECONDS = 20.0
"""For the end of a save when the training has failed; the launcher ends the others 5 s after the first."""


class Part(Protocol):
    """What a session needs to know of what a rank is to do."""

    @property
    def plan(self) -> Plan | None: ...

    @property
    def checkpoints(self) -> Settings | None: ...


class State(NamedTuple):
    """What is saved of a training. of: all of it as tensors by name. fits: raises where a commit is of something else. holds:
    see `Checkpoints.load`."""

    of: Callable[[nn.Module, Optimizer], dict[str, Tensor]]
    fits: Callable[[CommitRecord, Training, Callable[[str, str], None]], None]
    holds: Callable[[CommitRecord, Mapping[str, Sequence[int]]], None] | None = None


_ALL: Final = State(tensors, compare)


class Session:
    """One rank of one attempt. Every method but the properties is called by all ranks in the same order."""

    def __init__(
        self, assignment: Part, mesh: DeviceMesh, device: torch.device, requests: Requests, state: State = _ALL
    ) -> None:
        plan, settings = assignment.plan, assignment.checkpoints
        self._state = state
        self.mesh, self.device = mesh, device
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.report = Reporter.from_environment(self.rank)
        self.attempt = plan.attempt if plan else 1
        self._requests = requests
        self._settings = settings
        self._store: Checkpoints | None = None
        self._history = Chronicle(self.warn)
        self._stop = self._save = self._fresh = self._busy = self._late = False
        self._measured = Measured(settings, self.ranks)
        self.steps_done = 0
        self.resumed = False
        self._waits = Waits(device)
        self.waited_seconds: float | None = None  # in the last step, for others; None where it cannot be known
        self._heartbeat = Heartbeat(
            self.report, Entered([dist.group.WORLD, *mesh.get_all_groups()]), self._waits, device
        )
        self.copied = Copied(self.report, plan, self.rank, self.ranks)
        if settings is not None:
            root = root_of(settings.folder)
            lineage = plan.lineage if plan else Lineage()
            if plan is None:
                self.attempt, lineage = self._next_attempt(root)
            self._store = Checkpoints(
                store=store_at(root, self.attempt),
                lineage=lineage,
                keep=settings.keep,
                job=plan.uid if plan else "",
                report=self.report,
                rank=self.rank,
                ranks=self.ranks,
                mesh=tuple(Axis(name, mesh.size(n)) for n, name in enumerate(mesh.mesh_dim_names or ())),
                in_process=device.type == "cuda",
                copies_of=partial(Copies.of, plan, settings.copies_bytes, sent=self.copied.save)
                if plan and settings.copies_bytes
                else None,
                before_commit=self._history.sync,
                stop_asked=requests.stop_asked,
            )
        self._waits.begin()
        self._heartbeat.begin()

    @classmethod
    @contextmanager
    def open(cls, assignment: Assignment, environment: Mapping[str, str] = os.environ) -> Iterator[Session]:
        """Meet the other ranks; leave the process group at the end. Raises what `joined` does."""
        _, _, local_rank, local_ranks = local_environment(environment)
        device = pick_device(local_rank)
        torch.set_num_threads(threads(environment, local_ranks))
        requests = Requests.of(environment)
        mesh = joined(assignment.plan, environment, device, requests.stop_asked)
        session = None
        try:
            session = cls(assignment, mesh, device, requests)
            yield session
            session.close()
        finally:
            if session is not None:
                session.drain()
            dist.destroy_process_group()

    def sum_over_ranks(self, *values: float) -> tuple[float, ...]:
        """The sums of some numbers over all ranks; what was asked of any rank travels along."""
        self._collect()
        due = self.rank == 0 and self._measured.due(self._store.save_seconds if self._store else None)
        busy = self._store is not None and self._store.flight is not None
        asked = (float(self._requests.stop_asked()), float(self._requests.save_asked() or due), float(busy))
        vector = torch.tensor((*asked, *values), dtype=torch.float64, device=self.device)
        dist.all_reduce(vector)
        stop, save, saving, *sums = vector.tolist()
        self._busy = saving > 0
        # A request is kept until it is answered.
        self._stop, self._save, self._fresh = self._stop or stop > 0, self._save or save > 0, True
        return tuple(sums)

    def asked_to_stop(self) -> bool:
        """Whether this rank alone was asked: for a wait that must not outlast it. All ranks learn of it in the next sum."""
        return self._requests.stop_asked()

    def should_stop(self) -> bool:
        """Whether all ranks are to save and leave now, after the steps done so far: the answer of the last sum.

        A script that sums nothing itself gets a sum of its own at each call.
        """
        if not self._fresh:
            self.sum_over_ranks()
        self._fresh = False
        return self._stop

    def should_save(self, step: int) -> bool:
        """Whether the state after `step` is to be saved: the interval is over, or somebody asked.

        While the save before is under way on any rank, it waits for its end.
        """
        if self._settings is None:
            return False
        every = self._settings.every_steps
        due = self._save or (every is not None and step % every == 0)
        if due and self._busy:
            if not self._late:
                self.warn("SaveLate", f"step {step}: the save before is still being written; the next one waits for it")
            self._save = self._late = True
            return False
        return due

    def load(self, model: nn.Module, optimizer: Optimizer, training: Training) -> int:
        """Go on where the lineage ends: fill model and optimizer, and return the steps done. 0: begin."""
        record = None
        if self._store is not None:
            store = self._store
            self.report.phase(Phase.LOAD, 0)
            state = self._state.of(model, optimizer)
            began = time.monotonic()
            with lasting_errors_are_the_users(store.store.root):
                record = store.load(
                    state, lambda record: self._state.fits(record, training, self.warn), self._state.holds
                )
            read_bytes, seconds = record.bytes if record else 0, time.monotonic() - began
            self.report.save_expected(*expected_seconds(state_bytes(state.values()), read_bytes, seconds))
            self.resumed = record is not None
            self.steps_done = record.step if record else 0
            if self.rank == 0:
                self._history.open(store.store.root, self.attempt, self.steps_done)
            store.warm(state)
            optimizer.register_step_pre_hook(lambda *_: self.wait_for_the_copy())
        self._waits.follow(model)
        return self.steps_done

    def step_done(
        self,
        step: int,
        *,
        loss: float,
        tokens: int,
        step_seconds: float,
        grad_norm: float,
        samples: str,
        data_seconds: float = 0.0,
        mfu: float | None = None,
    ) -> None:
        """A step is done; loss is the mean over the global batch, samples the digest of its sample ids. data_seconds: how long
        it waited for them. mfu: model FLOP utilisation, where the accelerator's peak is known."""
        self.steps_done = step
        self._measured.step(step_seconds, beside_a_save=self._store is not None and self._store.flight is not None)
        self._history.add(step, samples, loss)
        self.waited_seconds = waited = self._waits.take()
        self.report.step(
            step,
            loss=loss,
            tokens=tokens,
            step_seconds=step_seconds,
            grad_norm=grad_norm,
            digest=samples,
            waited_seconds=None if waited is None else min(waited, step_seconds),
            data_seconds=data_seconds,
            mfu=mfu,
        )

    def save(
        self, model: nn.Module, optimizer: Optimizer, samples: str, training: Training, *, wait: bool = False
    ) -> None:
        """Save the state after the steps done; with wait, it is durable on return.

        Without, the writing goes on beside the next steps, and the optimizer's next step waits for the copy by itself. A
        save that fails is a warning then, and an error with wait. What this attempt has saved already stays as it is.
        """
        if self._store is None:
            return
        began = time.monotonic()
        self.report.phase(Phase.SAVE, self.steps_done)
        self._finish()
        mark = Mark(self.attempt, self.steps_done)
        if self._store.last is None or self._store.last.record.mark != mark:
            state, what = self._state.of(model, optimizer), What(self.steps_done, samples, training)
            if wait:
                self._store.save(state, what)
            else:
                self._store.start(state, what)
        self._requests.saved()
        self._save = self._late = False
        self._measured.saved(began)
        self._waits.skip()

    def leave(self, model: nn.Module, optimizer: Optimizer, samples: str, training: Training) -> None:
        """All ranks agreed to stop: save, also where no step was made since the last attempt's commit.

        A yield counts only by a commit of the attempt that yields. A save under way is that commit where it is of the step
        at which all leave; else it is given up for the last one where there is time for that. The save ends within the
        plan's grace or the process does.
        """
        self.report.stop_acknowledged(self.steps_done)
        if self._settings is None or self._store is None:
            return
        faulthandler.dump_traceback_later(self._settings.grace_seconds, exit=True, file=2)
        if self._one_is_in_the_way(self._store, self._settings.grace_seconds):
            self._store.cancel()
        self.save(model, optimizer, samples, training, wait=True)
        faulthandler.cancel_dump_traceback_later()

    def roll_back(self, model: nn.Module, optimizer: Optimizer) -> int | None:
        """Fill model and optimizer with what was committed last, and return its step; None where nothing was. The steps done stay
        done: this is for a step that went astray, not for doing it again."""
        if self._store is None:
            return None
        self.report.phase(Phase.LOAD, self.steps_done)
        self._finish()
        record = self._store.reload(self._state.of(model, optimizer))
        self.report.phase(Phase.TRAIN, self.steps_done)
        return record.step if record is not None else None

    def losses(self, most: int) -> tuple[float, ...]:
        """The last finite ones of the steps before this attempt, oldest first; as far as the history knows them."""
        known = [self._history.losses(most)]
        dist.broadcast_object_list(known, src=0)
        return tuple(known[0])

    def warn(self, reason: str, message: str) -> None:
        """Say what is amiss, once for all ranks: in the log, and where the operator hears it."""
        if self.rank == 0:
            log.warning("%s: %s", reason, message)
            self.report.warned(reason, message)

    def close(self) -> None:
        """See the save under way to its end, and end the history file."""
        if self._store is not None and self._store.flight is not None:
            self.report.phase(Phase.SAVE, self.steps_done)
        self._finish()
        self._history.close()
        self._unwatch()

    @property
    def stall_seconds(self) -> float:
        """What the newest save has cost the training so far."""
        return self._measured.stall_seconds

    def drain(self) -> None:
        """The training has failed: a save under way may still become durable, but not for long is it waited for."""
        self._unwatch()
        flight = self._store.flight if self._store is not None else None
        if flight is not None:
            with contextlib.suppress(StillThere):
                flight.done.exception(DRAIN_SECONDS)

    def _unwatch(self) -> None:
        self._waits.end()
        self._heartbeat.end()

    def _collect(self) -> None:
        """Take note of the end of the save under way, where it has ended."""
        if self._store is not None and self._store.flight is not None and not self._store.busy:
            self._finish()

    def _finish(self) -> None:
        """Wait for the end of the save under way. That it failed is told: what was saved before stands."""
        if self._store is None or self._store.flight is None:
            return
        flight = self._store.flight
        try:
            self._store.finish()
        except SaveFailed as error:
            if flight.cancelled.item():
                log.info("the save of step %s was given up for a newer one", flight.what.step)
            else:
                last = self._store.last
                kept = f"the newest is that of step {last.record.step}" if last else "there is none yet"
                self.warn("SaveFailed", f"{error}; training goes on, {kept}")

    def _one_is_in_the_way(self, store: Checkpoints, grace_seconds: float) -> bool:
        """Whether the save under way is of an earlier step and is to be given up: as rank 0 estimates, for all."""
        given_up = 0.0
        if self.rank == 0 and store.flight is not None and store.flight.what.step != self.steps_done:
            elapsed = time.monotonic() - store.flight.started
            left = self._requests.seconds_left()
            given_up = float(gives_up(store.save_seconds, elapsed, grace_seconds if left is None else left))
        vector = torch.tensor((given_up,), dtype=torch.float64, device=self.device)
        dist.all_reduce(vector)
        return bool(vector.item() > 0)

    def wait_for_the_copy(self) -> None:
        """Until what is being saved may change; the optimizer's next step calls it by itself."""
        store = self._store
        if store is not None and store.flight is not None and not store.flight.copied.done():
            began = time.monotonic()
            store.staged()
            self._measured.stall_seconds += time.monotonic() - began

    def _next_attempt(self, root: Root) -> tuple[int, Lineage]:
        """Without an operator: each start is a new attempt that goes on from the newest commit there is."""
        number = [last_attempt(root) if self.rank == 0 else 0]
        dist.broadcast_object_list(number, src=0)
        return number[0] + 1, Lineage(tuple(Mark(attempt, -1) for attempt in range(1, number[0] + 1)))


def describe(assignment: Assignment, data: str) -> Training:
    """What a commit record says of a training. data: digest of the corpus."""
    trainer = assignment.trainer
    configuration = hashlib.sha256(dumps(trainer.to_manifest()).encode()).hexdigest()
    return Training(trainer.seed, data, trainer.model.architecture, configuration)


# The functions for a script of one's own, under the name by which it imports them.
from trainyard_trainer.own import (  # noqa: E402
    end,
    evaluating,
    join,
    load,
    mesh,
    report,
    save,
    seed,
    should_save,
    should_stop,
)

__all__ = [
    "Session",
    "State",
    "describe",
    "end",
    "evaluating",
    "join",
    "load",
    "mesh",
    "report",
    "save",
    "seed",
    "should_save",
    "should_stop",
]
