"""Pipeline parallelism: each rank of a group holds a stage, a run of consecutive layers, and samples walk through the stages.

    GPipe   all micro-batches forward, then all backward: every stage keeps the activations of all of them (Huang et al. 2019)
    1F1B    as soon as the last stage has gone forward with one, it goes backward: a stage keeps those of as many
            micro-batches as there are stages from it on (Narayanan et al. 2021)

Both leave a stage idle for (stages - 1) / micro-batches of its computing time. What is sent: the residual stream of a
micro-batch to the next stage, and its gradient back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor

from trainyard_trainer.data.batches import IGNORED, Batch
from trainyard_trainer.model.transformer import Transformer
from trainyard_trainer.parallel.mesh import PIPELINE, index, size

ScheduleName = Literal["1f1b", "gpipe"]
SCHEDULES: Final[dict[ScheduleName, type[Schedule1F1B] | type[ScheduleGPipe]]] = {
    "1f1b": Schedule1F1B,
    "gpipe": ScheduleGPipe,
}


def cut(model: Transformer, stage: int, stages: int) -> None:
    """Take away what a stage does not hold. The first embeds, the last has norm and output; layers are dealt out evenly.

    Names stay as they were in the whole model. A tied embedding is held twice, by the first stage and by the last.
    """
    layers = list(model.blocks)
    each = len(layers) // stages
    for n, name in enumerate(layers):
        if n // each != stage:
            del model.blocks[name]
    first, last = stage == 0, stage == stages - 1
    model.embeds = first
    if not first and not (last and model.tied):
        model.embedding = None
    if not last:
        model.norm = model.out = None


class Pipeline:
    """A stage and its schedule, which is made when the first step shows how large and how many the micro-batches are."""

    def __init__(
        self,
        model: Transformer,
        mesh: DeviceMesh,
        device: torch.device,
        schedule: ScheduleName,
        hidden: tuple[int, torch.dtype],
        vocabulary: int,
    ) -> None:
        """hidden: width and type of the residual stream; vocabulary: how many logits of a token this rank computes."""
        self._model, self._device, self._made_by = model, device, SCHEDULES[schedule]
        self._group, self._stage, self._stages = mesh.get_group(PIPELINE), index(mesh, PIPELINE), size(mesh, PIPELINE)
        self._hidden, self._vocabulary = hidden, vocabulary
        self._schedule: Schedule1F1B | ScheduleGPipe | None = None
        self._loss: Callable[[Tensor, Tensor], Tensor] = _unset

    def learn(self, micro_batches: Sequence[Batch], loss: Callable[[Tensor, Tensor], Tensor]) -> list[Tensor]:
        """All micro-batches forward and backward through all stages; the last stage's ranks get each one's loss.

        loss: of logits and targets. Micro-batches smaller than the first are filled up with rows that count for nothing:
        the stages agree on one size beforehand.
        """
        rows = len(micro_batches[0].inputs)
        inputs = torch.cat([_filled(batch.inputs, rows, 0) for batch in micro_batches]).to(self._device)
        targets = torch.cat([_filled(batch.targets, rows, IGNORED) for batch in micro_batches]).to(self._device)
        apart = [_filled(batch.documents, rows, 0) for batch in micro_batches if batch.documents is not None]
        documents: dict[str, Any] = {"documents": torch.cat(apart).to(self._device)} if apart else {}  # for every stage
        if self._schedule is None:
            self._schedule = self._made(rows, inputs.shape[1], len(micro_batches))
        self._loss = loss
        losses: list[Tensor] = []
        arguments = (inputs,) if self._stage == 0 else ()
        wanted = targets if self._stage == self._stages - 1 else None
        self._schedule.step(*arguments, target=wanted, losses=losses, return_outputs=False, **documents)
        return losses

    def sum_tied(self) -> None:
        """Add up the two gradients of an embedding that first and last stage hold both: either has the sum afterwards."""
        last = self._stages - 1
        if not self._model.tied or self._stage not in (0, last):
            return
        assert self._model.embedding is not None
        gradient = self._model.embedding.weight.grad
        mine = gradient.to_local() if isinstance(gradient, DTensor) else gradient
        assert mine is not None
        theirs = torch.empty_like(mine)
        other = dist.get_global_rank(self._group, last - self._stage)
        for work in dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, mine, other, self._group),
                dist.P2POp(dist.irecv, theirs, other, self._group),
            ]
        ):
            work.wait()
        mine.add_(theirs)

    def _made(self, rows: int, length: int, micro_batches: int) -> Schedule1F1B | ScheduleGPipe:
        """Shapes are told, not tried out: trying would gather and compute once for nothing."""
        width, dtype = self._hidden
        parts = self._model.sequence_parts
        tokens = torch.empty((rows, length), dtype=torch.int64, device="meta")
        between = torch.empty((rows, length // parts, width), dtype=dtype, device="meta", requires_grad=True)
        logits = torch.empty((rows, length, self._vocabulary), dtype=dtype, device="meta", requires_grad=True)
        stage = PipelineStage(
            self._model,
            self._stage,
            self._stages,
            self._device,
            input_args=tokens if self._stage == 0 else between,
            output_args=logits if self._stage == self._stages - 1 else between,
            group=self._group,
        )
        return self._made_by(stage, micro_batches, loss_fn=self._of_step, scale_grads=False)

    def _of_step(self, logits: Tensor, targets: Tensor) -> Tensor:
        return self._loss(logits, targets)


def _filled(rows: Tensor, count: int, value: int) -> Tensor:
    return F.pad(rows, (0, 0, 0, count - len(rows)), value=value)


def _unset(logits: Tensor, targets: Tensor) -> Tensor:
    raise RuntimeError("a schedule is run by Pipeline.learn alone")
