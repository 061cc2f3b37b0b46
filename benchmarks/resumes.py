"""What a resume changes: losses on the same ranks, on others and on another mesh, and the samples that were learnt from."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from trainyard.api.trainer import TrainerConfig
from trainyard.contract.plan import Axis
from trainyard_trainer.data import batches, order
from trainyard_trainer.data.sources import corpus_of
from trainyard_trainer.session import Session
from trainyard_trainer.train import main

from benchmarks.figures import Figure
from benchmarks.gangs import CONFIG, history, losses, train

SAVED: Final = 10
"""The step after which attempts end, so that 20 are left."""
OTHERS: Final = (3, 2, 1, 8)
RESIZES: Final = 20


def ends_after(step: int | None) -> Callable[[int], Any]:
    """The trainer; all its ranks are killed once the state after `step` is durable."""

    def work(rank: int) -> int:
        if step is not None:
            save, due = Session.save, Session.should_save

            def save_and_die(self: Session, *arguments: Any, wait: bool = False) -> None:
                save(self, *arguments, wait=True)
                if self.steps_done == step:
                    os.kill(os.getpid(), signal.SIGKILL)

            Session.save = save_and_die  # type: ignore[method-assign, assignment]
            Session.should_save = lambda self, now: now == step or due(self, now)  # type: ignore[method-assign, assignment]
        return main([])

    return work


def same(home: Path) -> tuple[Figure, Figure]:
    """One resume, and two, on four ranks against none: the losses are equal bit for bit."""
    home.mkdir(parents=True, exist_ok=True)
    train(home / "none", 1, 4, ends_after(None))
    whole = losses(home / "none")
    differences = {}
    for name, ends in (("once", [SAVED]), ("twice", [SAVED, 2 * SAVED])):
        for attempt, end in enumerate([*ends, None], start=1):
            train(home / name, attempt, 4, ends_after(end))
        found = losses(home / name)
        if len(found) != len(whole):
            raise RuntimeError(f"{name}: {len(found)} steps count, and {len(whole)} were made")
        differences[name] = max(abs(a - b) for a, b in zip(found, whole, strict=True))
    return (
        Figure("resume_same_difference", differences["once"], "nats", 0.0, details={"steps": len(whole)}),
        Figure("resume_twice_difference", differences["twice"], "nats", 0.0, details={"steps": len(whole)}),
    )


def other(home: Path) -> Figure:
    """A run on four ranks goes on with 3, 2, 1 and 8, and on two copies of two, for 20 steps."""
    home.mkdir(parents=True, exist_ok=True)
    train(home / "none", 1, 4, ends_after(None))
    whole = losses(home / "none")
    cases: list[tuple[str, int, Sequence[Axis]]] = [(str(ranks), ranks, ()) for ranks in OTHERS]
    cases.append(("replicate 2 x shard 2", 4, (Axis("replicate", 2), Axis("shard", 2))))
    differences = {}
    for name, ranks, mesh in cases:
        train(home / name, 1, 4, ends_after(SAVED))
        train(home / name, 2, ranks, ends_after(None), mesh=mesh)
        found = losses(home / name)
        differences[name] = max(abs(a - b) / b for a, b in zip(found[SAVED:], whole[SAVED:], strict=True))
    return Figure(
        "resume_other_difference", max(differences.values()), "relative", 1e-6, details={"steps": 20, "by": differences}
    )


def samples(home: Path, seed: int) -> Figure:
    """One training over 20 resizes: of the steps that count, what each rank really took, against what the step consists of."""
    home.mkdir(parents=True, exist_ok=True)
    random = Random(seed)
    steps = 4 * RESIZES
    trainer = {**CONFIG, "steps": steps}
    done = 0
    sizes: list[int] = []
    for attempt in range(1, RESIZES + 2):
        ranks = random.choice([n for n in (1, 2, 3, 4) if not sizes or n != sizes[-1]])
        sizes.append(ranks)
        done = min(done + random.randint(2, 5), steps - RESIZES - 1 + attempt)
        last = attempt == RESIZES + 1
        train(home / "run", attempt, ranks, _taking(home, attempt, None if last else done), trainer)
    taken: dict[tuple[int, int], Counter[int]] = {}
    for path in home.glob("taken-*"):
        for line in path.read_text().splitlines():
            attempt, step, ids = json.loads(line)
            taken.setdefault((attempt, step), Counter()).update(ids)
    text = corpus_of(TrainerConfig.model_validate(CONFIG))
    expected_of = batches.order_of(text, CONFIG["data"]["sequenceLength"], CONFIG["data"]["globalBatch"], 0)
    lines = {line["step"]: line["attempt"] for line in history(home / "run")}
    wrong = 0
    for step in range(1, steps + 1):
        expected = Counter(expected_of.step(step).tolist())
        found = taken.get((lines.get(step, 0), step), Counter())
        wrong += (expected - found).total() + (found - expected).total()
    details = {"seed": seed, "resizes": RESIZES, "steps": steps, "ranks": sizes}
    return Figure("samples_wrong", wrong, "samples", 0.0, details=details)


def _taking(home: Path, attempt: int, end: int | None) -> Callable[[int], Any]:
    """The trainer, each rank writing down which samples it takes."""
    trainer = ends_after(end)

    def work(rank: int) -> Any:
        share, step_of = order.share, batches.Batches.step
        now = [0]
        log = (home / f"taken-{attempt}-{rank}").open("w", buffering=1)

        def noted(ids: Any, part: int, parts: int) -> Any:
            mine = share(ids, part, parts)
            log.write(json.dumps([attempt, now[0], mine.tolist()]) + "\n")
            return mine

        def step(self: batches.Batches, number: int) -> Any:
            now[0] = number
            return step_of(self, number)

        batches.share = noted  # type: ignore[attr-defined, assignment]
        batches.Batches.step = step  # type: ignore[method-assign, assignment]
        return trainer(rank)

    return work
