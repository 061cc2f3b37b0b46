"""The pages that the kubelet and Prometheus read."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp.test_utils import TestClient, TestServer
from trainyard.telemetry.health import LOOP_STALL_SECONDS, WATCH_SILENCE_SECONDS, Health, application
from trainyard.telemetry.metrics import Metrics


@dataclass
class AWatch:
    kind: str
    synced: bool
    last_activity: float
    failed: float = 0.0

    @property
    def last_alive(self) -> float:
        return max(self.last_activity, self.failed)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def page(health: Health, path: str) -> tuple[int, str]:
    async with TestClient(TestServer(application(health))) as client, client.get(path) as answer:
        return answer.status, await answer.text()


async def test_a_dead_watch_is_an_illness_and_is_named() -> None:
    clock = Clock()
    watches = [AWatch("Node", True, clock.now), AWatch("Pod", True, clock.now)]
    health = Health(watches, Metrics("0"), clock)
    assert await page(health, "/healthz") == (200, "ok\n")
    clock.now += WATCH_SILENCE_SECONDS + 1
    health.beat = watches[0].last_activity = clock.now
    assert await page(health, "/healthz") == (503, "watch/Pod: nothing heard, and no request failed, for 181 s\n")


async def test_a_process_that_the_api_server_does_not_answer_is_not_ill_and_shows_its_silence() -> None:
    clock = Clock()
    watch = AWatch("Node", True, clock.now)
    health = Health([watch], Metrics("0"), clock)
    clock.now += 900
    health.beat, watch.failed = clock.now, clock.now - 60
    assert await page(health, "/healthz") == (200, "ok\n")
    assert health.metrics.registry.get_sample_value("trainyard_watch_silence_seconds", {"kind": "Node"}) == 900


async def test_a_loop_that_stood_still_is_an_illness() -> None:
    clock = Clock()
    health = Health([], Metrics("0"), clock)
    clock.now += LOOP_STALL_SECONDS + 1
    assert await page(health, "/healthz") == (503, "loop: the event loop has not turned for 11 s\n")


async def test_ready_means_that_every_cache_is_whole() -> None:
    watches = [AWatch("Node", True, 0.0), AWatch("Pod", False, 0.0)]
    health = Health(watches, Metrics("0"))
    assert await page(health, "/readyz") == (503, "cache/Pod: not synced\n")
    watches[1].synced = True
    assert await page(health, "/readyz") == (200, "ok\n")


async def test_metrics_are_served_as_text() -> None:
    status, text = await page(Health([], Metrics("0.1.0")), "/metrics")
    assert status == 200
    assert 'trainyard_build_info{version="0.1.0"} 1.0' in text


def test_the_silence_of_each_watch_is_measured() -> None:
    clock = Clock()
    health = Health([AWatch("Node", True, clock.now - 12.0)], Metrics("0"), clock)
    assert health.metrics.registry.get_sample_value("trainyard_watch_silence_seconds", {"kind": "Node"}) == 12.0
