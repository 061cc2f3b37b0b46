"""Model FLOP utilisation: which part of what the accelerators could compute the model's own operations are.

    MFU = tokens a second x FLOPs a token / (ranks x peak FLOPs a second)
    FLOPs a token = 6 N + 12 L W T        N: parameters that are multiplied with, L layers of width W, T tokens a sample

(Chowdhery et al. 2022, PaLM, appendix B: forward and backward, without what is computed a second time.) The peak is
the published dense bfloat16 figure (trainyard.planner.machines). Of a CPU none is published, so there is no MFU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from trainyard.api.trainer import TrainerConfig
from trainyard.planner.machines import accelerator_called
from trainyard.planner.model import model_of


@dataclass(frozen=True, slots=True)
class Utilization:
    """flops_per_token: of the model. peak_flops: operations a second of all ranks together; None: not known."""

    flops_per_token: float
    peak_flops: float | None

    @classmethod
    def of(cls, config: TrainerConfig, device: torch.device, ranks: int) -> Utilization:
        peak = peak_flops(device)
        return cls(model_of(config).flops_per_token, peak * ranks if peak is not None else None)

    def mfu(self, tokens: int, seconds: float) -> float | None:
        """Of `tokens` over all ranks in `seconds`."""
        if self.peak_flops is None or seconds <= 0:
            return None
        return tokens / seconds * self.flops_per_token / self.peak_flops


def peak_flops(device: torch.device) -> float | None:
    """Dense bfloat16 operations a second of one accelerator, as published; None for one that is not known, and for a CPU."""
    if device.type != "cuda":
        return None
    known = accelerator_called(torch.cuda.get_device_name(device))
    return known.flops if known is not None else None
