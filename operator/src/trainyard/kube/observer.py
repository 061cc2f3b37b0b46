"""What kube/ tells whoever counts: requests, waits, watch events, polls. It never asks anything back."""

from __future__ import annotations

from typing import Protocol


class Observer(Protocol):
    """The operator's metrics fulfil this."""

    def request(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """A request to the API server ended with this HTTP status; 0: with none."""

    def throttled(self, seconds: float) -> None:
        """A request waited this long before it was sent."""

    def watch_event(self, kind: str, type: str) -> None:
        """A watch delivered an event."""

    def relisted(self, kind: str, reason: str) -> None:
        """A watch read the whole list."""

    def polled(self, result: str) -> None:
        """A question to a launcher ended."""


class Unobserved:
    """Nobody counts."""

    def request(self, verb: str, resource: str, code: int, seconds: float) -> None: ...
    def throttled(self, seconds: float) -> None: ...
    def watch_event(self, kind: str, type: str) -> None: ...
    def relisted(self, kind: str, reason: str) -> None: ...
    def polled(self, result: str) -> None: ...
