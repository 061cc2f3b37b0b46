"""A process group of the preflight's own, which is given up where a message does not get through in time.

Over gloo a message that is lost ends in an error after the group's timeout. Over NCCL the host waits for a kernel that never
ends, and what ends it is torch's watchdog: it takes the process down, and nobody hears which link it was. So messages are sent by
a thread that may get stuck. Who waits for it does so until a time of its own, and then aborts the group, which ends the kernel.
The group is of two ranks or more, made by these alone, and shares nothing with the gang's own.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend
from torch.distributed.distributed_c10d import Store

log = logging.getLogger("trainyard_trainer.preflight")

T = TypeVar("T")

LEFT_ALONE: Final = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
"""The watchdog of a group that is made by these ends no process, neither by a timeout nor by an adapter's error."""
WATCHED_SECONDS: Final = 3600.0
"""Of a group over NCCL: torch's own timeout, which is to come after ours in any case."""
ABORT_SECONDS: Final = 5.0
"""How long an abort may take."""
FREED_SECONDS: Final = 1.0
"""How long a stuck thread is then waited for. One of gloo's stays until gloo gives up."""

FREED: Final = ABORT_SECONDS + FREED_SECONDS


def within(
    seconds: float,
    device: torch.device,
    connect: Callable[[], dist.ProcessGroup],
    measure: Callable[[dist.ProcessGroup], T],
) -> T | None:
    """What `measure` finds over a group of its own; None where it does not come to an end in time, or breaks off."""
    groups: list[dist.ProcessGroup] = []
    found: list[T] = []
    wrong: list[Exception] = []

    def run() -> None:
        try:
            if device.type == "cuda":
                torch.cuda.set_device(device)  # it is the thread's
            groups.append(connect())
            found.append(measure(groups[0]))
        except Exception as error:
            wrong.append(error)

    thread = threading.Thread(target=run, name="preflight", daemon=True)
    thread.start()
    thread.join(seconds)
    in_time = not thread.is_alive()
    for group in groups:  # waits for no other rank, as an orderly end over NCCL would
        ending = threading.Thread(target=group.abort, name="preflight abort", daemon=True)
        ending.start()
        ending.join(ABORT_SECONDS)
    thread.join(FREED_SECONDS)
    for error in wrong:
        if not isinstance(error, RuntimeError):
            raise error
        log.warning("%s", error)
    return found[0] if in_time and found else None


def group(store: Store, rank: int, ranks: int, device: torch.device, seconds: float) -> dist.ProcessGroup:
    """The rank in it, of so many that call this with the same store and no other. seconds: until gloo gives a message up."""
    made = dist.ProcessGroup(store, rank, ranks)
    backend: Backend
    if device.type == "cuda":
        kind, backend = dist.ProcessGroup.BackendType.NCCL, _nccl(store, rank, ranks)
    else:
        kind = dist.ProcessGroup.BackendType.GLOO
        backend = dist.ProcessGroupGloo(store, rank, ranks, timedelta(seconds=seconds))
    made._set_default_backend(kind)
    made._register_backend(torch.device(device.type), kind, backend)
    return made


def _nccl(store: Store, rank: int, ranks: int) -> Backend:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=WATCHED_SECONDS)
    with _unhandled():
        return dist.ProcessGroupNCCL(store, rank, ranks, options)


@contextmanager
def _unhandled() -> Iterator[None]:
    """A group reads what it does on an error from the environment, when it is made."""
    before = {name: os.environ.get(name) for name in LEFT_ALONE}
    os.environ.update(LEFT_ALONE)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
