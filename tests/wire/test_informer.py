"""An informer against a server that does everything wrong that an API server has been seen to do."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration
from support import unruly
from support.api import wait_until
from support.unruly import UnrulyServer
from trainyard.kube.client import KubeClient
from trainyard.kube.informer import Informer, Kind, Pace
from trainyard.kube.pacing import TokenBucket
from trainyard.kube.resources import Resource
from trainyard.kube.shapes import CustomShape, Shape

THINGS = Kind("things", Resource("v1", "things"), Shape(CustomShape), lambda raw: raw.get("spec"), by_name=True)
OPTIONAL = replace(THINGS, optional=True)
QUICK = Pace(first_pause_seconds=0.01, longest_pause_seconds=0.05, silence_seconds=5)
QUICK_TO_ASK = replace(QUICK, absent_seconds=0.02)


@pytest.fixture
async def server() -> AsyncIterator[UnrulyServer]:
    async with UnrulyServer() as running:
        yield running


def a_client(server: UnrulyServer, log: "Log") -> KubeClient:
    return KubeClient(Configuration(host=server.url), log, bucket=TokenBucket(10_000, 10_000), backoff_seconds=0.01)


class Log:
    """Counts what the informer reports."""

    def __init__(self) -> None:
        self.relists: list[str] = []
        self.events: list[str] = []
        self.codes: list[int] = []

    def request(self, verb: str, resource: str, code: int, seconds: float) -> None:
        self.codes.append(code)

    def throttled(self, seconds: float) -> None: ...

    def watch_event(self, kind: str, type: str) -> None:
        self.events.append(type)

    def relisted(self, kind: str, reason: str) -> None:
        self.relists.append(reason)

    def polled(self, result: str) -> None: ...


@asynccontextmanager
async def informing(
    server: UnrulyServer, kind: Kind = THINGS, pace: Pace = QUICK
) -> AsyncIterator[tuple[Informer, Log]]:
    log = Log()
    async with a_client(server, log) as client:
        informer = Informer(client, kind, observer=log, pace=pace)
        task = asyncio.create_task(informer.run())
        try:
            yield informer, log
            assert not task.done(), "the informer gave up"
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def until(informer: Informer, *names: str) -> None:
    """Wait until the informer holds just these."""

    async def look() -> list[str]:
        return sorted(informer.records)

    await wait_until(
        look, lambda seen: informer.synced and seen == sorted(names), what=f"{names} to be known", seconds=10
    )


async def open_watch(server: UnrulyServer) -> None:
    async def look() -> int:
        return server.watching

    await wait_until(look, lambda count: count > 0, what="a watch")


async def test_a_list_is_read_in_pages_and_then_followed(server):
    for number in range(1203):
        server.put(f"thing-{number:04}", spec={"n": number})
    async with informing(server) as (informer, _):
        await until(informer, *server.objects)
        pages = [r for r in server.requests if "watch" not in r.query]
        assert [r.query.get("limit") for r in pages] == ["500", "500", "500"]
        server.put("late", spec={"n": -1})
        server.remove("thing-0007")
        await until(informer, *server.objects)
        assert informer.records["late"] == {"n": -1}


@pytest.mark.parametrize("expiry", [unruly.gone, unruly.gone_in_stream])
async def test_what_was_deleted_during_a_410_is_gone_afterwards(server, expiry):
    server.put("kept", spec={})
    server.put("deleted", spec={})
    async with informing(server) as (informer, log):
        await until(informer, "deleted", "kept")
        await open_watch(server)
        server.watches.append(expiry)
        server.cut()
        server.objects.pop("deleted")  # nobody is told
        server.version += 1
        server.forget_history()
        await until(informer, "kept")
        assert "expired" in log.relists


async def test_a_continue_token_that_expired_begins_the_list_again(server):
    for number in range(700):
        server.put(f"thing-{number}", spec={})

    async def first_page(request: web.Request) -> web.StreamResponse:
        return await server.list(request)

    server.lists.extend([first_page, unruly.gone])
    async with informing(server) as (informer, _):
        await until(informer, *server.objects)
        assert "limit" not in server.requests[2].query


async def test_a_busy_server_is_left_alone_for_as_long_as_it_asks(server):
    server.put("thing", spec={})
    server.lists.append(unruly.busy)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    async with informing(server) as (informer, log):
        await until(informer, "thing")
    assert loop.time() - begun >= 1.0
    assert log.codes[:2] == [429, 200]


async def test_a_stream_that_is_cut_in_the_middle_of_a_line_goes_on_from_the_last_whole_one(server):
    async with informing(server) as (informer, log):
        await until(informer)
        await open_watch(server)
        server.put("whole", spec={})
        await until(informer, "whole")
        server.say(b'{"type":"ADDED","object":{"metadata":{"name":"half","uid"')
        server.cut()
        server.put("next", spec={})
        await until(informer, "next", "whole")
        assert log.relists == ["start"]


async def test_a_line_that_comes_in_small_pieces_is_one_event(server):
    async with informing(server) as (informer, _):
        await until(informer)
        await open_watch(server)
        meta = {"name": "slow", "namespace": "n", "uid": "u", "resourceVersion": "200"}
        line = json.dumps({"type": "ADDED", "object": {"metadata": meta, "spec": {"text": "x" * 5_000_000}}}).encode()
        for at in range(0, len(line), 700_000):
            server.say(line[at : at + 700_000])
        server.say(b"\n")
        await until(informer, "slow")
        assert len(informer.records["slow"]["text"]) == 5_000_000


@pytest.mark.parametrize(
    "garbage",
    [
        b"not json\n",
        b"[1, 2]\n",
        b'{"type": "ADDED"}\n',
        b'{"type": "ADDED", "object": {"metadata": {"name": "x"}}}\n',
        b'{"type": "UNHEARD", "object": {"metadata": {"name": "x", "uid": "x", "resourceVersion": "1"}}}\n',
        b"[" * 100_000 + b"\n",
    ],
    ids=["text", "list", "no object", "no version", "unheard-of type", "deep"],
)
async def test_garbage_in_a_stream_makes_the_informer_read_the_list_again(server, garbage):
    async with informing(server) as (informer, log):
        await until(informer)
        await open_watch(server)
        server.objects["unannounced"] = {
            "metadata": {"name": "unannounced", "uid": "u", "resourceVersion": "99"},
            "spec": {},
        }
        server.say(garbage)
        await until(informer, "unannounced")
        assert "garbled" in log.relists


async def test_one_object_that_makes_no_sense_hides_no_other(server):
    server.put("fine", spec={})
    server.put("odd", spec={}, uid="odd")
    server.objects["odd"]["metadata"]["labels"] = {"a": 1}
    async with informing(server) as (informer, _):
        await until(informer, "fine")
        await open_watch(server)
        assert informer.undecodable == 1
        server.put("later", spec={})
        await until(informer, "fine", "later")
        server.put("odd", spec={"mended": True}, uid="odd")
        await until(informer, "fine", "later", "odd")


async def test_an_object_that_stops_making_sense_stays_as_it_was_known(server):
    server.put("thing", spec={"n": 1})
    async with informing(server) as (informer, _):
        await until(informer, "thing")
        await open_watch(server)
        meta = {"name": "thing", "namespace": "n", "uid": "uid-thing", "resourceVersion": "300", "labels": 5}
        server.say(json.dumps({"type": "MODIFIED", "object": {"metadata": meta}}).encode() + b"\n")
        server.put("after", spec={})
        await until(informer, "after", "thing")
        assert informer.records["thing"] == {"n": 1}
        server.remove("thing")
        await until(informer, "after")


async def test_a_silent_stream_is_given_up(server):
    server.put("thing", spec={})
    async with informing(server, pace=Pace(0.01, 0.05, silence_seconds=0.3)) as (informer, _):
        await until(informer, "thing")

        async def watches() -> int:
            return sum("watch" in request.query for request in server.requests)

        await wait_until(watches, lambda count: count >= 3, what="the third watch", seconds=10)


async def test_an_informer_whose_server_is_gone_is_silent_and_alive(server):
    server.put("thing", spec={})
    async with informing(server) as (informer, _):
        await until(informer, "thing")
        await open_watch(server)
        await server.stop()
        began = time.monotonic()

        async def alive() -> float:
            return informer.last_alive

        await wait_until(alive, lambda at: at > began, what="a request that failed", seconds=10)
        assert informer.last_activity < began


async def test_bookmarks_advance_the_version_so_that_a_cut_stream_needs_no_list(server):
    async with informing(server) as (informer, log):
        await until(informer)
        await open_watch(server)
        server.version = 5000
        server.bookmark()

        async def bookmarks() -> int:
            return log.events.count("BOOKMARK")

        await wait_until(bookmarks, lambda count: count == 1, what="the bookmark")
        server.forget_history()  # of everything before 5000
        server.cut()
        server.put("new", spec={})
        await until(informer, "new")
        assert log.relists == ["start"]


async def test_a_server_that_was_restored_with_lower_versions_is_read_again(server):
    server.put("kept", spec={})
    server.put("lost", spec={})
    async with informing(server) as (informer, log):
        await until(informer, "kept", "lost")
        await open_watch(server)
        await server.stop()
        server.restore(50, "kept")
        await server.start()
        await until(informer, "kept")
        assert log.relists == ["start", "went back"]
        server.put("new", spec={})
        await until(informer, "kept", "new")


async def test_a_bookmark_from_the_past_is_noticed_on_a_stream_that_was_never_cut(server):
    server.put("kept", spec={})
    server.put("lost", spec={})
    async with informing(server) as (informer, _):
        await until(informer, "kept", "lost")
        await open_watch(server)
        server.restore(50, "kept")
        server.bookmark()
        await until(informer, "kept")


async def test_an_outage_of_any_length_is_outlasted(server):
    server.put("thing", spec={})
    async with informing(server) as (informer, log):
        await until(informer, "thing")
        await open_watch(server)
        await server.stop()

        async def refused() -> int:
            return log.codes.count(0)

        await wait_until(refused, lambda count: count >= 8, what="eight refused connections")
        server.put("meanwhile", spec={})
        server.watches.extend([unruly.broken, unruly.broken])
        await server.start()
        await until(informer, "meanwhile", "thing")


async def test_an_own_write_is_seen_at_once_and_never_undone_by_older_news(server):
    async with informing(server) as (informer, _):
        await until(informer)
        await open_watch(server)
        meta = {"name": "own", "namespace": "n", "uid": "uid-own"}
        informer.observe({"metadata": {**meta, "resourceVersion": "200"}, "spec": {"n": 2}})
        assert informer.records["own"] == {"n": 2}
        old = {"type": "ADDED", "object": {"metadata": {**meta, "resourceVersion": "150"}, "spec": {"n": 1}}}
        server.say(json.dumps(old).encode() + b"\n")
        server.put("marker", spec={})
        await until(informer, "marker", "own")
        assert informer.records["own"] == {"n": 2}


async def test_the_late_answer_to_a_write_does_not_bring_a_deleted_object_back(server):
    thing = server.put("thing", spec={})
    async with informing(server) as (informer, _):
        await until(informer, "thing")
        await open_watch(server)
        server.remove("thing")
        await until(informer)
        informer.observe(thing)
        assert informer.records == {}


async def test_a_kind_that_the_server_does_not_have_is_empty_and_asked_for_again(server):
    server.lists.extend([absent, absent])
    async with informing(server, OPTIONAL, QUICK_TO_ASK) as (informer, log):
        await until(informer)
        server.put("late", spec={})
        await until(informer, "late")
        assert log.codes[:2] == [404, 404]


async def test_what_may_no_longer_be_read_of_an_optional_kind_stays_as_it_was_known(server):
    server.put("kept", spec={})
    async with informing(server, OPTIONAL, QUICK_TO_ASK) as (informer, log):
        await until(informer, "kept")
        await open_watch(server)
        server.watches.append(forbidden)
        server.lists.extend([forbidden, forbidden])
        server.cut()

        async def refused() -> int:
            return log.codes.count(403)

        await wait_until(refused, lambda times: times >= 2, what="the refusals", seconds=10)
        assert list(informer.records) == ["kept"]
        server.put("late", spec={})
        await until(informer, "kept", "late")


async def test_an_optional_kind_that_went_away_is_empty(server):
    server.put("thing", spec={})
    async with informing(server, OPTIONAL, replace(QUICK_TO_ASK, absent_seconds=30.0)) as (informer, _):
        await until(informer, "thing")
        await open_watch(server)
        server.watches.append(absent)
        server.cut()
        await until(informer)


async def absent(_: web.Request) -> web.StreamResponse:
    return unruly.status(404, "NotFound", "the server could not find the requested resource")


async def forbidden(_: web.Request) -> web.StreamResponse:
    return unruly.status(403, "Forbidden", "things is forbidden")
