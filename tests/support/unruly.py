"""An API server over plain HTTP that keeps one kind of object and misbehaves when told to.

It lists in pages and watches with bookmarks as the real one does; whatever a test pushes into `lists` or `watches` happens
once, to the next such request, instead.
"""

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Self

from aiohttp import web

Object = dict[str, Any]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class UnrulyServer:
    """Holds objects by name. version: of the last change. lists, watches: what to do to the next requests instead."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.version = 100
        self.lists: deque[Handler] = deque()
        self.watches: deque[Handler] = deque()
        self.requests: list[web.Request] = []
        self._history: list[Object] = []
        self._oldest = 0
        self._open: list[asyncio.Queue[bytes | None]] = []
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._get)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        self.cut()
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def watching(self) -> int:
        """How many watches are open."""
        return len(self._open)

    async def start(self) -> None:
        """Listen, on the same port as before if there was one."""
        assert self._runner is not None
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[-1][1]

    async def stop(self) -> None:
        """Stop listening and cut every connection."""
        assert self._runner is not None
        for site in list(self._runner.sites):
            await site.stop()
        self.cut()

    def put(self, name: str, uid: str = "", **fields: Any) -> Object:
        """Make or change an object; watches hear of it."""
        self.version += 1
        known = name in self.objects
        meta = {"name": name, "namespace": "n", "uid": uid or f"uid-{name}", "resourceVersion": str(self.version)}
        thing = {"apiVersion": "v1", "kind": "Thing", "metadata": meta, **fields}
        self.objects[name] = thing
        self._tell({"type": "MODIFIED" if known else "ADDED", "object": thing})
        return thing

    def remove(self, name: str) -> None:
        """Delete an object; watches hear of it."""
        self.version += 1
        thing = self.objects.pop(name)
        meta = {**thing["metadata"], "resourceVersion": str(self.version)}
        self._tell({"type": "DELETED", "object": {**thing, "metadata": meta}})

    def forget_history(self) -> None:
        """Compact: a watch from before now is answered with 410."""
        self._history.clear()
        self._oldest = self.version

    def restore(self, version: int, *names: str) -> None:
        """As after a restart from a backup: older versions, and only these objects, as they are."""
        self.objects = {name: self.objects[name] for name in names}
        for number, thing in enumerate(self.objects.values()):
            thing["metadata"]["resourceVersion"] = str(version - number)
        self.version = version
        self._history.clear()
        self._oldest = 0

    def bookmark(self) -> None:
        """Tell all watches the current version."""
        self._tell({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(self.version)}}}, keep=False)

    def say(self, text: bytes) -> None:
        """Write these very bytes into every open watch."""
        for stream in self._open:
            stream.put_nowait(text)

    def cut(self) -> None:
        """Break every watch."""
        for stream in self._open:
            stream.put_nowait(None)

    def _tell(self, event: Object, *, keep: bool = True) -> None:
        if keep:
            self._history.append(event)
        self.say(json.dumps(event).encode() + b"\n")

    async def _get(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        watch = request.query.get("watch") == "true"
        special = self.watches if watch else self.lists
        if special:
            return await special.popleft()(request)
        return await (self.watch(request) if watch else self.list(request))

    async def list(self, request: web.Request) -> web.Response:
        """A page."""
        limit = int(request.query.get("limit", "0")) or len(self.objects) or 1
        start = int(request.query.get("continue", "0"))
        names = sorted(self.objects)[start : start + limit]
        more = str(start + limit) if start + limit < len(self.objects) else ""
        meta = {"resourceVersion": str(self.version), "continue": more}
        return web.json_response({"kind": "List", "metadata": meta, "items": [self.objects[n] for n in names]})

    async def watch(self, request: web.Request) -> web.StreamResponse:
        """Events after a version, until cut."""
        after = int(request.query["resourceVersion"])
        if after < self._oldest:
            return await gone(request)
        stream: asyncio.Queue[bytes | None] = asyncio.Queue()
        for event in self._history:
            if int(event["object"]["metadata"]["resourceVersion"]) > after:
                stream.put_nowait(json.dumps(event).encode() + b"\n")
        self._open.append(stream)
        response = web.StreamResponse()
        try:
            await response.prepare(request)
            while (text := await stream.get()) is not None:
                await response.write(text)
            if request.transport is not None:
                request.transport.close()
        finally:
            self._open.remove(stream)
        return response


def status(code: int, reason: str, message: str = "", **headers: str) -> web.Response:
    """An error as the API server words it."""
    body = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
    return web.json_response(body, status=code, headers={k.replace("_", "-"): v for k, v in headers.items()})


async def gone(_: web.Request) -> web.StreamResponse:
    """410 before the stream begins."""
    return status(410, "Expired", "too old resource version")


async def gone_in_stream(request: web.Request) -> web.StreamResponse:
    """200, then 410 as an event: how watches that were caught up learn it."""
    event = {"type": "ERROR", "object": {"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired"}}
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(json.dumps(event).encode() + b"\n")
    return response


async def busy(_: web.Request) -> web.StreamResponse:
    """429, and when to come back."""
    return status(429, "TooManyRequests", "slow down", Retry_After="1")


async def broken(_: web.Request) -> web.StreamResponse:
    """A proxy's page in the place of an answer."""
    return web.Response(status=502, text="<html>bad gateway</html>", content_type="text/html")
