"""Raw requests to the API server: JSON bytes in and out, with authentication, time limits, a rate and retries.

kubernetes.aio gives configuration, TLS, tokens that refresh, and the HTTP session; nothing of its object model is used.

Every request of this project may be repeated: objects have deterministic names (a repeated create is answered with AlreadyExists
of our own object), deletes name a uid, status writes a resourceVersion, patches test what they change. So a lost answer
is met by asking again.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote, urlencode

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config
from kubernetes.aio.config.incluster_config import SERVICE_HOST_ENV_NAME

from trainyard import __version__
from trainyard.api import names
from trainyard.kube.errors import ApiError, from_answer
from trainyard.kube.observer import Observer, Unobserved
from trainyard.kube.pacing import Backoff, TokenBucket
from trainyard.kube.resources import Resource

Object = dict[str, Any]

JSON: Final = "application/json"
JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"

REQUESTS_PER_SECOND: Final = 100.0
REQUESTS_BURST: Final = 300
CONNECT_SECONDS: Final = 5.0
REQUEST_SECONDS: Final = 30.0
"""For one request with all its repetitions, from its first turn on; and the longest that it waits for that."""
LONGEST_HOLD_SECONDS: Final = 20.0
"""For which a busy server (429, 503) is left alone by all requests; less than any of them waits, so that none fails for it."""
ATTEMPTS: Final = 4
WATCH_SILENCE_SECONDS: Final = 75.0
"""A watch with bookmarks hears something every minute; a longer silence is a dead connection."""
MAX_LINE_BYTES: Final = 16 * 1024 * 1024
"""An object in etcd has at most 1.5 MiB; ten times that is no object."""
_CONNECTIONS: Final = 160


class KubeClient:
    """The API server, for one identity. Use as `async with`; make one with `from_environment`."""

    def __init__(
        self,
        configuration: Configuration,
        observer: Observer | None = None,
        *,
        bucket: TokenBucket | None = None,
        backoff_seconds: float = 0.2,
    ) -> None:
        configuration.connection_pool_maxsize = _CONNECTIONS
        self._api = ApiClient(configuration)
        self._observer = observer or Unobserved()
        self._bucket = bucket or TokenBucket(REQUESTS_PER_SECOND, REQUESTS_BURST)
        self._backoff_seconds = backoff_seconds

    @classmethod
    async def from_environment(cls, observer: Observer | None = None) -> Self:
        """As the pod's service account inside a cluster, else as the current context of KUBECONFIG or ~/.kube/config."""
        if os.environ.get(SERVICE_HOST_ENV_NAME):
            configuration = Configuration()
            load_incluster_config(client_configuration=configuration)
            return cls(configuration, observer)
        return await cls.from_kubeconfig(None, observer)

    @classmethod
    async def from_kubeconfig(
        cls, path: Path | None, observer: Observer | None = None, context: str | None = None
    ) -> Self:
        """As a context of a kubeconfig, None: the current one. path: None for the usual places. ApiError where there is none, or
        it says nothing that makes sense."""
        configuration = Configuration()
        try:
            await load_kube_config(
                config_file=str(path) if path else None,
                context=context,
                client_configuration=configuration,
                persist_config=False,
            )
        except ConfigException as wrong:
            raise ApiError("kubeconfig", 0, "NoConfiguration", str(wrong)) from None
        return cls(configuration, observer)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()

    async def get(self, resource: Resource, namespace: str | None, name: str, **limits: Any) -> Object:
        """An object."""
        return _object(await self.request("get", resource, namespace, name, **limits))

    async def list_page(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        limit: int = 0,
        token: str = "",
        **limits: Any,
    ) -> bytes:
        """A page of a list, or the whole list (limit 0), as the API server sent it. token: `metadata.continue` of the page
        before."""
        query = _selection(labels, fields)
        if limit:
            query["limit"] = str(limit)
        if token:
            query["continue"] = token
        return await self.request("list", resource, namespace, query=query, **limits)

    async def create(
        self, resource: Resource, manifest: Mapping[str, Any], *, dry_run: bool = False, **limits: Any
    ) -> Object:
        """Make an object; its namespace is the manifest's. A dry run also refuses fields that the API server does not know."""
        query = {"fieldManager": names.FIELD_MANAGER}
        if dry_run:
            query |= {"dryRun": "All", "fieldValidation": "Strict"}
        namespace = manifest["metadata"].get("namespace")
        return _object(await self.request("create", resource, namespace, query=query, body=manifest, **limits))

    async def apply(
        self, resource: Resource, manifest: Mapping[str, Any], *, force: bool = True, **limits: Any
    ) -> Object:
        """Server-side apply of the fields that the manifest names. force: take them over from whoever owns them."""
        metadata = manifest["metadata"]
        return _object(
            await self.request(
                "apply",
                resource,
                metadata.get("namespace"),
                metadata["name"],
                query={"fieldManager": names.FIELD_MANAGER, "force": "true" if force else "false"},
                body=manifest,
                content_type=APPLY_PATCH,
                **limits,
            )
        )

    async def replace(
        self, resource: Resource, manifest: Mapping[str, Any], *, subresource: str | None = None, **limits: Any
    ) -> Object:
        """Put an object, or its status, in the place of the one there is; 409 where resourceVersion or uid differ."""
        metadata = manifest["metadata"]
        return _object(
            await self.request(
                "update",
                resource,
                metadata.get("namespace"),
                metadata["name"],
                subresource,
                query={"fieldManager": names.FIELD_MANAGER},
                body=manifest,
                **limits,
            )
        )

    async def patch(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        patch: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        subresource: str | None = None,
        by_key: bool = False,
        **limits: Any,
    ) -> Object:
        """A merge patch (an object; 409 where a resourceVersion or uid in it differs), or a JSON patch (a list of operations; 422
        where one of its tests fails). by_key: lists of a built-in kind are merged by the key of their items, such as a
        condition's type, instead of replaced."""
        merge = STRATEGIC_PATCH if by_key else MERGE_PATCH
        return _object(
            await self.request(
                "patch",
                resource,
                namespace,
                name,
                subresource,
                query={"fieldManager": names.FIELD_MANAGER},
                body=dict(patch) if isinstance(patch, Mapping) else list(patch),
                content_type=merge if isinstance(patch, Mapping) else JSON_PATCH,
                **limits,
            )
        )

    async def delete(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        *,
        uid: str | None = None,
        grace_seconds: int | None = None,
        **limits: Any,
    ) -> Object:
        """Ask for an object's deletion; 409 where the object of that name has another uid. Returns what the API server says:
        the object as it is then, or a Status."""
        body: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        return _object(await self.request("delete", resource, namespace, name, body=body, **limits))

    async def request(
        self,
        verb: str,
        resource: Resource,
        namespace: str | None = None,
        name: str | None = None,
        subresource: str | None = None,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
        seconds: float = REQUEST_SECONDS,
        attempts: int = ATTEMPTS,
        metered: bool = True,
    ) -> bytes:
        """One request, repeated while the trouble is temporary; the answer's body, or ApiError.

        seconds: for all attempts together. metered: whether it waits for its turn; a lease must not stand behind a burst of
        pods. One whose turn would come too late fails at once, without having been sent.
        """
        path = resource.path(namespace, name, subresource)
        deadline = time.monotonic() + seconds
        backoff = Backoff(self._backoff_seconds)
        while True:
            if metered:
                waited = await self._turn(f"{verb} {path}", deadline)
                deadline += waited if not backoff.failures else 0.0
            try:
                return await self._once(verb, resource.plural, path, query, body, content_type, deadline)
            except ApiError as error:
                pause = backoff.pause(error.retry_after_seconds)
                if error.retry_after_seconds is not None and error.code in (429, 503):
                    self._bucket.hold(time.monotonic() + min(error.retry_after_seconds, LONGEST_HOLD_SECONDS))
                last = backoff.failures >= attempts or time.monotonic() + pause >= deadline
                if not error.temporary or last:
                    raise
            await asyncio.sleep(pause)

    async def watch(
        self,
        resource: Resource,
        *,
        version: str,
        labels: str = "",
        fields: str = "",
        seconds: int = 300,
        silence_seconds: float = WATCH_SILENCE_SECONDS,
    ) -> AsyncGenerator[list[bytes], None]:
        """Events after a resourceVersion, as lines of JSON, in batches as they arrive. Close it with `aclosing`.

        Ends when the server ends it, after about `seconds`. Raises ApiError where it cannot begin, breaks, or is silent for
        `silence_seconds`. A line that the server did not finish is not given out.
        """
        query = _selection(labels, fields)
        query |= {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": version}
        query["timeoutSeconds"] = str(seconds)
        path = resource.path()
        begun = time.monotonic()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=silence_seconds)
        answer: aiohttp.ClientResponse | None = None
        code = 0
        try:
            answer = await self._send("GET", path, query, None, JSON, timeout)
            code = answer.status
            if code != 200:
                raise from_answer(f"watch {path}", code, answer.headers, await answer.read())
            self._observer.request("watch", resource.plural, code, time.monotonic() - begun)
            async for lines in _lines(answer.content, f"watch {path}"):
                yield lines
        except (aiohttp.ClientError, OSError, TimeoutError) as broken:
            raise ApiError(f"watch {path}", 0, type(broken).__name__, str(broken)) from broken
        finally:
            if code != 200:
                self._observer.request("watch", resource.plural, code, time.monotonic() - begun)
            if answer is not None:
                answer.close()

    async def _turn(self, request: str, deadline: float) -> float:
        """Wait until the rate allows one more request; returns for how many seconds. ApiError where it is after the deadline."""
        now = time.monotonic()
        wait = self._bucket.reserve(now, max(0.0, deadline - now))
        if wait is None:
            raise ApiError(request, 0, "Throttled", "too many requests wait before it, or the server asked for rest")
        if wait:
            self._observer.throttled(wait)
            await asyncio.sleep(wait)
        return wait

    async def _once(
        self,
        verb: str,
        plural: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Any,
        content_type: str,
        deadline: float,
    ) -> bytes:
        begun = time.monotonic()
        timeout = aiohttp.ClientTimeout(total=max(0.05, deadline - begun), sock_connect=CONNECT_SECONDS)
        code = 0
        try:
            answer = await self._send(_METHODS[verb], path, query, body, content_type, timeout)
            async with answer:
                text = await answer.read()
            code = answer.status
        except (aiohttp.ClientError, OSError, TimeoutError, ConfigException) as broken:
            raise ApiError(f"{verb} {path}", 0, type(broken).__name__, str(broken)) from broken
        finally:
            self._observer.request(verb, plural, code, time.monotonic() - begun)
        if code >= 300:
            raise from_answer(f"{verb} {path}", code, answer.headers, text)
        return text

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Any,
        content_type: str,
        limits: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        # Uncompressed: the API server is near, and gzip at both ends costs more than the wire does.
        headers = {
            "Accept": JSON,
            "Accept-Encoding": "identity",
            "Content-Type": content_type,
            "User-Agent": f"trainyard/{__version__}",
        }
        await self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        url = self._api.configuration.host + path
        if query:
            url += "?" + urlencode(query, quote_via=quote)
        answer = await self._api.rest_client.request(method, url, headers=headers, body=body, _request_timeout=limits)
        response: aiohttp.ClientResponse = answer.response
        return response


_METHODS: Final = {
    "get": "GET",
    "list": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "apply": "PATCH",
    "delete": "DELETE",
}


def _selection(labels: str, fields: str) -> dict[str, str]:
    return {name: value for name, value in (("labelSelector", labels), ("fieldSelector", fields)) if value}


def _object(text: bytes) -> Object:
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise ApiError("answer", 0, "NotAnObject", f"expected an object, got {text[:100]!r}")
    return parsed


async def _lines(stream: aiohttp.StreamReader, request: str) -> AsyncIterator[list[bytes]]:
    """The whole lines of a stream, those of one read together; what follows the last newline is dropped."""
    pending: list[bytes] = []
    pending_bytes = 0
    async for chunk in stream.iter_any():
        head, newline, rest = chunk.partition(b"\n")
        pending.append(head)
        pending_bytes += len(head)
        if newline:
            *whole, tail = rest.split(b"\n")
            yield [line for line in (b"".join(pending), *whole) if line]
            pending, pending_bytes = [tail], len(tail)
        if pending_bytes > MAX_LINE_BYTES:
            raise ApiError(request, 0, "LineTooLong", f"a line of more than {MAX_LINE_BYTES} bytes")
