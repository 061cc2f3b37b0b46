"""AdamW, and the learning rate as a function of the step alone."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.optim import AdamW
from trainyard.api.trainer import OptimizerConfig


def learning_rate(step: int, steps: int, config: OptimizerConfig) -> float:
    """Of a step (from 1): a linear rise over the warm-up, then half a cosine down to the final rate at the last step."""
    if step <= config.warmup_steps:
        return config.learning_rate * step / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, steps - config.warmup_steps)
    final = config.learning_rate * config.final_fraction
    return final + (config.learning_rate - final) * (1 + math.cos(math.pi * min(1.0, progress))) / 2


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
