"""What a rank reads of a checkpoint whose files are in memory, its own or, in small parts, those of other nodes."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, BinaryIO, NamedTuple

from torch import Tensor
from torch.distributed.checkpoint.default_planner import create_default_local_load_plan

from trainyard_trainer.checkpoint.files import Posix
from trainyard_trainer.checkpoint.writer import Reader

_POSIX = Posix()


class Slice(NamedTuple):
    """A part of a file, in bytes."""

    name: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Near:
    """Streams over files of a commit in a folder in memory, each of which was compared with its hash.

    pieces: of other files, what this rank needs of them, from a node that compared them.
    """

    folder: Path
    pieces: Mapping[Slice, bytes]

    def create(self, path: PurePath) -> BinaryIO:
        raise OSError(f"{path}: copies are written beside what they are of")

    def sync(self, stream: BinaryIO) -> None:
        """Nothing is written."""

    def read(self, path: PurePath) -> BinaryIO:
        mine = {piece.offset: data for piece, data in self.pieces.items() if piece.name == path.name}
        return io.BufferedReader(_Pieces(mine), 1) if mine else _POSIX.read(self.folder / path.name)


def wanted(folder: Path, state: Mapping[str, Tensor]) -> list[Slice]:
    """What filling `state` reads of a commit, whose index is in this folder."""
    metadata = Reader(folder, _POSIX).read_metadata()
    plan = create_default_local_load_plan(dict(state), metadata)
    places = [metadata.storage_data[item.storage_index] for item in plan.items]
    return [Slice(place.relative_path, place.offset, place.length) for place in places]


class _Pieces(io.RawIOBase):
    """A file of which only some parts are there, by the offset at which each begins."""

    def __init__(self, pieces: Mapping[int, bytes]) -> None:
        self._pieces = pieces
        self._position = 0

    def readinto(self, buffer: Any) -> int:
        for offset, data in self._pieces.items():
            if offset <= self._position < offset + len(data):
                begin = self._position - offset
                part = data[begin : begin + len(buffer)]
                buffer[: len(part)] = part
                self._position += len(part)
                return len(part)
        return 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END:
            offset += max(begin + len(data) for begin, data in self._pieces.items())
        self._position = offset + (self._position if whence == io.SEEK_CUR else 0)
        return self._position

    def tell(self) -> int:
        return self._position
