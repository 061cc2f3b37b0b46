"""What the processes of a job say to each other in one step: how much, how often and along which axis of the mesh.

Five classes: gradients, activations (and their gradients), parameter shards, training state, control. P: parameters of one
process's part of the model; b: bytes of a weight in use; m: micro-batches. The trainer counts what it sends at its process groups
(trainyard_trainer.ledger); a test compares the two byte by byte, for every kind of mesh.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from trainyard.planner.collectives import Collective
from trainyard.planner.compression import Form, messages
from trainyard.planner.model import MASTER_BYTES, Model

PIPELINE, REPLICATE, SHARD, TENSOR = "pipeline", "replicate", "shard", "tensor"
STORAGE: Final = "storage"
"""Where training state goes; not an axis of the mesh."""
GANG: Final = "gang"
"""The axis of what all processes do together."""

STATE_BYTES: Final = 3 * MASTER_BYTES
"""Of a parameter in a checkpoint: master weight and AdamW's two means."""
CONTROL_BYTES: Final = 48
"""Six numbers of 8 bytes: loss, squared norm of the gradient, tokens that count; was anybody asked to stop, to save; does
anybody save still?"""
LOSS_SUMS: Final = 3
"""Numbers of a token that a tensor group puts together for the loss: largest logit, sum of exponents, logit of the target."""
LOSS_BYTES: Final = 4
"""Of each: the loss is computed in float32."""


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


class Matrix(NamedTuple):
    """Parameters of one form, which a process has so many `times`; a vector has one column."""

    rows: float
    columns: float
    times: float = 1.0

    def parameters(self, parts: int = 1) -> float:
        """Numbers in all, dealt out by rows to so many: FSDP fills the last part up to the size of the others."""
        return self.times * self.columns * (-(-self.rows // parts) * parts if parts > 1 else self.rows)


def traffic(
    model: Model,
    mesh: Mesh,
    steps_between_saves: float | None = None,
    stage: int | None = None,
    nested: Sequence[int] = (),
) -> tuple[Traffic, ...]:
    """Everything that is sent in one step of the built-in trainer's kind of training, along the axes that have members.

    steps_between_saves: how often a checkpoint is written; None: never. stage: of the pipeline, for what its processes send;
    None: the mean over the stages, which differ by embedding and output layer. nested: groups in which replicas sum where they do
    so hierarchically (trainyard.planner.nested); (): in one.
    """
    return (
        *_sharded(model, mesh, stage),
        *_replicated(model, mesh, stage, nested if model.hierarchical else ()),
        *_tensor(model, mesh, stage),
        *_pipelined(model, mesh, stage),
        *_together(model, mesh, steps_between_saves),
    )


def matrices(model: Model, mesh: Mesh, stage: int | None = None) -> tuple[Matrix, ...]:
    """What a process has of the model before its shard group shares it: of every matrix its part of rows or columns, of its
    stage's layers; scales of norms whole (trainyard_trainer.parallel.tensor and pipeline). stage: as in `traffic`."""
    width, kv_width, hidden, parts = model.width, model.kv_width, model.hidden, mesh.tensor
    layers = model.layers / mesh.pipeline
    embeddings, ends = _ends(mesh, stage)
    vocabulary = 1.0 if model.tied and mesh.pipeline == 1 else embeddings + ends
    return (
        Matrix(width / parts, width, layers),
        Matrix(kv_width / parts, width, 2 * layers),
        Matrix(width, width / parts, layers),
        Matrix(hidden / parts, width, 2 * layers),
        Matrix(width, hidden / parts, layers),
        Matrix(model.vocabulary / parts, width, vocabulary),
        Matrix(width, 1, 2 * layers + ends),
    )


def part_parameters(model: Model, mesh: Mesh, stage: int | None = None) -> float:
    """P: parameters of one tensor part of one pipeline stage. stage: as in `traffic`."""
    return sum(matrix.parameters() for matrix in matrices(model, mesh, stage))


def units(model: Model, mesh: Mesh) -> int:
    """Into how many pieces FSDP cuts a process's part of the model: one for each layer, one for what is left."""
    return -(-model.layers // mesh.pipeline) + 1


def _ends(mesh: Mesh, stage: int | None) -> tuple[float, float]:
    """How many embeddings, and how many output layers, a process of a stage has a part of."""
    if stage is None:
        return 1 / mesh.pipeline, 1 / mesh.pipeline
    return float(stage == 0), float(stage == mesh.pipeline - 1)


def _micro_batches(model: Model, mesh: Mesh) -> tuple[int, float]:
    """How many micro-batches, and of how many samples in the mean: the last is smaller, and filled up in a pipeline alone."""
    count, rows = model.micro_batches(mesh.data_parallel, mesh.pipeline)
    most = -(-model.global_batch // mesh.data_parallel)
    return count, rows if mesh.pipeline > 1 else most / count


def _sharded(model: Model, mesh: Mesh, stage: int | None) -> Iterator[Traffic]:
    """FSDP (ZeRO-3; Rajbhandari et al. 2020, section 7; Zhao et al. 2023): all-gather of the weights, P x b, for the forward pass
    of every micro-batch, and again for the backward pass unless they were kept (then ZeRO-2's volume); reduce-scatter of the
    gradients in float32, 4 P, once a step. A stage keeps them for all its micro-batches, or gathers them for each one forward and
    once backward."""
    if mesh.shard < 2:
        return
    pieces = units(model, mesh)
    padded = sum(matrix.parameters(mesh.shard) for matrix in matrices(model, mesh, stage))
    micro_batches, kept = _micro_batches(model, mesh)[0], model.kept_gathered(mesh.pipeline)
    again = 1 if mesh.pipeline > 1 else micro_batches
    passes = again if kept else micro_batches + again
    size, stride = mesh.shard, mesh.stride(SHARD)
    gathered = padded * model.value_bytes / pieces
    yield Traffic(
        SHARD, Collective.ALL_GATHER, size, stride, gathered, pieces * passes, Bytes.PARAMETERS, overlaps=True
    )
    summed = padded * MASTER_BYTES / pieces
    yield Traffic(SHARD, Collective.REDUCE_SCATTER, size, stride, summed, pieces, Bytes.GRADIENTS, overlaps=True)


def _replicated(model: Model, mesh: Mesh, stage: int | None, nested: Sequence[int]) -> Iterator[Traffic]:
    """DDP and HSDP: all-reduce of what a shard of the gradients a process is left with, 4 P / shard, once a step, or what
    compression leaves of it."""
    if mesh.replicate < 2:
        return
    pieces, stride = units(model, mesh), mesh.stride(REPLICATE)
    sent = messages(
        model.compression, model.rank, model.share, summed(model, mesh, stage), mesh.replicate, MASTER_BYTES
    )
    for collective, size_bytes in sent:
        for how, size, apart, part in by_levels(collective, mesh.replicate, stride, size_bytes, nested):
            yield Traffic(REPLICATE, how, size, apart, part / pieces, pieces, Bytes.GRADIENTS, overlaps=True)


def summed(model: Model, mesh: Mesh, stage: int | None = None) -> list[Form]:
    """Of every parameter, what a process sums with its replicas: its part of a shard group's, filled up. stage: as in
    `traffic`."""
    parts = mesh.shard
    return [
        (-(-matrix.rows // parts) if parts > 1 else matrix.rows, matrix.columns, matrix.times)
        for matrix in matrices(model, mesh, stage)
    ]


def by_levels(
    collective: Collective, size: int, stride: int, size_bytes: float, nested: Sequence[int]
) -> Iterator[tuple[Collective, int, int, float]]:
    """An all-reduce by levels: every member of a group adds up a part of what the group has (all-to-all), those who have the same
    part of different groups go on with it, and at last each group puts its parts together (all-gather)."""
    if len(nested) < 2:
        yield collective, size, stride, size_bytes
        return
    for members in nested[:-1]:
        yield Collective.ALL_TO_ALL, members, stride, size_bytes
        yield Collective.ALL_GATHER, members, stride, size_bytes
        size_bytes, stride = size_bytes / members, stride * members
    yield collective, nested[-1], stride, size_bytes


def _tensor(model: Model, mesh: Mesh, stage: int | None) -> Iterator[Traffic]:
    """Tensor parallel with sequence parallel (Korthikanti et al. 2022, section 4.2.2): four all-gathers and four reduce-scatters
    of a layer's activations for each layer and micro-batch, forward and backward together: as much as four all-reduces without
    it. One of each for the embedding, and for the output layer; three numbers a token for the loss; and the gradients of the
    norms' scales, of which each rank has those of its own tokens. A layer that is computed again gathers its two inputs again and
    sums up what attention gives; the last result it need not have again, since nothing that is kept follows from it."""
    if mesh.tensor < 2:
        return
    micro_batches, rows = _micro_batches(model, mesh)
    embeddings, ends = _ends(mesh, stage)
    layers, size, stride = model.layers / mesh.pipeline, mesh.tensor, mesh.stride(TENSOR)
    tokens = rows * model.sequence
    size_bytes = tokens * model.width * model.value_bytes
    for collective, again in ((Collective.ALL_GATHER, 2), (Collective.REDUCE_SCATTER, 1)):
        of_layer = 4 + again * model.recomputes
        count = micro_batches * (of_layer * layers + embeddings + ends)
        yield Traffic(TENSOR, collective, size, stride, size_bytes, count, Bytes.ACTIVATIONS)
    if ends:
        sums = micro_batches * LOSS_SUMS * ends
        yield Traffic(TENSOR, Collective.ALL_REDUCE, size, stride, tokens * LOSS_BYTES, sums, Bytes.ACTIVATIONS)
    scales = float(model.width * MASTER_BYTES)
    yield Traffic(TENSOR, Collective.ALL_REDUCE, size, stride, scales, 2 * layers + ends, Bytes.GRADIENTS)


def _pipelined(model: Model, mesh: Mesh, stage: int | None) -> Iterator[Traffic]:
    """Each stage to the next, for each micro-batch: its activations, and their gradients on the way back (Narayanan et al. 2021,
    section 3.2); of a tensor group each member sends its part. With several stages a rank, each of them does so. First and
    last stage exchange a tied embedding's gradients."""
    if mesh.pipeline < 2:
        return
    micro_batches, rows = _micro_batches(model, mesh)
    size_bytes = rows * model.sequence * model.width * model.value_bytes / mesh.tensor
    each, last = model.stages_per_rank, mesh.pipeline - 1
    ways = float(2 * each - (stage == 0) - (stage == last))
    if stage is None:
        ways = (2 * each * mesh.pipeline - 2) / last  # all sends over all of a group's edges
    size, stride = mesh.pipeline, mesh.stride(PIPELINE)
    yield Traffic(PIPELINE, Collective.SEND_RECEIVE, size, stride, size_bytes, ways * micro_batches, Bytes.ACTIVATIONS)
    if model.tied and stage in (None, 0, last):
        held = Matrix(model.vocabulary / mesh.tensor, model.width).parameters(mesh.shard) / mesh.shard
        count = 1.0 if stage is not None else 2 / last  # two sends over all of a group's edges
        yield Traffic(PIPELINE, Collective.SEND_RECEIVE, size, stride, held * MASTER_BYTES, count, Bytes.GRADIENTS)


def _together(model: Model, mesh: Mesh, steps_between_saves: float | None) -> Iterator[Traffic]:
    """What every process takes part in: agreeing on loss, norm and stop in each step; and its part of a checkpoint."""
    if mesh.world > 1:
        yield Traffic(GANG, Collective.ALL_REDUCE, mesh.world, 1, CONTROL_BYTES, 1, Bytes.CONTROL)
    if steps_between_saves is not None:
        written = model.parameters * STATE_BYTES / mesh.world
        yield Traffic(STORAGE, Collective.STORE, 1, 1, written, 1 / steps_between_saves, Bytes.STATE)
