"""The process mesh: which ranks hold parts of one copy of the model, and which hold the same part of different copies.

    pipeline    stages of consecutive layers; samples walk from one to the next
    replicate   copies of a stage, each learning from samples of its own (DDP, and the outer axis of HSDP)
    shard       ranks that share one copy's weights, each learning from samples of its own (FSDP)
    tensor      ranks that share every matrix, learning from the same samples

The plan orders ranks by topology and gives the axes row-major over them, the last one varying fastest: `tensor` groups are
neighbours in the network and talk most, `pipeline` groups reach farthest and talk least.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from trainyard.contract.plan import Axis

from trainyard_trainer.configuration import BadConfiguration
from trainyard_trainer.parallel import timeouts

PIPELINE, REPLICATE, SHARD, TENSOR = "pipeline", "replicate", "shard", "tensor"
AXES: Final = (PIPELINE, REPLICATE, SHARD, TENSOR)


def dimensions(axes: Sequence[Axis], ranks: int) -> tuple[Axis, ...]:
    """What the mesh is made of: `shard`, and of the others those with more than one member. No axes: everything is
    sharded over all ranks.

    Raises BadConfiguration where the trainer cannot have such a mesh; needs no other rank to say so.
    """
    sizes = dict.fromkeys(AXES, 1)
    given = axes or (Axis(SHARD, ranks),)
    for axis in given:
        if axis.name not in sizes and axis.size > 1:
            raise BadConfiguration(
                f"mesh.{axis.name}: the built-in trainer shares its work by {', '.join(AXES)}; leave {axis.name} at 1"
            )
        if axis.name in sizes:
            sizes[axis.name] = axis.size
    order = [axis.name for axis in given if axis.size > 1]
    if order != sorted(order, key=AXES.index):
        raise BadConfiguration(f"mesh: the axes come as {', '.join(order)}; the trainer has them as {', '.join(AXES)}")
    if prod(sizes.values()) != ranks:
        product = " x ".join(f"{name} {size}" for name, size in sizes.items() if size > 1 or name == SHARD)
        raise BadConfiguration(f"mesh: {product} is not the number of ranks, {ranks}")
    return tuple(Axis(name, size) for name, size in sizes.items() if name == SHARD or size > 1)


def build(axes: Sequence[Axis], ranks: int, device_type: str) -> DeviceMesh:
    """The mesh of all ranks, with a process group for each axis, whose collectives time out like those of all ranks."""
    made_of = dimensions(axes, ranks)
    names = tuple(axis.name for axis in made_of)
    mesh = init_device_mesh(device_type, tuple(axis.size for axis in made_of), mesh_dim_names=names)
    timeouts.limit(mesh.get_all_groups(), timeouts.of_all_ranks())
    return mesh


def axes_of(mesh: DeviceMesh) -> tuple[Axis, ...]:
    """What a mesh is made of, as in a plan."""
    return tuple(Axis(name, mesh.size(n)) for n, name in enumerate(mesh.mesh_dim_names or ()))


def size(mesh: DeviceMesh, axis: str) -> int:
    """Members of a group of an axis; 1 for an axis that the mesh does not have."""
    names = mesh.mesh_dim_names or ()
    return mesh.size(names.index(axis)) if axis in names else 1


def index(mesh: DeviceMesh, axis: str) -> int:
    """Which member of its group this rank is."""
    return mesh.get_local_rank(axis) if axis in (mesh.mesh_dim_names or ()) else 0


def data_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """The axes along which ranks learn from different samples: (shard), or (replicate, shard) as FSDP wants it for HSDP."""
    return mesh[tuple(name for name in (REPLICATE, SHARD) if name in (mesh.mesh_dim_names or ()))]


def data_place(axes: Sequence[Axis], rank: int) -> tuple[int, int]:
    """(which, of how many) parts of a step's samples a rank takes. axes: from `dimensions`."""
    stride, place, parts = 1, 0, 1
    for axis in reversed(axes):
        if axis.name in (REPLICATE, SHARD):
            place += rank // stride % axis.size * parts
            parts *= axis.size
        stride *= axis.size
    return place, parts
