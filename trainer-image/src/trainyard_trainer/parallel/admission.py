"""Whether a model can be shared as the mesh says, found out before anybody is waited for and anything is allocated.

The operator has said the same of what it could know; the memory of this very device, and a mesh that was not the operator's, are
known here alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path

import torch
from trainyard.api.parallelism import misfits
from trainyard.api.trainer import TrainerConfig
from trainyard.contract.plan import Axis
from trainyard.planner.memory import memory
from trainyard.planner.model import model_of
from trainyard.planner.traffic import Mesh

from trainyard_trainer.configuration import BadConfiguration

GB = 1e9


def admit(config: TrainerConfig, axes: Sequence[Axis], memory_bytes: float | None) -> None:
    """Raises BadConfiguration where heads, layers, sequence or samples do not divide, or where a process would need more than
    `memory_bytes`. axes: from `mesh.dimensions`.

    What is needed is what the planner predicts (trainyard.planner.memory), without the share it leaves to libraries: a model
    that is refused here cannot fit.
    """
    sizes = {axis.name: axis.size for axis in axes}
    for axis, problem in misfits(sizes, prod(sizes.values()), config):
        raise BadConfiguration(f"spec.parallelism.{axis}: {problem}")
    if memory_bytes is None:
        return
    mesh = Mesh(**sizes)
    needed = memory(model_of(config), mesh)
    if needed.total > memory_bytes:
        raise BadConfiguration(
            f"spec.parallelism: with {mesh} a process needs {needed.total / GB:.1f} GB and has {memory_bytes / GB:.1f} GB: "
            f"{needed}; use more processes, another mesh or a smaller microBatch"
        )


def memory_of(local_ranks: int, control_group: Path = Path("/sys/fs/cgroup/memory.max")) -> float | None:
    """Bytes that a process may use: of its GPU, or its share of the container's limit (cgroup v2). None: no limit is known."""
    if torch.cuda.is_available():
        return min(float(torch.cuda.get_device_properties(n).total_memory) for n in range(torch.cuda.device_count()))
    try:
        return int(control_group.read_text()) / local_ranks
    except (OSError, ValueError):
        return None
