"""The whole contract for a training script of one's own; `from trainyard_trainer import session` is its name.

    step = session.load(model, optimizer, scheduler=scheduler)
    while step < STEPS and not session.should_stop(step):
        session.seed(step)
        ...
        step += 1
        session.report(step, loss, tokens)
        if session.should_save(step):
            session.save()
    session.end()

Under Trainyard's launcher the plan says where checkpoints are, how often they are made and which of them count; under torchrun
or alone `join` does. All ranks call these functions in the same order. A process has one session.
"""

from __future__ import annotations

import importlib
import math
import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer
from trainyard.contract.exits import Exit
from trainyard.contract.plan import Checkpoints, Plan

from trainyard_trainer.asked import Requests
from trainyard_trainer.configuration import BadConfiguration, local_environment, read_plan
from trainyard_trainer.kept import Kept, Stateful
from trainyard_trainer.machine import pick_device
from trainyard_trainer.parallel.joining import joined
from trainyard_trainer.parallel.rendezvous import StoppedEarly
from trainyard_trainer.preflight.gang import PreflightFailed
from trainyard_trainer.report import Phase, Reporter
from trainyard_trainer.seeds import seed_of

if TYPE_CHECKING:
    from trainyard_trainer.session import Session

FOLDER: Final = "TRAINYARD_CHECKPOINTS"
"""Environment variable: where to save without a plan, unless `join` says it."""


@dataclass(frozen=True, slots=True)
class Part:
    """plan: None without a launcher. checkpoints: None where nothing is saved."""

    plan: Plan | None
    checkpoints: Checkpoints | None


class Own:
    """The session of a script, with what `load` was given. ours: whether the process group was made here."""

    def __init__(self, part: Part, mesh: DeviceMesh, device: torch.device, requests: Requests, ours: bool) -> None:
        self.part, self.mesh, self.device, self.requests, self.ours = part, mesh, device, requests, ours
        self.kept: Kept | None = None
        self.session: Session | None = None
        self.leaving = False
        self.first = True
        self.since = time.monotonic()

    def loaded(self) -> tuple[Session, Kept]:
        """What there is only after `load`."""
        if self.session is None or self.kept is None:
            raise RuntimeError("session.load(model, optimizer) comes first: it says what there is to save")
        return self.session, self.kept


_own: Own | None = None


def join(
    checkpoints: str | os.PathLike[str] | None = None,
    *,
    every: int | None = None,
    keep: int = 3,
    grace_seconds: float = 120.0,
) -> torch.device:
    """Meet the other ranks, unless the script has a process group already; the device of this rank.

    A plan says all the rest; without one, checkpoints is the folder to save to and to go on from (else the environment
    variable TRAINYARD_CHECKPOINTS, else nothing is saved), every the steps between two saves. `load` joins by itself where the
    script has not.
    """
    global _own  # noqa: PLW0603  # a process has one session, as it has one process group
    if _own is not None:
        return _own.device
    environment = os.environ
    with _endings():
        rank, _, local_rank, _ = local_environment(environment)
        device = pick_device(local_rank)
        requests = Requests.of(environment)
        Reporter.from_environment(rank).phase(Phase.INIT, 0)
        plan = read_plan(environment)
        folder = checkpoints or environment.get(FOLDER)
        settings = (
            Checkpoints(str(folder), every_steps=every, keep=keep, grace_seconds=grace_seconds) if folder else None
        )
        if plan.checkpoints if plan else settings:
            _can_save()
        ours = not dist.is_initialized()
        mesh = joined(plan, environment, device, requests.stop_asked, meets=ours)
        _own = Own(Part(plan, plan.checkpoints if plan else settings), mesh, device, requests, ours)
    sys.excepthook = _failed
    return device


def mesh() -> DeviceMesh:
    """The process mesh of the plan, of the axes `replicate` and `shard` (and others where the job asks for them); all ranks
    along `shard` without a plan. `fully_shard(model, mesh=session.mesh())` shards inside the fastest part of the network."""
    join()
    assert _own is not None
    return _own.mesh


def load(model: nn.Module, optimizer: Optimizer, **others: Stateful) -> int:
    """Go on where the job's history ends: fill all that is given, and return the steps done. 0: begin.

    others: whatever has state_dict and load_state_dict and is the same on all ranks, such as a scheduler. The model may be
    wrapped (DDP, fully_shard, torch.compile), and the optimizer new: a checkpoint fits any number of ranks.
    """
    from trainyard_trainer.session import Session, State  # which has our names among its own

    join()
    assert _own is not None
    if _own.session is not None:
        raise RuntimeError("session.load: called before; a process has one session")
    kept = Kept(model, optimizer, others)
    with _endings():
        session = Session(_own.part, _own.mesh, _own.device, _own.requests, State(kept.tensors, kept.fits, kept.holds))
        _own.session, _own.kept = session, kept
        begun = bool(optimizer.state)
        if not begun:
            optimizer.zero_grad(set_to_none=True)  # torch makes no state to load into where there are gradients
        step = session.load(model, optimizer, kept.training())
        if session.resumed:
            kept.loaded()
        elif not begun:
            kept.begin()
    if next(model.buffers(), None) is not None:  # changed by the forward pass already, not only by the optimizer
        model.register_forward_pre_hook(lambda *_: session.wait_for_the_copy())
    session.report.phase(Phase.WARM_UP, step)
    _own.since = time.monotonic()
    return step


def seed(step: int, base: int = 0) -> None:
    """Seed the generators of torch, numpy and Python for what comes after `step`: by base, step and rank, so that a run that
    was stopped draws what one that was not would have drawn, and no state of theirs has to be saved."""
    number = seed_of(base, step, dist.get_rank() if dist.is_initialized() else 0)
    torch.manual_seed(number)
    random.seed(number)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(number % 2**32)


def report(step: int, loss: float | Tensor, tokens: float = 1, grad_norm: float | Tensor = math.nan) -> float:
    """`step` is done. loss: this rank's mean, tokens: of how many; the answer is the mean over all ranks.

    One small reduction, in which travels what was asked of any rank: `should_stop` and `should_save` answer from it.
    """
    session, _ = _loaded()
    mine = float(loss.detach() if isinstance(loss, Tensor) else loss)
    summed, counted = session.sum_over_ranks(mine * tokens if tokens else 0.0, float(tokens))
    # With the wait for the others, which is told apart from the rank's own time.
    seconds = time.monotonic() - _current().since
    mean = summed / counted if counted else mine
    session.step_done(
        step, loss=mean, tokens=round(counted), step_seconds=seconds, grad_norm=float(grad_norm), samples=""
    )
    if _current().first:
        session.report.phase(Phase.TRAIN, step)
        _current().first = False
    _current().since = time.monotonic()
    return mean


def should_stop(step: int) -> bool:
    """Whether all ranks are to leave now, after `step` steps: agreed, and so the same on all of them. Then call `end`."""
    session, _ = _loaded()
    session.steps_done = step
    _current().leaving = session.should_stop()
    return _current().leaving


def should_save(step: int) -> bool:
    """Whether the state after `step` is to be saved: its time has come, or somebody asked; the same on all ranks."""
    return _loaded()[0].should_save(step)


def save(*, wait: bool = False) -> None:
    """Save the state after the step that was reported last. It goes on beside the next steps; with wait, it is durable on
    return."""
    session, kept = _loaded()
    session.save(kept.model, kept.optimizer, "", kept.training(), wait=wait)
    _train_again(session)


@contextmanager
def evaluating() -> Iterator[None]:
    """What is done within is an evaluation: its time is counted apart, and it may be silent for half an hour. Within a long one
    ask `should_stop`, on all ranks alike, and break where the answer is yes."""
    session, _ = _loaded()
    session.report.phase(Phase.EVAL, session.steps_done)
    try:
        yield
    finally:
        _train_again(session)


def end() -> None:
    """Save, and leave. Where a stop was agreed the process exits with 75 here, which to the launcher is a yield; where all
    steps are done it goes on behind this line."""
    session, kept = _loaded()
    leaving = _current().leaving
    if leaving:
        session.leave(kept.model, kept.optimizer, "", kept.training())
    else:
        session.save(kept.model, kept.optimizer, "", kept.training(), wait=True)
    session.close()
    session.report.phase(Phase.DONE, session.steps_done)
    _part()
    if leaving:
        sys.exit(Exit.YIELDED)


def _train_again(session: Session) -> None:
    """The next step begins now. Before the first is done, what it may take is that of a first step."""
    own = _current()
    session.report.phase(Phase.WARM_UP if own.first else Phase.TRAIN, session.steps_done)
    own.since = time.monotonic()


def _can_save() -> None:
    """BadConfiguration where the image lacks what torch's checkpoints need; torch can be installed without it."""
    try:
        importlib.import_module("numpy")
    except ImportError as error:
        raise BadConfiguration(
            f"session.join: torch.distributed.checkpoint needs numpy, and the image has none ({error}); install it beside torch"
        ) from None


def _current() -> Own:
    if _own is None:
        raise RuntimeError("session.load(model, optimizer) comes first")
    return _own


def _loaded() -> tuple[Session, Kept]:
    return _current().loaded()


def _part() -> None:
    """Leave the process group, where it was made here; another session may follow."""
    global _own  # noqa: PLW0603
    ours = _current().ours
    _own = None
    sys.excepthook = sys.__excepthook__
    if ours:
        dist.destroy_process_group()


def _failed(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """The script failed: say so, and let a save that is under way become durable, within reason."""
    sys.__excepthook__(kind, error, traceback)
    if _own is not None and _own.session is not None:
        _own.session.report.failed(error)
        _own.session.drain()


@contextmanager
def _endings() -> Iterator[None]:
    """What there is no use in going on after ends the process, by the code that says what it was."""
    try:
        yield
    except StoppedEarly as stopped:
        _reporter().stop_acknowledged(0)
        _exit(stopped, Exit.YIELDED)
    except PreflightFailed as error:  # the launcher was told of it
        _exit(error, Exit.PREFLIGHT)
    except BadConfiguration as error:
        _reporter().failed(error, configuration=True)
        _exit(error, Exit.CONFIGURATION)


def _reporter() -> Reporter:
    return Reporter.from_environment(int(os.environ.get("RANK", "0")))


def _exit(why: BaseException, code: Exit) -> NoReturn:
    print(why, file=sys.stderr, flush=True)
    sys.exit(code)
