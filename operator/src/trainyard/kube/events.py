"""Events on TrainingJobs: said once, counted when repeated, and never in anybody's way.

An event that was said already becomes a series of the first one; a job that has too much to say is cut short, and so is
everything when the API server does not keep up. Losing an event loses nothing else: conditions hold what matters.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from trainyard.api import names
from trainyard.api.model import rfc3339
from trainyard.cycle.actions import Announce
from trainyard.kube import resources
from trainyard.kube.client import KubeClient
from trainyard.kube.errors import ApiError
from trainyard.kube.pacing import TokenBucket

log = logging.getLogger(__name__)

CONTROLLER: Final = f"{names.GROUP}/operator"
SERIES_SECONDS: Final = 600.0
"""A repetition after a longer time is a new event."""
SERIES_PAUSE_SECONDS: Final = 10.0
"""Between two updates of one series, so that its count costs less than what it counts."""
EVENTS_PER_SECOND: Final = 0.1
EVENTS_BURST: Final = 25
"""For each job."""
MAX_WAITING: Final = 1000
_MOST_SERIES: Final = 5000
_NOTE_BYTES: Final = 1024
"""The API server takes no longer note (events.k8s.io/v1)."""


@dataclass(slots=True)
class _Series:
    """An event that was said. written: of the monotonic clock, when the API server last took it; count: how often it was said."""

    name: str
    written: float
    said: float
    count: int = 1
    queued: bool = True


class Recorder:
    """Writes events while `run` runs. dropped: how many never will be."""

    def __init__(
        self,
        client: KubeClient,
        instance: str,
        clock: Callable[[], float] = time.time,
        pause_seconds: float = SERIES_PAUSE_SECONDS,
    ) -> None:
        self._client = client
        self._instance = instance
        self._clock = clock
        self._pause_seconds = pause_seconds
        self._series: dict[Announce, _Series] = {}
        self._buckets: dict[str, TokenBucket] = {}
        self._queue: asyncio.Queue[Announce] = asyncio.Queue(MAX_WAITING)
        self.dropped = 0

    def announce(self, event: Announce) -> None:
        """Say it, sooner or later. Returns at once."""
        now = time.monotonic()
        series = self._series.get(event)
        if series is not None and now - series.said < SERIES_SECONDS:
            series.count, series.said = series.count + 1, now
            if not series.queued and now - series.written >= self._pause_seconds:
                series.queued = self._put(event)
            return
        bucket = self._buckets.setdefault(event.uid, TokenBucket(EVENTS_PER_SECOND, EVENTS_BURST))
        if not bucket.try_take(now):
            self.dropped += 1
            return
        self._forget_old(now)
        if self._put(event):
            self._series[event] = _Series(f"{event.name}.{secrets.token_hex(8)}", now, now)

    async def run(self) -> None:
        """Write what was said, until cancelled."""
        while True:
            event = await self._queue.get()
            series = self._series.get(event)
            if series is None:
                continue
            series.queued, series.written, count = False, time.monotonic(), series.count
            try:
                await self._write(event, series, count)
            except ApiError as error:
                log.debug("an event was not taken: %s", error)
                self._drop(event)
            except Exception:
                log.exception("an event cannot be written: a bug")
                self._drop(event)

    async def _write(self, event: Announce, series: _Series, count: int) -> None:
        now = rfc3339(self._clock())
        if count > 1:
            repeated = {"series": {"count": count, "lastObservedTime": _micro(now)}}
            try:
                await self._client.patch(resources.EVENTS, event.namespace, series.name, repeated, attempts=2)
                return
            except ApiError as error:
                if not error.not_found:
                    raise
        await self._client.create(
            resources.EVENTS,
            {
                "apiVersion": resources.EVENTS.api_version,
                "kind": "Event",
                "metadata": {"namespace": event.namespace, "name": series.name},
                "eventTime": _micro(now),
                "reportingController": CONTROLLER,
                "reportingInstance": self._instance,
                "action": "Reconcile",
                "type": event.kind,
                "reason": event.reason,
                "note": _note(event.message),
                "regarding": {
                    "apiVersion": names.API_VERSION,
                    "kind": names.KIND_JOB,
                    "namespace": event.namespace,
                    "name": event.name,
                    "uid": event.uid,
                },
            },
            attempts=2,
        )

    def _drop(self, event: Announce) -> None:
        self.dropped += 1
        self._series.pop(event, None)

    def _put(self, event: Announce) -> bool:
        try:
            self._queue.put_nowait(event)
        except asyncio.QueueFull:
            self.dropped += 1
            return False
        return True

    def _forget_old(self, now: float) -> None:
        if len(self._series) > _MOST_SERIES:
            self._series = {e: s for e, s in self._series.items() if s.queued or now - s.said < SERIES_SECONDS}
            self._buckets = {e.uid: self._buckets[e.uid] for e in self._series if e.uid in self._buckets}


def _note(message: str) -> str:
    """The message in _NOTE_BYTES, cut between characters."""
    return message.encode("utf-8", "replace")[:_NOTE_BYTES].decode("utf-8", "ignore")


def _micro(instant: str) -> str:
    """A MicroTime: it wants its six digits even where they are zeros."""
    return instant if "." in instant else instant.replace("Z", ".000000Z")
