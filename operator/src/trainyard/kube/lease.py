"""One leader at a time, by a Lease of coordination.k8s.io.

Who holds the lease renews it every RETRY seconds. Who wants it waits until the record has not changed for LEASE seconds of his
own monotonic clock: nobody's wall clock is compared with anybody else's. Who could not renew for RENEW seconds, for whatever
reason, is the leader no more and must leave: also a process that was frozen, the moment it thaws, before it does anything else.
Between RENEW and LEASE there is nobody.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from dataclasses import dataclass
from typing import Any, Final, Self

from trainyard.api.model import rfc3339
from trainyard.kube import resources
from trainyard.kube.client import KubeClient, Object
from trainyard.kube.errors import ApiError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Terms:
    """In seconds. lease: how long a record that does not change is respected; renew: how long the leader goes on without having
    renewed; retry: between two looks. lease > renew > retry."""

    lease: float = 15.0
    renew: float = 10.0
    retry: float = 2.0


@dataclass(frozen=True, slots=True)
class _Record:
    """The lease as it was last seen, and when, of our clock, it became so. raw: None where there is none."""

    version: str
    holder: str
    since: float
    raw: Object | None


class Elector:
    """Takes part in the election while entered; releases the lease when left.

    acquired: set once, when the lease is ours. lost: set once, when it was ours and is not any more; the process must end then,
    for another may lead already.
    """

    def __init__(
        self, client: KubeClient, namespace: str, name: str, identity: str, terms: Terms | None = None
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self.identity = identity
        self._terms = terms or Terms()
        self._seen: _Record | None = None
        self._renewed = float("-inf")
        self._task: asyncio.Task[None] | None = None
        self.acquired = asyncio.Event()
        self.lost = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._campaign(), name="lease")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._release()

    @property
    def leading(self) -> bool:
        """Whether the lease is ours at this very moment, by the clock alone. To be asked before every write."""
        return self.acquired.is_set() and not self.lost.is_set() and _now() - self._renewed < self._terms.renew

    async def _campaign(self) -> None:
        while not self._lapsed():
            try:
                async with asyncio.timeout(self._terms.renew):
                    await self._try()
            except (ApiError, TimeoutError) as error:
                log.warning("lease %s/%s: %s", self._namespace, self._name, str(error) or "no answer")
            except Exception:
                log.exception("lease %s/%s: unexpected", self._namespace, self._name)
            if not self._lapsed():
                await asyncio.sleep(self._pause())
        log.error("lease %s/%s is lost", self._namespace, self._name)
        self.lost.set()

    def _lapsed(self) -> bool:
        """It was ours, and is not any more."""
        return self.acquired.is_set() and not self.leading

    def _pause(self) -> float:
        """Until the next look; a candidate's is up to a fifth longer, so that not all come at once."""
        return self._terms.retry if self.acquired.is_set() else self._terms.retry * random.uniform(1.0, 1.2)

    async def _try(self) -> None:
        """Look at the record, and write it if it is ours or nobody's."""
        asked = _now()
        record = await self._look()
        ours = record.holder == self.identity
        if self.acquired.is_set() and not ours:
            self._renewed = float("-inf")  # somebody took it: he saw nothing of us for a whole lease
            return
        free = record.holder == "" or _now() - record.since >= self._terms.lease
        if ours or free:
            try:
                self._note(await self._write(record))
            except ApiError as error:
                if error.code == 409:
                    return  # somebody else was faster; the next look shows who
                raise
            # Counted from before the request: what others respect began no earlier.
            self._renewed = asked
            if not self.acquired.is_set():
                log.info("lease %s/%s is held by %s", self._namespace, self._name, self.identity)
                self.acquired.set()

    async def _look(self) -> _Record:
        try:
            raw = await self._client.get(resources.LEASES, self._namespace, self._name, attempts=1, metered=False)
        except ApiError as error:
            if not error.not_found:
                raise
            return _Record("", "", _now(), None)
        return self._note(raw)

    def _note(self, raw: Object) -> _Record:
        """The record, with the time at which its version was first seen."""
        version = str(raw["metadata"]["resourceVersion"])
        if self._seen is None or self._seen.version != version:
            self._seen = _Record(version, str((raw.get("spec") or {}).get("holderIdentity") or ""), _now(), raw)
        return self._seen

    async def _write(self, record: _Record) -> Object:
        """Renew it, take it over, or make it."""
        now = _micro_now()
        if record.raw is None:
            spec = self._spec(now, now, transitions=0)
            return await self._client.create(
                resources.LEASES,
                self._manifest({"namespace": self._namespace, "name": self._name}, spec),
                attempts=1,
                metered=False,
            )
        old = record.raw.get("spec") or {}
        transitions = int(old.get("leaseTransitions") or 0)
        if record.holder == self.identity:
            spec = self._spec(str(old.get("acquireTime") or now), now, transitions)
        else:
            spec = self._spec(now, now, transitions + 1)
        manifest = self._manifest(record.raw["metadata"], spec)
        return await self._client.replace(resources.LEASES, manifest, attempts=1, metered=False)

    async def _release(self) -> None:
        """Give the lease back, so that the next leader need not wait."""
        if not self.leading:
            return
        self._renewed = float("-inf")
        try:
            while (record := await self._look()).holder == self.identity and record.raw is not None:
                spec = {
                    **record.raw["spec"],
                    "holderIdentity": "",
                    "leaseDurationSeconds": 1,
                    "renewTime": _micro_now(),
                }
                manifest = self._manifest(record.raw["metadata"], spec)
                try:
                    await self._client.replace(resources.LEASES, manifest, attempts=2, seconds=3.0, metered=False)
                except ApiError as error:
                    # A renewal that was under way when we were told to leave: the server did it after our look.
                    if error.code != 409:
                        raise
                else:
                    return
        except ApiError as error:
            log.warning("lease %s/%s was not given back: %s", self._namespace, self._name, error)

    def _spec(self, acquired: str, renewed: str, transitions: int) -> Object:
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, round(self._terms.lease)),
            "acquireTime": acquired,
            "renewTime": renewed,
            "leaseTransitions": transitions,
        }

    def _manifest(self, metadata: Any, spec: Object) -> Object:
        return {"apiVersion": resources.LEASES.api_version, "kind": "Lease", "metadata": metadata, "spec": spec}


def _micro_now() -> str:
    """Now as a MicroTime, for people to read: no decision is made by it."""
    text = rfc3339(time.time())
    return text if "." in text else text.replace("Z", ".000000Z")


_BOOT_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _now() -> float:
    """Seconds of a clock that nobody sets, and that goes on while the machine sleeps."""
    return time.clock_gettime(_BOOT_CLOCK)
