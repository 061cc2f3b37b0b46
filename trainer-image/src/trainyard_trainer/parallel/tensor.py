"""Tensor parallelism with sequence parallelism: every matrix is cut over the ranks of a group (Shoeybi et al. 2019), and what
lies between the matrices is cut along the sequence (Korthikanti et al. 2022).

A block, with what a rank of a group of t holds of B samples of T tokens and width W:

    residual stream       B  T/t  W        norms and sums: each rank its own tokens
      all-gather          B  T    W
    query, key, value     B  T    heads/t  cut by rows: each rank its own heads
    attention's out       B  T    W        cut by columns: every rank has a term of the sum
      reduce-scatter      B  T/t  W
      all-gather, gate and up by rows, down by columns, reduce-scatter: the same again

The embedding is cut by tokens of the vocabulary, and so is the output layer: logits are never put together. The loss is computed
on the parts (`loss.py`), three numbers a token are summed instead of a vocabulary's.
"""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.distributed.tensor.parallel.style import ParallelStyle

from trainyard_trainer.model.transformer import Transformer

SEQUENCE = Shard(1)
"""A tensor of samples x tokens x width that is cut along its tokens."""


def split(model: Transformer, mesh: DeviceMesh) -> None:
    """Cut a model, or a stage of one, over a mesh of the one axis `tensor`. It has to have no memory yet (meta device)."""
    whole_sequence = PrepareModuleInput(
        input_layouts=(SEQUENCE, None, None, None), desired_input_layouts=(Replicate(), None, None, None)
    )
    block: dict[str, ParallelStyle] = {
        "attention_norm": SequenceParallel(),
        "attention": whole_sequence,
        "attention.query": ColwiseParallel(),
        "attention.key": ColwiseParallel(),
        "attention.value": ColwiseParallel(),
        "attention.out": RowwiseParallel(output_layouts=SEQUENCE),
        "feed_forward_norm": SequenceParallel(),
        "feed_forward": PrepareModuleInput(input_layouts=(SEQUENCE,), desired_input_layouts=(Replicate(),)),
        "feed_forward.gate": ColwiseParallel(),
        "feed_forward.up": ColwiseParallel(),
        "feed_forward.down": RowwiseParallel(output_layouts=SEQUENCE),
    }
    for layer in model.blocks.values():
        parallelize_module(layer, mesh, block)
    ends: dict[str, ParallelStyle] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=SEQUENCE),
        "norm": SequenceParallel(),
        "out": ColwiseParallel(input_layouts=SEQUENCE),
    }
    parallelize_module(model, mesh, {name: style for name, style in ends.items() if getattr(model, name) is not None})
    model.tie()
    model.sequence_parts = mesh.size()
