"""The checkpoints of a job in an object store, which has no rename: a log that only one can write decides what counts.

    <url>/log/00000007.json                                          who writes, and which checkpoints there are
    <url>/attempt-0002/step-00000040.attempt-0002.5f0c.../commit.json    a checkpoint's record, beside its files
    <url>/history/...                                                see history.py
    <url>/probe                                                      whether the store keeps to conditions

Each entry of the log says all: the attempt and gang that wrote it, and the checkpoints that there are from then on, each
with the hash of its record. It is put under the next number on condition that nothing is there. So of all that happens to a
job there is one order: an attempt begins by an entry of its own, and from then on every put of an older one fails, in
whatever state it is and whenever it wakes up. A save is committed by the one put of the entry that names it. What is to be
deleted is first left out of an entry, then deleted: a frozen process that goes on deleting later deletes only what nobody
after it ever knew.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final

from trainyard.contract.codec import ContractError, dumps, loads

from trainyard_trainer.checkpoint.objects import Objects, Url
from trainyard_trainer.checkpoint.record import CommitRecord, decode, encode
from trainyard_trainer.checkpoint.store import (
    RECORD,
    Found,
    Problem,
    Stored,
    Superseded,
    WrongFolder,
    attempt_name,
    attempt_number,
    gang_name,
    owner,
    step_name,
)

LOG: Final = "log"
PROBE: Final = "probe"
FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Listed:
    """A checkpoint that there is. path: below the root. sha256: of its record, hex."""

    path: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the log; each differs from all others by its nonce."""

    attempt: int
    gang: str
    job: str
    commits: tuple[Listed, ...]
    nonce: str
    format: int = FORMAT


@dataclass(slots=True)
class Bucket:
    """What one attempt sees and makes below a URL, that of its objects. gang: a name that nobody else has."""

    objects: Objects
    attempt: int
    gang: str = field(default_factory=gang_name)
    _number: int = 0
    _entry: Entry | None = None
    _inherited: set[str] = field(default_factory=set)

    @property
    def root(self) -> Url:
        return self.objects.root

    @property
    def streams(self) -> Objects:
        return self.objects

    def claim(self, job: str) -> None:
        self._number, self._entry = self._newest()
        while True:
            before = self._entry
            if before is not None and before.job != job:
                raise WrongFolder(
                    f"{self.root}: holds checkpoints of another job ({before.job or 'without uid'}; this is "
                    f"{job or 'without uid'}); give each job a URL of its own"
                )
            if before is not None and before.attempt > self.attempt:
                raise self._superseded(before)
            try:
                self._try_conditions()
                return self._append(before.commits if before else (), job)
            except Superseded:  # another one has begun meanwhile: look again
                self._number += 1
                self._entry = self._read(self._number)
            except FileNotFoundError as error:
                raise WrongFolder(
                    f"{self.root}: {error.strerror}; make the bucket, or name one that is there"
                ) from error

    def find(self) -> Found:
        commits: list[Stored] = []
        unreadable: list[tuple[PurePath, Problem]] = []
        entry = self._entry or self._newest()[1]  # who only looks has claimed nothing
        listed = entry.commits if entry is not None else ()
        for one in listed:
            path = self.root / one.path
            try:
                data = self.objects.get(path / RECORD)
                if hashlib.sha256(data).hexdigest() != one.sha256:
                    raise ContractError(f"{RECORD}: its hash is not that of what was written")
                commits.append(Stored(decode(data), path))
            except (OSError, ContractError) as error:
                unreadable.append((path, Problem(str(error), isinstance(error, ContractError | FileNotFoundError))))
        there = {path for attempt in self._attempts() for path in self._directories(attempt)}
        unfinished = there - {self.root / one.path for one in listed}
        return Found(tuple(commits), tuple(unreadable), tuple(sorted(unfinished)))

    def clear(self, unfinished: Collection[PurePath], attempts: Collection[int]) -> None:
        """None of them gets a record any more: that would be an entry after this attempt's first."""
        for path in unfinished:
            if owner(path) in attempts or owner(path) == self.attempt:
                self.objects.remove(path)

    def inherit(self, stored: Stored) -> Stored | Problem:
        """It lies where it is: whoever wrote it can no longer say that it is to go."""
        self._inherited.add(self._below(stored.path))
        return stored

    def begin(self, step: int) -> PurePath:
        self._check_current()
        name = step_name(step, self.attempt)
        if any(one.path.startswith(f"{attempt_name(self.attempt)}/{name}.") for one in self._current().commits):
            raise FileExistsError(f"{self.root}: step {step} of attempt {self.attempt} exists")
        return self.root / attempt_name(self.attempt) / f"{name}.{uuid.uuid4().hex[:12]}"

    def commit(self, path: PurePath, record: CommitRecord) -> Stored:
        expected = {file.name: file.bytes for file in record.files}
        present = self.objects.sizes(path)
        if present != expected:
            raise OSError(f"{path}: holds {present}, but {expected} was written")
        data = encode(record).encode()
        self.objects.put(path / RECORD, data)
        entry = self._current()
        listed = Listed(self._below(path), hashlib.sha256(data).hexdigest())
        self._append((*entry.commits, listed), entry.job)
        return Stored(record, path)

    def delete(self, path: PurePath) -> None:
        """Left out of the log first, even if it is not known to be there: the answer to a put may be what was lost."""
        self._leave_out({self._below(path)})
        self.objects.remove(path)

    def discard(self, path: PurePath) -> None:
        self.delete(path)

    def abandon(self, keep: Collection[int]) -> None:
        own = attempt_name(self.attempt)
        gone = {
            one.path
            for one in self._current().commits
            if one.path not in self._inherited
            and not one.path.startswith(f"{own}/")
            and owner(self.root / one.path) not in keep
        }
        if gone:
            self._leave_out(gone)
        listed = {self.root / one.path for one in self._current().commits}
        for attempt in self._attempts():
            if attempt < self.attempt and attempt not in keep:
                for path in set(self._directories(attempt)) - listed:
                    self.objects.remove(path)

    def _try_conditions(self) -> None:
        """Raises WrongFolder for a store, or a client of one, that puts an object over another although asked not to."""
        for _ in range(2):
            try:
                self.objects.put_new(self.root / PROBE, self.gang.encode())
            except FileExistsError:
                return
        raise WrongFolder(
            f"{self.root}: the store puts an object over another although asked not to (If-None-Match: *), so two gangs could "
            f"write one history; use a store that knows conditional puts, or a volume"
        )

    # The log

    def _append(self, commits: tuple[Listed, ...], job: str) -> None:
        """The next entry. Raises Superseded where somebody else has written one since the last that this gang knows.

        The store may have put what it could not answer any more, or answered with an error: what lies there says it.
        """
        while True:
            number, entry = self._number + 1, Entry(self.attempt, self.gang, job, commits, uuid.uuid4().hex)
            try:
                self.objects.put_new(self._key(number), dumps(entry).encode())
            except OSError:
                try:
                    there = self._read(number)
                except FileNotFoundError:
                    there = None
                if there is None:
                    raise
                if there.gang != self.gang:
                    raise self._superseded(there) from None
                self._number, self._entry = number, there
                if there.nonce == entry.nonce:
                    return
            else:
                self._number, self._entry = number, entry
                return

    def _leave_out(self, gone: Collection[str]) -> None:
        while True:
            entry = self._current()
            kept = tuple(one for one in entry.commits if one.path not in gone)
            self._append(kept, entry.job)
            if not any(one.path in gone for one in self._current().commits):
                return

    def _check_current(self) -> None:
        """Raises Superseded where somebody else has written to the log since this gang did."""
        try:
            there = self._read(self._number + 1)
        except FileNotFoundError:
            return
        if there.gang != self.gang:
            raise self._superseded(there)
        self._number, self._entry = self._number + 1, there

    def _superseded(self, by: Entry) -> Superseded:
        if by.attempt > self.attempt:
            return Superseded(
                f"attempt {by.attempt} has begun in {self.root}; what attempt {self.attempt} saves would not count"
            )
        return Superseded(
            f"{by.gang} has claimed attempt {by.attempt} in {self.root} after this gang ({self.gang}); "
            f"give each gang a URL of its own"
        )

    def _current(self) -> Entry:
        if self._entry is None:
            raise RuntimeError(f"{self.root} has not been claimed")
        return self._entry

    def _newest(self) -> tuple[int, Entry | None]:
        numbers = [int(name.removesuffix(".json")) for name in self.objects.sizes(self.root / LOG)]
        newest = max(numbers, default=0)
        return newest, self._read(newest) if newest else None

    def _read(self, number: int) -> Entry:
        key = self._key(number)
        try:
            entry = loads(Entry, self.objects.get(key))
        except ContractError as error:
            raise WrongFolder(f"{key}: {error}; give each job a URL of its own") from error
        if entry.format > FORMAT:
            raise WrongFolder(f"{key}: format {entry.format} is newer than {FORMAT}, the newest that this image reads")
        return entry

    def _key(self, number: int) -> Url:
        return self.root / LOG / f"{number:08d}.json"

    # What is there

    def _below(self, path: PurePath) -> str:
        return path.relative_to(self.root).as_posix()

    def _attempts(self) -> list[int]:
        numbers = (attempt_number(name) for name in self.objects.sizes(self.root))
        return sorted(number for number in numbers if number is not None)

    def _directories(self, attempt: int) -> list[PurePath]:
        path = self.root / attempt_name(attempt)
        return [path / name for name in self.objects.sizes(path)]


def last_attempt(root: Url) -> int:
    """The highest number that an attempt has had below this URL; 0 where there was none."""
    _, entry = Bucket(Objects(root), 0)._newest()
    return entry.attempt if entry else 0
