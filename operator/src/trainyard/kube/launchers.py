"""Talk with launchers: ask how it goes, and ask to stop.

A launcher runs in the user's pod, so its answers are a stranger's: no redirect is followed, an answer has 64 KiB and two seconds,
is not unpacked, and must speak of the pod that was asked. Its requests share nothing with those to the API server, neither
session nor credentials.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Final, Self

import aiohttp

from trainyard.api import names
from trainyard.contract import requests
from trainyard.contract.codec import ContractError
from trainyard.contract.status import Status, WorkerPhase, decode_status
from trainyard.kube.mirror import Mirror
from trainyard.kube.observer import Observer, Unobserved
from trainyard.world.records import Answer, Pod, Running

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 2.0
PLAN_SECONDS: Final = 5.0
"""For a plan to be sent and read: that of a gang of 10,000 has 700 KB."""
MAX_ANSWER_BYTES: Final = 64 * 1024
_MOST_CHARACTERS: Final = 300
"""Of an error: it ends in conditions and logs, and may quote a stranger."""
CONCURRENCY: Final = 64
"""Questions open at once; and as many requests to stop, which must not stand behind them."""
KEY_BYTES: Final = 32

LEADER_SECONDS: Final = 2.0
"""Between two questions to rank 0, and to members of which something is expected: a first step, or the end after a stop."""
MEMBER_SECONDS: Final = 10.0
"""Between two questions to any other member, at most; eight of them may fail before silence ends an attempt."""
MEMBERS_A_SECOND: Final = 50
"""Where all of them are few enough for that, they are asked more often: a restart waits until its cause is heard of."""
EAGER_MEMBERS: Final = 500
"""As many are asked every LEADER_SECONDS; where there are more, each is asked less often."""
DOUBTFUL: Final = 16
"""Of the questions open at once, those to launchers that did not answer the last time, or never yet. Each of them may take two
seconds to fail: a gang of thousands behind a NetworkPolicy must not make the others look silent."""
_TICK_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A question that got no answer, or one that is not to be believed. refused: the launcher said no, and would say so again."""

    error: str
    refused: bool = False


Address = Callable[[Pod], tuple[str, int]]
"""Host and port of a pod's launcher; ValueError where there is none to speak to."""


def pod_address(pod: Pod) -> tuple[str, int]:
    """The launcher of a pod, in the cluster's network. Refuses what no pod's address can be: the operator's own host is none."""
    try:
        ip = ipaddress.ip_address(pod.ip)
    except ValueError:
        raise ValueError(f"pod {pod.namespace}/{pod.name} has no address yet") from None
    if ip.is_loopback or ip.is_link_local or ip.is_multicast or ip.is_unspecified:
        raise ValueError(f"pod {pod.namespace}/{pod.name} claims the address {ip}, which is no pod's")
    return str(ip), names.LAUNCHER_PORT


def read_operator_key(path: Path) -> bytes:
    """The operator's key from a file; ValueError where it is too short to be one."""
    key = path.read_bytes()
    if len(key) < KEY_BYTES:
        raise ValueError(
            f"{path}: the operator's key has {len(key)} bytes; it must have {KEY_BYTES} or more, drawn at random"
        )
    return key


class LauncherClient:
    """Signed requests to launchers. Use as `async with`."""

    def __init__(
        self,
        operator_key: bytes,
        *,
        address: Address = pod_address,
        seconds: float = ANSWER_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._key = operator_key
        self._address = address
        self._seconds = seconds
        self._clock = clock
        self._turns = {"GET": asyncio.Semaphore(CONCURRENCY), "POST": asyncio.Semaphore(CONCURRENCY)}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            # A connection for each question: the pod behind an address may be another one by the next.
            connector=aiohttp.TCPConnector(limit=2 * CONCURRENCY, force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            headers={"Accept": "application/json", "Accept-Encoding": "identity"},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    def job_key(self, job_uid: str) -> bytes:
        """The key of a job, which its pods read from its Secret."""
        return requests.job_key(self._key, job_uid)

    async def status(self, pod: Pod) -> Status | Unanswered:
        """GET /v1/status."""
        return await self._ask("GET", requests.PATH_STATUS, b"", pod)

    async def stop(self, pod: Pod, stop: requests.Stop) -> Status | Unanswered:
        """POST /v1/stop; where the launcher took it, it says how it stands."""
        return await self._ask("POST", requests.PATH_STOP, requests.encode_stop(stop), pod)

    async def plan(self, pod: Pod, plan: bytes) -> Status | Unanswered:
        """POST /v1/plan: the next attempt begins in that pod; where the launcher took it, it says how it stands."""
        return await self._ask("POST", requests.PATH_PLAN, plan, pod, max(self._seconds, PLAN_SECONDS))

    async def _ask(
        self, method: str, path: str, body: bytes, pod: Pod, seconds: float | None = None
    ) -> Status | Unanswered:
        """A question whose answer is a status of that very pod."""
        text = await self._fetch(method, path, body, pod, self._seconds if seconds is None else seconds)
        if isinstance(text, Unanswered):
            return text
        try:
            status = decode_status(text)
        except ContractError as error:
            return Unanswered(f"the answer makes no sense: {error}"[:_MOST_CHARACTERS])
        if status.pod_uid != pod.uid:
            return Unanswered(f"the answer speaks of pod {status.pod_uid[:64]!r}, not of {pod.uid}")
        return status

    async def _fetch(self, method: str, path: str, body: bytes, pod: Pod, seconds: float) -> bytes | Unanswered:
        if self._session is None or pod.membership is None:
            raise RuntimeError("launchers are asked within `async with`, and only those of our own pods")
        try:
            host, port = self._address(pod)
        except ValueError as error:
            return Unanswered(str(error))
        url = f"http://[{host}]:{port}{path}" if ":" in host else f"http://{host}:{port}{path}"
        async with self._turns[method]:
            key = self.job_key(pod.membership.job_uid)
            signed = requests.sign(key, method, path, body, pod.uid, self._clock() + requests.VALID_SECONDS)
            try:
                async with (
                    asyncio.timeout(seconds),
                    self._session.request(
                        method, url, data=body or None, headers=signed, allow_redirects=False
                    ) as answer,
                ):
                    return await _read(answer)
            except TimeoutError:
                return Unanswered(f"no answer within {seconds:g} s")
            except (aiohttp.ClientError, OSError, ValueError) as error:
                return Unanswered(f"{type(error).__name__}: {error}"[:_MOST_CHARACTERS])


class Poller:
    """Asks every launcher that could answer, again and again, and writes what it says into the mirror."""

    def __init__(
        self,
        launchers: LauncherClient,
        mirror: Mirror,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._launchers = launchers
        self._mirror = mirror
        self._observer = observer or Unobserved()
        self._clock = clock
        self._due: dict[str, float] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._doubtful: set[str] = set()
        self._hurried: dict[str, int] = {}  # by job uid, the attempt whose first end was heard of

    async def run(self) -> None:
        """Ask until cancelled."""
        try:
            while True:
                self._begin(time.monotonic())
                await asyncio.sleep(_TICK_SECONDS)
        finally:
            for task in self._asking.values():
                task.cancel()
            await asyncio.gather(*self._asking.values(), return_exceptions=True)

    def _begin(self, now: float) -> None:
        """Begin to ask whoever is due, the longest overdue first, as far as there is room.

        The doubtful have room of their own, those that once answered first: silence is a verdict for them alone.
        """
        pods = {uid: pod for uid, pod in self._mirror.members.items() if can_answer(pod)}
        self._due = {uid: self._due.get(uid, now) for uid in pods}
        if self._hurried:
            jobs = {pod.membership.job_uid for pod in pods.values() if pod.membership is not None}
            self._hurried = {job: attempt for job, attempt in self._hurried.items() if job in jobs}
        eager = {uid for uid, pod in pods.items() if expected(pod, self._mirror.answers.get(uid))}
        waiting = sorted((at, uid) for uid, at in self._due.items() if at <= now and uid not in self._asking)
        by_standing: dict[Standing, list[str]] = {standing: [] for standing in Standing}
        for _, uid in waiting:
            by_standing[standing_of(self._mirror.answers.get(uid))].append(uid)
        sound, failing, unheard = (by_standing[standing] for standing in Standing)
        doubtful = [*failing, *unheard][: DOUBTFUL - len(self._doubtful)]
        room = CONCURRENCY - DOUBTFUL - (len(self._asking) - len(self._doubtful))
        self._doubtful.update(doubtful)
        others = min(MEMBER_SECONDS, max(LEADER_SECONDS, len(pods) / MEMBERS_A_SECOND))
        for uid in (*sound[:room], *doubtful):
            seconds = LEADER_SECONDS * max(1.0, len(eager) / EAGER_MEMBERS) if uid in eager else others
            self._due[uid] = now + seconds * random.uniform(0.9, 1.1)
            self._asking[uid] = asyncio.create_task(self._ask(pods[uid]), name=f"ask-{pods[uid].name}")

    async def _ask(self, pod: Pod) -> None:
        try:
            known = self._mirror.answers.get(pod.uid) or Answer(asked=self._clock())
            said = await self._launchers.status(pod)
            now = self._clock()
            # Read again: a stop may have been sent meanwhile.
            known = self._mirror.answers.get(pod.uid, known)
            if isinstance(said, Unanswered):
                self._observer.polled("error")
                self._mirror.answer(pod.uid, replace(known, error=said.error))
            else:
                self._observer.polled("ok")
                if said.ended is not None:
                    self._hurry(pod, said.attempt)
                self._mirror.answer(pod.uid, replace(known, status=said, time=now, error=""))
        except Exception:
            log.exception("asking %s/%s: unexpected", pod.namespace, pod.name)
        finally:
            del self._asking[pod.uid]
            self._doubtful.discard(pod.uid)

    def _hurry(self, pod: Pod, attempt: int) -> None:
        """Ask all others of its gang at once, when the first of an attempt has ended: they end within a moment of each other,
        and who was first is to be told."""
        assert pod.membership is not None
        if self._hurried.get(pod.membership.job_uid) == attempt:
            return
        self._hurried[pod.membership.job_uid] = attempt
        now = time.monotonic()
        for other in self._mirror.members.values():
            if (
                other.membership is not None
                and other.membership.job_uid == pod.membership.job_uid
                and other.uid in self._due
            ):
                self._due[other.uid] = now


def can_answer(pod: Pod) -> bool:
    """Whether a launcher of ours runs in it and could be reached."""
    return pod.membership is not None and pod.live and bool(pod.ip) and isinstance(pod.trainer, Running)


class Standing(Enum):
    """What is to be expected of a launcher's next answer."""

    SOUND = "it answered the last time"
    FAILING = "it answered once"
    UNHEARD = "it never answered"


def standing_of(answer: Answer | None) -> Standing:
    """By what is known of it."""
    if answer is None or answer.status is None:
        return Standing.UNHEARD
    return Standing.FAILING if answer.error else Standing.SOUND


def expected(pod: Pod, answer: Answer | None) -> bool:
    """Whether something is about to be heard of it: rank 0 speaks for its gang; the others do while they start and when they were
    asked to stop."""
    if pod.membership is None or pod.membership.rank == 0 or answer is None or answer.status is None:
        return True
    return answer.stop_sent > 0 or answer.status.phase != WorkerPhase.TRAINING


async def _read(answer: aiohttp.ClientResponse) -> bytes | Unanswered:
    """The body of a good answer, as far as it is one."""
    if answer.headers.get("Content-Encoding", "identity") != "identity":
        return Unanswered("the answer is compressed, which nobody asked for")
    chunks = bytearray()
    async for chunk in answer.content.iter_any():
        chunks += chunk
        if len(chunks) > MAX_ANSWER_BYTES:
            return Unanswered(f"the answer has more than {MAX_ANSWER_BYTES} bytes")
    if not 200 <= answer.status < 300:
        refused = 400 <= answer.status < 500
        return Unanswered(f"HTTP {answer.status}: {_excerpt(answer.headers, chunks)}", refused)
    return bytes(chunks)


def _excerpt(headers: Mapping[str, str], body: bytearray) -> str:
    where = f"to {headers['Location'][:100]!r} " if "Location" in headers else ""
    return where + body[:200].decode(errors="replace").strip()
