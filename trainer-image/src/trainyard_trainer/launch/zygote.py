"""A process that imports torch once and then becomes all workers of the pod by forking.

Importing torch takes seconds of processor time and hundreds of megabytes; with eight workers on a node it is done once
instead of eight times, and what was imported is shared. The launcher itself never imports torch: the zygote is its child.

A worker is forked twice: its first parent ends at once, so that the launcher, which adopts orphans, is its parent and reaps it
like any other. Nothing of the user's is imported before the fork: of the trainer and of torch it is known that importing them
leaves nothing behind that a fork would break (`trainyard_trainer.preload`). Which programs are forked at all says `program`;
where anything goes wrong before the zygote is ready, the workers are started the plain way. It stays while its launcher does:
the workers of a later attempt in the same pod are forked from it as well, and import nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from trainyard_trainer.launch.become import become
from trainyard_trainer.launch.output import Console, Stream
from trainyard_trainer.launch.program import TRAINER_MODULE, Program
from trainyard_trainer.launch.workers import REPORT_FD, Ends, spawn

PRELOAD_MODULE: Final = "trainyard_trainer.preload"
READY: Final = b"ready"
FORK_SECONDS: Final = 10.0
"""For one fork of a process that has imported everything; it takes some 10 ms."""
MESSAGE_BYTES: Final = 128 * 1024
SPARE_FD: Final = 10
"""Descriptors are moved above this before they are put where a worker expects them."""
START: Final = """\
import sys
if sys.path[:1] == [""]: del sys.path[0]
from trainyard_trainer.launch.zygote import main
sys.exit(main())
"""
"""What its Python runs: no module of the working folder comes before those that are imported here."""


class Zygote:
    """The launcher's side. OSError where it cannot be started."""

    def __init__(self, program: Program, environment: Mapping[str, str], console: Console) -> None:
        self._environment = environment
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        out, out_in = os.pipe()
        command = [program.command[0], *program.options, "-c", START, *program.command]
        try:
            self._pid = spawn(command, environment)(Ends(out_in, out_in, theirs.fileno()))
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
            order = json.dumps({"environment": changed}).encode()
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
    ends: Ends


def main() -> int:
    """The zygote's side: import, then fork what is ordered until the launcher hangs up. A worker returns from here too."""
    orders = socket.socket(fileno=REPORT_FD)
    program = Program.of(sys.argv[1:])
    assert program is not None
    preload = importlib.import_module(PRELOAD_MODULE)
    preload.preload(preload.TRAINER if program.is_trainer else preload.TORCH)
    orders.send(READY)
    order = _serve(orders)
    if order is None:
        return 0
    orders.close()
    _put_in_place(order.ends)
    os.environ.update(order.environment)
    _name(f"rank-{order.environment.get('RANK', '')}")
    if not program.is_trainer:
        return become(program)
    sys.path.insert(0, program.place)
    trainer = importlib.import_module(TRAINER_MODULE)
    sys.argv = [str(trainer.__file__), *program.arguments]
    return int(trainer.main(program.arguments))


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
