"""Ends the workers where the launcher is killed and no container ends with it.

In a pod the launcher is PID 1, and the kernel ends all that is left when it dies. Elsewhere (a laptop, a test, a machine without
containers) its workers would be adopted by somebody else and train on, with nobody to hear them. So a process of its own waits
for the end of a pipe that only the launcher holds, and then kills the workers' process groups. A parent-death signal would not
do: it is not inherited by what `posix_spawn` starts, and of a process that was forked twice the parent is not who forked it.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Final

ALL_FDS: Final = 1 << 16


class Guard:
    """The launcher's side. To be made before the first thread is started and before orphans are adopted."""

    def __init__(self) -> None:
        self._fd: int | None = None
        if os.getpid() == 1:
            return
        reader, writer = os.pipe()
        between = os.fork()
        if between == 0:
            _become(reader)
        os.close(reader)
        os.waitpid(between, 0)
        self._fd = writer

    def watch(self, group: int) -> None:
        """From now on a process group ends with this process."""
        self._say(f"+{group}\\n")

    def forget(self, group: int) -> None:
        """Its leader was reaped: the number may be somebody else's soon."""
        self._say(f"-{group}\\n")

    def _say(self, line: str) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):  # it was killed: then it is as if there had been none
                os.write(self._fd, line.encode())


def _become(reader: int) -> None:
    try:
        if os.fork() == 0:  # nobody's child, so that who looks for its workers does not find it among them
            os.setsid()
            os.closerange(0, reader)
            os.closerange(reader + 1, ALL_FDS)
            _watch(reader)
    finally:
        os._exit(0)


def _watch(reader: int) -> None:
    groups: set[int] = set()
    partial = b""
    while chunk := os.read(reader, 4096):
        *lines, partial = (partial + chunk).split(b"\\n")
        for line in lines:
            (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
