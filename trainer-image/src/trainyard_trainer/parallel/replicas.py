"""How replicas sum their gradients: in one all-reduce, by levels of the network, or compressed."""

from __future__ import annotations

from collections.abc import Sequence

from torch.distributed.device_mesh import DeviceMesh
from trainyard.api.trainer import ParallelConfig

from trainyard_trainer.parallel.buckets import Reduction
from trainyard_trainer.parallel.compress import HALVES, Half, compressed
from trainyard_trainer.parallel.hierarchical import Levels
from trainyard_trainer.parallel.mesh import REPLICATE, size


def reduction(mesh: DeviceMesh, config: ParallelConfig, nested: Sequence[int] = ()) -> Reduction | None:
    """As spec.trainer.parallel says; None where it is one all-reduce, or where there are no replicas. Called by all ranks.

    nested: sizes of the groups in which a hierarchical sum is done, the narrowest first (trainyard.planner.nested).
    """
    method = config.compression.method
    if size(mesh, REPLICATE) < 2:
        return None
    if config.all_reduce == "hierarchical" and len(nested) > 1:
        levels = Levels(mesh, nested)
        return Half(HALVES[method], levels) if method in HALVES else levels
    return None if method == "none" else compressed(mesh.get_group(REPLICATE), config.compression)
