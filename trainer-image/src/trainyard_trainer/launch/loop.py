"""Wait for signals, pipes and a time limit at once, in one place and without a handler that does anything.

A handler runs between two bytecodes of the main thread, so one that waits behind a blocking call is late (3.8 s were measured
behind a collective). Here the interpreter's C handler writes the signal's number into a socket
(`signal.set_wakeup_fd`), and a selector sees it like any other input.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
from collections.abc import Callable
from types import FrameType

SEEN = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """A handler must exist for the interpreter to write into the wake-up socket; it has nothing to do itself."""


class Loop:
    """What the launcher waits for. A context manager: outside of it the process has its old signal handling back.

    Callbacks of readable descriptors are called in `wait`, in the thread that waits; the only method that other threads may
    call is `wake`.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._signals, self._signals_in = socket.socketpair()
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._before: dict[signal.Signals, signal._HANDLER] = {}
        self._wakeup_before = -1

    def __enter__(self) -> Loop:
        for end in (self._signals, self._signals_in):
            end.setblocking(False)
        self._selector.register(self._signals, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ, self._drain_wake)
        self._wakeup_before = signal.set_wakeup_fd(self._signals_in.fileno(), warn_on_full_buffer=False)
        for number in SEEN:
            self._before[number] = signal.signal(number, _nothing)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        self._selector.close()
        self._signals.close()
        self._signals_in.close()
        os.close(self._woken)

    def watch(self, fd: int, readable: Callable[[], None]) -> None:
        """Call `readable` from `wait` whenever the descriptor can be read (or was closed by its other end)."""
        self._selector.register(fd, selectors.EVENT_READ, readable)

    def forget(self, fd: int) -> None:
        """Watch it no longer, if it was watched; to be called before it is closed."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(fd)

    def wake(self) -> None:
        """Let `wait` return; from any thread."""
        os.eventfd_write(self._woken, 1)

    def wait(self, seconds: float) -> frozenset[signal.Signals]:
        """Serve what is readable, for at most `seconds` until something is; the signals that have come meanwhile."""
        numbers = b""
        for key, _ in self._selector.select(max(seconds, 0.0)):
            if key.fileobj is self._signals:
                numbers = self._signals.recv(4096)
            else:
                key.data()
        return frozenset(signal.Signals(number) for number in numbers if number in SEEN)

    def _drain_wake(self) -> None:
        os.eventfd_read(self._woken)
