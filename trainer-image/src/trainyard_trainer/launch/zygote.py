"""A process that imports the trainer once and then becomes all workers of the pod by forking.

Importing torch takes seconds of processor time and hundreds of megabytes; with eight workers on a node it is done once
instead of eight times, and what was imported is shared. The launcher itself never imports torch: the zygote is its child.

A worker is forked twice: its first parent ends at once, so that the launcher, which adopts orphans, is its parent and reaps it
like any other. Only the trainer's own module is forked this way, since only of it is known that importing it leaves nothing
behind that a fork would break (`trainyard_trainer.preload`). Where anything goes wrong before the zygote is ready, the
workers are started the plain way. It stays while its launcher does: the workers of a later attempt in the same pod are forked
from it as well, and import nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from trainyard_trainer.launch.output import Console, Stream
from trainyard_trainer.launch.workers import REPORT_FD, Ends, spawn

TRAINER_MODULE: Final = "trainyard_trainer.train"
PRELOAD_MODULE: Final = "trainyard_trainer.preload"
READY: Final = b"ready"
FORK_SECONDS: Final = 10.0
"""For one fork of a process that has imported everything; it takes some 10 ms."""
MESSAGE_BYTES: Final = 128 * 1024
SPARE_FD: Final = 10
"""Descriptors are moved above this before they are put where a worker expects them."""


def can_become(command: Sequence[str]) -> bool:
    """Whether a command is one that can be forked instead: an interpreter that runs the trainer's module."""
    python = re.fullmatch(r"python[0-9.]*", PurePath(command[0]).name)
    return python is not None and list(command[1:3]) == ["-m", TRAINER_MODULE]


class Zygote:
    """The launcher's side. OSError where it cannot be started."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], console: Console) -> None:
        self._environment = environment
        self._arguments = list(command[3:])
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        out, out_in = os.pipe()
        program = [command[0], "-m", "trainyard_trainer.launch.zygote"]
        try:
            self._pid = spawn(program, environment)(Ends(out_in, out_in, theirs.fileno()))
        except OSError:
            os.close(out)
            self._socket.close()
            raise
        finally:
            os.close(out_in)
            theirs.close()
        self.output = Stream(out, b"[zygote] ", console)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._pid

    @property
    def fd(self) -> int:
        """Readable once it is ready, or gone."""
        return self._socket.fileno()

    def ready(self) -> bool:
        """Whether it can fork; asked when `fd` is readable. False: it has ended."""
        with contextlib.suppress(OSError):
            return self._socket.recv(len(READY)) == READY
        return False

    def fork(self, environment: Mapping[str, str]) -> Callable[[Ends], int]:
        """How to start one worker with this environment; OSError where the zygote does not answer."""

        def start(ends: Ends) -> int:
            changed = {name: value for name, value in environment.items() if self._environment.get(name) != value}
            order = json.dumps({"environment": changed, "arguments": self._arguments}).encode()
            self._socket.settimeout(FORK_SECONDS)
            socket.send_fds(self._socket, [order], ends)
            answer = self._socket.recv(32)
            if not answer:
                raise ConnectionResetError("the zygote ended")
            return int(answer)

        return start

    def close(self) -> None:
        """Let it end, if it has not; it has no more to do."""
        self._socket.close()

    def kill(self) -> None:
        """End it now, whatever it is importing."""
        self.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Order:
    """What a forked process is to be. environment: what differs from the zygote's."""

    environment: Mapping[str, str]
    arguments: Sequence[str]
    ends: Ends


def main() -> int:
    """The zygote's side: import, then fork what is ordered until the launcher hangs up. A worker returns from here too."""
    orders = socket.socket(fileno=REPORT_FD)
    importlib.import_module(PRELOAD_MODULE).preload()
    orders.send(READY)
    order = _serve(orders)
    if order is None:
        return 0
    orders.close()
    _put_in_place(order.ends)
    os.environ.update(order.environment)
    _name(f"rank-{order.environment.get('RANK', '')}")
    trainer = importlib.import_module(TRAINER_MODULE)
    sys.argv = [str(trainer.__file__), *order.arguments]
    return int(trainer.main(order.arguments))


def _serve(orders: socket.socket) -> Order | None:
    """In each worker its order; None in the zygote, when no more will come."""
    while True:
        message, fds, _, _ = socket.recv_fds(orders, MESSAGE_BYTES, len(Ends._fields))
        if not message:
            return None
        order = Order(**json.loads(message), ends=Ends(*fds))
        pid = _fork_orphan()
        if pid == 0:
            return order
        for fd in fds:
            os.close(fd)
        orders.send(str(pid).encode())


def _fork_orphan() -> int:
    """Fork a process whose parent is gone: 0 in it, its pid in the caller. It leads its own process group from the start."""
    sys.stdout.flush()
    sys.stderr.flush()
    answer, say = os.pipe()
    between = os.fork()
    if between == 0:
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)  # here as well as below: whichever comes first, it is done before anybody relies on it
            os.close(answer)
            os.close(say)
            return 0
        os.setpgid(pid, pid)
        os.write(say, str(pid).encode())
        os._exit(0)
    os.close(say)
    os.waitpid(between, 0)
    with os.fdopen(answer) as reader:
        return int(reader.read())


def _name(name: str) -> None:
    """What `ps` and `top` show of the process, whose command and environment are still the zygote's (proc_pid_comm(5))."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as comm:
        comm.write(name)


def _put_in_place(ends: Ends) -> None:
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, SPARE_FD) for fd in ends]
    for fd in ends:
        os.close(fd)
    for fd, place in zip(moved, (1, 2, REPORT_FD), strict=True):
        os.dup2(fd, place)
        os.close(fd)


if __name__ == "__main__":
    sys.exit(main())
