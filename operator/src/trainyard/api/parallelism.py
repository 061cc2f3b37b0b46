"""spec.parallelism: how the processes of a job share the work.

Only the axes that the built-in trainer runs can be said. A size is a number, or auto for what follows from the other one; with
both auto the planner chooses, by the memory and the time that it predicts (trainyard.planner.mesh).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

from pydantic import BeforeValidator, WithJsonSchema

from trainyard.api.model import ApiModel

AUTO: Final = "auto"
NO_SIZE: Final = "neither a size nor auto; use a number of processes such as 8, or auto"
NO_DIVISOR: Final = "does not divide the processes of the gang, nodes x processesPerNode; use a divisor of it, or auto"
NO_PRODUCT: Final = "times shard is not the number of processes, nodes x processesPerNode; leave one of them auto"


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
    """How the processes share the work: shard x replicate is their number."""

    shard: Size = AUTO
    """How many processes share one copy of the model, each keeping a part of weights and optimizer (FSDP). auto: as many as
    replicate leaves; where both are auto, what trains fastest of all that fits into the accelerators' memory, as predicted on the
    nodes of the attempt."""
    replicate: Size = AUTO
    """How many such copies there are; the processes of a copy are neighbours in the network, the copies lie apart (HSDP)."""

    @property
    def sizes(self) -> dict[str, int]:
        """The axes that were given a number."""
        given = {"shard": self.shard, "replicate": self.replicate}
        return {name: size for name, size in given.items() if isinstance(size, int)}


def contradictions(parallelism: Parallelism, nodes: int, processes_per_node: int) -> Iterator[tuple[str, str]]:
    """What cannot be with so many processes: the field, and a sentence."""
    world = nodes * processes_per_node
    sizes = parallelism.sizes
    for name, size in sizes.items():
        if world % size:
            yield (
                name,
                f"{size} does not divide the {world} processes ({nodes} nodes x {processes_per_node}); "
                f"use {_nearest(world, size)}, or auto",
            )
            return
    if len(sizes) == 2 and sizes["shard"] * sizes["replicate"] != world:
        yield (
            "replicate",
            f"{sizes['replicate']} times shard {sizes['shard']} is not the {world} processes ({nodes} nodes x "
            f"{processes_per_node}); use {world // sizes['shard']}, or auto",
        )


def _nearest(world: int, size: int) -> str:
    """The divisors of a number; where there are many, those around a size."""
    divisors = [n for n in range(1, world + 1) if world % n == 0]
    if len(divisors) > 6:
        below = [n for n in divisors if n < size]
        divisors = [*below[-2:], *divisors[len(below) : len(below) + 2]]
    return " or ".join(filter(None, (", ".join(map(str, divisors[:-1])), str(divisors[-1]))))
