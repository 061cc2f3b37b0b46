"""What a process of the built-in trainer's kind needs of its accelerator's memory, part by part.

Training state is exact arithmetic; activations are what the built-in network keeps for the backward pass (counted in a test);
what the libraries and the allocator take is a stated share of the memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Final

from trainyard.planner.model import MASTER_BYTES, Model
from trainyard.planner.traffic import Mesh, part_parameters, units

USABLE: Final = 0.90
"""Of an accelerator's memory: the rest is for CUDA and NCCL (about 2 GB) and for holes between what is allocated (assumed)."""
LOSS_BYTES: Final = 12
"""Of a logit besides itself: in float32, its log-softmax and its gradient."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one process. gathered: weights as they are used, put together from their shards."""

    weights: float
    gradients: float
    optimizer: float
    gathered: float
    activations: float

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer + self.gathered + self.activations

    def __str__(self) -> str:
        """Every part in GB."""
        return ", ".join(f"{field.name} {getattr(self, field.name) / 1e9:.3g} GB" for field in fields(self))


def memory(model: Model, mesh: Mesh) -> Memory:
    """At the fullest moment of a step, the end of the first forward pass.

    Weights, gradients and AdamW's means in float32, spread over shard, tensor and pipeline (Rajbhandari et al. 2020, section 5).
    With several micro-batches, gradients are summed up unsharded until the last one. Gathered weights: of all layers where they
    are kept, else of the layer that computes, the one that comes next, and embeddings. Activations of as many micro-batches as
    are on their way through a pipeline of one forward, one backward (Narayanan et al. 2021, section 2.2); of all where all go
    forward first (GPipe).
    """
    part = part_parameters(model, mesh)
    owned = part / mesh.shard
    micro_batches, rows = model.micro_batches(mesh.data_parallel, mesh.pipeline)
    layers = units(model, mesh) - 1
    accumulated = part * MASTER_BYTES if micro_batches > 1 and mesh.data_parallel > 1 else 0.0
    two_layers = (2 * model.block_parameters + model.embedding_parameters) / mesh.tensor
    gathered = part if model.kept_gathered(mesh.pipeline) else min(part, two_layers)
    on_their_way = min(float(micro_batches), begun(model, mesh.pipeline))
    kept = on_their_way * layers * layer_activations(model, rows)
    if model.recomputes:  # the inputs of all layers, and what the one keeps that is computed again
        kept = on_their_way * layers * layer_input(model, rows) + layer_activations(model, rows)
    return Memory(
        weights=owned * MASTER_BYTES,
        gradients=owned * MASTER_BYTES + accumulated,
        optimizer=owned * 2 * MASTER_BYTES,
        gathered=gathered * model.value_bytes,
        activations=(kept + logits(model, rows)) / mesh.tensor,
    )


def begun(model: Model, stages: int) -> float:
    """How many micro-batches have gone forward through the first rank's layers before one comes back: with one stage a rank, as
    many as there are stages; with v, (p - 1)/(p v) more (Narayanan et al. 2021, section 2.2); with GPipe, all."""
    if stages > 1 and model.schedule == "gpipe":
        return math.inf
    more = (stages - 1) / (stages * model.stages_per_rank) if model.stages_per_rank > 1 else 0.0
    return stages * (1 + more)


def layer_activations(model: Model, rows: int) -> float:
    """Bytes that one layer keeps for the backward pass of so many samples.

    Of each token, in numbers: the inputs of both norms and what they give (4 width); queries, and queries and keys after rotation
    (2 width + kv); keys and values (2 kv); what attention gives, before and after its heads are put together (2 width); gate, its
    SiLU, up and their product (4 hidden). Attention itself keeps no matrix (FlashAttention; Dao et al. 2022).
    """
    numbers = 8 * model.width + 3 * model.kv_width + 4 * model.hidden
    return float(rows * model.sequence * numbers * model.value_bytes)


def layer_input(model: Model, rows: int) -> float:
    """Bytes of the residual stream of so many samples: all that a layer keeps that is computed again (Chen et al. 2016)."""
    return float(rows * model.sequence * model.width * model.value_bytes)


def logits(model: Model, rows: int) -> float:
    """Bytes of the output layer's result and of the loss."""
    return float(rows * model.sequence * model.vocabulary * (model.value_bytes + LOSS_BYTES))
