"""AdamW, and the learning rate as a function of the step alone."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.optim import AdamW
from trainyard.api.trainer import OptimizerConfig


def learning_rate(step: int, steps: int, config: OptimizerConfig) -> float:
    """Of a step (from 1): a linear rise over the warm-up, then by the schedule down to the final rate at the last step.

    It is final + (rate - final) x left. With p the part of the steps after the warm-up that is done, left is (1 + cos(pi p)) / 2
    for cosine (Loshchilov and Hutter 2017) and 1 - p for linear; for wsd it is 1, and in the decay the part of that which is to
    come (Hu et al. 2024, MiniCPM).
    """
    if step <= config.warmup_steps:
        return config.learning_rate * step / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, steps - config.warmup_steps)
    final = config.learning_rate * config.final_fraction
    match config.schedule:
        case "cosine":
            left = (1 + math.cos(math.pi * min(1.0, progress))) / 2
        case "linear":
            left = 1 - min(1.0, progress)
        case "wsd":
            left = max(0.0, min(1.0, (steps - step) / (config.decay_fraction * steps)))
    return final + (config.learning_rate - final) * left


def adamw(model: nn.Module, config: OptimizerConfig) -> AdamW:
    """The optimizer, its state there from the beginning, so that it can be loaded into and saved before the first step."""
    parameters = list(model.parameters())
    optimizer = AdamW(
        [
            {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config.weight_decay},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        fused=True,
    )
    for parameter in parameters:
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter, requires_grad=False),
            "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
        }
    return optimizer


def set_learning_rate(optimizer: AdamW, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
