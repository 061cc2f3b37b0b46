"""Every operation on objects that a checkpoint in an object store rests on, in one place; fsspec knows the protocols.

Of a store is asked: an object is there whole or not at all, what was put is durable and seen by everybody from then on, and of
several puts that each want to be the first under a name (on S3: If-None-Match: *) one succeeds.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePath, PurePosixPath
from typing import Any, BinaryIO, Final, cast

from trainyard_trainer.checkpoint.files import BUFFER_BYTES
from trainyard_trainer.configuration import BadConfiguration

PART_BYTES: Final = 16 * 2**20
"""Of an upload: larger files go in several parts, one of which is in memory."""
READ_BYTES: Final = 8 * 2**20
"""Of a file that is read, at least, at a time."""
OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "s3": {"config_kwargs": {"connect_timeout": 10, "read_timeout": 60, "retries": {"max_attempts": 3}}},
}
"""By protocol. What listings say is never remembered: other processes write as well."""
_NOW: Final = {"RequestTimeTooSkewed", "ExpiredToken", "RequestExpired"}
"""What a store refuses at one time and not at another."""


class Url(PurePosixPath):
    """The place of an object, such as s3://bucket/job/attempt-0001; a path that keeps the two slashes of its scheme."""

    __slots__ = ()

    def __str__(self) -> str:
        return super().__str__().replace(":/", "://", 1)


@dataclass(frozen=True, slots=True)
class Objects:
    """What is below a URL. Streams as well: a file that is written is an object once it is synced.

    Errors are OSError with the place, whatever the protocol's client calls them: EACCES where the store refuses who asks,
    ENOENT where the object or its bucket is not there, EIO for the rest.
    """

    root: Url

    def create(self, path: PurePath) -> BinaryIO:
        with _told(path):
            raw = self._system().open(str(path), "wb", block_size=PART_BYTES)
        return cast(BinaryIO, _Upload(raw, path))

    def read(self, path: PurePath) -> BinaryIO:
        with _told(path):
            raw = self._system().open(str(path), "rb", block_size=READ_BYTES)
        return io.BufferedReader(_Download(raw, path), BUFFER_BYTES)

    def sync(self, stream: BinaryIO) -> None:
        cast(_Upload, stream).complete()

    def get(self, path: PurePath) -> bytes:
        """All of a small object."""
        with _told(path):
            return cast(bytes, self._system().cat_file(str(path)))

    def put(self, path: PurePath, data: bytes) -> None:
        """A small object, in the place of one that may be there."""
        with _told(path):
            self._system().pipe_file(str(path), data)

    def put_new(self, path: PurePath, data: bytes) -> None:
        """A small object where there is none. An error does not say that it is not there: the answer may be what was lost."""
        with _told(path):
            self._system().pipe_file(str(path), data, mode="create")

    def sizes(self, path: PurePath) -> dict[str, int]:
        """Of the objects right below a place, by name, in bytes; -1 of what has objects below it in turn."""
        with _told(path):
            try:
                found = self._system().ls(str(path), detail=True)
            except FileNotFoundError:
                return {}
        below = [entry for entry in found if entry["name"].rstrip("/").rsplit("/", 1)[-1] != ""]
        return {
            entry["name"].rstrip("/").rsplit("/", 1)[-1]: -1 if entry["type"] == "directory" else entry["size"] or 0
            for entry in below
        }

    def remove(self, path: PurePath) -> None:
        """All objects below a place."""
        with _told(path):
            try:
                self._system().rm(str(path), recursive=True)
            except FileNotFoundError:
                return

    def _system(self) -> Any:
        """The client; fsspec keeps one a process."""
        scheme = str(self.root).partition("://")[0]
        try:
            import fsspec

            filesystem: Any = fsspec.filesystem
            return filesystem(scheme, use_listings_cache=False, **OPTIONS.get(scheme, {}))
        except (ImportError, ValueError) as error:
            raise BadConfiguration(
                f"spec.checkpoint.url: {self.root}: {error}; put fsspec and the package for {scheme} into the image, as "
                f"pip install 'trainyard-operator[stores]' does for s3"
            ) from error


class _Upload:
    """A file that is written. Closed before it is complete, it leaves nothing."""

    def __init__(self, raw: Any, path: PurePath) -> None:
        self._raw, self._path = raw, path

    def write(self, data: Any) -> int:
        with _told(self._path):
            return cast(int, self._raw.write(data))

    def flush(self) -> None:
        """Parts go when they are full."""

    def complete(self) -> None:
        """The object is there on return."""
        with _told(self._path):
            self._raw.close()

    def close(self) -> None:
        if not self._raw.closed:
            try:
                with _told(self._path):
                    self._raw.discard()
            finally:
                self._raw.closed = True  # or it would be completed when it is collected


class _Download(io.RawIOBase):
    """A file that is read; its errors name it."""

    def __init__(self, raw: Any, path: PurePath) -> None:
        self._raw, self._path = raw, path

    def readinto(self, buffer: Any) -> int:
        with _told(self._path):
            return cast(int, self._raw.readinto(buffer))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return cast(int, self._raw.seek(offset, whence))

    def tell(self) -> int:
        return cast(int, self._raw.tell())

    def close(self) -> None:
        self._raw.close()
        super().close()


@contextmanager
def _told(path: PurePath) -> Iterator[None]:
    """What went wrong as OSError with number and place."""
    try:
        yield
    except BadConfiguration:
        raise
    except Exception as error:
        text = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        raise OSError(_number(error), text, str(path)) from error


def _number(error: Exception) -> int:
    answer = getattr(error.__cause__, "response", None) or getattr(error, "response", None)
    code = answer.get("Error", {}).get("Code") if isinstance(answer, Mapping) else None
    if code == "PreconditionFailed" or isinstance(error, FileExistsError):
        return errno.EEXIST
    if code in _NOW:
        return errno.EIO
    if isinstance(error, PermissionError) or type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError"):
        return errno.EACCES
    if isinstance(error, FileNotFoundError):
        return errno.ENOENT
    return error.errno or errno.EIO if isinstance(error, OSError) else errno.EIO
