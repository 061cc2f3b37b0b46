"""spec.trainer.model: the network of the built-in trainer, a decoder-only transformer of the Llama family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, Self

from pydantic import ConfigDict, Field, model_validator

from trainyard.api.model import ApiModel

BYTE_VOCABULARY: Final = 260
"""Of text that is read as bytes: 256 of them, the separator, and 3 tokens without a meaning, for aligned rows."""


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
    "1m": Shape(layers=4, width=128, heads=4, kv_heads=2, hidden=480, tie_embeddings=False),
    "base": Shape(layers=12, width=768, heads=12, kv_heads=4, hidden=2048, tie_embeddings=True),
    "large": Shape(layers=24, width=2048, heads=16, kv_heads=8, hidden=5632, tie_embeddings=False),
    "1b": Shape(layers=16, width=2048, heads=32, kv_heads=8, hidden=8192, tie_embeddings=True),
    "3b": Shape(layers=28, width=3072, heads=24, kv_heads=8, hidden=8192, tie_embeddings=True),
    "7b": Shape(layers=32, width=4096, heads=32, kv_heads=8, hidden=14336, tie_embeddings=False),
    "13b": Shape(layers=40, width=5120, heads=40, kv_heads=40, hidden=13824, tie_embeddings=False),
    "34b": Shape(layers=48, width=8192, heads=64, kv_heads=8, hidden=22016, tie_embeddings=False),
    "70b": Shape(layers=80, width=8192, heads=64, kv_heads=8, hidden=28672, tie_embeddings=False),
}
"""Named sizes; docs/trainer.md gives the parameters of each. From 1b on those of published models: Llama 3.2 1B and 3B, Llama 3
8B, Llama 2 13B, Code Llama 34B, Llama 2 and 3 70B."""


class TrainerModel(ApiModel):
    """A part of spec.trainer. Unlike the rest of the API it refuses fields that are not known: a misspelt learning rate must not
    train for a week with the default."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class RopeScaling(TrainerModel):
    """Positions beyond those of an earlier training, as in Llama 3.1: wavelengths longer than originalLength / lowFrequencyFactor
    are stretched by factor, those shorter than originalLength / highFrequencyFactor stay, and in between it goes over
    smoothly."""

    factor: float = Field(ge=1.0, le=1e6)
    """By how much long wavelengths are stretched."""
    low_frequency_factor: float = Field(default=1.0, gt=0.0, le=1e6)
    """Of originalLength, the wavelength from which on all is stretched, as a divisor."""
    high_frequency_factor: float = Field(default=4.0, gt=0.0, le=1e6)
    """Of originalLength, the wavelength up to which nothing is, as a divisor; more than lowFrequencyFactor."""
    original_length: int = Field(default=8192, ge=1, le=1 << 30)
    """Longest sequence of the earlier training, in tokens."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.high_frequency_factor <= self.low_frequency_factor:
            raise ValueError(
                f"highFrequencyFactor: {self.high_frequency_factor:g} is not more than lowFrequencyFactor, "
                f"{self.low_frequency_factor:g}; use for example 4 and 1"
            )
        return self


class ModelConfig(TrainerModel):
    """The network: a decoder-only transformer (RMSNorm, rotary positions, SwiGLU, grouped-query attention)."""

    preset: Literal["tiny", "small-lm", "1m", "base", "large", "1b", "3b", "7b", "13b", "34b", "70b"] = "small-lm"
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
    vocabulary: int = Field(default=BYTE_VOCABULARY, ge=2, le=1 << 24)
    """Number of tokens that there are; that of the tokenizer, or more. The default is that of bytes."""
    rope_theta: float = Field(default=10000.0, ge=1.0, le=1e9)
    """Base of the rotary positions' wavelengths, in tokens."""
    rope_scaling: RopeScaling | None = None
    """Stretches the rotary positions' wavelengths. Left out: they stay."""
    norm_epsilon: float = Field(default=1e-6, gt=0.0, le=1e-2)
    """Added to the mean square in each norm."""
    max_sequence_length: int | None = Field(default=None, ge=1, le=1 << 30)
    """Longest sequence that the model is meant for, in tokens; data.sequenceLength may not exceed it. Left out: no limit."""
    from_: str | None = Field(default=None, alias="from", min_length=1, max_length=4096)
    """Folder in the pod with a Hugging Face checkpoint of a LlamaForCausalLM (config.json, safetensors) to begin with, in the
    place of random weights; a checkpoint of the job itself goes before it. The fields above must describe the same model."""

    @property
    def shape(self) -> Shape:
        """The preset with what was given in its place."""
        given = {name: getattr(self, name) for name in Shape._fields if getattr(self, name) is not None}
        return PRESETS[self.preset]._replace(**given)

    @property
    def architecture(self) -> dict[str, Any]:
        """All that decides what a set of weights computes, by the fields' names; every number is settled."""
        settled = {"vocabulary", "rope_theta", "rope_scaling", "norm_epsilon", "max_sequence_length"}
        said = self.model_dump(mode="json", by_alias=True, include=settled, exclude_none=True)
        return {**ModelConfig(**self.shape._asdict()).model_dump(by_alias=True, include=set(Shape._fields)), **said}

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
