"""A process of ours is found whoever started it, stopped for good, and never mistaken for another."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from trainyard_lab import processes

SLEEP = (sys.executable, "-c", "import time; time.sleep(600)")
STUBBORN = (
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)",
)
LEFT_BY_ITS_FIRST_THREAD = (
    sys.executable,
    "-c",
    "import ctypes, threading, time\n"
    "threading.Thread(target=time.sleep, args=(600,)).start()\n"
    "ctypes.CDLL(None).pthread_exit(None)",
)


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "run"
    folder.mkdir()
    yield folder
    for process in processes.find(folder).values():
        processes.stop(process, grace_seconds=0)


def test_a_started_process_is_found_by_its_name_and_gone_after_its_stop(run_dir: Path):
    started = processes.start(run_dir, "one", SLEEP)
    assert processes.find(run_dir) == {"one": started}
    processes.stop(started)
    assert not processes.is_alive(started)
    assert processes.find(run_dir) == {}


def test_a_process_that_ignores_sigterm_is_killed_after_its_grace(run_dir: Path):
    stubborn = processes.start(run_dir, "stubborn", STUBBORN)
    processes.wait_until(lambda: "deaf" in stubborn.log.read_text(), "its handler", deadline_seconds=20)
    processes.stop(stubborn, grace_seconds=0.2)
    assert not processes.is_alive(stubborn)


def test_a_process_whose_first_thread_ended_is_killed_with_those_it_left(run_dir: Path):
    left = processes.start(run_dir, "left", LEFT_BY_ITS_FIRST_THREAD)
    processes.wait_until(lambda: not processes.is_alive(left), "the end of its first thread", deadline_seconds=20)
    [other] = {int(task.name) for task in Path(f"/proc/{left.pid}/task").iterdir()} - {left.pid}
    processes.stop(left, grace_seconds=0)
    assert not Path(f"/proc/{other}").exists()


def test_a_run_directory_does_not_find_the_processes_of_another_with_a_longer_name(run_dir: Path):
    longer = run_dir.with_name("run-2")
    longer.mkdir()
    other = processes.start(longer, "one", SLEEP)
    try:
        assert processes.find(run_dir) == {}
    finally:
        processes.stop(other, grace_seconds=0)


def test_a_reused_pid_is_not_signalled(run_dir: Path):
    bystander = processes.start(run_dir, "bystander", SLEEP)
    # As recorded by a lab that ended long ago, its pid since given to somebody else.
    stale = replace(bystander, started_ticks=bystander.started_ticks - 1)
    assert not processes.is_alive(stale)
    processes.send_signal(stale, signal.SIGKILL)
    processes.stop(stale)
    assert processes.is_alive(bystander)


def test_what_outlives_its_starter_is_found_by_the_next_one(run_dir: Path):
    pid = int(_in_another_process(run_dir, "print(processes.start(run_dir, 'kept', command).pid)"))
    found = processes.find(run_dir)
    assert {name: process.pid for name, process in found.items()} == {"kept": pid}
    processes.stop(found["kept"])
    assert processes.find(run_dir) == {}


def test_what_is_tied_to_its_starter_dies_when_that_is_killed(run_dir: Path):
    _in_another_process(
        run_dir,
        """
        processes.start(run_dir, 'tied', command, dies_with_parent=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        ends_with=-signal.SIGKILL,
    )
    processes.wait_until(lambda: processes.find(run_dir) == {}, "the end of the tied process", deadline_seconds=20)


def test_a_program_that_ends_early_is_reported_with_its_last_words(run_dir: Path):
    broken = processes.start(run_dir, "broken", (sys.executable, "-c", "raise SystemExit('no such flag: --x')"))
    with pytest.raises(processes.ProcessError, match="no such flag: --x"):
        processes.wait_until(lambda: False, "the server", deadline_seconds=20, needs=(broken,))


def test_a_wait_that_takes_too_long_names_what_it_waited_for(run_dir: Path):
    slow = processes.start(run_dir, "slow", SLEEP)
    with pytest.raises(processes.ProcessError, match=r"the server was not ready within 0\.1 s"):
        processes.wait_until(lambda: False, "the server", deadline_seconds=0.1, needs=(slow,))


def _in_another_process(run_dir: Path, script: str, *, ends_with: int = 0) -> str:
    prelude = (
        "import os, signal, sys, pathlib\n"
        "from trainyard_lab import processes\n"
        f"run_dir, command = pathlib.Path({str(run_dir)!r}), {SLEEP!r}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", prelude + textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env=dict(os.environ),
    )
    assert done.returncode == ends_with
    return done.stdout
