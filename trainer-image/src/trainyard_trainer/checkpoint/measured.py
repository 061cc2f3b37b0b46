"""What saving costs an attempt, as it is measured, and from that when the next save is due."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from trainyard.contract.plan import Checkpoints

from trainyard_trainer.checkpoint.pace import FIRST_SECONDS, Cost, interval_seconds, mttf_seconds

SMOOTHING = 0.3  # weight of the newest step in the moving averages of their time


@dataclass(slots=True)
class Measured:
    """Of one attempt, begun now. settings: the plan's; None: nothing is saved. stall_seconds: what the newest save has cost
    the training so far.
    """

    settings: Checkpoints | None
    ranks: int
    stall_seconds: float = 0.0
    _opened_at: float = field(default_factory=time.monotonic)
    _saved_at: float = field(default_factory=time.monotonic)
    _restart_seconds: float = 0.0
    _step_seconds: dict[bool, float] = field(default_factory=dict)  # moving averages, apart for steps beside a save

    def step(self, seconds: float, *, beside_a_save: bool) -> None:
        """A step is done. The first compiles and allocates: it belongs to the restart."""
        if self._restart_seconds:
            before = self._step_seconds.get(beside_a_save, seconds)
            self._step_seconds[beside_a_save] = before + SMOOTHING * (seconds - before)
        else:
            self._restart_seconds = time.monotonic() - self._opened_at

    def saved(self, began: float) -> None:
        """A call of save that began then, by the monotonic clock, has returned."""
        self._saved_at = time.monotonic()
        self.stall_seconds = self._saved_at - began

    def every_seconds(self, save_seconds: float | None) -> float | None:
        """The interval between saves as it is now; None where it is a number of steps, or nothing is saved.

        save_seconds: how long a save takes until it is durable; None: none has ended yet.
        """
        settings = self.settings
        if settings is None or not settings.every_auto:
            return settings.every_seconds if settings else None
        if save_seconds is None:
            return FIRST_SECONDS
        alone, beside = self._step_seconds.get(False), self._step_seconds.get(True)
        slower = max(beside / alone - 1, 0.0) if alone and beside else 0.0
        cost = Cost(self.stall_seconds, save_seconds, slower, self._restart_seconds)
        return interval_seconds(cost, mttf_seconds(self.ranks, settings.failures, settings.over_seconds))

    def due(self, save_seconds: float | None) -> bool:
        """Whether the time since the last save is over."""
        every = self.every_seconds(save_seconds)
        return every is not None and time.monotonic() - self._saved_at >= every
