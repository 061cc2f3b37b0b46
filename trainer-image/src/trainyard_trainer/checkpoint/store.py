"""The folder of a job's checkpoints, as one process sees it: find, verify, commit, inherit, delete.

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
import hashlib
import os
import socket
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from trainyard.contract.codec import ContractError

from trainyard_trainer.checkpoint.files import Files, Posix, make_folders, remove_tree
from trainyard_trainer.checkpoint.record import CommitRecord, StoredFile, decode, encode

RECORD = "commit.json"
GANG = "gang"
_ATTEMPT, _STEP = "attempt-", "step-"
_POSIX = Posix()


class Superseded(RuntimeError):
    """A newer attempt has begun: what this one still does counts for nothing."""


class WrongFolder(ValueError):
    """The folder cannot be this job's, whoever tries and how often. The message says why, and what would be right."""


def _name() -> str:
    """Of a gang that writes: no two are the same, and an administrator sees where it runs."""
    return f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex}"


@dataclass(frozen=True, slots=True)
class Stored:
    """A commit and the directory in which it lies now."""

    record: CommitRecord
    path: Path


class Problem(NamedTuple):
    """Why a checkpoint cannot be loaded. lasting: the bytes are wrong or gone, so that another look would not help."""

    text: str
    lasting: bool

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Found:
    """unreadable: directories whose record is there but cannot be read, with the reason.

    unfinished: without a record.
    """

    commits: tuple[Stored, ...]
    unreadable: tuple[tuple[Path, Problem], ...]
    unfinished: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Folder:
    """The checkpoints of one job, and the attempt that looks at them. gang: a name that nobody else has."""

    root: Path
    attempt: int
    files: Files = _POSIX
    gang: str = field(default_factory=_name)

    @property
    def own(self) -> Path:
        return self.of(self.attempt)

    def of(self, attempt: int) -> Path:
        """The folder of an attempt."""
        return self.root / f"{_ATTEMPT}{attempt:04d}"

    def directory(self, step: int, writer: int) -> Path:
        """Where this attempt keeps what `writer` (itself or an earlier attempt) saved after `step`."""
        return self.own / f"{_STEP}{step:08d}.{_ATTEMPT}{writer:04d}"

    def claim(self, job: str) -> None:
        """Make the attempt's folder and write this gang's name into it: whoever claimed it before saves no more.

        Raises WrongFolder where another job has checkpoints at or after this attempt, Superseded where a newer attempt
        of this job has begun.
        """
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
        """What lies in the folders of this attempt and of those before it.

        A file that vanishes meanwhile is not there.
        """
        commits: list[Stored] = []
        unreadable: list[tuple[Path, Problem]] = []
        unfinished: list[Path] = []
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
        """A new, empty directory for the state after `step`. Nothing is ever written over: what a save of this attempt
        left there without a record is moved away, and a commit is an error.
        """
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

    def commit(self, path: Path, record: CommitRecord) -> Stored:
        """Make a directory a checkpoint. Its files are there and synced; the record comes last, and in one piece."""
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
        """Take a commit of an earlier attempt over. A problem where it could not be moved or read, or where its owner was
        faster in deleting it.
        """
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

    def delete(self, path: Path) -> None:
        """Delete one of this attempt's directories, its record first, so that it is a checkpoint or none at any moment."""
        if path.parent != self.own:
            raise ValueError(f"{path}: not in {self.own}; an attempt deletes only its own")
        try:
            self.files.unlink(path / RECORD)
        except FileNotFoundError:
            pass
        else:
            self.files.sync_folder(path)
        remove_tree(self.files, path)

    def discard(self, path: Path) -> None:
        """Delete what a save of this attempt left. Under another name first: a rank that still writes finds nothing."""
        doomed = self.own / f"unfinished.{uuid.uuid4().hex}"
        self.files.rename(path, doomed)
        self.delete(doomed)

    def clear(self, unfinished: Collection[Path], attempts: Collection[int]) -> None:
        """Delete what saves of the given earlier attempts left without a record.

        One that gets its record now is kept.
        """
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
        """Delete the folders of all earlier attempts but those to keep: called once nothing in them can count any more.

        Each is taken into this attempt's folder first, in one rename, so that nobody writes there any more.
        """
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

    def _record(self, path: Path) -> CommitRecord:
        with self.files.read(path / RECORD) as stream:
            return decode(stream.read())

    def _directories(self, attempt: int) -> list[Path]:
        path = self.of(attempt)
        try:
            return [path / entry.name for entry in self.files.entries(path) if entry.is_folder]
        except FileNotFoundError:
            return []


def mismatch(path: Path, expected: Collection[StoredFile], files: Files = _POSIX) -> Problem | None:
    """What is wrong with a checkpoint's files; None where each has the recorded size and hash."""
    for file in expected:
        try:
            with files.read(path / file.name) as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]  # it can readinto
                size = stream.tell()
        except OSError as error:
            return Problem(f"{file.name}: {error.strerror}", isinstance(error, FileNotFoundError))
        if size != file.bytes:
            return Problem(f"{file.name}: {size} bytes, but {file.bytes} were written", True)
        if digest != file.sha256:
            return Problem(f"{file.name}: its hash is not that of what was written", True)
    return None


def owner(path: Path) -> int | None:
    """The attempt in whose folder a checkpoint's directory lies."""
    return _number(path.parent.name, _ATTEMPT)


def last_attempt(root: Path) -> int:
    """The highest number that an attempt has had in this folder; 0 where there was none."""
    return max(_attempts(root), default=0)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    _POSIX.sync_folder(path)


def _attempts(root: Path) -> Iterator[int]:
    try:
        with os.scandir(root) as entries:
            numbers = [_number(entry.name, _ATTEMPT) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return
    yield from (number for number in numbers if number is not None)


def _number(name: str, prefix: str) -> int | None:
    digits = name.removeprefix(prefix)
    return int(digits) if name != digits and digits.isascii() and digits.isdigit() else None
