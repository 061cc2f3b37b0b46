"""The folder of a job's checkpoints on a POSIX file system.

    <folder>/attempt-0002/gang                          who writes as attempt 2
    <folder>/attempt-0002/step-00000040.attempt-0002/   written by attempt 2
    <folder>/attempt-0002/step-00000020.attempt-0001/   written by attempt 1, inherited by attempt 2
    <folder>/history.jsonl

Each attempt has a folder of its own, writes there and deletes only there. It inherits what it may resume from by
renaming it into its folder before it reads it. So an older attempt that still runs somewhere, cut off or frozen, can
neither delete nor finish anything that a newer one relies on: the paths it knows are gone. Every step is one atomic
rename or unlink.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from trainyard.contract.codec import ContractError

from trainyard_trainer.checkpoint.files import Files, Posix, Streams, make_folders, remove_tree
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

GANG = "gang"
_POSIX = Posix()


@dataclass(frozen=True, slots=True)
class Folder:
    """The checkpoints of one job, and the attempt that looks at them. gang: a name that nobody else has."""

    root: Path
    attempt: int
    files: Files = _POSIX
    gang: str = field(default_factory=gang_name)

    @property
    def streams(self) -> Streams:
        return self.files

    @property
    def own(self) -> Path:
        return self.of(self.attempt)

    def of(self, attempt: int) -> Path:
        """The folder of an attempt."""
        return self.root / attempt_name(attempt)

    def directory(self, step: int, writer: int) -> Path:
        """Where this attempt keeps what `writer` (itself or an earlier attempt) saved after `step`."""
        return self.own / step_name(step, writer)

    def claim(self, job: str) -> None:
        """Make the attempt's folder and write this gang's name into it."""
        make_folders(self.files, self.own)
        for attempt in sorted(_attempts(self.root)):
            if attempt >= self.attempt:
                self._refuse_others(attempt, job)
        self.check_attempt()
        fresh = self.own / f"{GANG}.{self.gang.rsplit('/', 1)[-1]}"
        with self.files.create(fresh) as stream:
            stream.write(self.gang.encode())
            self.files.sync(stream)
        self.files.rename(fresh, self.own / GANG)
        self.files.sync_folder(self.own)

    def check_attempt(self) -> None:
        """Raises Superseded where a newer attempt has begun."""
        newest = max(_attempts(self.root), default=self.attempt)
        if newest > self.attempt:
            raise Superseded(
                f"attempt {newest} has begun in {self.root}; what attempt {self.attempt} saves would not count"
            )

    def check_current(self) -> None:
        """Raises Superseded where a newer attempt has begun, or another gang has claimed this one."""
        self.check_attempt()
        try:
            with self.files.read(self.own / GANG) as stream:
                gang = stream.read().decode(errors="replace")
        except FileNotFoundError:
            if not self.root.exists():
                raise FileNotFoundError(errno.ENOENT, "the volume is not there any more", str(self.root)) from None
            raise Superseded(f"{self.own} was taken away: this attempt has been given up") from None
        if gang != self.gang:
            raise Superseded(
                f"{gang} has claimed attempt {self.attempt} in {self.root} after this gang ({self.gang}); "
                f"give each gang a folder of its own"
            )

    def find(self) -> Found:
        commits: list[Stored] = []
        unreadable: list[tuple[PurePath, Problem]] = []
        unfinished: list[PurePath] = []
        for attempt in sorted(_attempts(self.root)):
            if attempt > self.attempt:
                continue
            for path in self._directories(attempt):
                try:
                    record = self._record(path)
                except FileNotFoundError:
                    unfinished.append(path)
                except (OSError, ContractError) as error:
                    unreadable.append((path, Problem(str(error), isinstance(error, ContractError))))
                else:
                    commits.append(Stored(record, path))
        return Found(tuple(commits), tuple(unreadable), tuple(unfinished))

    def begin(self, step: int) -> Path:
        """What a save of this attempt left there without a record is moved away, and a commit is an error."""
        self.check_current()
        path = self.directory(step, self.attempt)
        try:
            self.files.make_folder(path)
        except FileExistsError:
            if (path / RECORD).exists():
                raise
            self.discard(path)
            self.files.make_folder(path)
        return path

    def commit(self, path: PurePath, record: CommitRecord) -> Stored:
        self.check_current()
        expected = {file.name: file.bytes for file in record.files}
        present = {entry.name: entry.bytes for entry in self.files.entries(path)}
        if present != expected:
            raise OSError(f"{path}: holds {present}, but {expected} was written")
        self.files.sync_folder(path)
        temporary = path / f"{RECORD}.tmp"
        with self.files.create(temporary) as stream:
            stream.write(encode(record).encode())
            self.files.sync(stream)
        self.files.rename(temporary, path / RECORD)
        self.files.sync_folder(path)
        self.files.sync_folder(path.parent)
        return Stored(record, path)

    def inherit(self, stored: Stored) -> Stored | Problem:
        """A problem where it could not be moved or read, or where its owner was faster in deleting it."""
        path = self.directory(stored.record.step, stored.record.attempt)
        if path == stored.path:
            return stored
        try:
            self.files.rename(stored.path, path)
            self.files.sync_folder(self.own)
            # What was seen before the rename may have been deleted since; what is here now is ours.
            return Stored(self._record(path), path)
        except (OSError, ContractError) as error:
            return Problem(f"{stored.path}: cannot be taken over: {error}", isinstance(error, ContractError))

    def delete(self, path: PurePath) -> None:
        """Its record goes first."""
        if path.parent != self.own:
            raise ValueError(f"{path}: not in {self.own}; an attempt deletes only its own")
        try:
            self.files.unlink(path / RECORD)
        except FileNotFoundError:
            pass
        else:
            self.files.sync_folder(path)
        remove_tree(self.files, path)

    def discard(self, path: PurePath) -> None:
        """It gets another name first."""
        doomed = self.own / f"unfinished.{uuid.uuid4().hex}"
        self.files.rename(path, doomed)
        self.delete(doomed)

    def clear(self, unfinished: Collection[PurePath], attempts: Collection[int]) -> None:
        for path in unfinished:
            if owner(path) not in attempts or path.parent == self.own:
                continue
            doomed = self.own / f"unfinished.{path.parent.name}.{path.name}"
            try:
                self.files.rename(path, doomed)
                if (doomed / RECORD).exists():
                    self.files.rename(doomed, self.own / path.name)
                else:
                    remove_tree(self.files, doomed)
            except OSError:
                continue

    def abandon(self, keep: Collection[int]) -> None:
        """Each folder is taken into this attempt's first, in one rename, so that nobody writes there any more."""
        for attempt in sorted(_attempts(self.root)):
            if attempt < self.attempt and attempt not in keep:
                doomed = self.own / f"abandoned.{self.of(attempt).name}"
                self.files.rename(self.of(attempt), doomed)
                remove_tree(self.files, doomed)

    def _refuse_others(self, attempt: int, job: str) -> None:
        for path in self._directories(attempt):
            try:
                other = self._record(path).job
            except (OSError, ContractError):
                continue
            if other != job:
                raise WrongFolder(
                    f"{path}: is a checkpoint of another job ({other or 'without uid'}; this is {job or 'without uid'}), and "
                    f"attempt {self.attempt} would write among its attempts; give each job a folder of its own"
                )

    def _record(self, path: PurePath) -> CommitRecord:
        with self.files.read(path / RECORD) as stream:
            return decode(stream.read())

    def _directories(self, attempt: int) -> list[Path]:
        path = self.of(attempt)
        try:
            return [path / entry.name for entry in self.files.entries(path) if entry.is_folder]
        except FileNotFoundError:
            return []


def last_attempt(root: Path) -> int:
    """The highest number that an attempt has had in this folder; 0 where there was none."""
    return max(_attempts(root), default=0)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    _POSIX.sync_folder(path)


def _attempts(root: Path) -> Iterator[int]:
    try:
        with os.scandir(root) as entries:
            numbers = [attempt_number(entry.name) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return
    yield from (number for number in numbers if number is not None)
