"""Configuration of the built-in trainer: `spec.trainer` of a TrainingJob, and the file given to `trainyard_trainer.train`.

One model for both, so that what `kubectl apply` accepts is what the trainer understands. Nothing here imports torch: the
operator answers for the configuration before a pod exists. Unlike the rest of the API, fields that are not known are
refused when the trainer reads them: a misspelt learning rate must not train for a week with the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

from trainyard.api.errors import field_errors
from trainyard.api.model import ApiModel

PATH: Final = "spec.trainer"


class Shape(NamedTuple):
    """Size of a decoder-only transformer; every number is settled.

    hidden: width inside the feed-forward layer. tie_embeddings: the output layer shares the embedding's weights.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    tie_embeddings: bool


PRESETS: Final[Mapping[str, Shape]] = {
    "tiny": Shape(layers=2, width=32, heads=4, kv_heads=2, hidden=64, tie_embeddings=True),
    "small-lm": Shape(layers=4, width=96, heads=4, kv_heads=2, hidden=256, tie_embeddings=False),
    "base": Shape(layers=12, width=768, heads=12, kv_heads=4, hidden=2048, tie_embeddings=True),
    "large": Shape(layers=24, width=2048, heads=16, kv_heads=8, hidden=5632, tie_embeddings=False),
    "7b": Shape(layers=32, width=4096, heads=32, kv_heads=8, hidden=14336, tie_embeddings=False),
}
"""Named sizes; docs/trainer.md gives the parameters of each."""


class _TrainerModel(ApiModel):
    model_config = ConfigDict(extra="forbid")


class ModelConfig(_TrainerModel):
    """The network: a decoder-only transformer (RMSNorm, rotary positions, SwiGLU, grouped-query attention)."""

    preset: Literal["tiny", "small-lm", "base", "large", "7b"] = "small-lm"
    """Size to start from; each field below, where given, replaces that of the preset."""
    layers: int | None = Field(default=None, ge=1, le=512)
    """Number of transformer blocks."""
    width: int | None = Field(default=None, ge=8, le=65536)
    """Width of the residual stream; a multiple of 2 x heads."""
    heads: int | None = Field(default=None, ge=1, le=1024)
    """Attention heads."""
    kv_heads: int | None = Field(default=None, ge=1, le=1024)
    """Heads of keys and values; divides heads."""
    hidden: int | None = Field(default=None, ge=8, le=262144)
    """Width inside the feed-forward layers."""
    tie_embeddings: bool | None = None
    """Whether the output layer shares the embedding's weights."""
    rope_theta: float = Field(default=10000.0, ge=1.0, le=1e9)
    """Base of the rotary positions' wavelengths, in tokens."""

    @property
    def shape(self) -> Shape:
        """The preset with what was given in its place."""
        given = {name: getattr(self, name) for name in Shape._fields if getattr(self, name) is not None}
        return PRESETS[self.preset]._replace(**given)

    @model_validator(mode="after")
    def _divides(self) -> Self:
        shape = self.shape
        if shape.width % (2 * shape.heads):
            below = shape.width - shape.width % (2 * shape.heads)
            raise ValueError(
                f"width: {shape.width} is not a multiple of 2 x heads = {2 * shape.heads}; "
                f"use {below or 2 * shape.heads} or {below + 2 * shape.heads}, or change heads"
            )
        if shape.heads % shape.kv_heads:
            fitting = ", ".join(str(n) for n in range(1, shape.heads + 1) if shape.heads % n == 0)
            raise ValueError(f"kvHeads: {shape.kv_heads} does not divide the {shape.heads} heads; use one of {fitting}")
        return self


class DataConfig(_TrainerModel):
    """The text to learn, read as bytes."""

    files: tuple[str, ...] = Field(default=(), max_length=256)
    """Glob patterns of text files, absolute in the pod, ** for any depth. Empty: the Python standard library's sources."""
    sequence_length: int = Field(default=128, ge=1, le=1048576)
    """Tokens of a sample."""
    global_batch: int = Field(default=16, ge=1, le=1048576)
    """Samples of one step over all ranks; does not depend on how many there are."""
    micro_batch: int = Field(default=16, ge=1, le=65536)
    """Most samples that a rank puts through the network at once; more are accumulated, in the same step."""


class OptimizerConfig(_TrainerModel):
    """AdamW with a linear warm-up and a cosine decay."""

    learning_rate: float = Field(default=3e-3, gt=0.0, le=10.0)
    """Learning rate after the warm-up."""
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


class ParallelConfig(_TrainerModel):
    """How each way of sharing the work goes about it; who shares what with whom is spec.parallelism."""

    reshard: Literal["auto", "always", "never"] = "auto"
    """Whether a rank that shards gives gathered weights back between forward and backward pass: always is ZeRO-3, never
    ZeRO-2. auto: for models above 256 MiB in float32 (67 million parameters), and never in a pipeline."""
    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    """Order in which the stages of a pipeline take the micro-batches; gpipe keeps the activations of all of them."""
    bucket_mebibytes: float = Field(default=25.0, gt=0.0, le=4096.0)
    """Gradients that are summed at once where every rank holds the whole model (replicate alone)."""


class TrainerConfig(_TrainerModel):
    """Configuration of the built-in trainer. An empty one trains the small model of the demonstration."""

    model: ModelConfig = Field(default_factory=ModelConfig)
    """The network."""
    data: DataConfig = Field(default_factory=DataConfig)
    """The text and how it is cut into steps."""
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    """How the weights are moved."""
    parallel: ParallelConfig = Field(default_factory=ParallelConfig)
    """How the ways of sharing the work go about it."""
    steps: int = Field(default=200, ge=1, le=1_000_000_000)
    """Length of the training, in steps of the optimizer."""
    seed: int = Field(default=0, ge=0, le=2**53 - 1)
    """Decides the first weights and the order of the samples: equal seeds give equal runs."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of activations and of weights in use; master weights, gradients' sums and the optimizer stay in float32."""
    log_every: int = Field(default=10, ge=1, le=1_000_000)
    """Steps between two lines of the log."""


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
