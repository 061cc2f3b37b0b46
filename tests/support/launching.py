"""Start the real launcher with small real workers, and see how it ends.

A worker is a Python script that speaks the report protocol; `WORKER` gives it the words. None of them needs torch.
"""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.contract import env, requests
from trainyard.contract.plan import Axis, Checkpoints, Member, Plan, encode
from trainyard.contract.status import LastWords, Status, decode_last_words, decode_status

KEY = b"0123456789abcdef" * 4
POD_UID = "11111111-2222-3333-4444-555555555555"
SECONDS = 20.0
"""The longest that any condition here is waited for."""

WORKER = """
import json, os, signal, sys, time
from trainyard_trainer.report import Phase, Reporter

RANK, LOCAL = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
say = Reporter.from_environment(RANK)
STOP = os.environ["TRAINYARD_STOP_FILE"]
sys.stdout.reconfigure(line_buffering=True, write_through=False)  # a line at once, whoever else writes into the pipe

def step(n):
    say.phase(Phase.TRAIN, n - 1)
    say.step(n, loss=2.5, tokens=100, step_seconds=0.01, grad_norm=1.0, digest="d")

def until_stopped():
    while not os.path.exists(STOP):
        time.sleep(0.01)
    return json.load(open(STOP))

def wait_for(name):
    # until the test opens the gate: a file beside this one
    while not os.path.exists(os.path.join(os.path.dirname(__file__), name)):
        time.sleep(0.01)

def save(n, attempt=1):
    say.checkpoint_started(n, attempt, f"/ckpt/{n}")
    say.checkpoint_durable(n, attempt, f"/ckpt/{n}", size_bytes=1000, seconds=0.5)

def save_and_leave(n):
    say.stop_acknowledged(n)
    save(n)
    sys.exit(75)

"""


def until(condition: Callable[[], Any], what: str = "the condition", seconds: float = SECONDS) -> Any:
    """Wait for a condition, and return what made it true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"{what} did not come true within {seconds} s")


def a_plan(procs: int = 1, nodes: int = 1, attempt: int = 1, **changes: Any) -> Plan:
    """A plan whose pods are train-0, train-1...; a stop by signal has a grace of 30 s."""
    given: dict[str, Any] = {
        "namespace": "lab",
        "job": "train",
        "uid": "job-uid",
        "attempt": attempt,
        "service": "train",
        "processes_per_node": procs,
        "members": tuple(Member(n, f"node-{n}") for n in range(nodes)),
        "mesh": (Axis("shard", procs * nodes),),
        "checkpoints": Checkpoints("/ckpt", grace_seconds=30.0),
    }
    return Plan(**(given | changes))


@dataclass
class Launched:
    """A running launcher and the places where it leaves things."""

    process: subprocess.Popen[bytes]
    folder: Path
    port: int

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def opens(self, gate: str) -> None:
        """Let workers go on that wait_for it."""
        (self.folder / gate).touch()

    def children(self) -> list[int]:
        """Pids of its workers and of what it has adopted, zombies too.

        One look may miss some while others come and go (proc_pid_task_tid_children(5)): wait for what is to be there.
        """
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def wait(self) -> int:
        """Its exit code. It must end by itself."""
        return self.process.wait(SECONDS)

    @property
    def out(self) -> bytes:
        return (self.folder / "out").read_bytes()

    @property
    def err(self) -> str:
        return (self.folder / "err").read_text(errors="replace")

    @property
    def words(self) -> LastWords:
        return decode_last_words((self.folder / "last-words").read_bytes())

    def says(self, text: str) -> bytes:
        """Wait until a worker has printed a line with something in it; all whole lines so far."""

        def found() -> bytes | None:
            lines = self.out[: self.out.rfind(b"\n") + 1]
            return lines if text.encode() in lines else None

        return bytes(until(found, f"output {text!r}"))

    def request(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, body or None, dict(headers or {}))
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def post(self, path: str, body: bytes, /, **changes: Any) -> tuple[int, dict[str, Any]]:
        """A signed POST. changes: what the signature is made with instead of what is right."""
        signed: dict[str, Any] = {
            "key": KEY,
            "pod_uid": POD_UID,
            "expires": time.time() + 20,
            "path": path,
            "body": body,
        }
        signed |= changes
        headers = requests.sign(method="POST", **signed)
        status, answer = self.request("POST", path, body, headers)
        return status, json.loads(answer)

    def stop(self, seconds: float = 20.0, attempt: int = 1, reason: str = "preempted") -> tuple[int, dict[str, Any]]:
        stop = requests.Stop(attempt=attempt, deadline=time.time() + seconds, reason=reason)
        return self.post(requests.PATH_STOP, requests.encode_stop(stop))

    @property
    def status(self) -> Status:
        code, body = self.request("GET", requests.PATH_STATUS)
        assert code == 200, body
        return decode_status(body)

    def reaches(self, condition: Callable[[Status], Any]) -> Status:
        """Wait for a status; the launcher may not listen yet."""

        def answer() -> Status | None:
            with suppress(OSError):
                status = self.status
                return status if condition(status) else None
            return None

        return until(answer, "the status")  # type: ignore[no-any-return]


def free_port() -> int:
    """A port that nobody listens at now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def launched(
    folder: Path,
    script: str = "",
    *,
    plan: Plan | None = None,
    arguments: list[str] | None = None,
    command: list[str] | None = None,
    port: int | None = None,
    before: str = "",
    environment: Mapping[str, str] | None = None,
    out: int | None = None,
    under: Sequence[str] = (),
    stays: float = 0.0,
    program: Sequence[str] | None = None,
) -> Iterator[Launched]:
    """The launcher over workers that run `script` (after WORKER). program: what it is; this Python's own.

    before: Python that runs in the launcher first. under: a command that starts it. stays: seconds for which it waits for a
    later plan once its workers have failed.
    """
    plan = plan or a_plan()
    (folder / "plan.json").write_text(encode(plan))
    (folder / "key").write_bytes(KEY)
    (folder / "last-words").touch()
    (folder / "worker.py").write_text(WORKER + script)
    port = free_port() if port is None else port
    given = {
        **os.environ,
        env.PLAN: str(folder / "plan.json"),
        env.POD: "train-0",
        env.POD_UID: POD_UID,
        env.CONTROL_KEY_FILE: str(folder / "key"),
        env.PORT: str(port),
        env.TERMINATION_LOG: str(folder / "last-words"),
        **(environment or {}),
    }
    before += f"\nimport trainyard_trainer.launch.supervisor as supervisor; supervisor.PLAN_SECONDS = {stays}"
    start = f"{before}\nimport sys; from trainyard_trainer.launch.main import main; sys.exit(main())"
    command = command or [sys.executable, "-u", str(folder / "worker.py")]
    arguments = ["--", *command] if arguments is None else arguments
    with (folder / "out").open("wb") as out_file, (folder / "err").open("wb") as err_file:
        process = subprocess.Popen(
            [*under, *(program or [sys.executable, "-c", start]), *arguments],
            env=given,
            stdin=subprocess.DEVNULL,
            stdout=out_file if out is None else out,
            stderr=err_file,
        )
    try:
        yield Launched(process, folder, port)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(1)
            process.kill()
            process.wait()
