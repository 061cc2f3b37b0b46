"""The launcher's HTTP endpoint: what it answers, to whom, and for how long it listens.

POST needs a signature; GET does not. A status says how far the training is, which the metrics on the same port say too, and
Prometheus cannot sign; whoever may reach the pod's port may read it. Nothing that moves the gang is unsigned.

Connections are served by threads that own no state: each puts its question into a mailbox and waits for the loop's answer. A
client may be slow or hostile. It has CONNECTION_SECONDS in all, whatever it sends; when there are too many, the oldest is cut
to let a new one in; and since the threads are daemons none of them keeps the launcher from leaving.
"""

from __future__ import annotations

import json
import queue
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Final

from trainyard.contract import plan, requests
from trainyard.contract.codec import ContractError
from trainyard.contract.plan import Plan

PATH_METRICS: Final = "/metrics"
PATH_HEALTH: Final = "/healthz"

MAX_CONNECTIONS: Final = 32
MOST_OBEYED: Final = 1024
"""Requests for a save that are remembered at a time; each only until it expires, and only its signer can bring them."""
CONNECTION_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 2.0

JSON: Final = "application/json"
METRICS_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Get:
    """GET of one of GETS."""

    path: str


Question = Get | requests.Stop | requests.Checkpoint | Plan

GETS: Final = frozenset({requests.PATH_STATUS, PATH_METRICS, PATH_HEALTH})
POSTS: Final[dict[str, Callable[[bytes], Question]]] = {
    requests.PATH_STOP: requests.decode_stop,
    requests.PATH_CHECKPOINT: requests.decode_checkpoint,
    requests.PATH_PLAN: plan.decode,
}


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer."""

    status: HTTPStatus
    body: str
    content_type: str = JSON


def error(status: HTTPStatus, message: str) -> Answer:
    """An answer that says what is wrong."""
    return Answer(status, json.dumps({"error": message}))


class Mailbox:
    """Questions from many threads, answered by one."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._questions: queue.SimpleQueue[tuple[Question, Future[Answer]]] = queue.SimpleQueue()

    def ask(self, question: Question) -> Answer:
        """The loop's answer; 503 where it does not come in time (the launcher is frozen, or leaving)."""
        future: Future[Answer] = Future()
        self._questions.put((question, future))
        try:
            self._wake()
            return future.result(ANSWER_SECONDS)
        except (OSError, NoAnswer):
            return error(HTTPStatus.SERVICE_UNAVAILABLE, "the launcher does not answer")

    def serve(self, answer: Callable[[Question], Answer]) -> None:
        """Answer what was asked; called by the loop. A bug in an answer is the asker's to hear: it ends no training."""
        while True:
            try:
                question, future = self._questions.get_nowait()
            except queue.Empty:
                return
            try:
                future.set_result(answer(question))
            except Exception as problem:
                why = f"{type(problem).__name__}: {problem}"
                future.set_result(error(HTTPStatus.INTERNAL_SERVER_ERROR, why))


class Control(socketserver.ThreadingMixIn, HTTPServer):
    """The endpoint, listening from its construction on; OSError where the port is taken."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 2 * MAX_CONNECTIONS

    def __init__(self, port: int, key: bytes | None, pod_uid: str, ask: Callable[[Question], Answer]) -> None:
        self.key = key
        self.pod_uid = pod_uid
        self.ask = ask
        self._open: dict[socket.socket, float] = {}
        self._obeyed: dict[str, float] = {}
        self._lock = threading.Lock()
        super().__init__(("", port), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = _listen(port, self.request_queue_size)
        threading.Thread(target=self.serve_forever, name="control", daemon=True).start()

    @property
    def port(self) -> int:
        """The port it listens at (a free one where 0 was asked)."""
        return int(self.socket.getsockname()[1])

    def obeys_once(self, signature: str, now: float) -> bool:
        """Whether a signature that verifies is seen for the first time; it is known until it can verify no more."""
        with self._lock:
            self._obeyed = {known: until for known, until in self._obeyed.items() if until > now}
            if signature in self._obeyed or len(self._obeyed) >= MOST_OBEYED:
                return False
            self._obeyed[signature] = now + 2 * requests.VALID_SECONDS
            return True

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            crowd = len(self._open)
            if crowd < 2 * MAX_CONNECTIONS:
                self._open[request] = time.monotonic()
            oldest = min(self._open, key=lambda r: self._open[r]) if crowd >= MAX_CONNECTIONS else None
        if oldest is not None:
            _cut(oldest)
        if crowd < 2 * MAX_CONNECTIONS:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Called by serve_forever twice a second: cut whoever has had his time."""
        overdue = time.monotonic() - CONNECTION_SECONDS
        with self._lock:
            late = [request for request, since in self._open.items() if since < overdue]
        for request in late:
            _cut(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: Control
    server_version = "trainyard-launch"
    sys_version = ""
    timeout = CONNECTION_SECONDS

    def do_GET(self) -> None:
        if self.path in POSTS:
            self._send(error(HTTPStatus.METHOD_NOT_ALLOWED, f"{self.path} takes POST"))
        elif self.path in GETS:
            self._send(self.server.ask(Get(self.path)))
        else:
            self._send(error(HTTPStatus.NOT_FOUND, f"no such path; there are {', '.join(sorted(GETS | set(POSTS)))}"))

    def do_POST(self) -> None:
        decode = POSTS.get(self.path)
        if decode is None:
            wrong = HTTPStatus.METHOD_NOT_ALLOWED if self.path in GETS else HTTPStatus.NOT_FOUND
            self._send(error(wrong, f"no POST here; there are {', '.join(sorted(POSTS))}"))
            return
        body = self._body()
        if isinstance(body, Answer):
            self._send(body)
            return
        self._send(self._refused(body) or self._decoded(decode, body))

    def _body(self) -> bytes | Answer:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()) or len(length) > 9:
            return error(HTTPStatus.LENGTH_REQUIRED, "Content-Length: must give the body's length in bytes")
        if int(length) > requests.MAX_BODY_BYTES:
            return error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body may have {requests.MAX_BODY_BYTES} bytes")
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            return error(HTTPStatus.BAD_REQUEST, "the body ended early")
        return body

    def _refused(self, body: bytes) -> Answer | None:
        if requests.HEADER_SIGNATURE not in self.headers:
            return error(HTTPStatus.UNAUTHORIZED, f"{requests.HEADER_SIGNATURE}: missing")
        if self.server.key is None:
            return error(HTTPStatus.FORBIDDEN, "this launcher has no key to verify a request with")
        given = dict(self.headers.items())
        now = time.time()
        why = requests.refusal(self.server.key, "POST", self.path, body, given, self.server.pod_uid, now)
        if why:
            return error(HTTPStatus.FORBIDDEN, why)
        if self.path == requests.PATH_CHECKPOINT and not self.server.obeys_once(
            self.headers[requests.HEADER_SIGNATURE], now
        ):
            return error(HTTPStatus.FORBIDDEN, "obeyed before: a save that is asked for once more is signed anew")
        return None

    def _decoded(self, decode: Callable[[bytes], Question], body: bytes) -> Answer:
        try:
            question = decode(body)
        except ContractError as problem:
            return error(HTTPStatus.BAD_REQUEST, str(problem))
        return self.server.ask(question)

    def _send(self, answer: Answer) -> None:
        body = answer.body.encode("utf-8", "replace")
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged: a client could fill the log."""


def _listen(port: int, backlog: int) -> socket.socket:
    """On both families where the pod has them, on what it has otherwise."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog)
        except OSError:
            pass
    return socket.create_server(("", port), backlog=backlog)


def _cut(request: socket.socket) -> None:
    try:
        request.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
