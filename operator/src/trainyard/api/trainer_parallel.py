"""spec.trainer.parallel: how each way of sharing the work goes about it, and what replicas send of their gradients."""

from __future__ import annotations

from typing import Final, Literal, Self

from pydantic import Field, model_validator

from trainyard.api.trainer_model import TrainerModel

KEEP_RESTS: Final = ("powersgd", "int8", "topk")
"""Methods of compression that add what they left out of a gradient to the next one."""


class CompressionConfig(TrainerModel):
    """What replicas send instead of their gradients. It changes the sum alone; precision is about what is computed."""

    method: Literal["none", "fp16", "bf16", "powersgd", "int8", "topk"] = "none"
    """fp16, bf16: two bytes a number. powersgd: two thin factors of each matrix (Vogels et al. 2019), from the third step of an
    attempt on. int8: a byte a number, and a scale for each 128. topk: the largest numbers of each parameter and where they stand.
    The last three add what they left out to the next step's gradient (error feedback); checkpoints do not keep that rest."""
    rank: int = Field(default=4, ge=1, le=256)
    """Columns of PowerSGD's factors."""
    share: float = Field(default=0.01, gt=0.0, le=0.5)
    """Of each parameter's numbers, those that topk sends; at least one."""


class ParallelConfig(TrainerModel):
    """How each way of sharing the work goes about it; who shares what with whom is spec.parallelism."""

    reshard: Literal["auto", "always", "never"] = "auto"
    """Whether a rank that shards gives gathered weights back between forward and backward pass: always is ZeRO-3, never
    ZeRO-2. auto: for models above 256 MiB in float32 (67 million parameters), and never in a pipeline."""
    schedule: Literal["1f1b", "gpipe", "interleaved", "zero-bubble"] = "1f1b"
    """Order in which the stages of a pipeline take the micro-batches. gpipe keeps the activations of all of them; interleaved
    gives each process stagesPerRank short stages in place of a long one and idles so much less; zero-bubble computes the
    weights' gradients, which nobody waits for, where it would be idle."""
    stages_per_rank: int = Field(default=1, ge=1, le=64)
    """Stages of a pipeline that each process holds: 2 or more with interleaved, any number with zero-bubble, else 1. What the
    stages send to each other grows with it."""
    bucket_mebibytes: float = Field(default=25.0, gt=0.0, le=4096.0)
    """Gradients that are summed at once where every rank holds the whole model (replicate alone)."""
    all_reduce: Literal["flat", "hierarchical"] = "flat"
    """How replicas sum their gradients: in one ring over all, or inside each domain of the network first, a part each across
    domains, and inside again. For uplinks that are far slower than the links below them."""
    compression: CompressionConfig = Field(default_factory=CompressionConfig)
    """What replicas send instead of whole gradients."""

    @model_validator(mode="after")
    def _stages(self) -> Self:
        if self.schedule == "interleaved" and self.stages_per_rank < 2:
            raise ValueError(
                f"stagesPerRank: {self.stages_per_rank} is nothing to interleave; use 2 or more, or schedule 1f1b"
            )
        if self.schedule in ("1f1b", "gpipe") and self.stages_per_rank > 1:
            raise ValueError(
                f"stagesPerRank: {self.schedule} has one stage for each process, not {self.stages_per_rank}; use 1, or schedule "
                "interleaved or zero-bubble"
            )
        if self.schedule == "zero-bubble" and self.reshard == "always":
            raise ValueError(
                "reshard: always gives weights back before the second half of the backward pass (schedule: zero-bubble) needs "
                "them; use auto or never, or schedule interleaved"
            )
        return self

    @model_validator(mode="after")
    def _sums(self) -> Self:
        if self.all_reduce == "hierarchical" and self.compression.method in KEEP_RESTS:
            raise ValueError(
                f"allReduce: hierarchical adds up in parts, which what {self.compression.method} sends cannot be; use flat, or "
                "compression.method none, fp16 or bf16"
            )
        return self
