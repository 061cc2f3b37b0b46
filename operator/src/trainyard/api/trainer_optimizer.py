"""spec.trainer.optimizer and spec.trainer.divergence: how the weights move, and what happens when numbers go astray."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trainyard.api.trainer_model import TrainerModel


class OptimizerConfig(TrainerModel):
    """AdamW, and its learning rate: a linear warm-up, then a schedule down to the final rate at the last step."""

    learning_rate: float = Field(default=3e-3, gt=0.0, le=10.0)
    """Learning rate after the warm-up."""
    schedule: Literal["cosine", "linear", "wsd"] = "cosine"
    """How it comes down after the warm-up: half a cosine; a straight line; or wsd (warm-up, stable, decay), which stays until
    the last decayFraction of the steps and goes down in a straight line there."""
    decay_fraction: float = Field(default=0.1, gt=0.0, le=1.0)
    """Of all steps, those in which the schedule wsd goes down."""
    final_fraction: float = Field(default=0.1, ge=0.0, le=1.0)
    """Learning rate of the last step as a fraction of learningRate."""
    warmup_steps: int = Field(default=10, ge=0, le=10_000_000)
    """Steps in which the learning rate rises from 0; training that is shorter never gets to the full rate."""
    weight_decay: float = Field(default=0.1, ge=0.0, le=10.0)
    """Decoupled weight decay; weights of norms are exempt."""
    beta1: float = Field(default=0.9, ge=0.0, lt=1.0)
    """Decay of the gradient's running mean, per step."""
    beta2: float = Field(default=0.95, ge=0.0, lt=1.0)
    """Decay of the squared gradient's running mean, per step."""
    clip_norm: float = Field(default=1.0, gt=0.0, le=1e9)
    """Largest norm of the whole gradient; a larger one is scaled down to it."""


class DivergenceConfig(TrainerModel):
    """What happens to a step whose numbers went astray. All ranks decide the same, by sums that they share. Of a loss or
    gradient that is not finite the step is computed once more, to name the rank and the layer where it began, or to see that
    it does not come again."""

    on_non_finite: Literal["stop", "skip", "rollback"] = "stop"
    """For a loss or a gradient that is infinite or not a number. skip: the weights stay as they were, and the next step takes
    the next samples. rollback: they go back to the last committed checkpoint, and the next step takes the next samples. stop:
    training fails."""
    on_spike: Literal["ignore", "skip", "rollback", "stop"] = "ignore"
    """For a loss above spikeFactor times the median of the spikeWindow steps before, as many as there are, at least 8."""
    spike_factor: float = Field(default=2.0, gt=1.0, le=1e6)
    """What is a spike, in medians."""
    spike_window: int = Field(default=32, ge=8, le=10_000)
    """Steps whose median a loss is compared with."""
    most: int = Field(default=10, ge=1, le=1_000_000)
    """Steps that an attempt may skip or roll back from; one more stops the training."""
