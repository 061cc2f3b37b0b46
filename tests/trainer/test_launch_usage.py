"""What a worker's processes use is read from /proc, whatever the worker says of itself."""

from __future__ import annotations

import subprocess
import sys

from support.launching import launched
from trainyard_trainer.launch.usage import usage

BUSY = """
import os, sys, time
if os.fork() == 0:
    while time.process_time() < 0.3: pass
    os._exit(0)
os.wait()
held = bytearray(64 << 20)
held[::4096] = b"x" * len(held[::4096])
print("held", flush=True)
sys.stdin.read()
"""


def test_memory_and_time_of_a_group_count_its_children() -> None:
    command = [sys.executable, "-c", BUSY]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0 if sys.version_info >= (3, 11) else None
    ) as busy:
        assert busy.stdout is not None
        busy.stdout.readline()
        found = usage({busy.pid, 2**30})
        assert set(found) == {busy.pid}
        assert found[busy.pid].resident_bytes > 64 << 20
        assert found[busy.pid].cpu_seconds >= 0.28  # in ticks of 10 ms
    assert usage({busy.pid}) == {}


def test_of_a_script_that_never_reports_only_its_processes_are_told(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with launched(tmp_path, "del say; print('ready'); time.sleep(100)") as launcher:
        launcher.says("ready")
        launcher.reaches(lambda status: status)
        text = launcher.request("GET", "/metrics")[1].decode()
        names = {line.split("{")[0] for line in text.splitlines() if '{rank="0"' in line}
        assert names == {
            f"trainyard_trainer_{name}"
            for name in (
                "worker_up",
                "process_resident_memory_bytes",
                "process_cpu_seconds_total",
                "unreadable_reports_total",
            )
        }
        assert "trainyard_trainer_step_seconds" not in text
