"""How DCP's writer and reader reach the files: through `Streams`, hashing on the way out.

The hash is of the very bytes that are handed to the file system, computed where they are written (in the daemon where a
process of its own writes), and comes back to every rank with DCP's own metadata.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any, BinaryIO, cast

from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from trainyard_trainer.checkpoint.files import Streams
from trainyard_trainer.checkpoint.record import StoredFile


class Cancelled(RuntimeError):
    """This save was given up for a newer one before it was written."""


class Writer(FileSystemWriter):
    """Writes as DCP does into a folder that is there and empty.

    cancelled: one byte in memory that processes may share; once it is not 0, the next write raises Cancelled, on
    whichever rank still writes, and DCP makes that the end of the save on all.
    """

    def __init__(self, path: PurePath, streams: Streams, cancelled: Tensor) -> None:
        # A stream syncs itself when it is closed. Copying ahead is for tensors on a GPU; these are not.
        super().__init__("", sync_files=False, overwrite=False, per_thread_copy_ahead=0)
        self._through = _Through(streams, cancelled)
        self.fs, self.path = self._through, path

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """The results of this rank, with its files."""
        written = _Written(super().write_data(plan, planner).value())
        written.files = self._through.files_written()
        future: Future[list[WriteResult]] = Future()
        future.set_result(written)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On the first rank: write the index, and put the files of all ranks beside it for everybody."""
        super().finish(metadata, results)
        of_ranks = [file for written in results for file in cast(_Written, written).files]
        metadata.files = tuple(sorted((*of_ranks, *self._through.files_written()[-1:]), key=lambda f: f.name))  # type: ignore[attr-defined]


def files_of(metadata: Metadata) -> tuple[StoredFile, ...]:
    """All files of a save, over all ranks, by name."""
    files: tuple[StoredFile, ...] = metadata.files  # type: ignore[attr-defined]
    return files


class _Written(list[WriteResult]):
    files: tuple[StoredFile, ...] = ()


class Reader(FileSystemReader):
    """Reads as DCP does."""

    def __init__(self, path: PurePath, streams: Streams) -> None:
        super().__init__("")
        self.fs, self.path = _Through(streams), path


def shapes(reader: Reader) -> dict[str, tuple[int, ...]]:
    """Of the tensors of a save, whole and not by rank, by name. It unpickles the index, which must have verified."""
    tensors = reader.read_metadata().state_dict_metadata.items()
    return {name: tuple(tensor.size) for name, tensor in tensors if isinstance(tensor, TensorStorageMetadata)}


class _Through(FileSystem):
    def __init__(self, streams: Streams, cancelled: Tensor | None = None) -> None:
        self._streams = streams
        self._cancelled = cancelled
        self._written: dict[str, tuple[int, str]] = {}

    def files_written(self) -> tuple[StoredFile, ...]:
        return tuple(StoredFile(name, size, digest) for name, (size, digest) in self._written.items())

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[io.IOBase, None, None]:
        place = cast(PurePath, path)
        if mode == "rb":
            with self._streams.read(place) as reading:
                yield cast(io.IOBase, reading)
            return
        # DCP renames its index when it is whole. Here the commit makes it count, so it has its name from the beginning.
        place = place.with_name(place.name.removesuffix(".tmp"))
        stream = _HashingStream(self._streams, place, self._cancelled)
        try:
            yield stream
            stream.close()
        except Exception:
            if stream.error is not None:
                raise stream.error from None  # torch's archive says only that a position is not what it expected
            raise
        finally:
            stream.abandon()
        self._written[place.name] = (stream.size, stream.digest.hexdigest())

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str | os.PathLike[str]:
        return cast(PurePath, path) / suffix

    def exists(self, path: str | os.PathLike[str]) -> bool:
        """Nothing is there: the directory was new, and made, and made durable, before any rank writes."""
        return False

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """It is there."""

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """It has this name."""


class _HashingStream(io.BufferedIOBase):
    """Append only: what a hash is of must have been written in order. Closing it makes its bytes durable.

    error: the first that a write ended with.
    """

    def __init__(self, streams: Streams, path: PurePath, cancelled: Tensor | None) -> None:
        self._streams = streams
        self._cancelled = cancelled
        self._raw: BinaryIO | None = streams.create(path)
        self.digest = hashlib.sha256()
        self.size = 0
        self.error: Exception | None = None

    def write(self, data: Any) -> int:
        if self._raw is None:
            raise ValueError("the file is closed")
        try:
            if self._cancelled is not None and self._cancelled.item():
                raise Cancelled("a newer save takes its place")
            view = memoryview(data)
            self.digest.update(view)
            self._raw.write(view)
        except Exception as error:
            self.error = self.error or error
            raise
        self.size += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self.size

    def seekable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def flush(self) -> None:
        if self._raw is not None:
            self._raw.flush()

    def close(self) -> None:
        if self._raw is not None:
            self._streams.sync(self._raw)
            self._raw.close()
            self._raw = None
        super().close()

    def abandon(self) -> None:
        """Let the file go without making anything durable."""
        raw, self._raw = self._raw, None
        if raw is not None:
            try:
                raw.close()
            except OSError:
                return
