"""When a job whose last turn failed may be tried again.

Only that job waits: the API server refusing one job's pods (a quota, a webhook) says nothing about the others. The pause doubles
with each failure in a row, as that of conflicts does, and is forgotten at the first success.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

FIRST_SECONDS: Final = 0.5
LONGEST_SECONDS: Final = 60.0
CONFLICT_SECONDS: Final = 0.05
LONGEST_CONFLICT_SECONDS: Final = 5.0
"""The first and the longest pause after conflicts. The newer object is on its way through the watch, and there is nothing to wait
for but that; a watch that lags, or somebody who writes the object again and again, takes its time."""
LASTING: Final = 3
"""Failures in a row from which on the trouble is told to the job's owner rather than to the log alone."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """failures, conflicts: in a row. until: when the job may be tried again."""

    failures: int
    until: float
    conflicts: int = 0


@dataclass(slots=True)
class Backoff:
    """The jobs in trouble, by uid. Times are seconds of one clock, whichever."""

    _troubles: dict[str, Trouble] = field(default_factory=dict)

    def failed(self, job_uid: str, now: float, retry_after_seconds: float | None = None) -> Trouble:
        """A turn failed. retry_after_seconds: what the server asked for, where it asked."""
        failures = self.failures(job_uid) + 1
        pause = min(FIRST_SECONDS * 2.0 ** min(failures - 1, 30), LONGEST_SECONDS)
        trouble = Trouble(failures, now + max(pause, retry_after_seconds or 0.0))
        self._troubles[job_uid] = trouble
        return trouble

    def conflicted(self, job_uid: str, now: float) -> None:
        """A turn was computed from an object that has changed since; this is no failure, and forgives none."""
        before = self._troubles.get(job_uid) or Trouble(0, now)
        pause = min(CONFLICT_SECONDS * 2.0 ** min(before.conflicts, 30), LONGEST_CONFLICT_SECONDS)
        self._troubles[job_uid] = Trouble(before.failures, now + pause, before.conflicts + 1)

    def succeeded(self, job_uid: str) -> None:
        """A turn was carried out whole."""
        self._troubles.pop(job_uid, None)

    def keep(self, job_uids: set[str]) -> None:
        """Forget all jobs but these."""
        for gone in self._troubles.keys() - job_uids:
            del self._troubles[gone]

    def failures(self, job_uid: str) -> int:
        """How many turns of a job failed in a row."""
        trouble = self._troubles.get(job_uid)
        return trouble.failures if trouble else 0

    def waits(self, job_uid: str, now: float) -> bool:
        """Whether the job is to be left alone."""
        trouble = self._troubles.get(job_uid)
        return trouble is not None and now < trouble.until

    def waiting(self, now: float) -> int:
        """How many jobs are left alone."""
        return sum(now < trouble.until for trouble in self._troubles.values())

    def next(self, now: float) -> float | None:
        """When the next job may be tried again; None where none waits."""
        return min((trouble.until for trouble in self._troubles.values() if now < trouble.until), default=None)
