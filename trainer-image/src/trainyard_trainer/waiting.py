"""How long this rank waits for others, and which collective it waits in.

A rank that is slow is the one that waits least: everybody else waits for it, in whichever collective comes next. So what is
measured is the time inside collectives, and a rank's own time is the rest of its step.

    gloo   a collective blocks the thread that waits for it: its time is that of Work.wait and, in tensor groups, of wait_tensor,
           whoever calls them (FSDP, a pipeline, a script). DDP waits in C++ at the end of the backward pass: from the moment when
           the last gradient is there until the engine's other callbacks are over.
    NCCL   the host waits for nothing, and a collective is a kernel: its time is the kernel's, of one step in fifty, and the steps
           until the next look are taken to wait for the same part of their time (kernels.py). Where torch does not measure,
           nothing is said.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C import _distributed_c10d as c10d
from torch.distributed import _functional_collectives as functional
from torch.distributed.tensor import DTensor

from trainyard_trainer import kernels

TIMING: Final = "TORCH_NCCL_ENABLE_TIMING"


class Waits:
    """Counts from `begin` to `end` what this process waits in collectives. Only the thread that began is counted: a save that
    goes on beside the training waits for nobody's step."""

    def __init__(self, device: torch.device) -> None:
        self.inside = False
        """Whether the training's thread is in a wait right now."""
        self._on_gpu = device.type == "cuda"
        self._thread = threading.get_ident()
        self._seconds = 0.0
        self._wait: Callable[..., Any] | None = None
        self._wait_tensor: Any = None
        timed = os.environ.get(TIMING, "").lower() in ("1", "true")
        self._share = kernels.Share() if self._on_gpu and timed else None

    def begin(self) -> None:
        """From now on."""
        if self._on_gpu:
            return
        self._wait = wait = c10d.Work.wait

        def timed(work: Any, *arguments: Any, **named: Any) -> Any:
            if threading.get_ident() != self._thread:
                return wait(work, *arguments, **named)
            with self._counted():
                return wait(work, *arguments, **named)

        c10d.Work.wait = timed  # type: ignore[method-assign, assignment]
        self._wait_tensor = functional.wait_tensor

        def timed_tensor(tensor: Tensor) -> Any:
            # What is being compiled is looked through first, and never runs here.
            if torch.compiler.is_compiling() or threading.get_ident() != self._thread:
                return self._wait_tensor(tensor)
            with self._counted():
                return self._wait_tensor(tensor)

        functional.wait_tensor = timed_tensor

    def end(self) -> None:
        """No more."""
        if self._wait is not None:
            c10d.Work.wait = self._wait  # type: ignore[method-assign]
            functional.wait_tensor = self._wait_tensor
            self._wait = self._wait_tensor = None

    @contextmanager
    def _counted(self) -> Iterator[None]:
        began, self.inside = time.perf_counter(), True
        try:
            yield
        finally:
            self._seconds += time.perf_counter() - began
            self.inside = False

    def follow(self, model: nn.Module) -> None:
        """Count what the backward pass of copies (DDP) waits for; model: wrapped, or what is wrapped."""
        parameter = next((one for one in model.parameters() if one.requires_grad), None)
        if parameter is None or self._on_gpu or isinstance(parameter, DTensor):
            return
        queue = torch.autograd.Variable._execution_engine.queue_callback

        def over(began: float, counted: float) -> None:
            inside = self._seconds - counted
            self._seconds += max(time.perf_counter() - began - inside, 0.0)

        def computed() -> (
            None
        ):  # all gradients are there; what was asked for before, such as DDP's wait, comes after this
            began, counted = time.perf_counter(), self._seconds
            queue(lambda: over(began, counted))

        def accumulated(_: Tensor) -> None:
            queue(computed)

        parameter.register_post_accumulate_grad_hook(accumulated)  # type: ignore[no-untyped-call]

    def take(self) -> float | None:
        """Seconds since the last time it was asked, or since the beginning; None where they cannot be known."""
        if self._on_gpu:
            return None if self._share is None else self._share.take()
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def skip(self) -> None:
        """What was waited for since then was not another rank's step."""
        self._seconds = 0.0
        if self._share is not None:
            self._share.skip()


class Entered:
    """What this rank has entered of the collectives of some process groups."""

    def __init__(self, groups: Iterable[dist.ProcessGroup | None]) -> None:
        named: dict[str, Any] = {group.group_name: group for group in groups if group is not None}
        self._groups = list(named.values())

    def count(self) -> int:
        """All of them together."""
        try:
            return sum(int(group._get_sequence_number_for_group()) for group in self._groups)
        except (AttributeError, RuntimeError):  # a backend that counts nothing, or a group that is gone
            return 0

    def waits_in(self) -> str:
        """The collective that was entered and is not over by torch's flight recorder: all_reduce 7 of default_pg. "" for none."""
        names = {str(group.group_name) for group in self._groups}
        for record in _records():
            text = _pending(record, names)
            if text:
                return text
        return ""


def _records() -> Iterable[Mapping[str, Any]]:
    """What the recorders of the backends hold; those of a torch that has none are left out."""
    for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
        dump = getattr(c10d, name, None)
        if dump is None:
            continue
        try:
            record = json.loads(dump())
        except (RuntimeError, ValueError):
            continue
        if isinstance(record, dict):
            yield record


def _pending(record: Mapping[str, Any], names: Collection[str]) -> str:
    """The oldest collective of these groups that is under way: its kind, its number in its group, and the group."""
    status = record.get("pg_status") or {}
    for entry in record.get("entries") or ():
        group = entry.get("process_group") or ("", "")
        number = int(entry.get("p2p_seq_id" if entry.get("is_p2p") else "collective_seq_id", 0))
        done = (status.get(str(entry.get("pg_id"))) or {}).get("last_completed_collective", -1)
        over = entry.get("retired") or entry.get("state") == "completed"
        if group[0] in names and not over and (entry.get("is_p2p") or number > int(done)):
            name = str(entry.get("profiling_name", "")).rpartition(":")[2] or "collective"
            return f"{name} {number} of {group[1] or group[0]}"
    return ""
