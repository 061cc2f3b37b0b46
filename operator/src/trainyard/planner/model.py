"""A model in numbers: what memory, bytes and operations follow from.

The network is the built-in trainer's: a decoder-only transformer with RMSNorm, grouped-query attention and SwiGLU
(trainyard_trainer.model.transformer). A test counts the real one's parameters and what it keeps for the backward pass against
what stands here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trainyard.api.trainer import TrainerConfig

MASTER_BYTES: Final = 4
"""Of a master weight, of a gradient that is summed up, and of each of AdamW's two means: all in float32."""
KEEP_GATHERED_BYTES: Final = 256 * 2**20
"""A model up to this size in float32 stays whole between forward and backward (trainyard_trainer.parallel.shard)."""
FLOAT32_SHARE: Final = 1 / 16
"""Of an accelerator's bfloat16 rate, in float32: A100 19.5 of 312, H100 67 of 989 TFLOP/s. torch leaves TF32 off."""

ROUNDS: Final = ("interleaved", "zero-bubble")
"""Schedules of a pipeline that take micro-batches in rounds of as many as it has ranks."""


@dataclass(frozen=True, slots=True)
class Model:
    """width: of the residual stream; kv_width: of all heads of keys together; hidden: inside the feed-forward layers.

    sequence: tokens of a sample; global_batch: samples of a step; micro_batch: most that a rank computes at once.
    value_bytes: of an activation and of a weight in use. reshard, schedule, stages_per_rank, hierarchical, compression, rank,
    share: as in spec.trainer.parallel. recomputes: a layer keeps its input alone, and is computed again in the backward pass.
    masked: the documents of a sample are kept apart, by a matrix that says which token sees which.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    vocabulary: int
    tied: bool
    sequence: int
    global_batch: int
    micro_batch: int
    value_bytes: int
    reshard: str = "auto"
    schedule: str = "1f1b"
    stages_per_rank: int = 1
    recomputes: bool = False
    hierarchical: bool = False
    compression: str = "none"
    rank: int = 4
    share: float = 0.01
    masked: bool = False

    @property
    def kv_width(self) -> int:
        return self.width // self.heads * self.kv_heads

    @property
    def block_parameters(self) -> int:
        """Of one layer: two norms, four projections of the attention, three of the feed-forward layer."""
        return 2 * self.width + 2 * self.width * (self.width + self.kv_width) + 3 * self.width * self.hidden

    @property
    def embedding_parameters(self) -> int:
        """Embedding, output layer and the last norm."""
        return (1 if self.tied else 2) * self.vocabulary * self.width + self.width

    @property
    def parameters(self) -> int:
        return self.layers * self.block_parameters + self.embedding_parameters

    @property
    def multiplied_parameters(self) -> int:
        """Of the matrices that a token is multiplied with, and of the layers' norms: all but a look-up of the embedding."""
        return self.layers * self.block_parameters + self.vocabulary * self.width

    def kept_gathered(self, stages: int = 1) -> bool:
        """Whether the trainer keeps gathered weights from forward to backward (trainyard_trainer.parallel.spread)."""
        if self.reshard != "auto":
            return self.reshard == "never"
        return stages > 1 or self.parameters * MASTER_BYTES <= KEEP_GATHERED_BYTES

    @property
    def flops_per_token(self) -> float:
        """Forward and backward: 6 for each parameter that is multiplied with, 12 x width x sequence for each layer's attention
        (Chowdhery et al. 2022, PaLM, appendix B)."""
        return 6.0 * self.multiplied_parameters + 12.0 * self.layers * self.width * self.sequence

    @property
    def computed_flops_per_token(self) -> float:
        """What is computed for them: layers that keep their input alone go forward twice, which is a third more."""
        again = 2.0 * self.layers * self.block_parameters + 4.0 * self.layers * self.width * self.sequence
        return self.flops_per_token + (again if self.recomputes else 0.0)

    def micro_batches(self, data_parallel: int, stages: int = 1) -> tuple[int, int]:
        """How many micro-batches a rank has in a step, and how many samples the largest holds (trainyard_trainer.train.cut).

        data_parallel: among how many ranks the samples are dealt out. stages: ranks of a pipeline, which has at least as many
        micro-batches where the samples allow; with several stages a rank, a multiple of it, empty ones among them.
        """
        most = -(-self.global_batch // data_parallel)
        rows = min(self.micro_batch, max(1, most // stages))
        count = -(-most // rows)
        return (-(-count // stages) * stages if self.schedule in ROUNDS else count), rows

    def idle(self, data_parallel: int, stages: int) -> float:
        """For what share of its computing time a rank of a pipeline waits for others: (p - 1)/m with m micro-batches, a v-th of
        that with v stages a rank (Narayanan et al. 2021, section 2.2), and a third of what is left where the weights' gradients
        fill gaps and forward pass and both halves of the backward pass take equally long (Qi et al. 2023, table 1, ZB-H1)."""
        share = (stages - 1) / (self.micro_batches(data_parallel, stages)[0] * self.stages_per_rank)
        return share / 3 if self.schedule == "zero-bubble" else share


def model_of(config: TrainerConfig) -> Model:
    """The model that a configuration of the built-in trainer describes."""
    shape, data = config.model.shape, config.data
    return Model(
        layers=shape.layers,
        width=shape.width,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        hidden=shape.hidden,
        vocabulary=config.model.vocabulary,
        tied=shape.tie_embeddings,
        sequence=data.sequence_length,
        global_batch=data.global_batch,
        micro_batch=data.micro_batch,
        value_bytes=4 if config.precision == "float32" else 2,
        reshard=config.parallel.reshard,
        schedule=config.parallel.schedule,
        stages_per_rank=config.parallel.stages_per_rank,
        recomputes=config.activation_checkpointing == "block",
        hierarchical=config.parallel.all_reduce == "hierarchical",
        compression=config.parallel.compression.method,
        rank=config.parallel.compression.rank,
        share=config.parallel.compression.share,
        masked=data.packing == "masked",
    )
