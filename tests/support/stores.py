"""Stores with faults, in place of the file system that checkpoints are written to: real files, and what goes wrong with them.

`Counting` ends the process at the n-th operation, or lets it fail. `Journal` also writes down what was done and what was
synced, so that `after_power_loss` can make the folder that a machine finds when it comes back.
"""

from __future__ import annotations

import io
import json
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, BinaryIO, NamedTuple, cast

from trainyard_trainer.checkpoint.files import Entry, Posix


class Counting(Posix):
    """Calls `at(n, operation, path)` before its n-th operation, counted from 1: it may kill, raise, wait.

    What is written counts by the piece that reaches the operating system.
    """

    def __init__(self, at: Callable[[int, str, Path], None], buffer_bytes: int = io.DEFAULT_BUFFER_SIZE) -> None:
        self._at = at
        self._buffer_bytes = buffer_bytes
        self.counted = 0

    def create(self, path: Path) -> BinaryIO:
        self.count("create", path)
        return self._opened(path, super().create(path))

    def _opened(self, path: Path, stream: BinaryIO) -> BinaryIO:
        raw = _Raw(stream, lambda data: self._write(path, data))
        return cast(BinaryIO, io.BufferedWriter(raw, self._buffer_bytes))

    def _write(self, path: Path, data: memoryview) -> int:
        self.count("write", path)
        return len(data)

    def read(self, path: Path) -> BinaryIO:
        self.count("read", path)
        return super().read(path)

    def sync(self, stream: BinaryIO) -> None:
        stream.flush()
        self.count("sync", Path(stream.name))
        super().sync(stream)

    def sync_folder(self, path: Path) -> None:
        self.count("sync_folder", path)
        super().sync_folder(path)

    def rename(self, path: Path, new: Path) -> None:
        self.count("rename", path)
        super().rename(path, new)

    def unlink(self, path: Path) -> None:
        self.count("unlink", path)
        super().unlink(path)

    def make_folder(self, path: Path) -> None:
        self.count("make_folder", path)
        super().make_folder(path)

    def remove_folder(self, path: Path) -> None:
        self.count("remove_folder", path)
        super().remove_folder(path)

    def entries(self, path: Path) -> list[Entry]:
        self.count("entries", path)
        return super().entries(path)

    def count(self, operation: str, path: Path) -> None:
        self.counted += 1
        self._at(self.counted, operation, path)


class _Raw(io.RawIOBase):
    """A file whose pieces are asked for first."""

    def __init__(self, stream: BinaryIO, ask: Callable[[memoryview], int]) -> None:
        self._stream = stream
        self._ask = ask
        self.name = stream.name

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        allowed = self._ask(memoryview(data))
        self._stream.write(memoryview(data)[:allowed])
        self._stream.flush()
        return allowed

    def fileno(self) -> int:
        return self._stream.fileno()

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
            super().close()


def never(n: int, operation: str, path: Path) -> None:
    """Nothing goes wrong."""


def killed_at(point: int) -> Callable[[int, str, Path], None]:
    """SIGKILL at the `point`-th operation."""

    def at(n: int, operation: str, path: Path) -> None:
        if n == point:
            os.kill(os.getpid(), signal.SIGKILL)

    return at


@dataclass(frozen=True, slots=True)
class Held:
    """The first `operation` on a file of such a name waits until `gate` is there, in `gate`.waiting the pid of who waits."""

    gate: Path
    operation: str = "create"
    suffix: str = ".distcp"

    def __call__(self, n: int, operation: str, path: Path) -> None:
        if operation == self.operation and path.name.endswith(self.suffix) and not self.gate.exists():
            said = self.gate.with_suffix(f".{os.getpid()}")
            said.write_text(str(os.getpid()))
            said.rename(self.gate.with_suffix(".waiting"))
            while not self.gate.exists():
                time.sleep(0.005)


class Event(NamedTuple):
    """One operation that was done. at: nanoseconds by the machine's monotonic clock, which all processes share."""

    at: int
    operation: str
    path: str
    more: str


class Journal(Counting):
    """Writes down each operation once it is done, and keeps every file's bytes under another name."""

    def __init__(self, at: Callable[[int, str, Path], None], kept: Path) -> None:
        super().__init__(at, buffer_bytes=512)
        self._kept = kept
        kept.mkdir(exist_ok=True)
        self._log = (kept / f"log-{os.getpid()}-{time.monotonic_ns()}").open("a")
        self._names: dict[int, str] = {}

    def create(self, path: Path) -> BinaryIO:
        stream = super().create(path)
        name = f"{os.getpid()}-{time.monotonic_ns()}"
        os.link(path, self._kept / name)
        self._names[stream.fileno()] = name
        self._note("create", path, name)
        return stream

    def sync(self, stream: BinaryIO) -> None:
        super().sync(stream)
        size = os.fstat(stream.fileno()).st_size
        self._note("sync", Path(stream.name), f"{self._names[stream.fileno()]} {size}")

    def sync_folder(self, path: Path) -> None:
        super().sync_folder(path)
        self._note("sync_folder", path)

    def rename(self, path: Path, new: Path) -> None:
        super().rename(path, new)
        self._note("rename", path, str(new))

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self._note("unlink", path)

    def make_folder(self, path: Path) -> None:
        super().make_folder(path)
        self._note("make_folder", path)

    def remove_folder(self, path: Path) -> None:
        super().remove_folder(path)
        self._note("remove_folder", path)

    def _note(self, operation: str, path: Path, more: str = "") -> None:
        self._log.write(json.dumps(Event(time.monotonic_ns(), operation, str(path), more)) + "\n")
        self._log.flush()


def events(kept: Path) -> list[Event]:
    """What all processes did, in order."""
    lines = [line for log in kept.glob("log-*") for line in log.read_text().splitlines()]
    return sorted(Event(*json.loads(line)) for line in lines)


@dataclass(slots=True)
class _Folder:
    names: dict[str, _Folder | _File] = field(default_factory=dict)


@dataclass(slots=True)
class _File:
    kept: str
    synced: int = 0


class _Change(NamedTuple):
    """Of names in folders: what is taken away, and what is put where."""

    away: tuple[tuple[int, str], ...]
    put: tuple[tuple[int, str, _Folder | _File], ...]

    def touched(self) -> set[tuple[int, str]]:
        return {*self.away, *((folder, name) for folder, name, _ in self.put)}


def after_power_loss(root: Path, kept: Path, to: Path, random: Random) -> None:
    """Make at `to` what may be left of `root` when the power goes after the last of the events in `kept`.

    Left is what was synced: a file's bytes by its own sync, a name by that of its folder. Of the rest anything may be left
    that keeps the order of changes to one name: a rename is whole or not at all, and a file that was not synced is cut
    off anywhere, or has zeros where its bytes did not arrive.
    """
    seen, durable = _Folder(), _Folder()
    folders: dict[int, _Folder] = {id(seen): durable}  # by what was seen, what is durable
    files: list[_File] = []
    pending: list[_Change] = []

    def parent(path: Path) -> _Folder:
        folder = seen
        for name in path.parent.relative_to(root).parts:
            folder = cast(_Folder, folder.names[name])
        return folder

    def make(change: _Change) -> None:
        for folder, name in change.away:
            folders[folder].names.pop(name, None)
        for folder, name, node in change.put:
            folders[folder].names[name] = folders[id(node)] if isinstance(node, _Folder) else node

    def settle(chosen: Iterable[_Change]) -> None:
        """Make changes durable, and what was changed before them under the same names."""
        wanted = list(chosen)
        touched = {key for change in wanted for key in change.touched()}
        for change in reversed(pending):
            if any(change is other for other in wanted) or touched & change.touched():
                touched |= change.touched()
                if not any(change is other for other in wanted):
                    wanted.append(change)
        for change in [c for c in pending if any(c is other for other in wanted)]:
            make(change)
            pending.remove(change)

    nodes: list[_Folder] = [seen]  # kept, so that no id is used twice
    for event in events(kept):
        path = Path(event.path)
        match event.operation:
            case "create":
                file = _File(event.more)
                files.append(file)
                parent(path).names[path.name] = file
                pending.append(_Change((), ((id(parent(path)), path.name, file),)))
            case "make_folder":
                folder = _Folder()
                nodes.append(folder)
                folders[id(folder)] = _Folder()
                parent(path).names[path.name] = folder
                pending.append(_Change((), ((id(parent(path)), path.name, folder),)))
            case "sync":
                name, size = event.more.split()
                next(file for file in files if file.kept == name).synced = int(size)
            case "sync_folder":
                inside = parent(path / "x")
                settle([c for c in pending if any(key[0] == id(inside) for key in c.touched())])
            case "rename":
                new = Path(event.more)
                node = parent(path).names.pop(path.name)
                parent(new).names[new.name] = node
                away = ((id(parent(path)), path.name),)
                pending.append(_Change(away, ((id(parent(new)), new.name, node),)))
            case "unlink" | "remove_folder":
                parent(path).names.pop(path.name)
                pending.append(_Change(((id(parent(path)), path.name),), ()))
    chance = random.choice((0.0, 0.5, 1.0))
    settle([change for change in list(pending) if random.random() < chance])
    _write(durable, kept, to, random)


def _write(folder: _Folder, kept: Path, to: Path, random: Random) -> None:
    to.mkdir()
    for name, node in sorted(folder.names.items()):
        if isinstance(node, _Folder):
            _write(node, kept, to / name, random)
            continue
        whole = (kept / node.kept).read_bytes()
        arrived = random.choice((node.synced, random.randint(node.synced, len(whole)), len(whole)))
        zeros = random.choice((0, len(whole) - arrived))
        (to / name).write_bytes(whole[:arrived] + bytes(zeros))
