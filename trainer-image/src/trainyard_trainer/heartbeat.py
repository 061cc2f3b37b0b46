"""A thread that says every few seconds that this rank is there, what it has entered, and what it takes.

It speaks while the training compiles, loads, or waits, and falls silent only with the whole process. What it costs is part of
what it says: `python -m benchmarks.recovery` compares its CPU time with that of the steps.
"""

from __future__ import annotations

import resource
import threading
import time

import torch

from trainyard_trainer.report import Reporter
from trainyard_trainer.waiting import Entered, Waits

BEAT_SECONDS = 5.0
SENDING = "a send or receive"


class Heartbeat:
    """Beats from `begin` to `end`."""

    def __init__(self, report: Reporter, entered: Entered, waits: Waits, device: torch.device) -> None:
        self._report, self._entered, self._waits, self._device = report, entered, waits, device
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def begin(self) -> None:
        """From now on."""
        self._thread.start()

    def end(self) -> None:
        """No more; on return the thread is gone."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        before = -1
        while True:
            entered = self._entered.count()
            # A dump of the recorder costs more than all the rest, so it is made only where nothing moved since the last beat.
            waits_in = self._waits_in() if entered == before else ""
            before = entered
            self._report.beat(
                entered=entered,
                waits_in=waits_in,
                memory_bytes=peak_memory_bytes(self._device),
                cpu_seconds=time.thread_time(),
            )
            if self._over.wait(BEAT_SECONDS):
                return

    def _waits_in(self) -> str:
        """gloo's recorder has collectives, and nothing of what a pipeline sends."""
        return self._entered.waits_in() or (SENDING if self._waits.inside else "")


def peak_memory_bytes(device: torch.device) -> int:
    """Most memory taken so far: what tensors had on the GPU, or the process's resident set on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
