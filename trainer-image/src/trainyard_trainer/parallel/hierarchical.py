"""A sum over replicas by levels of the network.

    flat          one ring over all replicas; each of its links carries 2 (n - 1) / n of a bucket
    hierarchical  those of a domain add up a part each, the same parts of different domains are summed, and each domain puts its
                  parts together: of a bucket, 1 / (members of a domain) goes over the uplink (Horovod does so with nodes)

It pays where the upper links are far slower than those below: everything below is sent in two more steps that follow each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from trainyard_trainer.parallel import timeouts
from trainyard_trainer.parallel.buckets import Bucket
from trainyard_trainer.parallel.mesh import REPLICATE


class Levels:
    """A sum by levels of the network."""

    def __init__(self, mesh: DeviceMesh, nested: Sequence[int]) -> None:
        """Called by all ranks: each takes part in the making of every group."""
        *self._inside, self._across = _groups(mesh, nested)

    def __call__(self, bucket: Bucket) -> None:
        self.sum(bucket.flat)

    def sum(self, flat: Tensor) -> None:
        """In place."""
        part, sizes = flat, []
        for group in self._inside:
            sizes.append(part.numel())
            part = _added_up(part, group)
        dist.all_reduce(part, group=self._across)
        for group, numbers in zip(reversed(self._inside), reversed(sizes), strict=True):
            whole = part.new_empty(part.numel() * group.size())
            dist.all_gather_into_tensor(whole, part, group=group)
            part = whole[:numbers]
        flat.copy_(part)


def _added_up(flat: Tensor, group: dist.ProcessGroup) -> Tensor:
    """This rank's part of the sum over a group. Each sends every other its part, as much as a ring's reduce-scatter sends; gloo
    has none but its all-reduce, which sends twice that."""
    members = group.size()
    each = -(-flat.numel() // members)
    if each * members != flat.numel():
        flat = F.pad(flat, (0, each * members - flat.numel()))
    received = torch.empty_like(flat)
    dist.all_to_all_single(received, flat, group=group)
    return received.view(members, each).sum(dim=0)


def _groups(mesh: DeviceMesh, nested: Sequence[int]) -> list[dist.ProcessGroup]:
    """Of this rank, for each level of its replica group; every rank makes all of them, in one order."""
    names = mesh.mesh_dim_names or ()
    axes = mesh.mesh.movedim(names.index(REPLICATE), -1).reshape(-1, mesh.size(names.index(REPLICATE)))
    me, mine, timeout = dist.get_rank(), [], timeouts.of_all_ranks()
    for members, stride in zip(nested, accumulate([1, *nested[:-1]], mul), strict=True):
        for ranks in axes.reshape(-1, members, stride).movedim(1, -1).reshape(-1, members).tolist():
            group = dist.new_group(ranks, timeout=timeout)
            if me in ranks:
                mine.append(cast(dist.ProcessGroup, group))
    return mine
