"""DDP: every rank keeps the whole model, and gradients are summed bucket by bucket while the backward pass goes on.

For models that fit many times over: nothing but gradients is sent, once a step (Li et al. 2020). A bucket is reduced as soon as
its last gradient is there, which hides all of the time but that of the bucket that is filled last.
"""

# Annotations are looked at by DDP: no `from __future__ import annotations` here.
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from trainyard_trainer.parallel.buckets import Bucket, Lane, Reduction
from trainyard_trainer.parallel.mesh import REPLICATE


def replicate(
    model: nn.Module, mesh: DeviceMesh, bucket_mebibytes: float, reduction: Reduction | None = None
) -> DistributedDataParallel:
    """Wrap a model whose memory exists; its parameters stay its own. Weights must be equal on all ranks already.

    reduction: how a bucket is summed; None: in one all-reduce.
    """
    group = mesh.get_group(REPLICATE)
    wrapped = DistributedDataParallel(
        model, process_group=group, bucket_cap_mb=bucket_mebibytes, gradient_as_bucket_view=True, init_sync=False
    )
    if reduction is None:
        wrapped.register_comm_hook(group, sum_of)
    else:
        wrapped.register_comm_hook(Lane(reduction), sum_in)
    return wrapped


def sum_of(group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """The sum of a bucket over all ranks, where DDP would take the mean: the loss was divided by the step's tokens before."""
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])


def sum_in(lane: Lane, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """The same by a reduction of several steps. DDP's bucket lives no longer than this call; its numbers do."""
    return lane.sum(Bucket(bucket.buffer(), bucket.gradients(), bucket.index(), bucket.is_last()))
