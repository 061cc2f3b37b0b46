"""When the next request may go out: the rate that we keep ourselves, and the pauses after failures."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(slots=True)
class TokenBucket:
    """A rate with bursts. Whoever asks gets a turn at once or a time to wait; turns are handed out in order.

    per_second: the steady rate; burst: how many turns may be taken at once after a rest. Times are of any monotonic clock.
    """

    per_second: float
    burst: int
    _tokens: float = 0.0
    _at: float = float("-inf")
    _held_until: float = float("-inf")

    def reserve(self, now: float, within: float = float("inf")) -> float | None:
        """Take a turn; returns how many seconds later it is. None, and no turn, where that is longer than `within`."""
        tokens = min(float(self.burst), self._tokens + (now - self._at) * self.per_second) - 1
        wait = max(0.0, -tokens / self.per_second, self._held_until - now)
        if wait > within:
            return None
        self._tokens, self._at = tokens, now
        return wait

    def try_take(self, now: float) -> bool:
        """Take a turn only if it is now."""
        if min(float(self.burst), self._tokens + (now - self._at) * self.per_second) < 1:
            return False
        return self.reserve(now) == 0

    def hold(self, until: float) -> None:
        """No turn before this time: the server asked for rest."""
        self._held_until = max(self._held_until, until)


@dataclass(slots=True)
class Backoff:
    """Pauses that double from `first_seconds` to `most_seconds`, each shortened at random by up to half, so that clients that
    failed together do not come back together."""

    first_seconds: float = 0.2
    most_seconds: float = 30.0
    failures: int = 0

    def pause(self, at_least: float | None = None) -> float:
        """How long to wait after one more failure. at_least: what the server asked for."""
        longest = min(self.most_seconds, self.first_seconds * 2.0 ** min(self.failures, 30))
        self.failures += 1
        return max(longest * random.uniform(0.5, 1.0), at_least or 0.0)

    def reset(self) -> None:
        """It works again."""
        self.failures = 0
