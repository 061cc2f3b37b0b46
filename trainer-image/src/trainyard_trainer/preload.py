"""What a parent that forks workers may import before it forks, so that torch is loaded once for all of them.

Modules only: nothing here joins a process group, touches a GPU or starts a thread that would be missing in the child.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterable

TRAINER = (
    "trainyard_trainer.train",
    # Imported by torch when a model is first sharded and when determinism is asked for; half of all that there is
    # to import.
    "torch._dynamo",
    "torch._inductor",
)
"""The trainer, and what it would import only when it first needs it."""
TORCH = (
    "torch",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch._dynamo",  # with the first step of any optimizer
)
"""What a training script of one's own imports, or will."""


class NotForkable(RuntimeError):
    """An import started a thread: a fork would leave its locks behind, held by nobody."""


def preload(modules: Iterable[str] = TRAINER) -> None:
    """Import modules. Raises NotForkable where that started a thread."""
    before = set(threading.enumerate())
    for module in modules:
        importlib.import_module(module)
    started = set(threading.enumerate()) - before
    if started:
        raise NotForkable(f"importing torch started {', '.join(thread.name for thread in started)}")
