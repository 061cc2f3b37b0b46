"""Talking with launchers: every answer that a stranger could give, and requests that somebody tampers with."""

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp
import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration
from support.api import wait_until
from support.unruly import UnrulyServer
from trainyard.api import names
from trainyard.contract import requests
from trainyard.contract.status import LastWords, Status, encode_status
from trainyard.kube.client import KubeClient
from trainyard.kube.launchers import LauncherClient, Poller, Unanswered, pod_address, read_operator_key
from trainyard.kube.mirror import Mirror
from trainyard.world.records import Answer, Membership, Pod, Running, Waiting

KEY = b"k" * 32
POD = Pod(
    namespace="team",
    name="train-0",
    uid="pod-uid",
    created=0.0,
    node="n",
    phase="Running",
    requests={},
    ip="10.1.2.3",
    trainer=Running(1.0),
    membership=Membership("job-uid", 1, 0, 0, "n", "digest"),
)
SAID = Status("pod-uid", 1, "digest", 0, "training", step=7)
STOP = requests.Stop(attempt=1, deadline=2e9, reason="Preempted")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Launcher:
    """A real HTTP server that speaks the contract as a launcher does, or whatever `answer` says."""

    def __init__(self) -> None:
        self.answer: Handler | None = None
        self.stops: list[requests.Stop] = []
        self.refusals: list[str] = []
        self.seen: list[web.Request] = []
        self.port = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request)
        if self.answer is not None:
            return await self.answer(request)
        body = await request.read()
        key = requests.job_key(KEY, "job-uid")
        why = requests.refusal(key, request.method, request.path, body, request.headers, "pod-uid", time.time())
        if why is not None:
            self.refusals.append(why)
            return web.json_response({"error": why}, status=403)
        if request.method == "POST":
            self.stops.append(requests.decode_stop(body))
            return web.Response(status=202, text=encode_status(replace(SAID, notice_time=5.0)))
        return web.Response(text=encode_status(SAID))


@pytest.fixture
async def launcher() -> AsyncIterator[Launcher]:
    made = Launcher()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.port = runner.addresses[0][1]
    yield made
    await runner.cleanup()


@asynccontextmanager
async def asking(launcher: Launcher, **options) -> AsyncIterator[LauncherClient]:
    options = {"seconds": 0.5, **options}
    async with LauncherClient(KEY, address=lambda pod: ("127.0.0.1", launcher.port), **options) as client:
        yield client


async def test_a_launcher_says_how_it_goes_and_takes_a_stop(launcher):
    async with asking(launcher) as client:
        assert await client.status(POD) == SAID
        assert await client.stop(POD, STOP) == replace(SAID, notice_time=5.0)
    assert launcher.stops == [STOP]


def saying(body: bytes, **options) -> Handler:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body, **options)

    return answer


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" " * 16_384)


async def dripping(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" ")
        await asyncio.sleep(0.05)


async def silent(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(30)
    return web.Response()


GOOD = encode_status(SAID).encode()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (saying(b" " * 65_537), "more than 65536 bytes"),
        (endless, "more than 65536 bytes"),
        (dripping, "no answer within 0.5 s"),
        (silent, "no answer within 0.5 s"),
        (saying(b"", status=302, headers={"Location": "http://169.254.169.254/"}), "HTTP 302: to 'http://169.254.169.254/'"),
        (saying(b'{"error": "no"}', status=403), "HTTP 403"),
        (saying(b"hello"), "makes no sense"),
        (saying(b"[]"), "makes no sense"),
        (saying(b"[" * 60_000), "makes no sense"),
        (saying(b'{"pod_uid": "pod-uid", "attempt": "one"}'), "Status.attempt"),
        (saying(encode_status(replace(SAID, pod_uid="another")).encode()), "speaks of pod 'another', not of pod-uid"),
        (saying(gzip.compress(GOOD), headers={"Content-Encoding": "gzip"}), "compressed"),
    ],
    ids=[
        "too large", "endless", "dripping", "silent", "redirecting", "refusing", "no JSON", "no object", "deep", "wrong type",
        "wrong pod", "compressed",
    ],
)  # fmt: skip
async def test_an_answer_that_is_not_to_be_believed_is_none(launcher, answer, error):
    launcher.answer = answer
    async with asking(launcher) as client:
        said = await client.status(POD)
        assert isinstance(said, Unanswered)
        assert error in said.error
        assert isinstance(await client.stop(POD, STOP), Unanswered)
    assert all(request.path in (requests.PATH_STATUS, requests.PATH_STOP) for request in launcher.seen)


async def test_nobody_at_the_address_is_an_answer_too(launcher, unused_tcp_port):
    async with LauncherClient(KEY, address=lambda pod: ("127.0.0.1", unused_tcp_port)) as client:
        said = await client.status(POD)
    assert isinstance(said, Unanswered)
    assert "refused" in said.error.lower() or "connect" in said.error.lower()


async def test_cookies_and_proxies_play_no_part(launcher, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    launcher.answer = saying(GOOD, headers={"Set-Cookie": "a=b; Path=/"})
    async with asking(launcher) as client:
        assert await client.status(POD) == SAID
        assert await client.status(POD) == SAID
    assert all("Cookie" not in request.headers and "Authorization" not in request.headers for request in launcher.seen)


@pytest.mark.parametrize(
    ("pod", "clock", "key", "why"),
    [
        (POD, lambda: time.time() - 3600, KEY, "expired"),
        (POD, lambda: time.time() + 3600, KEY, "clocks differ"),
        (replace(POD, uid="another"), time.time, KEY, "signed for pod another"),
        (POD, time.time, b"x" * 32, "does not verify"),
        (replace(POD, membership=replace(POD.membership, job_uid="other")), time.time, KEY, "does not verify"),
    ],
    ids=["expired", "from the future", "for another pod", "of another operator", "of another job"],
)
async def test_a_stop_that_is_not_for_this_pod_and_now_is_not_obeyed(launcher, pod, clock, key, why):
    address = "127.0.0.1", launcher.port
    async with LauncherClient(key, address=lambda _: address, clock=clock) as client:
        said = await client.stop(pod, STOP)
    assert isinstance(said, Unanswered)
    assert "HTTP 403" in said.error
    assert why in launcher.refusals[0]
    assert launcher.stops == []


async def test_a_stop_that_was_overheard_cannot_be_altered_or_sent_elsewhere(launcher):
    """What a thief holds is the signed request; all that he can do with it is to send it again, in time, unchanged."""
    async with asking(launcher) as client:
        await client.stop(POD, STOP)
    (overheard,) = launcher.seen
    headers = {
        n: overheard.headers[n] for n in (requests.HEADER_POD, requests.HEADER_EXPIRES, requests.HEADER_SIGNATURE)
    }
    url = f"http://127.0.0.1:{launcher.port}"
    body = requests.encode_stop(STOP)
    later = {**headers, requests.HEADER_EXPIRES: f"{time.time() + 45:.3f}"}
    async with aiohttp.ClientSession() as thief:
        for path, sent, signed in [
            (requests.PATH_STOP, requests.encode_stop(replace(STOP, deadline=1.0)), headers),
            (requests.PATH_CHECKPOINT, body, headers),
            (requests.PATH_STOP, body, later),
            (requests.PATH_STOP, body, {**headers, requests.HEADER_POD: "another"}),
        ]:
            async with thief.post(url + path, data=sent, headers=signed) as answer:
                assert answer.status == 403
        async with thief.post(url + requests.PATH_STOP, data=body, headers=headers) as answer:
            assert answer.status == 202
    assert launcher.stops == [STOP, STOP]


@pytest.mark.parametrize(
    "ip", ["", "127.0.0.1", "::1", "169.254.169.254", "0.0.0.0", "224.0.0.1", "train-0.example", "[::1]"]
)
def test_only_what_can_be_a_pods_address_is_spoken_to(ip):
    with pytest.raises(ValueError, match="pod team/train-0"):
        pod_address(replace(POD, ip=ip))


def test_pods_are_reached_at_the_launchers_port():
    assert pod_address(POD) == ("10.1.2.3", names.LAUNCHER_PORT)
    assert pod_address(replace(POD, ip="fd00::7")) == ("fd00::7", names.LAUNCHER_PORT)


def test_a_key_that_is_too_short_is_refused_by_its_file(tmp_path):
    (tmp_path / "key").write_bytes(b"k" * 31)
    with pytest.raises(ValueError, match=r"key: the operator's key has 31 bytes; it must have 32 or more"):
        read_operator_key(tmp_path / "key")
    (tmp_path / "key").write_bytes(KEY)
    assert read_operator_key(tmp_path / "key") == KEY


def a_raw_pod(pod: Pod, version: int = 1, **status) -> dict:
    assert pod.membership is not None
    labels = {
        names.LABEL_JOB_UID: pod.membership.job_uid,
        names.LABEL_ATTEMPT: "1",
        names.LABEL_MEMBER: str(pod.membership.member),
        names.LABEL_RANK: str(pod.membership.rank),
    }
    owner = {"kind": names.KIND_JOB, "uid": pod.membership.job_uid, "controller": True}
    running = [{"name": "trainer", "state": {"running": {"startedAt": "2026-01-31T12:00:00Z"}}}]
    return {
        "kind": "Pod",
        "metadata": {
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
            "resourceVersion": str(version),
            "labels": labels,
            "ownerReferences": [owner],
        },
        "spec": {"containers": [{"name": "trainer"}]},
        "status": {"phase": "Running", "podIP": pod.ip, "containerStatuses": running, **status},
    }


ENDED = LastWords(attempt=1, node_rank=1, exit=1, cause="rank 1 was killed by SIGKILL")


async def test_where_one_member_has_ended_the_others_are_asked_at_once(launcher, monkeypatch):
    """The member that is heard of first need not be the one that failed first. Once: where thousands end, each would have the
    others asked again."""
    monkeypatch.setattr("trainyard.kube.launchers.LEADER_SECONDS", 60.0)
    ended = replace(SAID, pod_uid="pod-1", ended=ENDED)

    async def by_pod(request: web.Request) -> web.StreamResponse:
        uid = request.headers[requests.HEADER_POD]
        return web.Response(text=encode_status(replace(ended if uid in ("pod-1", "pod-2") else SAID, pod_uid=uid)))

    launcher.answer = by_pod
    async with polling(launcher) as mirror:
        mirror.observe(a_raw_pod(POD))

        async def asked():
            return [request.headers[requests.HEADER_POD] for request in launcher.seen]

        await wait_until(asked, lambda uids: uids == ["pod-uid"], what="the first question")
        mirror.observe(a_raw_pod(replace(POD, uid="pod-1", name="train-1")))
        await wait_until(asked, lambda uids: uids.count("pod-uid") == 2, what="a second one, long before it is due")

        async def heard():
            return mirror.answers.keys()

        for another in ("pod-2", "pod-3"):
            mirror.observe(a_raw_pod(replace(POD, uid=another, name=another)))
            await wait_until(heard, lambda uids, another=another: another in uids, what=f"an answer of {another}")
        assert (await asked()).count("pod-uid") == 2


@asynccontextmanager
async def polling(launcher: Launcher, **options) -> AsyncIterator[Mirror]:
    async with KubeClient(Configuration(host="http://127.0.0.1:9")) as nobody, asking(launcher, **options) as client:
        mirror = Mirror(nobody)
        task = asyncio.create_task(Poller(client, mirror).run())
        try:
            yield mirror
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_the_poller_writes_what_launchers_say_into_the_world(launcher):
    async with polling(launcher) as mirror:
        mirror.observe(a_raw_pod(POD))

        async def answer():
            return mirror.freeze().answers.get("pod-uid")

        first = await wait_until(answer, lambda a: a is not None and a.status is not None, what="an answer")
        assert first is not None
        assert (first.status, first.error) == (SAID, "")
        assert first.asked <= first.time <= time.time()
        launcher.answer = saying(b"garbage")
        silent = await wait_until(answer, lambda a: a is not None and bool(a.error), what="an error")
        assert silent is not None
        # What it said last, and when, is still known.
        assert (silent.status, silent.asked) == (SAID, first.asked)


async def test_a_launcher_that_answers_as_before_rings_no_bell_but_is_heard(launcher):
    async with polling(launcher) as mirror:
        mirror.observe(a_raw_pod(POD))

        async def time_heard():
            answer = mirror.freeze().answers.get("pod-uid")
            return answer.time if answer else 0.0

        first = await wait_until(time_heard, bool, what="an answer")
        generation = mirror.generation
        await wait_until(time_heard, lambda heard: heard > first, what="another answer")
        assert mirror.generation == generation


async def test_only_launchers_that_could_answer_are_asked(launcher):
    async with polling(launcher) as mirror:
        mirror.observe(a_raw_pod(replace(POD, uid="no-ip"), podIP=""))
        mirror.observe(a_raw_pod(replace(POD, uid="pulls"), containerStatuses=None))
        mirror.observe(a_raw_pod(replace(POD, uid="ended"), phase="Failed"))
        mirror.observe(a_raw_pod(POD))

        async def asked():
            return [request.headers[requests.HEADER_POD] for request in launcher.seen]

        assert set(await wait_until(asked, bool, what="a question")) == {"pod-uid"}
        assert isinstance(mirror.freeze().pods["pulls"].trainer, Waiting)


async def test_no_more_than_a_bounded_number_of_questions_is_open_at_once(launcher):
    open_now, most = 0, 0

    async def slow(_: web.Request) -> web.StreamResponse:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        await asyncio.sleep(0.05)
        open_now -= 1
        return web.Response(text=encode_status(SAID))

    launcher.answer = slow
    async with asking(launcher, seconds=5) as client:
        said = await asyncio.gather(*(client.status(POD) for _ in range(200)))
    assert all(status == SAID for status in said)
    assert most <= 64


async def test_a_large_gang_that_nobody_reaches_makes_no_other_look_silent(launcher):
    async def by_pod(request: web.Request) -> web.StreamResponse:
        if request.headers[requests.HEADER_POD] == "pod-uid":
            return web.Response(text=encode_status(SAID))
        return await silent(request)

    launcher.answer = by_pod
    async with polling(launcher, seconds=60) as mirror:
        mirror.observe(a_raw_pod(POD))

        async def time_heard():
            answer = mirror.freeze().answers.get("pod-uid")
            return answer.time if answer else 0.0

        first = await wait_until(time_heard, bool, what="an answer")
        for number in range(300):
            mirror.observe(a_raw_pod(replace(POD, uid=f"unreached-{number}")))
        await wait_until(time_heard, lambda heard: heard > first, what="another answer")


async def test_answers_of_pods_that_are_gone_are_gone(launcher):
    async with UnrulyServer() as server, KubeClient(Configuration(host=server.url)) as client:
        mirror = Mirror(client)
        task = asyncio.create_task(mirror.run())
        await mirror.wait_synced()
        mirror.observe(a_raw_pod(POD))
        mirror.answer("pod-uid", Answer(asked=1.0, status=SAID))
        assert set(mirror.freeze().answers) == {"pod-uid"}
        gone = {"type": "DELETED", "object": a_raw_pod(POD, version=1000)}

        async def told():
            server.say(json.dumps(gone).encode() + b"\n")
            return mirror.freeze()

        world = await wait_until(told, lambda world: "pod-uid" not in world.pods, what="the pod's end")
        assert world.answers == {}
        mirror.answer("pod-uid", Answer(asked=1.0, status=SAID))  # one that was on its way
        assert mirror.freeze().answers == {}
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
