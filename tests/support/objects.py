"""A real S3 server for a test, and what may happen on the way to it.

The server is the lab's (lab/go/s3), over a folder of the machine. `through` puts a proxy before it that answers with errors, cuts
connections in mid-upload, or loses answers to what the server has done.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from random import Random
from socketserver import ThreadingTCPServer

from support.killpoints import go_on, last_durable, live
from support.processes import run
from support.stores import killed_at, never
from trainyard_lab.build import S3, build
from trainyard_trainer.checkpoint.bucket import Bucket
from trainyard_trainer.checkpoint.files import Posix
from trainyard_trainer.checkpoint.objects import Objects, Url

BUCKET = "checkpoints"
ACCOUNT = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}


@dataclass(frozen=True, slots=True)
class Server:
    """folder: where its bucket's objects are files. port: on 127.0.0.1."""

    folder: Path
    port: int

    @property
    def environment(self) -> Mapping[str, str]:
        """What a pod's env would say."""
        return environment(self.port)


def environment(port: int) -> Mapping[str, str]:
    """Of a process that is to speak to a server or to a proxy."""
    return {**ACCOUNT, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}


@contextmanager
def server(home: Path) -> Iterator[Server]:
    """A server with one empty bucket."""
    (home / BUCKET).mkdir(parents=True)
    port = _free_port()
    log = (home.parent / f"{home.name}.log").open("wb")
    command = [build(S3)["s3"], f"127.0.0.1:{port}", home]
    process = subprocess.Popen(command, env={**os.environ, **ACCOUNT}, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"no server on port {port}: {Path(log.name).read_text()}")
            time.sleep(0.02)
        yield Server(home / BUCKET, port)
    finally:
        process.kill()
        process.wait()
        log.close()


Fault = Callable[[int, str, str], str]
"""(number of the request from 1, method, path) -> what happens to it: "" nothing, "500" an error, "cut": the connection ends in
the middle of its body, "lost": it ends once the server has answered."""


@contextmanager
def through(behind: Server, fault: Fault) -> Iterator[int]:
    """The port of a proxy before the server. It is a process of its own, so what `fault` remembers it remembers there."""
    listener = socket.create_server(("127.0.0.1", 0))
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        _serve(listener, behind.port, fault)
    port = listener.getsockname()[1]
    listener.close()
    try:
        yield port
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _serve(listener: socket.socket, port: int, fault: Fault) -> None:
    lock, counted = threading.Lock(), [0]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            self.raw_requestline = self.rfile.readline(65537)
            if not self.raw_requestline or not self.parse_request():
                self.close_connection = True
                return
            with lock:
                counted[0] += 1
                what = fault(counted[0], self.command, self.path)
            body = self._body(half=what == "cut")
            if what == "500":
                self.send_error(500)
                return
            if what == "cut":
                self.close_connection = True
                return
            upstream = http.client.HTTPConnection("127.0.0.1", port)
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("expect", "transfer-encoding"):
                    upstream.putheader(name, value)
            if self.headers.get("transfer-encoding"):
                upstream.putheader("Content-Length", str(len(body)))
            upstream.endheaders(body)
            answer = upstream.getresponse()
            data = answer.read()
            upstream.close()
            if what == "lost":
                self.close_connection = True
                return
            self.send_response_only(answer.status, answer.reason)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                    self.send_header(name, value)
            said = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
            self.send_header("Content-Length", said or "0")
            self.end_headers()
            self.wfile.write(data)
            self.wfile.flush()

        def _body(self, half: bool) -> bytes:
            if self.headers.get("transfer-encoding", "").lower() == "chunked":
                parts = []
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)
            size = int(self.headers.get("content-length") or 0)
            return self.rfile.read(size // 2 if half else size)

        def log_message(self, format: str, *arguments: object) -> None:
            """Nobody listens."""

    class Proxy(ThreadingTCPServer):
        daemon_threads = True

        def handle_error(self, request: object, address: object) -> None:
            """A client that was killed."""

    with contextlib.suppress(BaseException):
        proxy = Proxy(("127.0.0.1", 0), Handler, bind_and_activate=False)
        proxy.socket.close()
        proxy.socket = listener
        proxy.serve_forever()
    os._exit(0)


class Counting(Objects):
    """Calls `at(n, operation, path)` before its n-th operation, counted from 1: it may kill, raise, wait."""

    def __init__(self, root: Url, at: Callable[[int, str, object], None]) -> None:
        super().__init__(root)
        object.__setattr__(self, "at", at)
        object.__setattr__(self, "counted", [0])

    def count(self, operation: str, path: object) -> None:
        self.counted[0] += 1  # type: ignore[attr-defined]
        self.at(self.counted[0], operation, path)  # type: ignore[attr-defined]


def _counted(name: str) -> Callable[..., object]:
    def operation(self: Counting, path: object, *arguments: object) -> object:
        self.count(name, path)
        return getattr(Objects, name)(self, path, *arguments)

    return operation


for _name in ("create", "read", "sync", "get", "put", "put_new", "sizes", "remove"):
    setattr(Counting, _name, _counted(_name))


@dataclass(frozen=True, slots=True)
class Trial:
    """One life whose process is killed at its `point`-th operation on objects. durable, loaded: steps; 0: none.

    wrong: what was wrong with what was loaded, "" where nothing was.
    """

    point: int
    durable: int
    loaded: int
    wrong: str


def trials(count: int, seed: int, url: Url, folder: Path) -> Iterator[Trial]:
    """Lives as in killpoints.py on one rank, each below a URL of its own, and what the next attempt loads."""
    random = Random(seed)

    def life(root: Url, at: Callable[[int, str, object], None]) -> Callable[[int], str]:
        def work(rank: int) -> str:
            objects = Counting(root, at)
            live(folder, rank, 1, Posix(), stores=lambda attempt: Bucket(objects, attempt))
            return str(objects.counted[0])  # type: ignore[attr-defined]

        return work

    (whole,) = run(life(url / "whole", never), 1, folder / "whole")
    assert whole.code == 0, whole.output
    for number in range(count):
        root, point = url / str(number), random.randint(1, int(whole.result))
        (ended,) = run(life(root, killed_at(point)), 1, folder / f"life-{number}")
        bucket = Bucket(Objects(root), 3)
        (after,) = run(lambda rank, bucket=bucket: go_on(folder, bucket), 1, folder / f"next-{number}")
        durable = last_durable(ended)
        if after.code != 0:
            yield Trial(point, durable, 0, after.output)
            continue
        step, _, mixed = after.result.partition(" ")
        wrong = mixed or ("" if int(step) >= durable else f"step {step} was loaded, and {durable} was durable")
        yield Trial(point, durable, int(step), wrong)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/")
        connection.getresponse()
    except OSError:
        return False
    return True
