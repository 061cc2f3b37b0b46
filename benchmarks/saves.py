"""What a save costs the training, and how soon after a notice the state is durable."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.tensor import DTensor, Shard
from trainyard.api.trainer import OptimizerConfig
from trainyard_trainer.checkpoint.distributed import tensors
from trainyard_trainer.checkpoint.record import Training
from trainyard_trainer.configuration import assignment
from trainyard_trainer.optimizer import adamw
from trainyard_trainer.report import CheckpointDurable, StepDone
from trainyard_trainer.session import Session
from trainyard_trainer.train import main

from benchmarks.figures import Figure
from benchmarks.gangs import CONFIG, plan_file, start

BLOCK: Final = 50
"""Steps from one save to the next."""
STATE_BYTES: Final = 512 * 10**6
RANKS: Final = 2
LONGEST_SECONDS: Final = 3000.0
"""For which a measurement is waited for."""
MEDIUM: Final[dict[str, Any]] = {
    **CONFIG,
    "model": {"width": 512, "layers": 13, "heads": 8, "kvHeads": 8, "hidden": 1536},
    "data": {**CONFIG["data"], "sequenceLength": 64, "globalBatch": 4, "microBatch": 2},
}
"""44 million parameters: with AdamW's two moments a state of 528 MB."""


@dataclass(frozen=True, slots=True)
class Saved:
    """What one save cost rank 0. stall_seconds: of the training. step: after which it began."""

    step: int
    stall_seconds: float


def stall(home: Path, blocks: int) -> Figure:
    """Train in blocks of 50 steps, every other one begun by a save; the first block is not counted."""
    steps = BLOCK * (2 * blocks + 1)
    environment = plan_file(home / "plan.json", home / "root", ranks=RANKS, trainer={**MEDIUM, "steps": steps})

    def work(rank: int) -> list[Saved]:
        saved: list[Saved] = []

        def due(session: Session, step: int) -> bool:
            if step % (2 * BLOCK) == BLOCK + 1 and saved:
                saved[-1] = Saved(saved[-1].step, session.stall_seconds)
            if step % (2 * BLOCK) != BLOCK:
                return False
            saved.append(Saved(step, 0.0))
            return True

        Session.should_save = due  # type: ignore[method-assign, assignment]
        main([])
        return saved

    (first, *_) = start(work, RANKS, home / "gang", dict.fromkeys(range(RANKS), environment)).wait(LONGEST_SECONDS)
    if first.code != 0:
        raise RuntimeError(first.output)
    seconds = {report.step: report.step_seconds for report in first.reports if isinstance(report, StepDone)}
    beside = [_block(seconds, BLOCK * (2 * n + 1)) for n in range(blocks)]
    without = [_block(seconds, BLOCK * (2 * n + 2)) for n in range(blocks)]
    stalls = [saved.stall_seconds for saved in first.result if saved.step <= BLOCK * (2 * blocks - 1)]
    ratios = [stalled / sum(block) for stalled, block in zip(stalls, beside, strict=True)]
    whole = median(median(b) / median(w) - 1 for b, w in zip(beside, without, strict=True))
    (state_bytes, *_) = {report.bytes for report in first.reports if isinstance(report, CheckpointDurable)}
    details = {
        "saves": len(stalls),
        "state_bytes": state_bytes,
        "stall_seconds": median(stalls),
        "step_seconds": median(median(block) for block in without),
        "whole_cost": whole,
        "whole_cost_of_the_block": median(sum(b) / sum(w) - 1 for b, w in zip(beside, without, strict=True)),
        "load": os.getloadavg()[0],
    }
    return Figure("save_stall_ratio", median(ratios), "of step time", 0.01, details=details)


def _block(seconds: dict[int, float], after: int) -> list[float]:
    return [seconds[step] for step in range(after + 1, after + BLOCK + 1)]


class Large(nn.Module):
    """Parameters that are, with AdamW's two moments, a state of so many bytes over all ranks."""

    def __init__(self, mesh: Any, state_bytes: int, parts: int = 16, width: int = 1024) -> None:
        super().__init__()
        rows = state_bytes // (3 * 4 * parts * width * mesh.size())
        self.parts = nn.ParameterList(
            nn.Parameter(DTensor.from_local(torch.randn(rows, width), mesh, [Shard(0)])) for _ in range(parts)
        )


def notice(home: Path, runs: int, state_bytes: int = STATE_BYTES) -> Figure:
    """A stop is asked, and how long it takes until the commit is durable; in turns with a bare synchronous dcp.save.

    The notice comes between two steps, so that the rest of the step is nothing.
    """
    environment = plan_file(home / "plan.json", home / "root", ranks=RANKS, keep=1)
    stops = {rank: {**environment, "TRAINYARD_STOP_FILE": str(home / "stop")} for rank in range(RANKS)}

    def work(rank: int) -> list[tuple[float, float]]:
        pairs: list[tuple[float, float]] = []
        with Session.open(assignment(os.environ)) as session:
            model = Large(session.mesh, state_bytes)
            optimizer = adamw(model, OptimizerConfig())
            training = Training(0, "", {}, "")
            session.load(model, optimizer, training)
            durable = session.report.checkpoint_durable
            at = [0.0]

            def note(*arguments: Any, **keywords: Any) -> None:
                at[0] = time.monotonic()
                durable(*arguments, **keywords)

            session.report.checkpoint_durable = note  # type: ignore[method-assign]
            for number in range(runs + 1):
                session.steps_done = number + 1
                times = [0.0, 0.0]
                for which in (0, 1) if number % 2 else (1, 0):
                    dist.barrier()
                    began = time.monotonic()
                    if which == 0:
                        if rank == 0:
                            (home / "stop").touch()
                        dist.barrier()
                        assert session.should_stop()
                        session.leave(model, optimizer, "", training)
                        times[0] = at[0] - began
                    else:
                        _bare(home / "bare", model, optimizer)
                        times[1] = time.monotonic() - began
                        dist.barrier()
                        if rank == 0:
                            shutil.rmtree(home / "bare")
                pairs.append((times[0], times[1]))
        return pairs[1:]  # the first allocates

    ended = start(work, RANKS, home / "gang", stops).wait(LONGEST_SECONDS)
    if ended[0].code != 0:
        raise RuntimeError(ended[0].output)
    ours = [max(pair) for pair in zip(*([mine for mine, _ in end.result] for end in ended), strict=True)]
    bare = [max(pair) for pair in zip(*([theirs for _, theirs in end.result] for end in ended), strict=True)]
    ratios = [mine / (theirs + 0.5) for mine, theirs in zip(ours, bare, strict=True)]
    details = {
        "runs": runs,
        "state_bytes": state_bytes,
        "seconds": median(ours),
        "bare_seconds": median(bare),
        "least": min(ratios),
        "most": max(ratios),
        "load": os.getloadavg()[0],
    }
    return Figure(
        "notice_to_durable_ratio",
        median(ratios),
        "of a bare save + 0.5 s",
        1.25,
        against="dcp.save with fsync",
        details=details,
    )


def _bare(path: Path, model: nn.Module, optimizer: Any) -> None:
    dcp_save(tensors(model, optimizer), storage_writer=FileSystemWriter(path, sync_files=True))
