"""Precision of a step: what is computed in it, and by how much the loss is scaled so that float16 can hold its gradients.

A gradient that overflows is computed again with half the scale: no sample is left out, and there is no state to save. After 2000
steps without one the scale doubles (Micikevicius et al. 2018; torch.amp.GradScaler has the same numbers, and leaves the step
out). Powers of two change no digit, so that a scale decides only what is too large or too small to be held.
"""

from __future__ import annotations

from math import isfinite
from typing import Final

import torch

PRECISIONS: Final = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Type of activations and of weights in use by spec.trainer.precision; None: that of the parameters."""
FIRST: Final = 2.0**16
STEPS_TO_GROWTH: Final = 2000


class Scaler:
    """The scale of the loss, equal on all ranks since all decide by the same sums. 1 and constant but for float16."""

    def __init__(self, precision: str) -> None:
        self._varies = precision == "float16"
        self.scale = FIRST if self._varies else 1.0
        self._steps = 0

    def overflows(self, loss: float, squared: float) -> bool:
        """Whether a step is to be computed again. loss: of all ranks, not scaled; squared: norm of their scaled gradient."""
        if not self._varies or not isfinite(loss):
            return False
        if not isfinite(squared) and self.scale > 1.0:
            self.scale /= 2
            self._steps = 0
            return True
        self._steps += 1
        if self._steps == STEPS_TO_GROWTH:
            self.scale *= 2
            self._steps = 0
        return False
