"""Every operation on files that a checkpoint rests on, in one place.

What makes a checkpoint durable is an order of these operations and nothing else. POSIX promises: a rename is seen whole
or not at all; a file's bytes outlive a power loss once the file is synced, and its name once its folder is. Tests put
stores in this place that end the process at the n-th operation, fail it, or forget what was not synced.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePath
from typing import BinaryIO, NamedTuple, Protocol

BUFFER_BYTES = 2**20
"""Of a file that is written: the small pieces of a header travel together, tensors go past the buffer."""


class Entry(NamedTuple):
    """What a folder holds under a name. bytes: of a file, 0 of a folder."""

    name: str
    is_folder: bool
    bytes: int


class Streams(Protocol):
    """Files that are written from beginning to end, and read."""

    def create(self, path: PurePath) -> BinaryIO:
        """A new file to be written from its beginning. FileExistsError where there is one."""

    def read(self, path: PurePath) -> BinaryIO:
        """A file to be read."""

    def sync(self, stream: BinaryIO) -> None:
        """Make what was written to a file durable, which may also be what makes it a file; its name need not be durable yet."""


class Files(Streams, Protocol):
    """Operations on a file system. Each raises OSError as the system call of its name does."""

    def sync_folder(self, path: PurePath) -> None:
        """Make the names in a folder durable."""

    def rename(self, path: PurePath, new: PurePath) -> None:
        """Give a file or a folder another name, in one piece."""

    def unlink(self, path: PurePath) -> None:
        """Delete a file."""

    def make_folder(self, path: PurePath) -> None:
        """A new folder in one that is there. FileExistsError where there is one."""

    def remove_folder(self, path: PurePath) -> None:
        """Delete an empty folder."""

    def entries(self, path: PurePath) -> list[Entry]:
        """What a folder holds, by name."""


class Posix:
    """The file system of the machine."""

    def create(self, path: PurePath) -> BinaryIO:
        return Path(path).open("xb", buffering=BUFFER_BYTES)

    def read(self, path: PurePath) -> BinaryIO:
        return Path(path).open("rb")

    def sync(self, stream: BinaryIO) -> None:
        stream.flush()
        os.fsync(stream.fileno())

    def sync_folder(self, path: PurePath) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, path: PurePath, new: PurePath) -> None:
        os.rename(path, new)

    def unlink(self, path: PurePath) -> None:
        os.unlink(path)

    def make_folder(self, path: PurePath) -> None:
        os.mkdir(path)

    def remove_folder(self, path: PurePath) -> None:
        os.rmdir(path)

    def entries(self, path: PurePath) -> list[Entry]:
        found = []
        with os.scandir(path) as entries:
            for entry in entries:
                try:
                    is_folder = entry.is_dir(follow_symlinks=False)
                    found.append(Entry(entry.name, is_folder, 0 if is_folder else entry.stat().st_size))
                except FileNotFoundError:  # gone since the folder was read
                    continue
        return sorted(found)


def remove_tree(files: Files, path: PurePath) -> None:
    """Delete a folder and all it holds."""
    for entry in files.entries(path):
        if entry.is_folder:
            remove_tree(files, path / entry.name)
        else:
            files.unlink(path / entry.name)
    files.remove_folder(path)


def make_folders(files: Files, path: Path) -> None:
    """Make a folder and those above it where they are not there, each durable before the next is made in it."""
    missing = [path]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for folder in reversed(missing):
        try:
            files.make_folder(folder)
        except FileExistsError:
            if not folder.is_dir():
                raise
        files.sync_folder(folder.parent)
