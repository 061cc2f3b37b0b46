"""What a process of the built-in trainer's kind needs of its accelerator's memory, part by part.

Training state is exact arithmetic; activations are what the built-in network keeps for the backward pass (counted in a test);
what the libraries and the allocator take is a stated share of the memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Final

from trainyard.planner.compression import left_out
from trainyard.planner.model import MASTER_BYTES, Model
from trainyard.planner.traffic import Mesh, part_parameters, summed, units

USABLE: Final = 0.90
"""Of an accelerator's memory: the rest is for CUDA and NCCL (about 2 GB) and for holes between what is allocated (assumed)."""
LOSS_BYTES: Final = 12
"""Of a logit besides itself: in float32, its log-softmax and its gradient."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one process.

    gathered: weights as they are used, put together from their shards, or cast. masks: which token sees which, where documents
    are kept apart. compression: what was left out of a gradient, for the next one.
    """

    weights: float
    gradients: float
    optimizer: float
    gathered: float
    activations: float
    masks: float = 0.0
    compression: float = 0.0

    @property
    def total(self) -> float:
        return float(sum(getattr(self, field.name) for field in fields(self)))

    def __str__(self) -> str:
        """Every part that there is, in GB."""
        parts = {field.name: getattr(self, field.name) / 1e9 for field in fields(self)}
        return ", ".join(f"{name} {gigabytes:.3g} GB" for name, gigabytes in parts.items() if gigabytes)


def memory(model: Model, mesh: Mesh) -> Memory:
    """At the fullest moment of a step, the end of the first forward pass.

    Weights, gradients and AdamW's means in float32, spread over shard, tensor and pipeline (Rajbhandari et al. 2020, section 5).
    With several micro-batches, FSDP sums gradients up unsharded until the last one. Gathered weights: of all layers where they
    are kept, else of the layer that computes, the one that comes next, and embeddings; DDP gathers none, and where it computes
    in two bytes autocast keeps a copy of all that is multiplied with. Activations of as many micro-batches as are on their way
    through a pipeline of one forward, one backward (Narayanan et al. 2021, section 2.2); of all where all go forward first
    (GPipe). A mask for each of them and each stage, whole on every member of a tensor group.
    """
    part = part_parameters(model, mesh)
    owned = part / mesh.shard
    micro_batches, rows = model.micro_batches(mesh.data_parallel, mesh.pipeline)
    layers = units(model, mesh) - 1
    copies = mesh.replicate == mesh.world > 1
    cast = copies and model.value_bytes < MASTER_BYTES
    accumulated = part * MASTER_BYTES if micro_batches > 1 and mesh.data_parallel > 1 and not copies else 0.0
    two_layers = (2 * model.block_parameters + model.embedding_parameters) / mesh.tensor
    gathered = part if model.kept_gathered(mesh.pipeline) else min(part, two_layers)
    if copies:
        gathered = model.multiplied_parameters if cast else 0.0
    on_their_way = min(float(micro_batches), begun(model, mesh.pipeline))
    kept = on_their_way * layers * layer_activations(model, rows, cast)
    if model.recomputes:  # the inputs of all layers, and what the one keeps that is computed again
        kept = on_their_way * layers * layer_input(model, rows, cast) + layer_activations(model, rows, cast)
    masks = on_their_way * (model.stages_per_rank if mesh.pipeline > 1 else 1) * mask(model, rows)
    rests = 0.0
    if mesh.replicate > 1:
        rests = left_out(model.compression, model.rank, summed(model, mesh), mesh.replicate, MASTER_BYTES)
    return Memory(
        weights=owned * MASTER_BYTES,
        gradients=owned * MASTER_BYTES + accumulated,
        optimizer=owned * 2 * MASTER_BYTES,
        gathered=gathered * model.value_bytes,
        activations=(kept + logits(model, rows)) / mesh.tensor,
        masks=masks,
        compression=rests,
    )


def begun(model: Model, stages: int) -> float:
    """How many micro-batches have gone forward through the first rank's layers before one comes back: with one stage a rank, as
    many as there are stages; with v, (p - 1)/(p v) more (Narayanan et al. 2021, section 2.2); with GPipe, all."""
    if stages > 1 and model.schedule == "gpipe":
        return math.inf
    more = (stages - 1) / (stages * model.stages_per_rank) if model.stages_per_rank > 1 else 0.0
    return stages * (1 + more)


def layer_activations(model: Model, rows: int, cast: bool = False) -> float:
    """Bytes that one layer keeps for the backward pass of so many samples. cast: by autocast, operation by operation.

    Of each token, in numbers: the inputs of both norms and what they give (4 width); queries, and queries and keys after rotation
    (2 width + kv); keys and values (2 kv); what attention gives, before and after its heads are put together (2 width); gate, its
    SiLU, up and their product (4 hidden). Attention itself keeps no matrix (FlashAttention; Dao et al. 2022). With autocast the
    inputs of norms and what they give stay in float32; each of the five matrices that take the latter keeps a cast copy
    (5 width), and queries, keys and values are kept once, after rotation and cast (width + 2 kv).
    """
    numbers, whole = 8 * model.width + 3 * model.kv_width + 4 * model.hidden, 0
    if cast:
        numbers, whole = 7 * model.width + 2 * model.kv_width + 4 * model.hidden, 4 * model.width
    return float(rows * model.sequence * (numbers * model.value_bytes + whole * MASTER_BYTES))


def layer_input(model: Model, rows: int, cast: bool = False) -> float:
    """Bytes of the residual stream of so many samples: all that a layer keeps that is computed again (Chen et al. 2016)."""
    return float(rows * model.sequence * model.width * (MASTER_BYTES if cast else model.value_bytes))


def mask(model: Model, rows: int) -> float:
    """Bytes of the matrix that keeps the documents of so many samples apart: one for all layers
    (trainyard_trainer.model.transformer.within)."""
    return float(rows * model.sequence**2 * model.value_bytes) if model.masked else 0.0


def logits(model: Model, rows: int) -> float:
    """Bytes of the output layer's result and of the loss."""
    return float(rows * model.sequence * model.vocabulary * (model.value_bytes + LOSS_BYTES))
