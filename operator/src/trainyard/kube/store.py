"""What is known of one kind, in whatever order the news arrives: lists, watch events, and the answers to our own writes.

Versions are compared only between two states of the same object (same uid), and only where both are numbers; otherwise the API
server's own order counts. An object once deleted never returns through the answer to an earlier write: uids are used once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

R = TypeVar("R")

_REMEMBERED_DELETIONS: Final = 20_000
"""More than the pods of the largest gang; the answer to a write is late by seconds, not by as many deletions."""


@dataclass(frozen=True, slots=True)
class Seen(Generic[R]):
    """An object at one version. key: what the store is asked by; record: None where it holds nothing of interest."""

    key: str
    uid: str
    version: str
    record: R | None


@dataclass(slots=True)
class Store(Generic[R]):
    """records: by key. generation: changes whenever records do."""

    records: dict[str, R] = field(default_factory=dict)
    generation: int = 0
    _held: dict[str, tuple[str, str]] = field(default_factory=dict)
    _gone: dict[str, None] = field(default_factory=dict)
    _written: set[str] = field(default_factory=set)

    def tell(self, seen: Seen[R]) -> None:
        """The watch says that an object is now like this."""
        self._gone.pop(seen.uid, None)
        uid, version = self._held.get(seen.key, ("", ""))
        if uid != seen.uid or newer(seen.version, version):
            self._keep(seen)

    def observe(self, seen: Seen[R]) -> None:
        """The answer to our own write: it counts unless something newer is known already."""
        uid, version = self._held.get(seen.key, (seen.uid, ""))
        if seen.uid in self._gone or uid != seen.uid or (version and not newer(seen.version, version)):
            return
        self._written.add(seen.key)
        self._keep(seen)

    def forget(self, key: str, uid: str) -> None:
        """The watch says that an object is gone."""
        self._bury(uid)
        if self._held.get(key, ("", ""))[0] == uid:
            del self._held[key]
            self._written.discard(key)
            if self.records.pop(key, None) is not None:
                self.generation += 1

    def begin(self) -> None:
        """A list is about to be asked for: it holds all that was written before now."""
        self._written.clear()

    def replace(self, listed: Sequence[Seen[R]], version: str, unreadable: Collection[str] = ()) -> None:
        """The list says that these objects are all there are at `version`. What is missing in it vanished unseen, except what we
        wrote while it was being read. unreadable: keys of objects that are there, but not as anything we understand: their
        last state that made sense stays.
        """
        held = {seen.key: (seen.uid, seen.version) for seen in listed}
        records = {seen.key: seen.record for seen in listed if seen.record is not None}
        for key, (uid, known) in self._held.items():
            written = key in self._written and newer(known, version)
            if key in held:
                if not (written and held[key][0] == uid and newer(known, held[key][1])):
                    continue
            elif not written and key not in unreadable:
                self._bury(uid)
                continue
            held[key] = (uid, known)
            if key in self.records:
                records[key] = self.records[key]
        self.generation += 1
        self.records, self._held = records, held

    def _keep(self, seen: Seen[R]) -> None:
        self._held[seen.key] = (seen.uid, seen.version)
        if seen.record is not None and seen.record == self.records.get(seen.key):
            return  # of what changed nothing is of interest: a heartbeat, a device that is in use
        if seen.record is not None:
            self.records[seen.key] = seen.record
        elif self.records.pop(seen.key, None) is None:
            return
        self.generation += 1

    def _bury(self, uid: str) -> None:
        self._gone[uid] = None
        while len(self._gone) > _REMEMBERED_DELETIONS:
            del self._gone[next(iter(self._gone))]


def newer(one: str, other: str) -> bool:
    """Whether a version comes after another of the same object; of two that are no numbers the one that is told later does."""
    if one.isdecimal() and other.isdecimal():
        return int(one) > int(other)
    return one != other
