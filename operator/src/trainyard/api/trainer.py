"""Configuration of the built-in trainer: `spec.trainer` of a TrainingJob, and the file given to `trainyard_trainer.train`.

One model for both, so that what `kubectl apply` accepts is what the trainer understands. Nothing here imports torch: the
operator answers for the configuration before a pod exists. Unlike the rest of the API, fields that are not known are
refused when the trainer reads them: a misspelt learning rate must not train for a week with the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, Self

from pydantic import Field, ValidationError, model_validator

from trainyard.api.errors import field_errors
from trainyard.api.trainer_data import DataConfig, SourceConfig
from trainyard.api.trainer_model import BYTE_VOCABULARY, PRESETS, ModelConfig, RopeScaling, Shape, TrainerModel
from trainyard.api.trainer_optimizer import DivergenceConfig, OptimizerConfig
from trainyard.api.trainer_parallel import KEEP_RESTS, CompressionConfig, ParallelConfig

__all__ = [
    "BYTE_VOCABULARY",
    "PATH",
    "PRESETS",
    "CompressionConfig",
    "DataConfig",
    "DivergenceConfig",
    "InvalidTrainerConfig",
    "ModelConfig",
    "OptimizerConfig",
    "ParallelConfig",
    "RopeScaling",
    "Shape",
    "SourceConfig",
    "TrainerConfig",
    "parse",
]

PATH: Final = "spec.trainer"
SEPARATOR: Final = 256
"""The token that ends a text of bytes: the first after them."""


class TrainerConfig(TrainerModel):
    """Configuration of the built-in trainer. An empty one trains the small model of the demonstration."""

    model: ModelConfig = Field(default_factory=ModelConfig)
    """The network."""
    data: DataConfig = Field(default_factory=DataConfig)
    """The text and how it is cut into steps."""
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    """How the weights are moved."""
    divergence: DivergenceConfig = Field(default_factory=DivergenceConfig)
    """What happens when loss or gradient go astray."""
    parallel: ParallelConfig = Field(default_factory=ParallelConfig)
    """How the ways of sharing the work go about it."""
    steps: int = Field(default=200, ge=1, le=1_000_000_000)
    """Length of the training, in steps of the optimizer."""
    seed: int = Field(default=0, ge=0, le=2**53 - 1)
    """Decides the first weights and the order of the samples: equal seeds give equal runs."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of activations and of weights in use; master weights, gradients' sums and the optimizer stay in float32. With float16
    the loss is scaled so that gradients do not vanish, by a factor that falls when they overflow and rises again."""
    activation_checkpointing: Literal["none", "block"] = "none"
    """What is computed again in the backward pass in place of being kept. block: all of a block but its input."""
    compile: bool = False
    """Whether each block is compiled (torch.compile). That needs a C compiler in the image, and on a CPU a C++ compiler; ours has
    both."""
    deterministic: bool | None = None
    """Whether only operations are used that give the same bits again. Left out: on a CPU, not on a GPU, where they are slower."""
    log_every: int = Field(default=10, ge=1, le=1_000_000)
    """Steps between two lines of the log."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        data, model = self.data, self.model
        if model.max_sequence_length is not None and data.sequence_length > model.max_sequence_length:
            raise ValueError(
                f"data.sequenceLength: {data.sequence_length} is more than the model is meant for "
                f"(model.maxSequenceLength: {model.max_sequence_length}); use at most that"
            )
        if self.compile and self.parallel.schedule == "zero-bubble":
            raise ValueError(
                "compile: true, but a backward pass that is cut in two (parallel.schedule: zero-bubble) cannot be compiled; use "
                "schedule interleaved, or leave compile out"
            )
        method = self.parallel.compression.method
        if self.precision == "float16" and method in KEEP_RESTS:
            raise ValueError(
                f"precision: float16 changes by how much gradients are scaled, and what {method} left out of those before "
                "(parallel.compression.method) keeps its scale; use bfloat16, or compression.method none, fp16 or bf16"
            )
        if data.has_bytes and model.vocabulary <= SEPARATOR:
            raise ValueError(
                f"model.vocabulary: {model.vocabulary} does not hold the 256 bytes and the separator; use 257 or more"
            )
        if data.separator is not None and data.separator >= model.vocabulary:
            raise ValueError(
                f"data.separator: {data.separator} is no token of {model.vocabulary} (model.vocabulary); use one below"
            )
        return self


class InvalidTrainerConfig(ValueError):
    """A configuration that the trainer refuses: one line for each problem, each beginning with the field's path."""


def parse(document: Mapping[str, Any], path: str = PATH) -> TrainerConfig:
    """Read a configuration as the trainer does, strictly. Raises InvalidTrainerConfig with every problem there is.

    path: what the fields' paths begin with, `spec.trainer` unless the configuration stands somewhere else.
    """
    try:
        return TrainerConfig.model_validate(document)
    except ValidationError as error:
        raise InvalidTrainerConfig("\n".join(map(str, field_errors(error, path)))) from None
