"""What of the machine a rank computes with: its GPU, or its share of the cores."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch

from trainyard_trainer.configuration import BadConfiguration


def pick_device(local_rank: int) -> torch.device:
    """The GPU of a local rank, or the CPU where there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise BadConfiguration(
            f"spec.processesPerNode: local rank {local_rank} has no GPU, there are {count}; use at most {count}"
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def threads(environment: Mapping[str, str], local_ranks: int) -> int:
    """Threads of a rank's computation: OMP_NUM_THREADS where it is set, else an equal share of the cores it may use."""
    given = environment.get("OMP_NUM_THREADS", "")
    if given.isascii() and given.isdigit() and int(given) > 0:
        return int(given)
    return max(1, int(cores()) // local_ranks)


def cores(control_group: Path = Path("/sys/fs/cgroup/cpu.max")) -> float:
    """Cores that this process may use: those it may run on, or the container's limit where that is less (cgroup v2)."""
    allowed = float(len(os.sched_getaffinity(0)))
    try:
        quota, period = control_group.read_text().split()
        return min(allowed, int(quota) / int(period))
    except (OSError, ValueError):
        return allowed
