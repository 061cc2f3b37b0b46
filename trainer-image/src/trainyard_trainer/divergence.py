"""Steps whose numbers went astray: which they are, and what is done about them (spec.trainer.divergence).

All ranks decide by the same sums, so that all do the same. A step that is skipped or rolled back is done all the same: the
next one takes the next samples at its own learning rate, and what was learnt is what it was before. So there is no state to
save: who resumes before such a step comes to it again, and decides again as it was decided.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from statistics import median
from typing import Final, Literal

from torch import nn
from torch.optim import Optimizer
from trainyard.api.trainer import DivergenceConfig

from trainyard_trainer.session import Session

LEAST: Final = 8
"""Losses that a median is taken of."""
FIELD: Final = "spec.trainer.divergence"


class Diverged(ArithmeticError):
    """Loss or gradient went astray, and training is not to go on, or cannot. The message says which rank and layer began."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a step. what: for messages; action: as configured in `field`."""

    step: int
    what: str
    field: str
    action: Literal["skip", "rollback", "stop"]
    finite: bool


class Watch:
    """The losses so far, and how many steps were given up. losses: of the steps before, oldest first, as many as there are."""

    def __init__(self, config: DivergenceConfig, losses: Iterable[float]) -> None:
        self._config = config
        self._losses = deque(filter(isfinite, losses), config.spike_window)
        self._given_up = 0

    def look(self, step: int, loss: float, norm: float) -> Fault | None:
        """Whether a step went astray. loss, norm of the gradient: of all ranks."""
        usual = median(self._losses) if len(self._losses) >= LEAST else None
        if isfinite(loss):  # whatever is done with the step: who resumes finds its loss in the history
            self._losses.append(loss)
        if not (isfinite(loss) and isfinite(norm)):
            what = f"loss {loss:g}, norm of the gradient {norm:g}"
            return Fault(step, what, f"{FIELD}.onNonFinite", self._config.on_non_finite, finite=False)
        if self._config.on_spike != "ignore" and usual is not None and loss > self._config.spike_factor * usual:
            what = f"loss {loss:.4g}, and the median of the steps before is {usual:.4g}"
            return Fault(step, what, f"{FIELD}.onSpike", self._config.on_spike, finite=True)
        return None

    def give_up(self, fault: Fault, cause: str, session: Session, model: nn.Module, optimizer: Optimizer) -> None:
        """Do with the step's gradient as configured; called by all ranks. cause: for the message, as `diagnosis` tells it.

        Raises Diverged where training is to stop, where too many steps were given up, or where there is nothing to go back to.
        """
        what = f"step {fault.step}: {fault.what}; {cause}"
        self._given_up += 1
        if fault.action == "stop":
            raise Diverged(what)
        if self._given_up > self._config.most:
            raise Diverged(f"{what}; {self._config.most} steps were given up before ({FIELD}.most)")
        if fault.action == "skip":
            session.warn("StepSkipped", f"{what}; the weights stay as they were ({fault.field})")
            return
        went_back = session.roll_back(model, optimizer)
        if went_back is None:
            raise Diverged(f"{what}; there is no checkpoint to roll back to ({fault.field})")
        session.warn("RolledBack", f"{what}; the weights are those of step {went_back} again ({fault.field})")
