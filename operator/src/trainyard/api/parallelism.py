"""spec.parallelism: how the processes of a job share the work.

The axes are those that the built-in trainer runs. A size is a number, or auto for what follows from the others; what several
autos leave open the planner chooses, by the memory and the time that it predicts (trainyard.planner.mesh).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Annotated, Final

from pydantic import BeforeValidator, WithJsonSchema

from trainyard.api.model import ApiModel
from trainyard.api.trainer import TrainerConfig

AUTO: Final = "auto"
AXES: Final = ("tensor", "pipeline", "shard", "replicate")
"""In the order in which they take their share of the processes."""
NO_SIZE: Final = "neither a size nor auto; use a number of processes such as 8, or auto"
NO_DIVISOR: Final = "does not divide the processes of the gang, nodes x processesPerNode; use a divisor of it, or auto"
NO_PRODUCT: Final = (
    "times the other axes is not the number of processes, nodes x processesPerNode; leave one of them auto"
)


def _size(value: object) -> object:
    if value == AUTO or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise ValueError(f"{value!r} is {NO_SIZE}")


Size = Annotated[
    int | str,
    BeforeValidator(_size),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "maxLength": 8,
            "x-kubernetes-validations": [
                {"rule": f"type(self) == int ? self >= 1 : string(self) == '{AUTO}'", "message": NO_SIZE}
            ],
        }
    ),
]
"""How many members an axis has: a number, or `auto`."""


class Parallelism(ApiModel):
    """How the processes share the work: pipeline x replicate x shard x tensor is their number."""

    shard: Size = AUTO
    """How many processes share one copy of the model, each keeping a part of weights and optimizer (FSDP). auto: as many as
    replicate leaves; where both are auto, what trains fastest of all that fits into the accelerators' memory, as predicted on the
    nodes of the attempt."""
    replicate: Size = AUTO
    """How many such copies there are; the processes of a copy are neighbours in the network, the copies lie apart (HSDP; DDP
    where it is the only axis)."""
    tensor: Size = 1
    """How many processes share every matrix and compute with the same samples (tensor with sequence parallel); the nearest of
    neighbours. Divides the model's heads, heads of keys and values, hidden width and sequenceLength. auto: what the planner
    predicts to be fastest."""
    pipeline: Size = 1
    """How many stages of consecutive layers the samples walk through. Divides the model's layers, and needs at least as many
    samples for each process that learns from different ones. auto: what the planner predicts to be fastest."""

    @property
    def sizes(self) -> dict[str, int]:
        """The axes that have a number."""
        given = {name: getattr(self, name) for name in AXES}
        return {name: size for name, size in given.items() if isinstance(size, int)}

    @property
    def settled(self) -> bool:
        """Whether all sizes follow from those that have a number: at most one is auto."""
        return len(self.sizes) >= len(AXES) - 1


def contradictions(
    parallelism: Parallelism, nodes: int, processes_per_node: int, trainer: TrainerConfig | None = None
) -> Iterator[tuple[str, str]]:
    """What cannot be with so many processes, and with the built-in trainer's model: the field, and a sentence."""
    world = nodes * processes_per_node
    processes = f"{world} processes ({nodes} nodes x {processes_per_node})"
    sizes, left = parallelism.sizes, world
    for name, size in sizes.items():
        if world % size:
            yield name, f"{size} does not divide the {processes}; use {_nearest(world, size)}, or auto"
            return
    if len(sizes) < len(AXES):
        for name, size in sizes.items():
            if left % size:
                taken = " x ".join(
                    f"{axis} {sizes[axis]}" for axis in AXES[: AXES.index(name)] if sizes.get(axis, 1) > 1
                )
                yield (
                    name,
                    f"{size} does not divide the {left} that {taken} leaves of the {processes}; use {_nearest(left, size)}",
                )
                return
            left //= size
    elif prod(sizes.values()) != world:
        rest = prod(size for name, size in sizes.items() if name != "replicate")
        others = [
            f"{name} {size}" for name, size in sizes.items() if name == "shard" or (size > 1 and name != "replicate")
        ]
        use = f"use {world // rest}, or auto" if world % rest == 0 else "leave one of them auto"
        yield "replicate", f"{sizes['replicate']} times {' x '.join(others)} is not the {processes}; {use}"
        return
    if trainer is not None:
        yield from misfits(sizes, world, trainer)


def misfits(sizes: Mapping[str, int], world: int, trainer: TrainerConfig) -> Iterator[tuple[str, str]]:
    """What the built-in trainer cannot do with its model: the axis, and a sentence. sizes: of the axes that have a number."""
    shape, data = trainer.model.shape, trainer.data
    tensor, stages = sizes.get("tensor", 1), sizes.get("pipeline", 1)
    for count, of in (
        (shape.heads, "heads (spec.trainer.model.heads)"),
        (shape.kv_heads, "heads of keys and values (spec.trainer.model.kvHeads)"),
        (shape.hidden, "numbers inside a feed-forward layer (spec.trainer.model.hidden)"),
        (data.sequence_length, "tokens of a sample (spec.trainer.data.sequenceLength)"),
    ):
        if count % tensor:
            yield "tensor", f"{tensor} does not divide the {count} {of}; use {_nearest(count, tensor)}"
            return
    each = trainer.parallel.stages_per_rank if stages > 1 else 1
    if shape.layers % (stages * each):
        held = f" with {each} stages in each process (spec.trainer.parallel.stagesPerRank)" if each > 1 else ""
        use = _nearest(shape.layers // each, stages) if shape.layers % each == 0 else f"other stagesPerRank than {each}"
        yield (
            "pipeline",
            f"{stages}{held} does not divide the {shape.layers} layers (spec.trainer.model.layers); use {use}",
        )
        return
    copies = max(1, world // (tensor * stages))
    most = -(-data.global_batch // copies)
    if most < stages:
        yield (
            "pipeline",
            f"{stages} stages need at least as many samples for each of {copies} processes that learn from different ones, and "
            f"{data.global_batch} (spec.trainer.data.globalBatch) are {most}; use a pipeline of at most {most}, or a globalBatch "
            f"of at least {stages * copies}",
        )


def _nearest(world: int, size: int) -> str:
    """The divisors of a number; where there are many, those around a size."""
    divisors = [n for n in range(1, world + 1) if world % n == 0]
    if len(divisors) > 6:
        below = [n for n in divisors if n < size]
        divisors = [*below[-2:], *divisors[len(below) : len(below) + 2]]
    return " or ".join(filter(None, (", ".join(map(str, divisors[:-1])), str(divisors[-1]))))
