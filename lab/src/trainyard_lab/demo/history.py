"""The proof that no step was lost or repeated: the files to which rank 0 of each job wrote a line at every step."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Step:
    """One line. samples: digest of the step's samples; loss: in hexadecimal, so that equality means every bit."""

    attempt: int
    step: int
    samples: str
    loss: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """A history beside that of an undisturbed run of the same training.

    lost: steps without a line; repeated: steps with more than one; differing: steps whose samples or loss are not the same.
    """

    steps: int
    lost: tuple[int, ...]
    repeated: tuple[int, ...]
    differing: tuple[int, ...]

    @property
    def equal(self) -> bool:
        """Whether nothing was lost, repeated or different."""
        return not (self.lost or self.repeated or self.differing)


def read(path: Path) -> tuple[Step, ...]:
    """All lines of a history, as they stand."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return tuple(Step(line["attempt"], line["step"], line["samples"], line["loss"]) for line in lines)


def compare(history: Sequence[Step], undisturbed: Sequence[Step]) -> Comparison:
    """What of the undisturbed run is missing, twice there, or different."""
    counts = Counter(step.step for step in history)
    wanted = {step.step: (step.samples, step.loss) for step in undisturbed}
    found = {step.step: (step.samples, step.loss) for step in history}
    return Comparison(
        steps=len(history),
        lost=tuple(n for n in wanted if n not in found),
        repeated=tuple(sorted(n for n, count in counts.items() if count > 1)),
        differing=tuple(n for n in sorted(found) if found[n] != wanted.get(n)),
    )


def gapless(history: Sequence[Step], steps: int) -> bool:
    """Whether it is 1, 2, ... up to the last step, in this order."""
    return [step.step for step in history] == list(range(1, steps + 1))
