"""Launchers of pretended pods: one real HTTP server on loopback that speaks the contract for all of them.

Who is asked stands in the request (the pod's uid), what the pod is stands in the API server. A stop makes the pod end as a real
launcher would: exit code 75, and last words that name a commit.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web
from support.api import Api, Object
from trainyard.api import names
from trainyard.contract import requests
from trainyard.contract.plan import decode as decode_plan
from trainyard.contract.preflight import PreflightResult
from trainyard.contract.status import Commit, LastWords, Status, encode_last_words, encode_status
from trainyard_lab import kwok


@dataclass(slots=True)
class Launchers:
    """What the launchers of a namespace do. step: how far they say they are; preflight: what they say was proven before.

    silent: pods by name whose launcher does not answer. deaf: jobs by name whose launchers answer and do not leave.
    """

    api: Api
    namespace: str
    key_file: Path
    step: int = 40
    preflight: PreflightResult | None = None
    silent: set[str] = field(default_factory=set)
    deaf: set[str] = field(default_factory=set)
    noticed: dict[str, float] = field(default_factory=dict)
    stops: list[tuple[str, requests.Stop]] = field(default_factory=list)
    plans: list[tuple[str, int]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    address: str = ""

    async def status(self, request: web.Request) -> web.Response:
        """GET /v1/status."""
        pod = await self._pod(request)
        if pod is None:
            return web.Response(status=404)
        return web.Response(text=encode_status(self._status(pod)), content_type="application/json")

    async def plan(self, request: web.Request) -> web.Response:
        """POST /v1/plan. What it plays in is what the operator then writes into its labels."""
        pod = await self._pod(request)
        if pod is None:
            return web.Response(status=404)
        body = await request.read()
        if not self._signed(request, pod, body):
            return web.Response(status=403)
        self.plans.append((pod["metadata"]["name"], decode_plan(body).attempt))
        return web.Response(status=202, text=encode_status(self._status(pod)), content_type="application/json")

    def _signed(self, request: web.Request, pod: Object, body: bytes) -> bool:
        meta = pod["metadata"]
        key = requests.job_key(bytes(self.key_file.read_bytes()), meta["labels"][names.LABEL_JOB_UID])
        refusal = requests.refusal(key, "POST", request.path, body, request.headers, meta["uid"], time.time())
        if refusal is not None:
            self.refused.append(refusal)
        return refusal is None

    async def stop(self, request: web.Request) -> web.Response:
        """POST /v1/stop."""
        pod = await self._pod(request)
        if pod is None:
            return web.Response(status=404)
        meta, body = pod["metadata"], await request.read()
        if not self._signed(request, pod, body):
            return web.Response(status=403, text=self.refused[-1])
        self.stops.append((meta["name"], requests.decode_stop(body)))
        self.noticed.setdefault(meta["uid"], time.time())
        if meta["labels"][names.LABEL_JOB] not in self.deaf:
            await self.end(pod, 75)
        return web.Response(status=202, text=encode_status(self._status(pod)), content_type="application/json")

    async def end(self, pod: Object, code: int, cause: str = "as the test says") -> None:
        """Let a pod's trainer end with a code and the last words that go with it."""
        words = LastWords(
            attempt=_attempt(pod),
            node_rank=_rank(pod),
            exit=code,
            cause=cause,
            step=self.step,
            commit=self._commit(pod),
            notice_time=self.noticed.get(pod["metadata"]["uid"]),
        )
        notes = {kwok.EXIT_CODE: str(code), kwok.EXIT_MESSAGE: encode_last_words(words)}
        await self.api.annotate("Pod", pod["metadata"]["name"], self.namespace, notes)

    async def _pod(self, request: web.Request) -> Object | None:
        uid = request.headers.get(requests.HEADER_POD, "")
        for pod in await self.api.list("Pod", self.namespace):
            if pod["metadata"]["uid"] == uid and pod["metadata"]["name"] not in self.silent:
                return pod
        return None

    def _status(self, pod: Object) -> Status:
        meta = pod["metadata"]
        return Status(
            pod_uid=meta["uid"],
            attempt=_attempt(pod),
            plan_digest=meta["annotations"][names.ANNOTATION_PLAN],
            node_rank=_rank(pod),
            phase="training",
            step=self.step,
            loss=2.5,
            first_step_time=time.time(),
            notice_time=self.noticed.get(meta["uid"]),
            commit=self._commit(pod),
            preflight=self.preflight,
        )

    def _commit(self, pod: Object) -> Commit:
        return Commit(_attempt(pod), self.step, f"/checkpoints/step-{self.step}", 1024, 0.5, time.time())


def _attempt(pod: Object) -> int:
    return int(pod["metadata"]["labels"][names.LABEL_ATTEMPT])


def _rank(pod: Object) -> int:
    return int(pod["metadata"]["labels"][names.LABEL_RANK])


@asynccontextmanager
async def serving(api: Api, namespace: str, key_file: Path) -> AsyncIterator[Launchers]:
    """The server on a free port of loopback."""
    launchers = Launchers(api, namespace, key_file)
    app = web.Application()
    app.router.add_get(requests.PATH_STATUS, launchers.status)
    app.router.add_post(requests.PATH_STOP, launchers.stop)
    app.router.add_post(requests.PATH_PLAN, launchers.plan)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    launchers.address = f"127.0.0.1:{port}"
    try:
        yield launchers
    finally:
        await runner.cleanup()
