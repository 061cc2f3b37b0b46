"""What a step sends, counted where it is sent: at the process groups.

Logical bytes: the whole buffer of a collective, as its caller hands it over, whatever the backend makes of it: gathered size of
an all-gather, size before the sum of a reduce-scatter, the buffer of an all-reduce, what a send sends. A step sends what every
other step sends, so one is counted, and the others pay nothing for it: the mode below sees every operation of torch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import _resolve_process_group  # type: ignore[attr-defined]
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from trainyard.api.trainer import TrainerConfig
from trainyard.planner.collectives import Collective
from trainyard.planner.model import model_of
from trainyard.planner.traffic import GANG, Bytes, Mesh, traffic

from trainyard_trainer.model.loss import IN_LOSS
from trainyard_trainer.parallel.mesh import AXES, PIPELINE, REPLICATE, SHARD, TENSOR, axes_of, index, size

COUNTED_STEP: Final = 3
"""Of an attempt: the first two also connect, allocate and arrange buckets."""

PLAIN, FUNCTIONAL = torch.ops.c10d, torch.ops._c10d_functional
COLLECTIVES: Final[Mapping[Any, tuple[Collective, str]]] = {
    PLAIN.allreduce_: (Collective.ALL_REDUCE, "tensors"),
    PLAIN._allgather_base_: (Collective.ALL_GATHER, "output_tensor"),
    PLAIN._reduce_scatter_base_: (Collective.REDUCE_SCATTER, "input_tensor"),
    PLAIN.broadcast_: (Collective.BROADCAST, "tensors"),
    PLAIN.send: (Collective.SEND_RECEIVE, "tensors"),
    FUNCTIONAL.all_reduce: (Collective.ALL_REDUCE, "input"),
    FUNCTIONAL.all_reduce_: (Collective.ALL_REDUCE, "input"),
    FUNCTIONAL.all_gather_into_tensor: (Collective.ALL_GATHER, ""),
    FUNCTIONAL.reduce_scatter_tensor: (Collective.REDUCE_SCATTER, "input"),
}
"""By operation: what it is, and which argument is the whole buffer; "" for its result."""


class Line(NamedTuple):
    """What is counted together."""

    axis: str
    kind: Bytes
    collective: Collective


class Sent(NamedTuple):
    """Of one line in one step: bytes of all collectives, and how many there were."""

    size_bytes: int = 0
    collectives: int = 0


def predicted(config: TrainerConfig, mesh: DeviceMesh) -> dict[Line, float]:
    """What a process of this rank's stage should send in a step, by the planner's formulas (trainyard.planner.traffic)."""
    sizes = Mesh(**{axis.name: axis.size for axis in axes_of(mesh)})
    lines: dict[Line, float] = defaultdict(float)
    for entry in traffic(model_of(config), sizes, stage=index(mesh, PIPELINE)):
        lines[Line(entry.axis, entry.kind, entry.collective)] += entry.bytes * entry.count
    return {line: size_bytes for line, size_bytes in lines.items() if size_bytes}


class Ledger:
    """What this rank takes part in during one step."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self._axes = {_members(mesh.get_group(name)): name for name in AXES if size(mesh, name) > 1}
        self.lines: dict[Line, Sent] = defaultdict(Sent)

    @contextmanager
    def counting(self, wanted: bool, together: bool = False) -> Iterator[None]:
        """Count what is sent meanwhile, if it is wanted. together: by all ranks, to agree: control."""
        if not wanted:
            yield
            return
        with _Listening(self, together):
            yield

    def add(self, group: dist.ProcessGroup, collective: Collective, buffers: list[Tensor], together: bool) -> None:
        """One collective in a process group."""
        axis = GANG if together else self._axes.get(_members(group))
        if axis is None:
            return  # a group of one, or one that is none of the mesh's
        line = Line(axis, Bytes.CONTROL if together else kind(axis, collective, buffers), collective)
        sent = self.lines[line]
        size_bytes = sum(buffer.numel() * buffer.element_size() for buffer in buffers)
        self.lines[line] = Sent(sent.size_bytes + size_bytes, sent.collectives + 1)


def kind(axis: str, collective: Collective, buffers: list[Tensor]) -> Bytes:
    """Which class of data it is. Of a step's forward and backward passes, not of what all ranks agree on."""
    if axis in (SHARD, REPLICATE):
        return Bytes.PARAMETERS if collective is Collective.ALL_GATHER else Bytes.GRADIENTS
    if axis == TENSOR and collective is Collective.ALL_REDUCE and not IN_LOSS.get():
        return Bytes.GRADIENTS  # of what all ranks of the group hold whole: the scales of norms
    if axis == PIPELINE and buffers[0].dim() != 3:
        return Bytes.GRADIENTS  # of a tied embedding; the residual stream has three dimensions
    return Bytes.ACTIVATIONS


class _Listening(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, ledger: Ledger, together: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ledger, self._together = ledger, together

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(one, DTensor) for one in types):
            return NotImplemented  # it comes back as the operations on local tensors that it is made of
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        known = COLLECTIVES.get(getattr(func, "_overloadpacket", None))
        if known is not None:
            collective, which = known
            names = (argument.name for argument in func._schema.arguments)
            given = dict(zip(names, args, strict=False)) | kwargs
            whole = given[which] if which else result
            group = (
                _resolve_process_group(given["group_name"])
                if "group_name" in given
                else dist.ProcessGroup.unbox(given["process_group"])
            )
            self._ledger.add(group, collective, whole if isinstance(whole, list) else [whole], self._together)
        return result


def _members(group: dist.ProcessGroup) -> tuple[int, ...]:
    """By its ranks a group is known, whatever object stands for it: no two axes have the same."""
    return tuple(dist.get_process_group_ranks(group))
