"""What a place for checkpoints must be able to do: find, verify, commit, inherit, delete; whatever it is made of.

`Folder` (folder.py) is one on a POSIX file system. Each promises that an older attempt that still runs somewhere, cut off or
frozen, can neither delete nor finish anything that a newer one relies on.
"""

from __future__ import annotations

import hashlib
import os
import socket
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final, NamedTuple, Protocol

from trainyard_trainer.checkpoint.files import Streams
from trainyard_trainer.checkpoint.record import CommitRecord, StoredFile

RECORD: Final = "commit.json"
ATTEMPT: Final = "attempt-"
STEP: Final = "step-"
CHUNK_BYTES: Final = 2**20
"""Of a file at a time, where its hash is compared."""


def nothing() -> None:
    """Nothing more is to be done."""


class Superseded(RuntimeError):
    """A newer attempt has begun: what this one still does counts for nothing."""


class WrongFolder(ValueError):
    """The folder cannot be this job's, whoever tries and how often. The message says why, and what would be right."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A commit and the directory in which it lies now."""

    record: CommitRecord
    path: PurePath


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
    unreadable: tuple[tuple[PurePath, Problem], ...]
    unfinished: tuple[PurePath, ...]


class Store(Protocol):
    """The checkpoints of one job, and the attempt that looks at them. All but `streams` is for the first rank alone.

    A directory is a place with files, which need not be a folder. Errors of the system are OSError with the place they are of.
    """

    @property
    def root(self) -> PurePath:
        """Where all attempts of the job are."""

    @property
    def attempt(self) -> int:
        """The one that looks."""

    @property
    def streams(self) -> Streams:
        """How the files in a directory are written and read, by any rank and in any process."""

    def claim(self, job: str) -> None:
        """Begin the attempt: whoever began it or an earlier one before saves no more.

        Raises WrongFolder where another job has checkpoints at or after this attempt, Superseded where a newer attempt of this
        job has begun.
        """

    def find(self) -> Found:
        """What is there of this attempt and of those before it. A file that vanishes meanwhile is not there."""

    def clear(self, unfinished: Collection[PurePath], attempts: Collection[int]) -> None:
        """Delete what saves of the given earlier attempts left without a record. One that gets its record now is kept."""

    def inherit(self, stored: Stored) -> Stored | Problem:
        """Take a commit of an earlier attempt over, so that only this attempt deletes it. A problem where that cannot be done."""

    def begin(self, step: int) -> PurePath:
        """A new, empty directory for the state after `step`; nothing is ever written over. Raises Superseded as `claim` does, and
        FileExistsError where this attempt has committed the step.
        """

    def commit(self, path: PurePath, record: CommitRecord) -> Stored:
        """Make a directory a checkpoint. Its files are there and durable; the record comes last, and in one piece."""

    def delete(self, path: PurePath) -> None:
        """Delete one of this attempt's directories; it is a checkpoint or none at any moment."""

    def discard(self, path: PurePath) -> None:
        """Delete what a save of this attempt left. A rank that still writes there finds nothing."""

    def abandon(self, keep: Collection[int]) -> None:
        """Delete what all earlier attempts left but those to keep: called once nothing of it can count any more."""


def mismatch(
    path: PurePath, expected: Collection[StoredFile], streams: Streams, beside: Callable[[], None] = nothing
) -> Problem | None:
    """What is wrong with a checkpoint's files; None where each has the recorded size and hash.

    beside: called again and again meanwhile; what it raises ends the look.
    """
    for file in expected:
        try:
            with streams.read(path / file.name) as stream:
                hashed, size = hashlib.sha256(), 0
                while chunk := stream.read(CHUNK_BYTES):
                    beside()
                    hashed.update(chunk)
                    size += len(chunk)
        except OSError as error:
            return Problem(f"{file.name}: {error.strerror}", isinstance(error, FileNotFoundError))
        if size != file.bytes:
            return Problem(f"{file.name}: {size} bytes, but {file.bytes} were written", True)
        if hashed.hexdigest() != file.sha256:
            return Problem(f"{file.name}: its hash is not that of what was written", True)
    return None


def gang_name() -> str:
    """Of a gang that writes: no two are the same, and an administrator sees where it runs."""
    return f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex}"


def attempt_name(attempt: int) -> str:
    """Of the directory that holds those of an attempt."""
    return f"{ATTEMPT}{attempt:04d}"


def step_name(step: int, writer: int) -> str:
    """Of the directory with what an attempt saved after a step."""
    return f"{STEP}{step:08d}.{attempt_name(writer)}"


def owner(path: PurePath) -> int | None:
    """The attempt among whose directories one lies."""
    return attempt_number(path.parent.name)


def attempt_number(name: str) -> int | None:
    """Of a directory named by `attempt_name`; None for any other."""
    digits = name.removeprefix(ATTEMPT)
    return int(digits) if name != digits and digits.isascii() and digits.isdigit() else None
