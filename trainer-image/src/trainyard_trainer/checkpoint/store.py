"""The folder of a job's checkpoints, as one process sees it: find, verify, commit, inherit, delete.

    <folder>/attempt-0002/step-00000040.attempt-0002/   written by attempt 2
    <folder>/attempt-0002/step-00000020.attempt-0001/   written by attempt 1, inherited by attempt 2
    <folder>/history.jsonl

Each attempt has a folder of its own, writes there and deletes only there. It inherits what it may resume from by
renaming it into its folder before it reads it. So an older attempt that still runs somewhere, cut off or frozen, can
neither delete nor finish anything that a newer one relies on: the paths it knows are gone. Every step is one atomic
rename or unlink.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from trainyard.contract.codec import ContractError

from trainyard_trainer.checkpoint.record import CommitRecord, StoredFile, decode, encode

RECORD = "commit.json"
_ATTEMPT, _STEP = "attempt-", "step-"


class Superseded(RuntimeError):
    """A newer attempt has begun: what this one still does counts for nothing."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A commit and the directory in which it lies now."""

    record: CommitRecord
    path: Path


@dataclass(frozen=True, slots=True)
class Found:
    """unreadable: directories whose record is there but cannot be read, with the reason.

    unfinished: without a record.
    """

    commits: tuple[Stored, ...]
    unreadable: tuple[tuple[Path, str], ...]
    unfinished: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Folder:
    """The checkpoints of one job, and the attempt that looks at them."""

    root: Path
    attempt: int

    @property
    def own(self) -> Path:
        return self.root / f"{_ATTEMPT}{self.attempt:04d}"

    def directory(self, step: int, writer: int) -> Path:
        """Where this attempt keeps what `writer` (itself or an earlier attempt) saved after `step`."""
        return self.own / f"{_STEP}{step:08d}.{_ATTEMPT}{writer:04d}"

    def claim(self) -> None:
        """Make the attempt's folder. Raises Superseded where a newer attempt has made its own."""
        self.own.mkdir(parents=True, exist_ok=True)
        sync_directory(self.root)
        self.check_current()

    def check_current(self) -> None:
        """Raises Superseded where a newer attempt has begun."""
        newest = max(_attempts(self.root), default=self.attempt)
        if newest > self.attempt:
            raise Superseded(
                f"attempt {newest} has begun in {self.root}; what attempt {self.attempt} saves would not count"
            )

    def find(self) -> Found:
        """What lies in the folders of this attempt and of those before it.

        A file that vanishes meanwhile is not there.
        """
        commits: list[Stored] = []
        unreadable: list[tuple[Path, str]] = []
        unfinished: list[Path] = []
        for attempt in sorted(_attempts(self.root)):
            if attempt > self.attempt:
                continue
            for path in _directories(self.root / f"{_ATTEMPT}{attempt:04d}"):
                try:
                    record = decode((path / RECORD).read_bytes())
                except FileNotFoundError:
                    unfinished.append(path)
                except (OSError, ContractError) as error:
                    unreadable.append((path, str(error)))
                else:
                    commits.append(Stored(record, path))
        return Found(tuple(commits), tuple(unreadable), tuple(unfinished))

    def begin(self, step: int) -> Path:
        """A new, empty directory for the state after `step`. It must not exist: nothing is ever written over."""
        path = self.directory(step, self.attempt)
        path.mkdir(parents=True)
        return path

    def commit(self, path: Path, record: CommitRecord) -> Stored:
        """Make a directory a checkpoint. Its files are there and synced; the record comes last, and in one piece."""
        self.check_current()
        expected = {file.name: file.bytes for file in record.files}
        present = {entry.name: entry.stat().st_size for entry in os.scandir(path)}
        if present != expected:
            raise OSError(f"{path}: holds {present}, but {expected} was written")
        sync_directory(path)
        temporary = path / f"{RECORD}.tmp"
        with temporary.open("xb") as stream:
            stream.write(encode(record).encode())
            stream.flush()
            os.fsync(stream.fileno())
        temporary.rename(path / RECORD)
        sync_directory(path)
        sync_directory(path.parent)
        return Stored(record, path)

    def inherit(self, stored: Stored) -> Stored | None:
        """Take a commit of an earlier attempt over; None where its owner was faster in deleting it."""
        path = self.directory(stored.record.step, stored.record.attempt)
        if path == stored.path:
            return stored
        try:
            stored.path.rename(path)
            sync_directory(self.own)
            # What was seen before the rename may have been deleted since; what is here now is ours.
            return Stored(decode((path / RECORD).read_bytes()), path)
        except (OSError, ContractError):
            return None

    def delete(self, path: Path) -> None:
        """Delete one of this attempt's directories, its record first, so that it is a checkpoint or none at any moment."""
        if path.parent != self.own:
            raise ValueError(f"{path}: not in {self.own}; an attempt deletes only its own")
        (path / RECORD).unlink(missing_ok=True)
        sync_directory(path)
        shutil.rmtree(path)

    def clear(self, unfinished: Collection[Path], attempts: Collection[int]) -> None:
        """Delete what saves of the given earlier attempts left without a record.

        One that gets its record now is kept.
        """
        for path in unfinished:
            if owner(path) not in attempts or path.parent == self.own:
                continue
            doomed = self.own / f"unfinished.{path.parent.name}.{path.name}"
            try:
                path.rename(doomed)
                if (doomed / RECORD).exists():
                    doomed.rename(self.own / path.name)
                else:
                    shutil.rmtree(doomed)
            except OSError:
                continue


def mismatch(path: Path, files: Collection[StoredFile]) -> str | None:
    """What is wrong with a checkpoint's files; None where each has the recorded size and hash."""
    for file in files:
        try:
            size, digest = digest_file(path / file.name)
        except OSError as error:
            return f"{file.name}: {error.strerror}"
        if size != file.bytes:
            return f"{file.name}: {size} bytes, but {file.bytes} were written"
        if digest != file.sha256:
            return f"{file.name}: its hash is not that of what was written"
    return None


def digest_file(path: Path) -> tuple[int, str]:
    """Size in bytes and sha256 of a file."""
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return stream.tell(), digest


def owner(path: Path) -> int | None:
    """The attempt in whose folder a checkpoint's directory lies."""
    return _number(path.parent.name, _ATTEMPT)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _attempts(root: Path) -> Iterator[int]:
    for path in _directories(root):
        number = _number(path.name, _ATTEMPT)
        if number is not None:
            yield number


def _directories(path: Path) -> list[Path]:
    try:
        return sorted(Path(entry.path) for entry in os.scandir(path) if entry.is_dir())
    except FileNotFoundError:
        return []


def _number(name: str, prefix: str) -> int | None:
    digits = name.removeprefix(prefix)
    return int(digits) if name != digits and digits.isascii() and digits.isdigit() else None


def last_attempt(root: Path) -> int:
    """The highest number that an attempt has had in this folder; 0 where there was none."""
    return max(_attempts(root), default=0)
