"""What the trainer costs beside a bare FSDP2 loop of the same model, and what its loader costs beside a step.

The loader reads the next step's samples while the present one computes, so that a step hardly waits for it; what it takes from
the step is the processor's time, which its own thread is asked for.

Both loops run in the same four processes, in turns of a few steps, so that what else the machine does hits both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from trainyard.api.trainer import TrainerConfig
from trainyard_trainer.data.batches import Batch, Batches
from trainyard_trainer.model import weights
from trainyard_trainer.model.transformer import Transformer
from trainyard_trainer.report import StepDone
from trainyard_trainer.session import Session
from trainyard_trainer.train import main

from benchmarks.figures import Figure
from benchmarks.gangs import plan_file, start

RANKS: Final = 4
TURN: Final = 4
"""Steps of one loop before the other has its turn."""
WARM_UP: Final = 2
"""Turns of either that are not counted."""
WITHIN_SECONDS: Final = 1500.0
CONFIG: Final[dict[str, Any]] = {
    "model": {"width": 256, "layers": 6, "heads": 8, "kvHeads": 4, "hidden": 768},
    "data": {"sequenceLength": 128, "globalBatch": 32, "microBatch": 8},
    "optimizer": {"warmupSteps": 2},
    "logEvery": 1000,
}
"""4.9 million parameters, eight samples of 128 tokens a rank."""


class Moment(NamedTuple):
    """On the wall and of the processor; or how long it is since one."""

    wall: float
    cpu: float

    @classmethod
    def now(cls, of_thread: bool = False) -> Moment:
        return cls(time.perf_counter(), time.thread_time() if of_thread else time.process_time())

    @classmethod
    def since(cls, began: Moment, of_thread: bool = False) -> Moment:
        now = cls.now(of_thread)
        return cls(now.wall - began.wall, now.cpu - began.cpu)


def measure(home: Path, turns: int) -> list[Figure]:
    """turns: of either loop that are counted."""
    steps = TURN * (turns + WARM_UP) + 1
    environment = plan_file(home / "plan.json", home / "root", ranks=RANKS, trainer={**CONFIG, "steps": steps})

    def work(rank: int) -> tuple[list[Moment], list[Moment], list[Moment]]:
        ours, bare = [], []
        began, done, once = Moment(0.0, 0.0), 0, None

        def between(session: Session) -> bool:
            """Called before each step: one whole pass of the trainer's loop lies between two calls."""
            nonlocal began, done, once
            if began.wall:
                ours.append(Moment.since(began))
                done += 1
            if done and done % TURN == 0:
                once = once or bare_loop(session.mesh)
                for _ in range(TURN):
                    begun = Moment.now()
                    once()
                    bare.append(Moment.since(begun))
            began = Moment.now()
            return False

        Session.should_stop = between  # type: ignore[method-assign, assignment]
        read: list[Moment] = []
        step_of = Batches.step

        def fetch(batches: Batches, step: int) -> Iterator[Batch]:
            """Called for each step, in the thread that fetches its samples."""
            begun = Moment.now(of_thread=True)
            found = list(step_of(batches, step))
            read.append(Moment.since(begun, of_thread=True))
            return iter(found)

        Batches.step = fetch  # type: ignore[method-assign, assignment]
        main([])
        return ours, bare, read

    ended = start(work, RANKS, home / "gang", dict.fromkeys(range(RANKS), environment)).wait(WITHIN_SECONDS)
    first = ended[0]
    if first.code:
        raise RuntimeError(first.output)
    counted = [times[TURN * WARM_UP : TURN * (WARM_UP + turns)] for times in first.result[:2]]
    ours, bare = ([one.wall for one in times] for times in counted)
    ratios = [median(a) / median(b) for a, b in zip(_turns(ours), _turns(bare), strict=True)]
    computed = median(one.cpu for one in counted[0]) / median(one.cpu for one in counted[1])
    loaded = [report for report in first.reports if isinstance(report, StepDone)][TURN * WARM_UP :]
    read = first.result[2][TURN * WARM_UP :]
    return [
        Figure(
            "step_over_bare",
            median(ratios),
            "",
            1.03,
            against=f"{median(ours):.3f} s a step, {median(bare):.3f} s bare; {computed:.3f} by the processor's time; {RANKS} "
            f"processes, {turns} turns of {TURN}",
            details={"turns": ratios, "ours_seconds": ours, "bare_seconds": bare},
        ),
        loader_ratio(read, loaded),
    ]


def loader_ratio(read: Sequence[Moment], steps: Sequence[StepDone]) -> Figure:
    """What reading takes of the processor, over the step. read: what the samples of each of the steps took."""
    waited = median(step.data_seconds for step in steps)
    return Figure(
        "loader_ratio",
        median(one.cpu / step.step_seconds for one, step in zip(read, steps, strict=True)),
        "",
        0.01,
        against=f"{1000 * median(one.cpu for one in read):.2f} ms of the processor's time and "
        f"{1000 * median(one.wall for one in read):.2f} ms on the wall for a step's samples, read beside the step before, and "
        f"{1000 * waited:.2f} ms waited for them",
        details={"cpu_seconds": [one.cpu for one in read], "wall_seconds": [one.wall for one in read]},
    )


def bare_loop(mesh: DeviceMesh) -> Callable[[], None]:
    """One step of forward, backward and AdamW over FSDP2, on one batch that stays: nothing else."""
    config = TrainerConfig.model_validate(CONFIG)
    with torch.device("meta"):
        model = Transformer.of(config.model)
    for block in model.blocks.values():
        fully_shard(block, mesh=mesh["shard"], reshard_after_forward=False)
    fully_shard(model, mesh=mesh["shard"], reshard_after_forward=False)
    model.to_empty(device="cpu")
    weights.draw(model, config.model.shape.layers, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    tokens = torch.randint(256, (config.data.global_batch // RANKS, config.data.sequence_length + 1))

    def once() -> None:
        torch.use_deterministic_algorithms(False)
        logits = model(tokens[:, :-1])
        F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        torch.use_deterministic_algorithms(True)

    return once


def _turns(times: list[float]) -> list[list[float]]:
    return [times[n : n + TURN] for n in range(0, len(times), TURN)]
