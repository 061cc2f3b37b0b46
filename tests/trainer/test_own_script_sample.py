"""The sample with a script of one's own: two real processes that yield when asked, and go on where they were."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from trainyard.contract.plan import Axis, Checkpoints, Lineage, Mark, Member, Plan, encode

SAMPLE = Path(__file__).resolve().parents[2] / "manifests" / "samples" / "own-script.yaml"
PATIENCE_SECONDS = 120.0
YIELDED = 75


def script(folder: Path) -> Path:
    """The script as the ConfigMap of the sample mounts it."""
    documents = yaml.safe_load_all(SAMPLE.read_text())
    text = next(d["data"]["train.py"] for d in documents if d["kind"] == "ConfigMap")
    path = folder / "train.py"
    path.write_text(text)
    return path


def plan(checkpoints: Path, attempt: int, nodes: int, history: tuple[Mark, ...] = ()) -> Plan:
    """A plan with one process on each node."""
    return Plan(
        namespace="default",
        job="own-script",
        uid="u",
        attempt=attempt,
        service="own-script",
        processes_per_node=1,
        members=tuple(Member(n, f"node-{n}") for n in range(nodes)),
        mesh=(Axis("replicate", nodes),),
        lineage=Lineage(history),
        checkpoints=Checkpoints(folder=str(checkpoints), every_seconds=300),
    )


@dataclass
class Gang:
    """The processes of one attempt, as the launchers would have started them."""

    processes: list[subprocess.Popen[bytes]]
    reports: int
    stop_file: Path

    def heard(self, kind: str) -> Iterator[dict[str, object]]:
        """Reports of a kind, as they come; fails when none comes for long."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        with os.fdopen(os.dup(self.reports), "rb", buffering=0) as pipe:
            while time.monotonic() < deadline:
                if select.select([pipe], [], [], 1.0)[0]:
                    for line in pipe.readline().splitlines():
                        report = json.loads(line)
                        if report["kind"] == kind:
                            yield report
        raise AssertionError(f"no report of kind {kind} in {PATIENCE_SECONDS:g} s")

    def yields(self) -> int:
        """Ask for a stop; the step at which all of them left."""
        self.stop_file.write_text("{}")
        step = int(str(next(self.heard("stop-acknowledged"))["step"]))
        assert {process.wait(PATIENCE_SECONDS) for process in self.processes} == {YIELDED}
        return step


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[Plan], Gang]]:
    """Starts an attempt over gloo on this machine; what still runs after the test is killed."""
    gangs: list[Gang] = []

    def started(wanted: Plan) -> Gang:
        folder = tmp_path / f"attempt-{wanted.attempt}"
        folder.mkdir()
        (folder / "plan.json").write_text(encode(wanted))
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        read, write = os.pipe()
        shared = {
            **os.environ,
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(wanted.world_size),
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TRAINYARD_PLAN": str(folder / "plan.json"),
            "TRAINYARD_STOP_FILE": str(folder / "stop"),
            "TRAINYARD_REPORT_FD": str(write),
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, str(script(folder))]
        processes = [
            subprocess.Popen(command, env={**shared, "RANK": str(rank)}, pass_fds=[write])
            for rank in range(wanted.world_size)
        ]
        os.close(write)
        gangs.append(Gang(processes, read, folder / "stop"))
        return gangs[-1]

    yield started
    for gang in gangs:
        for process in gang.processes:
            process.kill()
            process.wait()
        os.close(gang.reports)


def test_the_sample_yields_at_one_step_and_resumes_there_on_fewer_nodes(
    tmp_path: Path, start: Callable[[Plan], Gang]
) -> None:
    checkpoints = tmp_path / "checkpoints"
    first = start(plan(checkpoints, attempt=1, nodes=2))
    next(first.heard("step"))
    left = first.yields()
    assert [file.name for file in checkpoints.iterdir()] == [f"1-{left}.pt"]

    (checkpoints / f"1-{left + 100}.pt").write_bytes(b"written by an attempt that had been given up")
    second = start(plan(checkpoints, attempt=2, nodes=1, history=(Mark(attempt=1, step=left),)))
    resumed = next(second.heard("resumed"))
    assert (resumed["attempt"], resumed["step"]) == (1, left)
    assert second.yields() > left
