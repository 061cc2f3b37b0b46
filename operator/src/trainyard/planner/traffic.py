"""What the processes of a job say to each other in one step: how much, how often and along which axis of the mesh.

Five classes: gradients, activations (and their gradients), parameter shards, training state, control. P: parameters of one
process's part of the model, which is the whole divided by tensor x pipeline; b: bytes of a weight in use; m: micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from trainyard.planner.collectives import Collective
from trainyard.planner.model import MASTER_BYTES, Model

PIPELINE, REPLICATE, SHARD, TENSOR = "pipeline", "replicate", "shard", "tensor"
STORAGE: Final = "storage"
"""Where training state goes; not an axis of the mesh."""
GANG: Final = "gang"
"""The axis of what all processes do together."""

STATE_BYTES: Final = 3 * MASTER_BYTES
"""Of a parameter in a checkpoint: master weight and AdamW's two means."""
CONTROL_BYTES: Final = 24
"""Three numbers of 8 bytes: loss, squared norm of the gradient, whether anybody was asked to stop."""


class Bytes(StrEnum):
    """What is sent."""

    GRADIENTS = "gradients"
    ACTIVATIONS = "activations"
    """And their gradients on the way back."""
    PARAMETERS = "parameter shards"
    STATE = "training state"
    """Parameters and optimizer, to where checkpoints are kept."""
    CONTROL = "control"


@dataclass(frozen=True, slots=True)
class Traffic:
    """One kind of collective along one axis of the mesh, as often as it happens in a step.

    size: members of a group; stride: how far apart in rank; the axes are row-major, so the last one has stride 1. bytes: of one
    collective, the whole buffer. count: in a step; a part of one where it does not happen in each. overlaps: whether there is
    something to compute meanwhile.
    """

    axis: str
    collective: Collective
    size: int
    stride: int
    bytes: float
    count: float = 1.0
    kind: Bytes = Bytes.GRADIENTS
    overlaps: bool = False


class Mesh(NamedTuple):
    """Sizes of the axes, row-major over rank: the last one varies fastest, so its groups are nearest.

    In this order because a tensor group talks most, for every layer and with nothing to compute meanwhile; then a shard group,
    for every layer; then a replicate group, once a step; and a pipeline's stages least.
    """

    pipeline: int = 1
    replicate: int = 1
    shard: int = 1
    tensor: int = 1

    @property
    def world(self) -> int:
        """Number of processes."""
        return self.pipeline * self.replicate * self.shard * self.tensor

    @property
    def data_parallel(self) -> int:
        """Among how many processes the samples of a step are dealt out."""
        return self.replicate * self.shard

    @property
    def axes(self) -> tuple[tuple[str, int], ...]:
        """Those with more than one member, and always `shard`, which everything is spread over by default."""
        return tuple((name, size) for name, size in zip(self._fields, self, strict=True) if size > 1 or name == SHARD)

    def stride(self, axis: str) -> int:
        """How far apart in rank the neighbours of an axis are."""
        product = 1
        for size in self[self._fields.index(axis) + 1 :]:
            product *= size
        return product

    def __str__(self) -> str:
        return " x ".join(f"{name} {size}" for name, size in self.axes)


def traffic(model: Model, mesh: Mesh, steps_between_saves: float | None = None) -> tuple[Traffic, ...]:
    """Everything that is sent in one step of the built-in trainer's kind of training, along the axes that have members.

    steps_between_saves: how often a checkpoint is written; None: never.
    """
    return (
        *_sharded(model, mesh),
        *_replicated(model, mesh),
        *_tensor(model, mesh),
        *_pipelined(model, mesh),
        *_together(model, mesh, steps_between_saves),
    )


def part_parameters(model: Model, mesh: Mesh) -> float:
    """P: parameters of one tensor part of one pipeline stage, if they are spread evenly."""
    return model.parameters / (mesh.tensor * mesh.pipeline)


def units(model: Model, mesh: Mesh) -> int:
    """Into how many pieces FSDP cuts a process's part of the model: one for each layer, one for what is left."""
    return -(-model.layers // mesh.pipeline) + 1


def _sharded(model: Model, mesh: Mesh) -> Iterator[Traffic]:
    """FSDP (ZeRO-3; Rajbhandari et al. 2020, section 7; Zhao et al. 2023): all-gather of the weights, P x b, for the forward pass
    of every micro-batch, and again for the backward pass unless they were kept (then ZeRO-2's volume); reduce-scatter of the
    gradients in float32, 4 P, once a step."""
    if mesh.shard < 2:
        return
    pieces, part = units(model, mesh), part_parameters(model, mesh)
    micro_batches = model.micro_batches(mesh.data_parallel, mesh.pipeline)[0]
    passes = micro_batches * (1 if model.kept_gathered(mesh.pipeline) else 2)
    size, stride = mesh.shard, mesh.stride(SHARD)
    gathered = part * model.value_bytes / pieces
    yield Traffic(
        SHARD, Collective.ALL_GATHER, size, stride, gathered, pieces * passes, Bytes.PARAMETERS, overlaps=True
    )
    summed = part * MASTER_BYTES / pieces
    yield Traffic(SHARD, Collective.REDUCE_SCATTER, size, stride, summed, pieces, Bytes.GRADIENTS, overlaps=True)


def _replicated(model: Model, mesh: Mesh) -> Iterator[Traffic]:
    """DDP and HSDP: all-reduce of what a shard of the gradients a process is left with, 4 P / shard, once a step."""
    if mesh.replicate < 2:
        return
    pieces = units(model, mesh)
    summed = part_parameters(model, mesh) * MASTER_BYTES / mesh.shard / pieces
    yield Traffic(
        REPLICATE,
        Collective.ALL_REDUCE,
        mesh.replicate,
        mesh.stride(REPLICATE),
        summed,
        pieces,
        Bytes.GRADIENTS,
        overlaps=True,
    )


def _tensor(model: Model, mesh: Mesh) -> Iterator[Traffic]:
    """Tensor parallel with sequence parallel (Korthikanti et al. 2022, section 4.2.2): four all-gathers and four reduce-scatters
    of a layer's activations for each layer and micro-batch, forward and backward together: as much as four all-reduces without
    it."""
    if mesh.tensor < 2:
        return
    micro_batches, rows = model.micro_batches(mesh.data_parallel, mesh.pipeline)
    size_bytes = float(rows * model.sequence * model.width * model.value_bytes)
    count = 4 * micro_batches * model.layers / mesh.pipeline
    for collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
        yield Traffic(TENSOR, collective, mesh.tensor, mesh.stride(TENSOR), size_bytes, count, Bytes.ACTIVATIONS)


def _pipelined(model: Model, mesh: Mesh) -> Iterator[Traffic]:
    """Each stage to the next, for each micro-batch: its activations, and their gradients on the way back (Narayanan et al. 2021,
    section 3.2); of a tensor group each member sends its part."""
    if mesh.pipeline < 2:
        return
    micro_batches, rows = model.micro_batches(mesh.data_parallel, mesh.pipeline)
    size_bytes = rows * model.sequence * model.width * model.value_bytes / mesh.tensor
    yield Traffic(
        PIPELINE,
        Collective.SEND_RECEIVE,
        mesh.pipeline,
        mesh.stride(PIPELINE),
        size_bytes,
        2 * micro_batches,
        Bytes.ACTIVATIONS,
    )


def _together(model: Model, mesh: Mesh, steps_between_saves: float | None) -> Iterator[Traffic]:
    """What every process takes part in: agreeing on loss, norm and stop in each step; and its part of a checkpoint."""
    if mesh.world > 1:
        yield Traffic(GANG, Collective.ALL_REDUCE, mesh.world, 1, CONTROL_BYTES, 1, Bytes.CONTROL)
    if steps_between_saves is not None:
        written = model.parameters * STATE_BYTES / mesh.world
        yield Traffic(STORAGE, Collective.STORE, 1, 1, written, 1 / steps_between_saves, Bytes.STATE)
