"""Gangs of real ranks for the recovery figures: the tests' own, forked from a process that has imported torch.

`python -m benchmarks` runs from the root of the repository, where the tests' support lies in tests/.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support import gradients, ledgers  # type: ignore[import-not-found]
from support.killpoints import trials  # type: ignore[import-not-found]
from support.launching import a_plan, launched, until  # type: ignore[import-not-found]
from support.objects import BUCKET, server  # type: ignore[import-not-found]
from support.objects import trials as object_trials
from support.processes import Ended, Gang, plan_file, run, start  # type: ignore[import-not-found]

__all__ = ["BUCKET", "CONFIG", "Ended", "Gang", "a_plan", "gradients", "history", "launched", "ledgers", "losses"]
__all__ += ["object_trials", "plan_file", "run", "server", "start", "train", "trials", "until"]

CONFIG: Final[Mapping[str, Any]] = {
    "model": {"preset": "tiny"},
    "data": {"files": [__file__], "sequenceLength": 16, "globalBatch": 24, "microBatch": 4},
    "optimizer": {"warmupSteps": 2},
    "steps": 30,
}
"""A training whose step takes milliseconds. 24 samples divide over all numbers of ranks but 5, 7 and their like."""


def train(
    home: Path, attempt: int, ranks: int, work: Callable[[int], Any], trainer: Mapping[str, Any] = CONFIG, **plan: Any
) -> list[Ended]:
    """One attempt that goes on from all before it, until its end. Raises RuntimeError where a rank failed by itself."""
    lineage = [(before, -1) for before in range(1, attempt)]
    home.mkdir(exist_ok=True)
    environment = plan_file(
        home / f"plan-{attempt}.json",
        home / "root",
        attempt=attempt,
        ranks=ranks,
        history=lineage,
        trainer=trainer,
        **plan,
    )
    ended: list[Ended] = run(
        work, ranks, home / f"attempt-{attempt}", environments=dict.fromkeys(range(ranks), environment)
    )
    for end in ended:
        if end.code not in (0, 75, -9):
            raise RuntimeError(f"attempt {attempt} on {ranks} ranks exited {end.code}:\n{end.output}")
    return ended


def history(home: Path) -> list[dict[str, Any]]:
    """The steps that count, by step."""
    return [json.loads(line) for line in (home / "root" / "history.jsonl").read_text().splitlines()]


def losses(home: Path) -> list[float]:
    """Of the steps that count, by step."""
    return [float.fromhex(line["loss"]) for line in history(home)]
