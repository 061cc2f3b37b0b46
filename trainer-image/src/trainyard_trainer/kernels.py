"""How long NCCL's collectives took, as torch's flight recorder has it.

A collective on a GPU is a kernel that runs until all have come. All of them are in the recorder, whoever called: FSDP, DDP's
hook, a tensor group's operations, a pipeline's batches. Asking the piece of work would miss most: a synchronous collective gives
none back (ProcessGroupNCCL::collective), and of a batch of sends and receives only the batch has one. The watchdog looks every
100 ms at which are over and writes down the time between their events (FlightRecorder::retire_id, TORCH_NCCL_ENABLE_TIMING). So
nothing waits within a step, and what a step took is known a little later.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from torch._C import _distributed_c10d as c10d

COALESCED: Final = "coalesced"
"""How the record of a whole batch is called (nccl:coalesced); those of its sends and receives have no events of their own."""
SETTLED_SECONDS: Final = 0.3
"""After which the watchdog has looked at everything that was over, three times as long as it sleeps."""
PATIENCE_SECONDS: Final = 1.0
FIRST_LOOK, LOOKS_APART = 5, 50
"""Steps. A look makes JSON of up to 2000 records, some tens of milliseconds; all ranks look after the same step, so that they are
not held up by each other one after the other."""


class Kernel(NamedTuple):
    """group: the name of the process group."""

    group: str
    point_to_point: bool
    seconds: float


Recorded = Callable[[int, int], Sequence[Kernel] | None]


def recorded(begin_ns: int, end_ns: int) -> list[Kernel] | None:
    """The collectives that were called between two moments of time.time_ns, in their order. None where not all are known: not
    over yet, not timed, or no longer in the recorder."""
    dump = getattr(c10d, "_dump_nccl_trace_json", None)
    if dump is None:
        return None
    try:
        return between(json.loads(dump()).get("entries") or (), begin_ns, end_ns)
    except (RuntimeError, ValueError):
        return None


def between(entries: Sequence[Mapping[str, Any]], begin_ns: int, end_ns: int) -> list[Kernel] | None:
    """The same of the recorder's entries, oldest first."""
    if not entries or (entries[0]["time_created_ns"] > begin_ns and entries[0]["record_id"] > 0):
        return None  # none is kept, or some that may belong here are not
    called = [entry for entry in entries if begin_ns <= entry["time_created_ns"] <= end_ns and not _in_a_batch(entry)]
    if any("duration_ms" not in entry for entry in called):
        return None
    return [Kernel(entry["process_group"][0], bool(entry["is_p2p"]), entry["duration_ms"] / 1000) for entry in called]


def settled(begin_ns: int, end_ns: int, look: Recorded = recorded) -> Sequence[Kernel] | None:
    """`recorded`, waited for: between two steps, once in an attempt."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = look(begin_ns, end_ns)
        if found is not None or time.monotonic() > deadline:
            return found
        time.sleep(SETTLED_SECONDS / 3)


class Share:
    """Which part of its steps a rank is in collectives. It is found of one step in LOOKS_APART, and taken for that of the others
    until the next look; of kernels that run at once each counts, up to the whole step."""

    def __init__(self, look: Recorded = recorded, clock: Callable[[], int] = time.time_ns) -> None:
        self._look, self._clock = look, clock
        self._steps, self._began = 0, clock()
        self._looked_at: tuple[int, int] | None = None
        self._share: float | None = None

    def skip(self) -> None:
        """What was done since the last step is no part of the next one."""
        self._began = self._clock()

    def take(self) -> float | None:
        """Seconds of the step that ends now. None before the first look, and where that found nothing to go by."""
        began, self._began = self._began, self._clock()
        now = self._began
        self._steps += 1
        if self._looked_at is not None and now - self._looked_at[1] >= SETTLED_SECONDS * 1e9:
            self._share, self._looked_at = _share(self._look(*self._looked_at), *self._looked_at), None
        if self._steps % LOOKS_APART == FIRST_LOOK:
            self._looked_at = began, now
        return None if self._share is None else self._share * (now - began) / 1e9


def _share(kernels: Iterable[Kernel] | None, begin_ns: int, end_ns: int) -> float | None:
    if kernels is None or end_ns <= begin_ns:
        return None
    return min(1.0, sum(kernel.seconds for kernel in kernels) * 1e9 / (end_ns - begin_ns))


def _in_a_batch(entry: Mapping[str, Any]) -> bool:
    """Whether it is a send or receive whose time is that of its batch."""
    return bool(entry["is_p2p"]) and "duration_ms" not in entry and not entry["profiling_name"].endswith(COALESCED)
