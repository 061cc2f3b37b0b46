"""Requests to an API server that is busy, broken, slow or not there."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration
from support.api import wait_until
from support.unruly import status
from trainyard.kube import resources
from trainyard.kube.client import LONGEST_HOLD_SECONDS, REQUEST_SECONDS, KubeClient
from trainyard.kube.errors import LONGEST_REST_SECONDS, ApiError
from trainyard.kube.observer import Unobserved
from trainyard.kube.pacing import TokenBucket

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "n"}}


class Server:
    """Answers each request with the next of `answers`, and with the body it was sent where there are none left."""

    def __init__(self) -> None:
        self.answers: list[Handler] = []
        self.seen: list[tuple[web.Request, bytes]] = []
        self.times: list[float] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.seen.append((request, body))
        self.times.append(asyncio.get_running_loop().time())
        if self.answers:
            return await self.answers.pop(0)(request)
        return web.Response(body=body if body.startswith(b"{") else b"{}", content_type="application/json")


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


@pytest.fixture
def codes() -> list[int]:
    """The answers that the client has seen."""
    return []


@pytest.fixture
async def client(server, codes) -> AsyncIterator[KubeClient]:
    class Observer(Unobserved):
        def request(self, verb: str, resource: str, code: int, seconds: float) -> None:
            codes.append(code)

    configuration = Configuration(host=server.url)
    async with KubeClient(configuration, Observer(), bucket=TokenBucket(1000, 1000), backoff_seconds=0.01) as made:
        yield made


def answering(code: int, reason: str = "", message: str = "", **headers: str) -> Handler:
    async def answer(_: web.Request) -> web.StreamResponse:
        return status(code, reason, message, **headers)

    return answer


async def never(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    return web.Response()


async def slowly(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(0.2)
    return web.json_response(POD)


async def hang_up(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


@pytest.mark.parametrize(
    "trouble", [answering(503), answering(500), answering(429), hang_up], ids=["503", "500", "429", "cut"]
)
async def test_what_may_pass_is_asked_again_with_the_same_request(server, client, trouble):
    server.answers = [trouble, trouble]
    made = await client.create(resources.PODS, POD)
    assert made == POD
    assert [(r.method, r.path, json.loads(body)) for r, body in server.seen] == [
        ("POST", "/api/v1/namespaces/n/pods", POD)
    ] * 3


@pytest.mark.parametrize("code", [400, 401, 403, 404, 409, 422])
async def test_a_verdict_is_not_asked_for_twice(server, client, code):
    server.answers = [answering(code, "Reason", "the sentence")]
    with pytest.raises(ApiError) as raised:
        await client.create(resources.PODS, POD)
    error = raised.value
    assert (error.code, error.reason, error.message, len(server.seen)) == (code, "Reason", "the sentence", 1)


async def test_a_server_in_lasting_trouble_is_left_after_a_few_attempts(server, client):
    server.answers = [answering(503, "ServiceUnavailable", "away")] * 10
    with pytest.raises(ApiError) as raised:
        await client.get(resources.PODS, "n", "p")
    assert raised.value.temporary
    assert len(server.seen) == 4


async def test_retry_after_holds_every_request_back(server, client, codes):
    server.answers = [answering(429, "TooManyRequests", Retry_After="1")]
    first = asyncio.create_task(client.get(resources.PODS, "n", "p"))

    async def answered() -> list[int]:
        return codes

    await wait_until(answered, bool, what="the answer")
    await client.get(resources.PODS, "n", "other")
    await first
    assert all(later - server.times[0] >= 1.0 for later in server.times[1:])


async def test_a_request_whose_turn_comes_too_late_fails_at_once_and_unsent(server, client):
    server.answers = [answering(429, "TooManyRequests", Retry_After="1000")]
    with pytest.raises(ApiError) as raised:
        await client.get(resources.PODS, "n", "p", attempts=1)
    assert raised.value.retry_after_seconds == LONGEST_REST_SECONDS
    began = time.monotonic()
    with pytest.raises(ApiError, match="the server asked for rest") as raised:
        await client.get(resources.PODS, "n", "p", seconds=LONGEST_HOLD_SECONDS / 2)
    assert (raised.value.temporary, len(server.seen)) == (True, 1)
    assert time.monotonic() - began < 5
    wait = client._bucket.reserve(time.monotonic())
    assert LONGEST_HOLD_SECONDS - 5 < wait <= LONGEST_HOLD_SECONDS < REQUEST_SECONDS


async def test_what_fails_one_request_holds_back_no_other(server, client):
    server.answers = [answering(500, "InternalError", Retry_After="20")]
    with pytest.raises(ApiError):
        await client.get(resources.PODS, "n", "p", attempts=1)
    await client.get(resources.PODS, "n", "other", seconds=5)
    assert server.times[1] - server.times[0] < 5


async def test_a_request_has_its_whole_time_from_its_turn_on(server, client):
    client._bucket.hold(time.monotonic() + 0.3)
    server.answers = [slowly]
    assert await client.get(resources.PODS, "n", "p", seconds=0.4) == POD


async def test_a_slow_server_is_given_the_time_it_was_promised_and_no_more(server, client):
    server.answers = [never]
    with pytest.raises(ApiError) as raised:
        await client.get(resources.PODS, "n", "p", seconds=0.2)
    assert (raised.value.code, raised.value.temporary) == (0, True)


async def test_a_proxys_page_is_an_error_that_can_be_read(server, client):
    async def page(_: web.Request) -> web.StreamResponse:
        return web.Response(status=404, text="<html>not here</html>", content_type="text/html")

    async def no_json(_: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>welcome</html>", content_type="text/html")

    server.answers = [page, no_json]
    with pytest.raises(ApiError, match="not here"):
        await client.get(resources.PODS, "n", "p")
    with pytest.raises(ApiError, match="expected an object"):
        await client.get(resources.PODS, "n", "p")


async def test_bodies_go_out_in_the_form_that_their_verb_wants(server, client):
    await client.patch(resources.PODS, "n", "p", {"metadata": {"labels": {"a": "b"}}})
    await client.patch(resources.PODS, "n", "p", [{"op": "test", "path": "/x", "value": 1}])
    await client.apply(resources.PODS, POD)
    await client.delete(resources.PODS, "n", "p", uid="u", grace_seconds=0)
    kinds = [request.headers["Content-Type"] for request, _ in server.seen]
    assert kinds == [
        "application/merge-patch+json",
        "application/json-patch+json",
        "application/apply-patch+yaml",
        "application/json",
    ]
    assert dict(server.seen[2][0].query) == {"fieldManager": "trainyard", "force": "true"}
    assert json.loads(server.seen[3][1]) == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "propagationPolicy": "Background",
        "preconditions": {"uid": "u"},
        "gracePeriodSeconds": 0,
    }
