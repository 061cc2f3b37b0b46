"""The process mesh: which ranks hold parts of one copy of the model, and which hold the same part of different copies.

The plan orders ranks by topology and gives the axes row-major over them, the last one varying fastest: `shard` groups
are neighbours in the network, `replicate` groups reach across.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from trainyard.contract.plan import Axis

from trainyard_trainer.configuration import BadConfiguration

REPLICATE, SHARD = "replicate", "shard"


def dimensions(axes: Sequence[Axis], ranks: int) -> tuple[Axis, ...]:
    """What the mesh is made of: (shard) or (replicate, shard). No axes: everything is sharded over all ranks.

    Raises BadConfiguration where the trainer cannot have such a mesh; needs no other rank to say so.
    """
    sizes = {REPLICATE: 1, SHARD: 1}
    for axis in axes or (Axis(SHARD, ranks),):
        if axis.name not in sizes and axis.size > 1:
            raise BadConfiguration(
                f"mesh.{axis.name}: the built-in trainer spreads a model by {REPLICATE} and {SHARD} only; "
                f"leave {axis.name} at 1"
            )
        if axis.name in sizes:
            sizes[axis.name] = axis.size
    if sizes[REPLICATE] * sizes[SHARD] != ranks:
        raise BadConfiguration(
            f"mesh: {REPLICATE} {sizes[REPLICATE]} x {SHARD} {sizes[SHARD]} is not the number of ranks, {ranks}"
        )
    return tuple(Axis(name, size) for name, size in sizes.items() if name == SHARD or size > 1)


def build(axes: Sequence[Axis], ranks: int, device_type: str) -> DeviceMesh:
    """The mesh that FSDP takes."""
    made_of = dimensions(axes, ranks)
    names = tuple(axis.name for axis in made_of)
    return init_device_mesh(device_type, tuple(axis.size for axis in made_of), mesh_dim_names=names)


def copies(mesh: DeviceMesh) -> int:
    """How many copies of the model there are."""
    return mesh.size(0) if mesh.ndim == 2 else 1
