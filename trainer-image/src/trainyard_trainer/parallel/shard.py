"""FSDP2: every rank keeps a part of each parameter, and sees a whole block only while it computes with it.

    ZeRO-3   weights are given back after the forward pass and gathered again for the backward pass
    ZeRO-2   weights stay whole in between: a third less to send, for the memory of the model's weights
    HSDP     either of them within a `shard` group; the sum of gradients goes on across `replicate` groups

On a GPU the next block is gathered while one computes, and gradients are summed while the block before goes backward; over gloo
FSDP waits for each of its collectives. Gradients are summed, not averaged: the loss is divided by the step's tokens over all
ranks beforehand, which stays right when ranks hold different numbers of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from trainyard_trainer.model.transformer import Transformer
from trainyard_trainer.parallel.buckets import Bucket, Reduction
from trainyard_trainer.parallel.mesh import SHARD

KEEP_GATHERED_BYTES = 256 * 2**20
"""A model up to this size stays whole between forward and backward: a third less to send, for memory nobody misses."""


def shard(
    stages: Sequence[Transformer],
    mesh: DeviceMesh,
    precision: torch.dtype | None = None,
    regather: bool | None = None,
    reduction: Reduction | None = None,
) -> None:
    """Spread a model, or a rank's stages of one, still without memory (meta device) or with, over a mesh from `mesh.data_mesh`.

    precision: of activations and gathered weights; None: that of the parameters. regather: ZeRO-3; None: by the model's size.
    reduction: how replicas sum; None: in one all-reduce. With one FSDP knows the shards alone.
    """
    if reduction is not None:
        mesh = mesh[SHARD]
    if regather is None:
        parameters = (parameter for stage in stages for parameter in stage.parameters())
        size_bytes = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
        regather = size_bytes > KEEP_GATHERED_BYTES
    policy = MixedPrecisionPolicy(param_dtype=precision, reduce_dtype=None if precision is None else torch.float32)
    for stage in stages:
        for block in stage.blocks.values():
            fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=regather)
        fully_shard(stage, mesh=mesh, mp_policy=policy, reshard_after_forward=regather)
    units = [module for stage in stages for module in stage.modules() if isinstance(module, FSDPModule)]
    for unit in units:
        unit.set_gradient_divide_factor(1.0)
        # Otherwise FSDP asks for a pre-multiplied sum, which gloo does not have.
        unit.set_force_sum_reduction_for_comms(True)
    if reduction is not None:
        _Sums(reduction, [unit for unit in units if unit._get_fsdp_state()._fsdp_param_groups])


def sync_gradients(model: nn.Module, wanted: bool) -> None:
    """Whether the next backward pass sums gradients over the ranks: only the last micro-batch of a step does."""
    assert isinstance(model, FSDPModule)
    model.set_requires_gradient_sync(wanted)


class _Sums:
    """The reduction of a rank's shards over the replicas, unit by unit."""

    def __init__(self, reduction: Reduction, units: Sequence[FSDPModule]) -> None:
        """units: those with parameters of their own, each of which is summed once a step. A stage in the middle of a pipeline is
        itself none: all that it has is in its blocks."""
        self._reduction, self._units, self._summed = reduction, len(units), 0
        for number, unit in enumerate(units):
            unit.set_all_reduce_hook(partial(self._sum, unit, number))

    def _sum(self, unit: FSDPModule, number: int, flat: Tensor) -> None:
        """In place. FSDP has the gradients in one row, each filled up. Which unit comes last depends on the schedule."""
        self._summed += 1
        (group,) = unit._get_fsdp_state()._fsdp_param_groups
        shapes = [parameter.padded_sharded_param_size for parameter in group.fsdp_params]
        parts = [
            part.view(shape)
            for part, shape in zip(torch.split(flat, [shape.numel() for shape in shapes]), shapes, strict=True)
        ]
        self._reduction(Bucket(flat, parts, number, last=self._summed % self._units == 0))
