"""Pass on what the workers print: whole lines, each with its rank, and whatever bytes they are.

A thread per stream reads and writes with plain blocking calls. If the pod's log is read slowly it is the worker that waits,
as it would without a launcher; the launcher's own loop never does.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Iterable

from trainyard_trainer.launch.network.signs import Ear

PIECE_BYTES = 64 * 1024
"""A line longer than this is passed on in pieces of this size, each as a line: memory stays bounded."""
TAIL_BYTES = 1200
"""What is kept of a stream's end: a traceback's last lines, small enough for the last words."""


class Lines:
    """Bytes in as they come, prefixed lines out."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._partial = bytearray()

    def feed(self, chunk: bytes) -> bytes:
        """The lines that are complete now. Without a prefix nothing needs to be a line, and all is passed on at once."""
        if not self._prefix:
            return chunk
        until, newline, rest = chunk.rpartition(b"\n")
        out: list[bytes] = []
        if newline:
            out = [piece for line in (bytes(self._partial) + until).split(b"\n") for piece in _pieces(line)]
            self._partial.clear()
        self._partial += rest
        while len(self._partial) > PIECE_BYTES:
            out.append(bytes(self._partial[:PIECE_BYTES]))
            del self._partial[:PIECE_BYTES]
        return b"".join(self._prefix + line + b"\n" for line in out)

    def end(self) -> bytes:
        """The line that the stream ended in the middle of."""
        partial = bytes(self._partial)
        self._partial.clear()
        return self._prefix + partial + b"\n" if partial else b""


def _pieces(line: bytes) -> Iterable[bytes]:
    return (line[at : at + PIECE_BYTES] for at in range(0, max(len(line), 1), PIECE_BYTES))


class Console:
    """The pod's log. Several threads write to it; each call stays in one piece."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        self._gone = False

    def write(self, data: bytes) -> None:
        """Write all of it, however slow the reader is. Once nobody reads any more, what is written is lost."""
        with self._lock:
            view = memoryview(data)
            while view and not self._gone:
                try:
                    view = view[os.write(self._fd, view) :]
                except BlockingIOError:
                    select.select([], [self._fd], [])
                except OSError:
                    self._gone = True


class Stream:
    """One pipe of a worker, copied to the console by a thread until its last writer is gone. ear: listens along."""

    def __init__(self, fd: int, prefix: bytes, console: Console, ear: Ear | None = None) -> None:
        self._fd = fd
        self._ear = ear
        self._lines = Lines(prefix)
        self._console = console
        self._tail = b""
        self._thread = threading.Thread(target=self._copy, name=f"output-{fd}", daemon=True)
        self._thread.start()

    def tail(self) -> str:
        """The last lines, as text."""
        text = self._tail.decode("utf-8", "replace").replace("\0", "").rstrip()
        return text.partition("\n")[2] or text if len(self._tail) >= TAIL_BYTES else text

    def join(self, seconds: float) -> None:
        """Wait until everything is passed on, for at most `seconds`."""
        self._thread.join(max(seconds, 0.0))

    def _copy(self) -> None:
        while chunk := os.read(self._fd, PIECE_BYTES):
            self._tail = (self._tail + chunk)[-TAIL_BYTES:]
            if self._ear is not None:
                self._ear.hear(chunk, time.time())
            self._console.write(self._lines.feed(chunk))
        if self._ear is not None:
            self._ear.end(time.time())
        self._console.write(self._lines.end())
        os.close(self._fd)


def join_all(streams: Iterable[Stream], seconds: float) -> None:
    """Wait until all of them are passed on, for at most `seconds` together."""
    until = time.monotonic() + seconds
    for stream in streams:
        stream.join(until - time.monotonic())


class Voice:
    """The launcher's own messages, through a pipe of their own: saying something never waits for the log's reader."""

    def __init__(self, console: Console) -> None:
        reader, self._fd = os.pipe()
        os.set_blocking(self._fd, False)
        self._stream = Stream(reader, b"", console)

    def say(self, message: str) -> None:
        """One line; lost if the log is that far behind."""
        try:
            os.write(self._fd, f"trainyard-launch: {message}\n".encode("utf-8", "replace"))
        except OSError:
            return

    def close(self, seconds: float) -> None:
        """Say no more, and wait at most `seconds` until what was said is in the log."""
        os.close(self._fd)
        self._stream.join(seconds)
