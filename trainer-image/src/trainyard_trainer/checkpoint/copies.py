"""The newest commit a second time, in the memory of the nodes, so that most restarts need not wait for storage.

What the ranks of a node write goes into the node's memory as well, and after the commit to a partner in another failure domain. A
process that starts again on the node finds it there; one on a node that replaces another gets it from the partner. What makes it
count is the commit record in the store, and nothing else: every file is compared with its hash before it is used, and where
anything is missing the store is read as if there were no copies.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, BinaryIO, Final, cast

import torch
import torch.distributed as dist
from torch import Tensor
from trainyard.contract.plan import Domain, Plan

from trainyard_trainer.checkpoint.agreement import Agreement
from trainyard_trainer.checkpoint.files import Posix, Streams
from trainyard_trainer.checkpoint.near import Near, Slice, wanted
from trainyard_trainer.checkpoint.record import CommitRecord, StoredFile
from trainyard_trainer.checkpoint.store import Stored, mismatch

FOLDER: Final = Path("/dev/shm/trainyard")
"""In memory; a pod's own, which outlives its processes."""
INDEX: Final = ".metadata"
MOST_PIECES_BYTES: Final = 64 * 2**20
"""That a rank may need of what others wrote, and that all ranks may need of one; above it the store is read."""
_OF_RANK: Final = re.compile(r"__(\d+)_")
_POSIX = Posix()


def _unheard(record: CommitRecord, size_bytes: int, seconds: float) -> None:
    """Nobody asks what is sent."""


def partners(domains: Sequence[int], tree: Sequence[Domain]) -> tuple[int, ...]:
    """For each node, by the index of its domain, the node that keeps its copy; each keeps one.

    Half a turn away in the order of the tree: in another domain of the broadest level of which none holds more than half.
    """

    def path(domain: int) -> tuple[int, ...]:
        above: list[int] = []
        while domain >= 0:
            above.insert(0, domain)
            domain = tree[domain].parent
        return tuple(above)

    order = sorted(range(len(domains)), key=lambda node: (path(domains[node]), node))
    turned = order[len(order) // 2 :] + order[: len(order) // 2]
    return tuple(kept_by for _, kept_by in sorted(zip(order, turned, strict=True)))


def keepers(plan: Plan) -> tuple[int, ...]:
    """For each rank, the rank that keeps its copy, as a plan pairs its nodes."""
    processes = plan.processes_per_node
    nodes = partners([member.domain for member in plan.members], plan.domains)
    return tuple(node * processes + local for node in nodes for local in range(processes))


@dataclass(frozen=True, slots=True)
class Tee:
    """Writes to the store, and into a folder in memory as long as what `ranks` wrote there takes no more than `budget_bytes`."""

    streams: Streams
    folder: Path
    budget_bytes: int
    ranks: tuple[int, ...]

    def create(self, path: PurePath) -> BinaryIO:
        raw = self.streams.create(path)
        copy = self.folder / path.parent.name / path.name
        return cast(BinaryIO, _Both(raw, copy, self.budget_bytes - used_bytes(self.folder, self.ranks)))

    def read(self, path: PurePath) -> BinaryIO:
        return self.streams.read(path)

    def sync(self, stream: BinaryIO) -> None:
        self.streams.sync(cast(_Both, stream).raw)


class _Both:
    """A file of the store and its copy. A copy that does not fit is given up, and the store's is not."""

    def __init__(self, raw: BinaryIO, path: Path, room_bytes: int) -> None:
        self.raw, self._path, self._room_bytes = raw, path, room_bytes
        self._copy: BinaryIO | None = None
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._copy = path.open("wb")

    def write(self, data: Any) -> int:
        written = self.raw.write(data)
        self._room_bytes -= memoryview(data).nbytes
        if self._copy is not None:
            try:
                if self._room_bytes < 0:
                    raise OSError("more than was allowed")
                self._copy.write(data)
            except OSError:
                self._give_up()
        return written

    def flush(self) -> None:
        self.raw.flush()

    def close(self) -> None:
        self.raw.close()
        if self._copy is not None:
            try:
                self._copy.close()
            except OSError:
                self._give_up()

    def _give_up(self) -> None:
        copy, self._copy = self._copy, None
        self._path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            if copy is not None:
                copy.close()


@dataclass(slots=True)
class Copies:
    """Those that one rank writes and keeps. keeper: of each rank, by rank, the rank that keeps its copy. budget_bytes: the rank's
    share of what all copies of its node may take. sent: told how many bytes of a commit this rank sent, in how many seconds."""

    everyone: Agreement
    keeper: tuple[int, ...]
    budget_bytes: int
    folder: Path
    sent: Callable[[CommitRecord, int, float], None] = _unheard

    @classmethod
    def of(
        cls,
        plan: Plan,
        bytes_of_node: int,
        everyone: Agreement,
        sent: Callable[[CommitRecord, int, float], None] = _unheard,
    ) -> Copies:
        """As a plan pairs its nodes. bytes_of_node: that all copies of a node may take."""
        budget_bytes = bytes_of_node // plan.processes_per_node
        return cls(everyone, keepers(plan), budget_bytes, FOLDER / plan.uid, sent)

    def tee(self, streams: Streams) -> Streams:
        """Where to write, so that a copy is made."""
        return Tee(streams, self.folder, self.budget_bytes, self._ranks())

    def committed(self, stored: Stored) -> None:
        """Send what this rank wrote to its keeper, and keep what is sent here; the copies before go. Collective."""
        for old in self.folder.glob("*"):
            if old.name != stored.path.name:
                shutil.rmtree(old, ignore_errors=True)
        rank = self.everyone.rank
        mine = [file for file in self._written_by(rank, stored) if self._size(stored, file) == file.bytes]
        offered = self.everyone.gather(mine)
        source, keeper = self.keeper.index(rank), self.keeper[rank]
        room = self.budget_bytes - used_bytes(self.folder, self._ranks())
        fits = source != rank and sum(file.bytes for file in offered[source]) <= room
        arriving = self._allocated(stored, offered[source]) if fits else None
        taken = self.everyone.gather(arriving is not None)
        leaving = self._there(stored, mine) if keeper != rank and taken[keeper] else []
        began = time.monotonic()
        self._exchange((source, arriving or []), (keeper, leaving))
        self.sent(stored.record, sum(tensor.numel() for tensor in leaving), time.monotonic() - began)

    def near(self, stored: Stored, state: Mapping[str, Tensor]) -> Near | None:
        """The commit from memory, on every rank or on none; None where any of it is on no node. Collective.

        Each rank has what it wrote, from its keeper where its own node lost it. Of what others wrote it needs small parts (what
        all ranks have alike is written by one), which come from those.
        """
        if stored.record.world_size != self.everyone.ranks:
            return None
        rank, ranks = self.everyone.rank, self.everyone.ranks
        source = self.keeper.index(rank)
        mine, kept = self._written_by(rank, stored), self._written_by(source, stored)
        has = self.everyone.gather(self._verified(stored, mine))
        lacking = {one for one in range(ranks) if not has[one]}
        can_send = source not in lacking or (source != rank and self._verified(stored, kept))
        if not all(self.everyone.gather(can_send)):
            return None
        arriving = self._allocated(stored, mine) if rank in lacking else []
        if not all(self.everyone.gather(arriving is not None)):
            return None
        leaving = self._there(stored, kept) if source in lacking else []
        self._exchange((self.keeper[rank], arriving or []), (source, leaving))
        self._share_index(stored)
        index = [file for file in stored.record.files if file.name == INDEX]
        whole = self._verified(stored, [*index, *mine] if rank in lacking else index)
        pieces = self._pieces(stored, state, {file.name for file in mine}) if all(self.everyone.gather(whole)) else None
        return None if pieces is None else Near(self.folder / stored.path.name, pieces)

    def _pieces(self, stored: Stored, state: Mapping[str, Tensor], mine: set[str]) -> dict[Slice, bytes] | None:
        """What this rank needs of the files of others; None on all ranks where one needs too much, or cannot say."""
        folder = self.folder / stored.path.name
        try:
            needs = [part for part in wanted(folder, state) if part.name not in mine]
        except Exception:  # what does not fit is said by the load from the store
            needs = None
        asked = self.everyone.gather(needs)
        if any(some is None or sum(part.length for part in some) > MOST_PIECES_BYTES for some in asked):
            return None
        of_writer: dict[int, set[Slice]] = {}
        for part in (part for some in asked for part in some or ()):
            of_writer.setdefault(_writer(part.name), set()).add(part)
        if any(sum(part.length for part in parts) > MOST_PIECES_BYTES for parts in of_writer.values()):
            return None
        pieces: dict[Slice, bytes] = {}
        for writer in range(self.everyone.ranks):
            if writer in of_writer:  # one after the other, so that of all parts a rank holds those of one and its own
                given = [self._cut(folder, of_writer[writer]) if writer == self.everyone.rank else {}]
                dist.broadcast_object_list(given, src=writer, group=self.everyone.group)
                pieces |= {part: given[0][part] for part in needs or () if part in given[0]}
        return pieces

    def _cut(self, folder: Path, parts: Collection[Slice]) -> dict[Slice, bytes]:
        """Parts of files that this rank wrote; those that cannot be read are left out."""
        found: dict[Slice, bytes] = {}
        for part in parts:
            with contextlib.suppress(OSError), (folder / part.name).open("rb") as stream:
                stream.seek(part.offset)
                found[part] = stream.read(part.length)
        return found

    def _written_by(self, rank: int, stored: Stored) -> list[StoredFile]:
        return [file for file in stored.record.files if _writer(file.name) == rank]

    def _ranks(self) -> tuple[int, ...]:
        """This one, and the one whose copy it keeps."""
        return self.everyone.rank, self.keeper.index(self.everyone.rank)

    def _size(self, stored: Stored, file: StoredFile) -> int:
        try:
            return (self.folder / stored.path.name / file.name).stat().st_size
        except OSError:
            return -1

    def _verified(self, stored: Stored, files: Collection[StoredFile]) -> bool:
        return mismatch(self.folder / stored.path.name, files, _POSIX) is None

    def _share_index(self, stored: Stored) -> None:
        """All ranks need the index, which is small."""
        path = self.folder / stored.path.name / INDEX
        index = [path.read_bytes() if self.everyone.rank == 0 and path.exists() else b""]
        dist.broadcast_object_list(index, src=0, group=self.everyone.group)
        if not path.exists():
            mine = path.with_name(f"{INDEX}.{self.everyone.rank}")
            with contextlib.suppress(OSError):  # then this rank says that it has none
                path.parent.mkdir(parents=True, exist_ok=True)
                mine.write_bytes(index[0])
                mine.rename(path)

    def _allocated(self, stored: Stored, files: Sequence[StoredFile]) -> list[Tensor] | None:
        """New files to receive into, with all their memory, since there would be no error later but a signal. None: no room."""
        folder = self.folder / stored.path.name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for file in files:
                with (folder / file.name).open("wb") as stream:
                    os.posix_fallocate(stream.fileno(), 0, file.bytes)
        except OSError:
            return None
        return self._there(stored, files)

    def _there(self, stored: Stored, files: Sequence[StoredFile]) -> list[Tensor]:
        """The bytes of files in memory, which are those of the tensors."""
        folder = self.folder / stored.path.name
        return [
            torch.from_file(str(folder / file.name), shared=True, size=file.bytes, dtype=torch.uint8) for file in files
        ]

    def _exchange(self, arriving: tuple[int, list[Tensor]], leaving: tuple[int, list[Tensor]]) -> None:
        """Receive from one rank and send to another, each a list that both know."""
        works = [
            operation(tensor, rank, group=self.everyone.group, tag=tag)
            for operation, (rank, tensors) in ((dist.irecv, arriving), (dist.isend, leaving))
            for tag, tensor in enumerate(tensors)
        ]
        for work in works:
            if work is not None:
                work.wait()


def _writer(name: str) -> int:
    """The rank that wrote a file: DCP names each by its rank, and the index is the first rank's. -1: none that is known."""
    written_by = _OF_RANK.match(name)
    return 0 if name == INDEX else int(written_by[1]) if written_by else -1


def used_bytes(folder: Path, ranks: Collection[int]) -> int:
    """Of all files below a folder in memory that some ranks wrote."""
    total = 0
    for path in folder.glob("*/*"):
        if _writer(path.name) in ranks:
            with contextlib.suppress(FileNotFoundError):
                total += path.stat().st_size
    return total
