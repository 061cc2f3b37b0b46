"""One kind of object, always as the API server has it: list in pages, watch, and begin again whatever happens.

It never gives up. What ends a watch decides how it goes on. The server's own end and a broken connection: from the last version.
410, or anything that cannot be understood: with the whole list. A server whose versions lie behind ours was restored from a
backup: with the list too, for a watch from a version of its future would be silent for ever. A list replaces all that was known,
so that what vanished meanwhile is noticed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from pydantic import ValidationError

from trainyard.kube.client import WATCH_SILENCE_SECONDS, KubeClient
from trainyard.kube.errors import ApiError, from_status
from trainyard.kube.observer import Observer, Unobserved
from trainyard.kube.pacing import Backoff
from trainyard.kube.resources import Resource
from trainyard.kube.shapes import Shape
from trainyard.kube.store import Seen, Store

S = TypeVar("S")
R = TypeVar("R")

PAGE_OBJECTS: Final = 500
LIST_SECONDS: Final = 60.0
_QUICK_SECONDS: Final = 1.0
"""A watch that the server ends sooner is not working, whatever it says."""
_ABSENT: Final = (403, 404)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kind(Generic[S, R]):
    """What is watched, and what is made of it.

    name: of the informer, for logs and metrics. decode: None for an object of no interest. by_name: the store is asked by name
    instead of uid. labels, fields: selectors for the server. optional: a server may not have the kind, or not let us read it;
    then there is none of it, and it is asked again now and then.
    """

    name: str
    resource: Resource
    shape: Shape[S]
    decode: Callable[[S], R | None]
    by_name: bool = False
    labels: str = ""
    fields: str = ""
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Pace:
    """How patient an informer is. watch_seconds: after which the server ends a watch. absent_seconds: after which it is asked
    again for a kind that it does not have; less than the silence after which a watch counts as stuck."""

    first_pause_seconds: float = 0.2
    longest_pause_seconds: float = 30.0
    silence_seconds: float = WATCH_SILENCE_SECONDS
    watch_seconds: int = 400
    absent_seconds: float = 60.0


class Garbled(Exception):
    """The stream said something that is not JSON, or not an event."""


class Informer(Generic[S, R]):
    """Keeps `records` as the API server has them while `run` runs.

    synced: a whole list was read. last_activity: of `time.monotonic`, when the server was last heard. undecodable: how often
    an object made no sense. changed: called after every change of the records.
    """

    def __init__(
        self,
        client: KubeClient,
        kind: Kind[S, R],
        *,
        changed: Callable[[], None] = lambda: None,
        observer: Observer | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._client = client
        self._of = kind
        self._changed = changed
        self._observer = observer or Unobserved()
        self._pace = pace or Pace()
        self._store: Store[R] = Store()
        self._version = ""
        self._complained: set[str] = set()
        self.synced = False
        self.last_activity = self._failed = time.monotonic()
        self.undecodable = 0

    @property
    def kind(self) -> str:
        """Name of what is watched."""
        return self._of.name

    @property
    def last_alive(self) -> float:
        """Of `time.monotonic`: when the server was last heard, or was found not to serve us, which is no fault of this task."""
        return max(self.last_activity, self._failed)

    @property
    def records(self) -> dict[str, R]:
        """By uid, or by name where the kind says so. A live view, to be read only: copy it to keep it."""
        return self._store.records

    @property
    def generation(self) -> int:
        """Changes whenever records do."""
        return self._store.generation

    def observe(self, raw: Mapping[str, Any]) -> None:
        """Read our own write: the object as the API server answered it, before the watch tells of it."""
        seen = self._seen_raw(raw)
        if isinstance(seen, Seen):
            with self._noting():
                self._store.observe(seen)

    async def run(self) -> None:
        """List and watch until cancelled."""
        backoff = Backoff(self._pace.first_pause_seconds, self._pace.longest_pause_seconds)
        reason, doubt = "start", False
        while True:
            try:
                if doubt and not reason:
                    reason = "went back" if await self._went_back() else ""
                if reason:
                    await self._list(reason)
                reason, doubt = "", False
                await self._watch(backoff)
            except ApiError as error:
                self._failed = time.monotonic()
                if self._of.optional and error.code in _ABSENT:
                    self._miss(error)
                    reason, doubt = "start", False
                    await asyncio.sleep(self._pace.absent_seconds)
                    continue
                pause, doubt = backoff.pause(error.retry_after_seconds), True
                if error.expired:
                    reason = "expired"
                    log.info("%s: %s; reading the list again in %.1f s", self.kind, error, pause)
                else:
                    log.warning("%s: %s; again in %.1f s", self.kind, error, pause)
                await asyncio.sleep(pause)
            except Garbled as error:
                self._failed = time.monotonic()
                pause, reason = backoff.pause(), "garbled"
                log.warning("%s: %s; reading the list again in %.1f s", self.kind, error, pause)
                await asyncio.sleep(pause)
            except Exception:
                self._failed = time.monotonic()
                pause, reason = backoff.pause(), "defect"
                log.exception("%s: unexpected; reading the list again in %.1f s", self.kind, pause)
                await asyncio.sleep(pause)

    def _miss(self, error: ApiError) -> None:
        """There is none of an optional kind. What was known stays where only the right to read it is gone."""
        self.last_activity = time.monotonic()
        if not self.synced or (error.not_found and self._store.records):
            log.info("%s: none here: %s", self.kind, error)
            self.synced = True
            with self._noting():
                self._store.replace((), self._version)

    async def _list(self, reason: str) -> None:
        """Read everything and replace what was known."""
        limit = PAGE_OBJECTS
        while True:
            self._store.begin()
            listed: list[Seen[R]] = []
            unreadable: set[str] = set()
            token = ""
            try:
                while True:
                    text = await self._client.list_page(
                        self._of.resource,
                        labels=self._of.labels,
                        fields=self._of.fields,
                        limit=limit,
                        token=token,
                        seconds=LIST_SECONDS,
                        attempts=1,
                    )
                    self.last_activity = time.monotonic()
                    version, token = self._page(text, listed, unreadable)
                    if not token:
                        break
                    await asyncio.sleep(0)  # a page takes tens of milliseconds to read; others may want the loop
                break
            except ApiError as error:
                if not (error.expired and token):
                    raise
                # The pages were compacted away while we read them; in one piece there is nothing to compact.
                limit = 0
        self._observer.relisted(self.kind, reason)
        self._version = version
        self.synced = True
        with self._noting():
            self._store.replace(listed, version, unreadable)
        log.info("%s: read the list (%s): %d objects at version %s", self.kind, reason, len(listed), version)

    def _page(self, text: bytes, listed: list[Seen[R]], unreadable: set[str]) -> tuple[str, str]:
        """Add a page's objects; returns the list's version and the token of the next page, "" where it is the last."""
        meta: Mapping[str, Any]
        try:
            page = self._of.shape.page.validate_json(text)
            meta = page.get("metadata") or {}
            seen = [self._seen(item) for item in page.get("items") or ()]
        except ValidationError:
            raw = _parsed(text)
            meta = raw.get("metadata") or {}
            seen = [self._seen_raw(item) for item in raw.get("items") or ()]
        for one in seen:
            if isinstance(one, Seen):
                listed.append(one)
            else:
                unreadable.add(one)
        version = meta.get("resourceVersion")
        if not version:
            raise Garbled("a list without a resourceVersion")
        return str(version), str(meta.get("continue") or "")

    async def _watch(self, backoff: Backoff) -> None:
        """Follow events until the server ends the watch."""
        begun = time.monotonic()
        heard = False
        events = self._client.watch(
            self._of.resource,
            version=self._version,
            labels=self._of.labels,
            fields=self._of.fields,
            seconds=self._pace.watch_seconds,
            silence_seconds=self._pace.silence_seconds,
        )
        async with aclosing(events):
            async for lines in events:
                self.last_activity = time.monotonic()
                with self._noting():
                    for line in lines:
                        self._event(line)
                heard = True
                backoff.reset()
        if not heard and time.monotonic() - begun < _QUICK_SECONDS:
            await asyncio.sleep(backoff.pause())

    def _event(self, line: bytes) -> None:
        """Take in one event. ApiError where it is an error, Garbled where it is nothing."""
        event: Mapping[str, Any]
        try:
            event, whole = self._of.shape.event.validate_json(line), True
        except ValidationError:
            event, whole = _parsed(line), False
        type, raw = event.get("type"), event.get("object")
        if not isinstance(type, str) or not isinstance(raw, dict):
            raise Garbled(f"no event: {line[:100]!r}")
        self._observer.watch_event(self.kind, type)
        if type == "ERROR":
            status = _parsed(line)["object"]
            raise from_status(f"watch {self.kind}", int(status.get("code") or 500), status)
        version = str((raw.get("metadata") or {}).get("resourceVersion") or "")
        if not version:
            raise Garbled(f"an event without a resourceVersion: {line[:100]!r}")
        if type == "BOOKMARK":
            if _behind(version, self._version):
                raise ApiError(
                    f"watch {self.kind}", 410, "WentBack", f"the server is at {version}, behind {self._version}"
                )
        elif type == "DELETED":
            key, uid = self._identity(raw)
            self._store.forget(key, uid)
        elif type in ("ADDED", "MODIFIED"):
            seen = self._seen(raw) if whole else self._seen_raw(raw)
            if isinstance(seen, Seen):
                self._store.tell(seen)
        else:
            raise Garbled(f"an event of type {type!r}")
        self._version = version

    async def _went_back(self) -> bool:
        """After trouble: whether the server is behind what we know, having been restored from a backup."""
        text = await self._client.list_page(self._of.resource, limit=1, attempts=1)
        version = str((_parsed(text).get("metadata") or {}).get("resourceVersion") or "")
        self.last_activity = time.monotonic()
        return _behind(version, self._version)

    def _seen_raw(self, raw: Any) -> Seen[R] | str:
        """As `_seen`, of an object that may not even have the shape."""
        try:
            shaped = self._of.shape.one.validate_python(raw)
        except ValidationError as error:
            return self._complain(raw, error)
        return self._seen(shaped)

    def _seen(self, raw: Any) -> Seen[R] | str:
        """The object as the store takes it; only its key where it makes no sense."""
        try:
            key, uid = self._identity(raw)
            return Seen(key, uid, raw["metadata"]["resourceVersion"], self._of.decode(raw))
        except Exception as error:  # whatever one object holds, the others must be read
            return self._complain(raw, error)

    def _identity(self, raw: Mapping[str, Any]) -> tuple[str, str]:
        """Key and uid."""
        try:
            meta = raw["metadata"]
            uid = str(meta["uid"])
            return (str(meta["name"]) if self._of.by_name else uid), uid
        except (KeyError, TypeError) as error:
            raise Garbled(f"an object without name and uid: {error}") from None

    def _complain(self, raw: Any, error: Exception) -> str:
        """Count it, and say it once for each object; returns its key."""
        self.undecodable += 1
        try:
            key, uid = self._identity(raw)
        except Garbled:
            key = uid = ""
        if uid not in self._complained:
            if len(self._complained) > PAGE_OBJECTS:
                self._complained.clear()
            self._complained.add(uid)
            meta = raw.get("metadata") if isinstance(raw, dict) else None
            name = "/".join(str(meta[part]) for part in ("namespace", "name") if meta.get(part)) if meta else "?"
            log.error("%s: %s makes no sense, and is left as it was known: %s", self.kind, name, error)
        return key

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Tell whoever waits if the records changed."""
        before = self._store.generation
        try:
            yield
        finally:
            if self._store.generation != before:
                self._changed()


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Garbled(f"not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise Garbled(f"not an object: {text[:100]!r}")
    return parsed


def _behind(version: str, ours: str) -> bool:
    """Whether a server at `version` has not yet reached ours; no, where versions are no numbers."""
    return version.isdecimal() and ours.isdecimal() and int(version) < int(ours)
