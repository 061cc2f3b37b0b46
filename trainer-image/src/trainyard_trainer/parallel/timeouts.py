"""How long the collectives of a process group may take.

A plan says it once, for the group of all ranks (`rendezvous.meet`). torch gives every other group a default of its own: 30
minutes with gloo, 10 with NCCL. A rank that stalls would hold the others that long wherever the mesh has more than one axis.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout


def of_all_ranks() -> timedelta:
    """That of the group of all ranks."""
    group = dist.group.WORLD
    assert group is not None, "the ranks have not met"
    return of(group)


def of(group: dist.ProcessGroup) -> timedelta:
    """That of a group; where it has a backend for each device, all have the same."""
    device = next(iter(group._device_types))
    return group._get_backend(torch.device(device)).options._timeout


def limit(groups: Iterable[dist.ProcessGroup], timeout: timedelta) -> None:
    """Let the collectives of these groups take no longer, from the next one on."""
    set_timeout = getattr(dist, "set_timeout", _set_pg_timeout)  # torch 2.14 has only the latter
    for group in groups:
        set_timeout(timeout, group)
