"""Lives of a job that end at a drawn file operation, and what the next attempt then loads.

A life: attempt 1 begins, saves steps 1 to 3 and keeps two; attempt 2 inherits, loads, saves steps 4 to 6, the first of them
beside a state that changes already. It ends by SIGKILL of one rank, or by power loss of all machines and the storage. What
is wrong to load: numbers of two steps, a step older than one that was reported durable, or nothing where one was.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from support.processes import Ended, run
from support.stores import Journal, after_power_loss, killed_at, never
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from trainyard.contract.plan import Axis, Lineage, Mark
from trainyard_trainer.checkpoint.distributed import Checkpoints, What
from trainyard_trainer.checkpoint.files import Files, Posix
from trainyard_trainer.checkpoint.folder import Folder
from trainyard_trainer.checkpoint.record import Training
from trainyard_trainer.checkpoint.store import Store
from trainyard_trainer.parallel.rendezvous import Place, meet
from trainyard_trainer.report import CheckpointDurable, Reporter

TRAINING = Training(0, "data", {}, "configuration")
ROWS = 12


@dataclass(frozen=True, slots=True)
class Trial:
    """One life. victim: the rank that is killed at its `point`-th operation. power: its storage forgets what was not synced.

    wrong: what was wrong with what was loaded, "" where nothing was. durable, loaded: steps; 0: none.
    """

    ranks: int
    victim: int
    point: int
    power: bool
    durable: int
    loaded: int
    wrong: str


def state_of(rank: int, ranks: int) -> dict[str, torch.Tensor]:
    """A matrix spread over the ranks, and a number that all hold. The ranks must have met."""
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("shard",))
    return {"matrix": DTensor.from_local(torch.zeros(ROWS // ranks, 3), mesh, [Shard(0)]), "number": torch.zeros(())}


def fill(state: dict[str, torch.Tensor], value: float) -> None:
    """Make the state that of a step."""
    matrix = state["matrix"]
    assert isinstance(matrix, DTensor)
    matrix.to_local().fill_(value)
    state["number"].fill_(value)


def values(state: dict[str, torch.Tensor]) -> set[float]:
    """All numbers that are in it: one, where it is of one step."""
    matrix = state["matrix"]
    assert isinstance(matrix, DTensor)
    return set(matrix.to_local().flatten().tolist()) | {float(state["number"])}


def checkpoints(
    root: Path,
    rank: int,
    ranks: int,
    attempt: int,
    files: Files,
    job: str = "job",
    history: tuple[Mark, ...] | None = None,
    store: Store | None = None,
) -> Checkpoints:
    """Of an attempt; history: of its lineage; None: all before it, and nobody could ask them how far they had come.

    store: in the place of a folder at `root`.
    """
    lineage = Lineage(tuple(Mark(before, -1) for before in range(1, attempt)) if history is None else history)
    report = Reporter.from_environment(rank)
    place = store or Folder(root, attempt, files)
    return Checkpoints(place, lineage, 2, job, report, rank, ranks, (Axis("shard", ranks),))


def what(step: int) -> What:
    return What(step, f"samples of {step}", TRAINING)


def live(root: Path, rank: int, ranks: int, files: Files, stores: Callable[[int], Store] | None = None) -> None:
    """Two attempts, from nothing to step 6. stores: of each attempt, in the place of folders at `root`."""
    meet(Place.of(os.environ, rank, ranks), torch.device("cpu"), 30.0, lambda: False)
    state = state_of(rank, ranks)
    made = [stores(attempt) if stores else None for attempt in (1, 2)]
    attempts = [checkpoints(root, rank, ranks, n, files, store=store) for n, store in enumerate(made, start=1)]
    for saved, steps in zip(attempts, ((1, 2, 3), (4, 5, 6)), strict=True):
        record = saved.load(state, lambda record: None)
        assert (record.step if record else 0) == steps[0] - 1
        assert values(state) == {float(steps[0] - 1)}
        for step in steps:
            fill(state, float(step))
            if step == steps[0]:
                saved.start(state, what(step))
                saved.staged()
                fill(state, -1.0)
                saved.finish()
            else:
                saved.save(state, what(step))


def go_on(root: Path, store: Store | None = None) -> str:
    """What the next attempt loads, on one rank; it also saves, which what was left must not hinder."""
    meet(Place.of(os.environ, 0, 1), torch.device("cpu"), 30.0, lambda: False)
    state = state_of(0, 1)
    saved = checkpoints(root, 0, 1, 3, Posix(), store=store)
    record = saved.load(state, lambda record: None)
    step = record.step if record else 0
    if values(state) != {float(step)}:
        return f"{step} mixed of {sorted(values(state))}"
    fill(state, float(step + 1))
    saved.save(state, what(step + 1))
    return str(step)


def operations(ranks: int, folder: Path) -> list[int]:
    """How many file operations each rank makes in a life that nothing ends."""

    def work(rank: int) -> str:
        store = Journal(never, folder / "kept")
        live(folder / "root", rank, ranks, store)
        return str(store.counted)

    folder.mkdir()
    (folder / "root").mkdir()
    ended = run(work, ranks, folder / "ranks")
    assert [end.code for end in ended] == [0] * ranks, ended[0].output
    return [int(end.result) for end in ended]


def trials(count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """Lives with one rank and with two, each ending at an operation drawn from all that there are."""
    random = Random(seed)
    lengths = {ranks: operations(ranks, folder / f"whole-{ranks}") for ranks in (1, 2)}
    for number in range(count):
        ranks = 1 + number % 2
        victim = random.choices(range(ranks), lengths[ranks])[0]
        point = random.randint(1, lengths[ranks][victim])
        home = folder / str(number)
        yield trial(home, ranks, victim, point, number // 2 % 2 == 1, random)
        shutil.rmtree(home)


def trial(home: Path, ranks: int, victim: int, point: int, power: bool, random: Random) -> Trial:
    """One life and what comes after it."""
    root, kept = home / "root", home / "kept"
    root.mkdir(parents=True)

    def work(rank: int) -> None:
        live(root, rank, ranks, Journal(killed_at(point) if rank == victim else never, kept))

    ended = run(work, ranks, home / "life")
    durable = max((last_durable(end) for end in ended), default=0)
    if power:
        after_power_loss(root, kept, home / "after", random)
        root = home / "after"
    (next_one,) = run(lambda rank: go_on(root), 1, home / "next")
    if next_one.code != 0:
        return Trial(ranks, victim, point, power, durable, 0, next_one.output)
    step, _, mixed = next_one.result.partition(" ")
    wrong = mixed or ("" if int(step) >= durable else f"step {step} was loaded, and {durable} was durable")
    return Trial(ranks, victim, point, power, durable, int(step), wrong)


def last_durable(ended: Ended) -> int:
    """The newest step that a rank reported as durable; 0: none."""
    return max((report.step for report in ended.reports if isinstance(report, CheckpointDurable)), default=0)
