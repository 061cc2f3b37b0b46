"""How DCP's writer and reader reach the files: through `Files`, hashing on the way out.

The hash is of the very bytes that are handed to the file system, computed where they are written (in the daemon where a
process of its own writes), and comes back to every rank with DCP's own metadata.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from trainyard_trainer.checkpoint.files import Files
from trainyard_trainer.checkpoint.record import StoredFile


class Cancelled(RuntimeError):
    """This save was given up for a newer one before it was written."""


class Writer(FileSystemWriter):
    """Writes as DCP does into a folder that is there and empty.

    cancelled: one byte in memory that processes may share; once it is not 0, the next write raises Cancelled, on
    whichever rank still writes, and DCP makes that the end of the save on all.
    """

    def __init__(self, path: Path, files: Files, cancelled: Tensor) -> None:
        # A stream syncs itself when it is closed. Copying ahead is for tensors on a GPU; these are not.
        super().__init__(path, sync_files=False, overwrite=False, per_thread_copy_ahead=0)
        self._through = _Through(files, cancelled)
        self.fs = self._through

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

    def __init__(self, path: Path, files: Files) -> None:
        super().__init__(path)
        self.fs = _Through(files)


class _Through(FileSystem):
    def __init__(self, files: Files, cancelled: Tensor | None = None) -> None:
        self._files = files
        self._cancelled = cancelled
        self._written: dict[str, tuple[int, str]] = {}

    def files_written(self) -> tuple[StoredFile, ...]:
        return tuple(StoredFile(name, size, digest) for name, (size, digest) in self._written.items())

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[io.IOBase, None, None]:
        path = Path(path)
        if mode == "rb":
            with self._files.read(path) as reading:
                yield cast(io.IOBase, reading)
            return
        stream = _HashingStream(self._files, path, self._cancelled)
        try:
            yield stream
            stream.close()
        except Exception:
            if stream.error is not None:
                raise stream.error from None  # torch's archive says only that a position is not what it expected
            raise
        finally:
            stream.abandon()
        self._written[path.name] = (stream.size, stream.digest.hexdigest())

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        self._files.rename(Path(path), Path(new_path))
        self._written[Path(new_path).name] = self._written.pop(Path(path).name)

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        self._files.unlink(Path(path))

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """It is there: made, and made durable, before any rank writes."""


class _HashingStream(io.BufferedIOBase):
    """Append only: what a hash is of must have been written in order. Closing it makes its bytes durable.

    error: the first that a write ended with.
    """

    def __init__(self, files: Files, path: Path, cancelled: Tensor | None) -> None:
        self._files = files
        self._cancelled = cancelled
        self._raw: BinaryIO | None = files.create(path)
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
            self._files.sync(self._raw)
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
