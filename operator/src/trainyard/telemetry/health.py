"""`/healthz`, `/readyz` and `/metrics` on one port.

kopf's own probe answers 200 as long as the process serves HTTP, with every watch dead. Here alive means: the event loop turns,
and each watch has heard something, an event, a bookmark or a refusal, or found nobody to hear, within three minutes (the API
server sends a bookmark about every minute). A process that the API server does not answer is not ill: to start it anew would
help nobody, and cost its caches and the Lease. Its silence is a metric.
Ready means that the caches hold a whole list of everything; a standby is ready too, since it takes over with these caches.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from aiohttp import web
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from trainyard.telemetry.metrics import Metrics

WATCH_SILENCE_SECONDS: Final = 180.0
LOOP_STALL_SECONDS: Final = 10.0
_BEAT_SECONDS: Final = 0.5


class Watch(Protocol):
    """What is asked of an informer. last_activity: of `time.monotonic`, when it last heard from the API server; last_alive: the
    same, or when it was last failed by it."""

    @property
    def kind(self) -> str: ...
    @property
    def synced(self) -> bool: ...
    @property
    def last_activity(self) -> float: ...
    @property
    def last_alive(self) -> float: ...


@dataclass(eq=False, slots=True)
class Health(Collector):
    """What is watched over. beat: when the event loop last turned, of `clock`."""

    watches: Sequence[Watch]
    metrics: Metrics
    clock: Callable[[], float] = time.monotonic
    beat: float = field(init=False)

    def __post_init__(self) -> None:
        self.beat = self.clock()
        self.metrics.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """How long each watch has been silent, for Prometheus."""
        silence = GaugeMetricFamily(
            "trainyard_watch_silence_seconds", "Since a watch last heard anything.", labels=["kind"]
        )
        for watch in self.watches:
            silence.add_metric([watch.kind], max(0.0, self.clock() - watch.last_activity))
        yield silence

    async def heartbeat(self) -> None:
        """Beats for ever, and measures by how much each beat is late."""
        while True:
            due = self.clock() + _BEAT_SECONDS
            await asyncio.sleep(_BEAT_SECONDS)
            self.beat = self.clock()
            self.metrics.loop_lag_seconds.set(max(0.0, self.beat - due))

    def illness(self) -> Mapping[str, str]:
        """What is wrong with this process such that starting it anew would help; empty where nothing is."""
        now = self.clock()
        found = {}
        if now - self.beat > LOOP_STALL_SECONDS:
            found["loop"] = f"the event loop has not turned for {now - self.beat:.0f} s"
        for watch in self.watches:
            if now - watch.last_alive > WATCH_SILENCE_SECONDS:
                found[f"watch/{watch.kind}"] = (
                    f"nothing heard, and no request failed, for {now - watch.last_alive:.0f} s"
                )
        return found

    def unready(self) -> Mapping[str, str]:
        """Which caches do not yet hold a whole list."""
        return {f"cache/{watch.kind}": "not synced" for watch in self.watches if not watch.synced}


def application(health: Health) -> web.Application:
    """The three pages. A page of health says 200 and `ok`, or 503 and what is wrong."""

    def page(check: Callable[[], Mapping[str, str]]) -> Callable[[web.Request], object]:
        async def answer(_: web.Request) -> web.Response:
            wrong = check()
            text = "".join(f"{what}: {why}\n" for what, why in sorted(wrong.items()))
            return web.Response(status=503 if wrong else 200, text=text or "ok\n")

        return answer

    async def metrics(request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(health.metrics.registry), headers={"Content-Type": content_type})

    app = web.Application()
    app.router.add_get("/healthz", page(health.illness))  # type: ignore[arg-type]
    app.router.add_get("/readyz", page(health.unready))  # type: ignore[arg-type]
    app.router.add_get("/metrics", metrics)
    return app
