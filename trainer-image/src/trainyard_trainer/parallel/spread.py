"""A model spread over the mesh of a gang, in the order in which it is cut:

    1. pipeline.py   a rank keeps the layers of its stage
    2. tensor.py     of every matrix, its rows or columns
    3. shard.py      of what that leaves, a part of each parameter (FSDP, HSDP); or all of it, where copies are all that
       data.py       the mesh is made of (DDP)
    4.               only now memory is taken, for what is this rank's own

and what all forms have in common: go forward and backward with the micro-batches of a step, and the norm of the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from trainyard.api.trainer import ParallelConfig

from trainyard_trainer import diagnosis
from trainyard_trainer.data.batches import Batch, counted
from trainyard_trainer.model.loss import cross_entropy, on_parts
from trainyard_trainer.model.transformer import Transformer
from trainyard_trainer.parallel import data, gradients, pipeline, replicas, tensor
from trainyard_trainer.parallel.compress import Keeps
from trainyard_trainer.parallel.mesh import PIPELINE, REPLICATE, SHARD, TENSOR, data_mesh, index, size
from trainyard_trainer.parallel.shard import shard, sync_gradients

REGATHER = {"always": True, "never": False, "auto": None}


class Spread:
    """This rank's part of a model. Every method is called by all ranks in the same order."""

    def __init__(
        self,
        model: Transformer,
        mesh: DeviceMesh,
        device: torch.device,
        config: ParallelConfig,
        precision: torch.dtype | None = None,
        nested: Sequence[int] = (),
    ) -> None:
        """Cut a model that has no memory yet (meta device) and give memory to what is this rank's; weights are still to come.

        precision: of activations and of weights in use; None: that of the parameters. nested: groups in which replicas sum where
        they do so by levels of the network (trainyard.planner.nested).
        """
        assert model.embedding is not None
        self.model, self._device, self._precision = model, device, precision
        self._vocabulary, width = model.embedding.weight.shape
        stages, tensors = size(mesh, PIPELINE), size(mesh, TENSOR)
        self._tensor_mesh = mesh[TENSOR] if tensors > 1 else None
        self._tensors, self._stage = tensors, index(mesh, PIPELINE)

        if stages > 1:
            pipeline.cut(model, index(mesh, PIPELINE), stages, config.stages_per_rank)
        if self._tensor_mesh is not None:
            tensor.split(model, self._tensor_mesh)
        held = pipeline.parts(model, config.stages_per_rank) if stages > 1 else [model]
        self._reduction = reduction = replicas.reduction(mesh, config, nested)
        copies_alone = size(mesh, REPLICATE) > 1 and size(mesh, SHARD) * tensors * stages == 1
        if not copies_alone:
            # A stage sees its weights once for each micro-batch: it would gather them as often.
            regather = False if stages > 1 and config.reshard == "auto" else REGATHER[config.reshard]
            shard(held, data_mesh(mesh), precision, regather, reduction)
        model.to_empty(device=device)
        model.tie()

        self._called: nn.Module = model
        self._pipeline: pipeline.Pipeline | None = None
        if copies_alone:
            self._called = data.replicate(model, mesh, config.bucket_mebibytes, reduction)
        if stages > 1:
            dtype = precision or next(model.parameters()).dtype
            columns = 0 if model.out is None else _rows_held(model.out.weight, self._tensor_mesh)
            self._pipeline = pipeline.Pipeline(held, mesh, device, config.schedule, (width, dtype), columns)
        holders = mesh.size() // stages
        twice = "embedding.weight" if stages > 1 and model.tied else ""
        self._held = {
            parameter: gradients.copies(parameter, holders) * (2 if name == twice else 1)
            for name, parameter in model.named_parameters()
        }

    def learn(self, micro_batches: Sequence[Batch], tokens: int, scale: float = 1.0) -> float:
        """Forward and backward with this rank's micro-batches of a step; gradients are summed over all ranks afterwards.

        tokens: that the loss is divided by, those of the whole step, over all ranks. scale: that gradients are multiplied by. The
        answer is this rank's term of the step's mean loss: the sum over all ranks.
        """
        divisor = tokens / scale
        micro_batches = [_moved(batch, self._device) for batch in micro_batches]
        with on_parts(self._tensor_mesh is not None):
            if self._pipeline is not None:
                losses = self._pipeline.learn(
                    micro_batches, lambda logits, targets: self._loss(logits, targets, divisor)
                )
                self._pipeline.sum_tied()
            else:
                losses = []
                for n, batch in enumerate(micro_batches, start=1):
                    with self._summing(n == len(micro_batches)):
                        with self._computing():
                            logits = self._called(batch.inputs, batch.documents)
                        loss = self._loss(logits, batch.targets, divisor)
                        loss.backward()  # type: ignore[no-untyped-call]
                    losses.append(loss)
            return sum(float(_whole(loss.detach())) for loss in losses) / self._tensors / scale

    def why(self, micro_batches: Sequence[Batch], tokens: int, scale: float, loss: float) -> str:
        """Why the numbers of a step are not finite, found by computing it again. loss: what `learn` answered the first time."""
        return diagnosis.find(
            self.model, lambda: self.learn(micro_batches, tokens, scale), loss, self._stage, self.norm_squared
        )

    def whose(self, micro_batches: Sequence[Batch], tokens: int, loss: float) -> str:
        """Which ranks' own losses a step's comes from. loss: what `learn` answered."""
        count = counted(micro_batches)
        computes = self.model.out is not None and count > 0
        return diagnosis.compare(loss * tokens * self._tensors / count if computes else None)

    def norm_squared(self) -> float:
        """This rank's contribution to the squared norm of the gradient; the sum over all ranks is the squared norm."""
        return gradients.norm_squared(self._held)

    def clip(self, norm: float, limit: float, by: float = 1.0) -> None:
        """Multiply the gradient by `by`, after which its norm is `norm`, and scale it down to the norm `limit`."""
        gradients.clip(gradients.local_parts(self._held), norm, limit, by)

    def forget(self) -> None:
        """A step came to nothing: what compression left out of its gradient is not owed to the next one."""
        if isinstance(self._reduction, Keeps):
            self._reduction.forget()

    def _loss(self, logits: Tensor, targets: Tensor, tokens: float) -> Tensor:
        return cross_entropy(logits, targets, self._vocabulary, self._tensor_mesh) / tokens

    def _summing(self, last: bool) -> AbstractContextManager[None]:
        """Gradients are summed over the ranks once, with the last micro-batch."""
        if isinstance(self._called, FSDPModule):
            sync_gradients(self._called, last)
        elif isinstance(self._called, DistributedDataParallel) and not last:
            return self._called.no_sync()
        return nullcontext()

    def _computing(self) -> AbstractContextManager[object]:
        """FSDP casts weights and inputs itself; elsewhere each operation is cast."""
        cast = self._precision is not None and not isinstance(self._called, FSDPModule)
        return torch.autocast(self._device.type, dtype=self._precision) if cast else nullcontext()


def _moved(batch: Batch, device: torch.device) -> Batch:
    """What a GPU copies from pinned memory (data/ahead.py) is there before what is computed with it; the host goes on."""
    return Batch(*(None if part is None else part.to(device, non_blocking=True) for part in batch))  # type: ignore[arg-type]


def _whole(loss: Tensor) -> Tensor:
    return loss.to_local() if isinstance(loss, DTensor) else loss


def _rows_held(weight: Tensor, mesh: DeviceMesh | None) -> int:
    """Of the output layer's rows, one for each token of the vocabulary, those that this rank computes with."""
    if mesh is None:
        return weight.shape[0]
    each = -(-weight.shape[0] // mesh.size())
    return max(0, min(each, weight.shape[0] - each * mesh.get_local_rank()))
