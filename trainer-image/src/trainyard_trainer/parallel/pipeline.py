"""Pipeline parallelism: each rank of a group holds stages, runs of consecutive layers, and samples walk through them.

    GPipe         all micro-batches forward, then all backward: every stage keeps the activations of all of them (Huang et
                  al. 2019)
    1F1B          as soon as the last stage has gone forward with one, it goes backward: a stage keeps those of as many
                  micro-batches as there are stages from it on (Narayanan et al. 2021)
    interleaved   1F1B with several shorter stages a rank, dealt out round: the first rank has stages 0, p, 2p, ... of a
                  group of p (ibid., section 2.2)
    zero bubble   interleaved, and the backward pass is cut in two: the gradient of what came in, which the stage before
                  waits for, and that of the weights, which fills what would be idle (ZB1P; Qi et al. 2023)

GPipe and 1F1B leave a rank idle for (p - 1) / m of its computing time with m micro-batches; interleaved, with v stages a rank,
for a v-th of that; zero bubble for about a third of what is left. What is sent: the residual stream of a micro-batch to the
next stage, and its gradient back; with v stages a rank, v times as often.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)
from torch.distributed.tensor import DTensor

from trainyard_trainer.data.batches import IGNORED, Batch
from trainyard_trainer.model.transformer import Transformer
from trainyard_trainer.parallel.mesh import PIPELINE, index, size

ScheduleName = Literal["1f1b", "gpipe", "interleaved", "zero-bubble"]
Schedule = Schedule1F1B | ScheduleGPipe | ScheduleInterleaved1F1B | ScheduleInterleavedZeroBubble
OF_ONE: Final[dict[ScheduleName, type[Schedule1F1B] | type[ScheduleGPipe]]] = {
    "1f1b": Schedule1F1B,
    "gpipe": ScheduleGPipe,
}
OF_SEVERAL: Final[dict[ScheduleName, type[ScheduleInterleaved1F1B] | type[ScheduleInterleavedZeroBubble]]] = {
    "interleaved": ScheduleInterleaved1F1B,
    "zero-bubble": ScheduleInterleavedZeroBubble,
}
"""Those that take several stages of a rank, and a number of micro-batches that the ranks divide."""


def cut(model: Transformer, rank: int, ranks: int, stages_per_rank: int = 1) -> None:
    """Take away what a rank of a group does not hold. The first stage embeds, the last has norm and output; layers are dealt
    out evenly, to stages that are dealt out round.

    Names stay as they were in the whole model. A tied embedding is held twice, by the first rank and by the last.
    """
    layers = list(model.blocks)
    each = len(layers) // (ranks * stages_per_rank)
    for n, name in enumerate(layers):
        if n // each % ranks != rank:
            del model.blocks[name]
    first, last = rank == 0, rank == ranks - 1
    model.embeds = first
    if not first and not (last and model.tied):
        model.embedding = None
    if not last:
        model.norm = model.out = None


def parts(model: Transformer, stages_per_rank: int) -> list[Transformer]:
    """The stages of what `cut` has left, which share its modules and have no memory of their own."""
    if stages_per_rank == 1:
        return [model]
    layers = list(model.blocks)
    each = len(layers) // stages_per_rank
    answer = []
    for n in range(stages_per_rank):
        part = copy.deepcopy(model)  # of the meta device
        part.blocks = nn.ModuleDict({name: model.blocks[name] for name in layers[n * each : (n + 1) * each]})
        first, last = model.embeds and n == 0, n == stages_per_rank - 1
        part.embeds = first
        part.embedding = model.embedding if first or (last and model.tied and model.out is not None) else None
        part.norm, part.out = (model.norm, model.out) if last else (None, None)
        answer.append(part)
    return answer


class Pipeline:
    """The stages of a rank and their schedule, which is made when the first step shows how large and how many the
    micro-batches are."""

    def __init__(
        self,
        stages: Sequence[Transformer],
        mesh: DeviceMesh,
        device: torch.device,
        schedule: ScheduleName,
        hidden: tuple[int, torch.dtype],
        vocabulary: int,
    ) -> None:
        """stages: of `parts`. hidden: width and type of the residual stream; vocabulary: how many logits of a token this rank
        computes."""
        self._held, self._device, self._name = stages, device, schedule
        self._group, self._rank, self._ranks = mesh.get_group(PIPELINE), index(mesh, PIPELINE), size(mesh, PIPELINE)
        self._hidden, self._vocabulary = hidden, vocabulary
        self._schedule: Schedule | None = None
        self._loss: Callable[[Tensor, Tensor], Tensor] = _unset

    def learn(self, micro_batches: Sequence[Batch], loss: Callable[[Tensor, Tensor], Tensor]) -> list[Tensor]:
        """All micro-batches, on the device by now, forward and backward through all stages; the last stage's ranks get each one's
        loss.

        loss: of logits and targets. Micro-batches smaller than the first are filled up with rows that count for nothing:
        the stages agree on one size beforehand. So is their number, where the schedule wants one that the ranks divide.
        """
        rows, length = micro_batches[0].inputs.shape
        count = len(micro_batches)
        if self._name in OF_SEVERAL:
            count = -(-count // self._ranks) * self._ranks

        def whole(pieces: Sequence[Tensor], value: int) -> Tensor:
            return _filled(torch.cat([_filled(piece, rows, value) for piece in pieces]), count * rows, value)

        inputs = whole([batch.inputs for batch in micro_batches], 0)
        targets = whole([batch.targets for batch in micro_batches], IGNORED)
        apart = [batch.documents for batch in micro_batches if batch.documents is not None]
        documents: dict[str, Any] = {"documents": whole(apart, 0)} if apart else {}  # of use to every stage
        if self._schedule is None:
            self._schedule = self._made(rows, length, count)
        self._loss = loss
        losses: list[Tensor] = []
        arguments = (inputs,) if self._rank == 0 else ()
        wanted = targets if self._rank == self._ranks - 1 else None
        self._schedule.step(*arguments, target=wanted, losses=losses, return_outputs=False, **documents)
        return losses

    def sum_tied(self) -> None:
        """Add up the two gradients of an embedding that first and last stage hold both: either has the sum afterwards."""
        last = self._ranks - 1
        holder = self._held[0] if self._rank == 0 else self._held[-1]
        if not holder.tied or self._rank not in (0, last):
            return
        assert holder.embedding is not None
        gradient = holder.embedding.weight.grad
        mine = gradient.to_local() if isinstance(gradient, DTensor) else gradient
        assert mine is not None
        theirs = torch.empty_like(mine)
        other = dist.get_global_rank(self._group, last - self._rank)
        for work in dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, mine, other, self._group),
                dist.P2POp(dist.irecv, theirs, other, self._group),
            ]
        ):
            work.wait()
        mine.add_(theirs)

    def _made(self, rows: int, length: int, micro_batches: int) -> Schedule:
        """Shapes are told, not tried out: trying would gather and compute once for nothing."""
        settings: dict[str, Any] = {"loss_fn": self._of_step, "scale_grads": False}
        stages: list[Any] = [self._stage(n, rows, length) for n in range(len(self._held))]
        if self._name in OF_SEVERAL:
            return OF_SEVERAL[self._name](stages, micro_batches, **settings)
        return OF_ONE[self._name](stages[0], micro_batches, **settings)

    def _stage(self, n: int, rows: int, length: int) -> PipelineStage:
        """The n-th of this rank. Its shapes on the meta device: tokens come in or the residual stream, logits go out or that."""
        width, dtype = self._hidden
        stage, stages = n * self._ranks + self._rank, len(self._held) * self._ranks
        held_tokens = length // self._held[n].sequence_parts
        tokens = torch.empty((rows, length), dtype=torch.int64, device="meta")
        between = torch.empty((rows, held_tokens, width), dtype=dtype, device="meta", requires_grad=True)
        logits = torch.empty((rows, length, self._vocabulary), dtype=dtype, device="meta", requires_grad=True)
        return PipelineStage(
            self._held[n],
            stage,
            stages,
            self._device,
            input_args=tokens if stage == 0 else between,
            output_args=logits if stage == stages - 1 else between,
            group=self._group,
        )

    def _of_step(self, logits: Tensor, targets: Tensor) -> Tensor:
        return self._loss(logits, targets)


def _filled(rows: Tensor, count: int, value: int) -> Tensor:
    return F.pad(rows, (0, 0, 0, count - len(rows)), value=value)


def _unset(logits: Tensor, targets: Tensor) -> Tensor:
    raise RuntimeError("a schedule is run by Pipeline.learn alone")
