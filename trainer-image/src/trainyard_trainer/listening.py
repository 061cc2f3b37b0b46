"""Hears every collective that this process begins, and when it is done.

A mode of torch sees each operation that is dispatched while it is on, those of process groups among them. Whether a collective is
done is looked at with every operation: what anybody waits for is seen done by the next one. On a GPU nobody waits, and nothing is
looked at: what a collective took is asked afterwards (kernels.py). In a lane of reductions (parallel/buckets.py) the same mode
listens from another thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.distributed_c10d import _resolve_process_group  # type: ignore[attr-defined]
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from trainyard.planner.collectives import Collective

PLAIN, FUNCTIONAL = torch.ops.c10d, torch.ops._c10d_functional
BY_WORK: Final[Mapping[Any, tuple[Collective, str]]] = {
    PLAIN.allreduce_: (Collective.ALL_REDUCE, "tensors"),
    PLAIN._allgather_base_: (Collective.ALL_GATHER, "output_tensor"),
    PLAIN._reduce_scatter_base_: (Collective.REDUCE_SCATTER, "input_tensor"),
    PLAIN.alltoall_base_: (Collective.ALL_TO_ALL, "input"),
    PLAIN.broadcast_: (Collective.BROADCAST, "tensors"),
    PLAIN.send: (Collective.SEND_RECEIVE, "tensors"),
}
"""By operation that answers with a piece of work: what it is, and which argument is the whole buffer."""
BY_RESULT: Final[Mapping[Any, tuple[Collective, str]]] = {
    FUNCTIONAL.all_reduce: (Collective.ALL_REDUCE, "input"),
    FUNCTIONAL.all_reduce_: (Collective.ALL_REDUCE, "input"),
    FUNCTIONAL.all_gather_into_tensor: (Collective.ALL_GATHER, ""),
    FUNCTIONAL.reduce_scatter_tensor: (Collective.REDUCE_SCATTER, "input"),
}
"""The same for operations that answer with a tensor, which is waited for by another operation. "": the result is the buffer."""


class _Going(NamedTuple):
    """A collective on its way. waited_by: the thread that does nothing else until it is done; 0: none."""

    work: dist.Work
    what: Any
    began: float
    waited_by: int


Begun = Callable[[dist.ProcessGroup, Collective, Sequence[Tensor]], Any]
Done = Callable[[Any, float, float], None]


class Listening(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Calls `begun` with each collective, and `done` with what that answered and with when it began and ended, by the clock of
    time.perf_counter. What is received is told to `done` alone, with None. done: None where the host does not wait."""

    def __init__(self, begun: Begun, done: Done | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._begun, self._done, self._lock = begun, done, threading.Lock()
        self._going: list[_Going] = []
        self._awaited: dict[int, tuple[Any, float]] = {}  # by the address of the result

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(one, DTensor | AsyncCollectiveTensor) for one in types):
            return NotImplemented  # it comes back as the operations on local tensors that it is made of
        kwargs = kwargs or {}
        self._look()
        began = time.perf_counter()
        result = func(*args, **kwargs)
        operation = getattr(func, "_overloadpacket", None)
        if operation in BY_WORK:
            what = self._hear(BY_WORK[operation], func, args, kwargs, result)
            self._follow(result, what, began, waited=not _arguments(func, args, kwargs).get("async_op", True))
        elif operation in BY_RESULT:
            what = self._hear(BY_RESULT[operation], func, args, kwargs, result)
            if self._done is not None:
                self._awaited[result.data_ptr()] = what, began
        elif operation is PLAIN.recv_:
            self._follow(result, None, began, waited=False)
        elif self._awaited and operation is FUNCTIONAL.wait_tensor and args[0].data_ptr() in self._awaited:
            assert self._done is not None
            self._done(*self._awaited.pop(args[0].data_ptr()), time.perf_counter())
        return result

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        self._look()

    def _hear(self, known: tuple[Collective, str], func: Any, args: Any, kwargs: Any, result: Any) -> Any:
        collective, which = known
        given = _arguments(func, args, kwargs)
        whole = given[which] if which else result
        if "group_name" in given:
            group = _resolve_process_group(given["group_name"])
        else:
            group = dist.ProcessGroup.unbox(given["process_group"])
        return self._begun(group, collective, whole if isinstance(whole, list) else [whole])

    def _follow(self, result: Any, what: Any, began: float, waited: bool) -> None:
        """waited: whether this thread waits for it before it does anything else."""
        if self._done is None:
            return
        work = dist.Work.unbox(result[-1] if isinstance(result, tuple) else result)
        if work is None:
            return  # one of a batch that is begun as a whole
        with self._lock:
            self._going.append(_Going(work, what, began, threading.get_ident() if waited else 0))

    def _look(self) -> None:
        """Which collectives are done by now."""
        if not self._going:
            return
        now, me = time.perf_counter(), threading.get_ident()
        with self._lock:
            ended = [one for one in self._going if one.waited_by == me or one.work.is_completed()]
            self._going = [one for one in self._going if one not in ended]
        for one in ended:
            assert self._done is not None
            self._done(one.what, one.began, now)


def _arguments(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    names = (argument.name for argument in func._schema.arguments)
    return {**dict(zip(names, args, strict=False)), **kwargs}
