"""How a pod ends, with real processes: the exit code means what the contract says, and the last words are there in time."""

import os
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

import pytest
from support.launching import a_plan, free_port, launched, until
from trainyard.contract.exits import Exit


def test_all_workers_done_is_done(tmp_path):
    with launched(tmp_path, "step(1); step(2); print('bye')", plan=a_plan(procs=2)) as launcher:
        assert launcher.wait() == Exit.DONE
    assert launcher.words.exit == 0
    assert launcher.words.step == 2
    assert launcher.words.worker_exits == (0, 0)
    assert launcher.words.fault is None
    assert sorted(launcher.out.splitlines()) == [b"[rank 0] bye", b"[rank 1] bye"]


def test_a_worker_killed_by_sigkill_is_the_first_fault_and_the_others_are_ended(tmp_path):
    script = """
step(LOCAL + 1)
print("pid", LOCAL, os.getpid())
time.sleep(100)
"""
    with launched(tmp_path, script, plan=a_plan(procs=2)) as launcher:
        launcher.says("pid 0")
        out = launcher.says("pid 1")
        pid = int(next(line for line in out.split(b"\n") if b"pid 1" in line).split()[-1])
        launcher.reaches(lambda status: status.step == 1)
        os.kill(pid, signal.SIGKILL)
        assert launcher.wait() == Exit.FAILURE
    words = launcher.words
    assert words.fault is not None
    assert (words.fault.rank, words.fault.signal, words.fault.exit_code) == (1, "SIGKILL", None)
    assert words.cause == "rank 1 was killed by SIGKILL: it said nothing"
    assert words.worker_exits == (-signal.SIGTERM, -signal.SIGKILL)
    assert words.step == 1


def test_what_a_failing_worker_reported_is_the_cause(tmp_path):
    script = "say.failed(ValueError('shapes differ')); sys.exit(3)"
    with launched(tmp_path, script) as launcher:
        assert launcher.wait() == Exit.FAILURE
    assert launcher.words.fault.message == "ValueError: shapes differ"
    assert launcher.words.fault.exit_code == 3


def test_a_script_that_reports_nothing_is_quoted_from_its_stderr(tmp_path):
    with launched(tmp_path, "raise RuntimeError('no such layer')") as launcher:
        assert launcher.wait() == Exit.FAILURE
    assert launcher.words.fault.message.endswith("RuntimeError: no such layer")
    assert launcher.words.cause == "rank 0 exited 1: RuntimeError: no such layer"


@pytest.mark.parametrize("code", [75, 76, 77, 78])
def test_a_workers_own_reserved_code_is_a_failure_and_kept(tmp_path, code):
    with launched(tmp_path, f"save(1); sys.exit({code})") as launcher:
        assert launcher.wait() == Exit.FAILURE
    assert launcher.words.worker_exits == (code,)
    assert launcher.words.fault.exit_code == code
    assert f"exited {code}, a " in launcher.words.cause


def test_a_reported_configuration_error_is_told_before_what_it_caused_elsewhere(tmp_path):
    script = """
if LOCAL == 0:
    while os.path.exists(sys.argv[1]): time.sleep(0.01)
    sys.exit("connection reset by peer")
say.failed(ValueError("model.heads: 3 does not divide 64"), configuration=True)
os.unlink(sys.argv[1])
time.sleep(0.1)
sys.exit(78)
"""
    (tmp_path / "flag").touch()
    command = [sys.executable, str(tmp_path / "worker.py"), str(tmp_path / "flag")]
    with launched(tmp_path, script, plan=a_plan(procs=2), command=command) as launcher:
        assert launcher.wait() == Exit.CONFIGURATION
    assert launcher.words.cause == "ValueError: model.heads: 3 does not divide 64"
    assert launcher.words.fault.rank == 1


def test_sigterm_while_the_workers_wait_saves_and_yields(tmp_path):
    script = """
step(1)
print("waiting")
asked = until_stopped()
assert asked["reason"] == "SIGTERM" and 25 < asked["deadline"] - time.time() < 31, asked
save_and_leave(1)
"""
    with launched(tmp_path, script, plan=a_plan(procs=2)) as launcher:
        launcher.reaches(lambda status: status.step == 1)
        launcher.signal(signal.SIGTERM)
        assert launcher.wait() == Exit.YIELDED
    words = launcher.words
    assert words.commit is not None
    assert (words.commit.step, words.commit.attempt, words.commit.path) == (1, 1, "/ckpt/1")
    assert words.notice_time <= words.commit.time
    assert words.cause == "asked to stop (SIGTERM), saved and left after step 1"


def test_a_clock_that_is_set_back_during_a_stop_makes_no_failure_of_a_saved_yield(tmp_path):
    before = """
import time
from trainyard_trainer.launch.supervisor import Supervisor
true, stop = time.time, Supervisor.stop
def stop_and_set_back(self, reason, deadline):
    stop(self, reason, deadline)
    time.time = lambda: true() - 3600
Supervisor.stop = stop_and_set_back
"""
    script = """
step(1)
until_stopped()
say = Reporter(RANK, int(os.environ["TRAINYARD_REPORT_FD"]), clock=lambda: time.time() - 3600)
save(1)  # and no word of an agreed step
sys.exit(75)
"""
    with launched(tmp_path, script, before=before) as launcher:
        launcher.reaches(lambda status: status.step == 1)
        launcher.signal(signal.SIGTERM)
        assert launcher.wait() == Exit.YIELDED
    assert launcher.words.commit.time < launcher.words.notice_time - 3000


def test_sigterm_reaches_a_foreign_script_as_sigterm(tmp_path):
    script = """
del say
def leave(*_):
    print("saved my own way")
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("ready")
while True: time.sleep(0.05)
"""
    with launched(tmp_path, script) as launcher:
        launcher.says("ready")
        launcher.signal(signal.SIGTERM)
        assert launcher.wait() == Exit.DONE
    assert b"saved my own way" in launcher.out


def test_a_foreign_script_that_dies_of_the_stop_has_not_yielded(tmp_path):
    with launched(tmp_path, "print('ready'); time.sleep(100)") as launcher:
        launcher.says("ready")
        launcher.signal(signal.SIGTERM)
        assert launcher.wait() == Exit.FAILURE
    assert launcher.words.cause == "asked to stop (SIGTERM), and ended by that signal without a save"
    assert launcher.words.fault is None


def test_a_worker_that_speaks_is_not_signalled_when_a_stop_is_asked(tmp_path):
    script = """
signal.signal(signal.SIGTERM, lambda *_: print("SIGTERM came"))
step(1)
until_stopped()
time.sleep(0.3)
save_and_leave(1)
"""
    with launched(tmp_path, script) as launcher:
        launcher.reaches(lambda status: status.step == 1)
        launcher.signal(signal.SIGTERM)
        assert launcher.wait() == Exit.YIELDED
    assert b"SIGTERM came" not in launcher.out


def test_told_twice_it_stops_once_by_the_earlier_deadline(tmp_path):
    script = """
step(1)
first = until_stopped()
print("stopping")
while (asked := json.load(open(STOP)))["deadline"] >= first["deadline"]: time.sleep(0.01)
assert asked["reason"] == "preempted"
save_and_leave(1)
"""
    with launched(tmp_path, script) as launcher:
        launcher.reaches(lambda status: status.step == 1)
        assert launcher.stop(seconds=60)[0] == 202
        launcher.says("stopping")
        notice = launcher.status.notice_time
        launcher.signal(signal.SIGTERM)  # the plan's grace is 30 s
        launcher.signal(signal.SIGINT)
        assert launcher.wait() == Exit.YIELDED
    assert launcher.words.notice_time == notice


def test_a_yield_without_a_durable_save_is_a_failure(tmp_path):
    script = "save(1); step(2); until_stopped(); sys.exit(75)"
    with launched(tmp_path, script) as launcher:
        launcher.reaches(lambda status: status.step == 2)
        assert launcher.stop()[0] == 202
        assert launcher.wait() == Exit.FAILURE
    assert "no save since then is known to be durable" in launcher.words.cause
    assert launcher.words.commit.step == 1


def test_a_commit_of_another_attempt_confirms_nothing(tmp_path):
    script = "step(1); until_stopped(); say.stop_acknowledged(1); save(1, attempt=2); sys.exit(75)"
    with launched(tmp_path, script) as launcher:
        launcher.reaches(lambda status: status.step == 1)
        assert launcher.stop()[0] == 202
        assert launcher.wait() == Exit.FAILURE
    assert launcher.words.commit is None


def test_a_pod_that_was_not_told_itself_yields_with_its_gang(tmp_path):
    with launched(tmp_path, "step(1); step(2); save_and_leave(2)") as launcher:
        assert launcher.wait() == Exit.YIELDED
    assert launcher.words.cause == "asked to stop (the gang agreed to stop), saved and left after step 2"


def test_stopped_before_anything_was_done_it_yields_what_it_came_from(tmp_path):
    script = "say.resumed_from(7, 1, '/ckpt/7'); until_stopped(); say.stop_acknowledged(7); sys.exit(75)"
    with launched(tmp_path, script, plan=a_plan(attempt=2)) as launcher:
        launcher.reaches(lambda status: status.resumed is not None)
        assert launcher.stop(attempt=2)[0] == 202
        assert launcher.wait() == Exit.YIELDED
    assert (launcher.words.step, launcher.words.commit) == (7, None)


def test_at_the_deadline_whoever_is_left_is_killed(tmp_path):
    script = "signal.signal(signal.SIGTERM, signal.SIG_IGN); step(1); time.sleep(100)"
    with launched(
        tmp_path, script, before="import trainyard_trainer.launch.supervisor as s; s.TERM_SECONDS = 0.5"
    ) as launcher:
        launcher.reaches(lambda status: status.step == 1)
        began = time.monotonic()
        assert launcher.stop(seconds=0.5)[0] == 202
        assert launcher.wait() == Exit.FAILURE
        assert time.monotonic() - began < 10
    assert launcher.words.cause == "asked to stop (preempted), and still there at the deadline: killed"
    assert launcher.words.worker_exits == (-signal.SIGKILL,)


def test_a_silent_worker_is_a_hang_and_the_one_behind_is_named(tmp_path):
    script = """
print("up")
wait_for("both-up")
step(1)
if LOCAL == 0: step(2)
time.sleep(100)
"""
    plan = a_plan(procs=2, process_group_timeout_seconds=0.1)
    before = "import trainyard_trainer.launch.hang as h; h.MARGIN_SECONDS = 1"
    with launched(tmp_path, script, plan=plan, before=before) as launcher:
        launcher.says("[rank 0] up")
        launcher.says("[rank 1] up")
        launcher.opens("both-up")
        assert launcher.wait() == Exit.HANG
    assert launcher.words.fault.rank == 1
    assert launcher.words.cause.startswith("rank 1 is behind: silent for ")
    assert launcher.words.step == 1


def test_the_rank_that_never_entered_the_collective_is_named_where_all_stand_still(tmp_path):
    script = """
print("up")
wait_for("both-up")
step(1)
waits = "" if RANK == 1 else "all_reduce 5 of default_pg"
while True:  # every heart beats on
    say.beat(entered=4 if RANK == 1 else 5, waits_in=waits, memory_bytes=1, cpu_seconds=0.0)
    time.sleep(0.05)
"""
    plan = a_plan(procs=3, process_group_timeout_seconds=0.1)
    before = "import trainyard_trainer.launch.hang as h; h.MARGIN_SECONDS = 2"
    with launched(tmp_path, script, plan=plan, before=before) as launcher:
        for rank in range(3):
            launcher.says(f"[rank {rank}] up")
        launcher.opens("both-up")
        status = launcher.reaches(lambda status: len([at for at in status.ranks if at.waits_in]) == 2)
        assert {at.rank: at.entered for at in status.ranks} == {0: 5, 1: 4, 2: 5}
        assert launcher.wait() == Exit.HANG
    words = launcher.words
    assert (words.fault.rank, words.behind.rank, words.behind.waits_in) == (1, 1, "")
    assert words.cause.endswith("; it has not entered all_reduce 5 of default_pg, in which ranks 0, 2 wait")


def test_a_frozen_process_is_a_hang_before_its_first_step_as_well(tmp_path):
    script = """
say.phase(Phase.LOAD, 0)
say.beat(entered=0, waits_in="", memory_bytes=1, cpu_seconds=0.0)
print("up")
wait_for("both-up")
if RANK == 1: os.kill(os.getpid(), signal.SIGSTOP)
while True:
    say.beat(entered=0, waits_in="", memory_bytes=1, cpu_seconds=0.0)
    time.sleep(0.05)
"""
    plan = a_plan(procs=2, process_group_timeout_seconds=0.1)
    before = "import trainyard_trainer.launch.hang as h; h.MARGIN_SECONDS = 4"
    with launched(tmp_path, script, plan=plan, before=before) as launcher:
        launcher.says("[rank 0] up")
        launcher.says("[rank 1] up")
        launcher.opens("both-up")
        assert launcher.wait() == Exit.HANG
    assert launcher.words.fault.rank == 1
    assert launcher.words.cause.startswith("rank 1 is frozen: silent for ")


def test_frozen_and_thawed_it_blames_nobody_for_the_time_between(tmp_path):
    script = "step(1); until_stopped(); save_and_leave(1)"
    before = """
import trainyard_trainer.launch.hang as h, trainyard_trainer.launch.supervisor as s
h.MARGIN_SECONDS = 3; s.FREEZE_SECONDS = 0.2
"""
    plan = a_plan(process_group_timeout_seconds=0.1)
    with launched(tmp_path, script, plan=plan, before=before) as launcher:
        launcher.reaches(lambda status: status.step == 1)
        launcher.signal(signal.SIGSTOP)
        frozen = time.monotonic()
        until(lambda: time.monotonic() - frozen > 3.3, "the freeze")
        launcher.signal(signal.SIGCONT)
        assert launcher.stop()[0] == 202
        assert launcher.wait() == Exit.YIELDED


def test_frozen_past_its_deadline_it_still_yields_what_its_workers_saved(tmp_path):
    script = "step(1); until_stopped(); wait_for('frozen'); save_and_leave(1)"
    with launched(tmp_path, script) as launcher:
        launcher.reaches(lambda status: status.step == 1)
        (worker,) = until(launcher.children)
        stopping = time.monotonic()
        assert launcher.stop(seconds=3)[0] == 202
        launcher.signal(signal.SIGSTOP)
        launcher.opens("frozen")
        state = Path(f"/proc/{worker}/stat")
        until(lambda: state.read_text().rpartition(")")[2].split()[0] == "Z", "the worker's end")
        until(lambda: time.monotonic() - stopping > 3.1, "the deadline")
        launcher.signal(signal.SIGCONT)
        assert launcher.wait() == Exit.YIELDED


def test_nothing_that_a_worker_started_outlives_the_launcher(tmp_path):
    script = """
import subprocess
child = subprocess.Popen(["sleep", "100"], start_new_session=True)
print("orphan", child.pid)
os._exit(0)
"""
    with launched(tmp_path, script) as launcher:
        out = launcher.says("orphan")
        orphan = int(out.split(b"orphan")[1].split()[0])
        assert launcher.wait() == Exit.DONE
    with pytest.raises(ProcessLookupError):
        os.kill(orphan, 0)


def test_adopted_zombies_are_reaped_while_the_worker_runs(tmp_path):
    script = """
for _ in range(20):
    if os.fork() == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
    os.wait()
step(1)
until_stopped(); save_and_leave(1)
"""
    with launched(tmp_path, script) as launcher:
        launcher.reaches(lambda status: status.step == 1)
        until(lambda: len(launcher.children()) == 1, "one child, the worker")
        assert launcher.stop()[0] == 202
        assert launcher.wait() == Exit.YIELDED


@pytest.mark.skipif(os.geteuid() != 0, reason="a pid namespace needs root")
def test_as_pid_1_it_sees_a_stop_reaps_orphans_and_ends_what_is_left(tmp_path):
    script = """
import subprocess
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print("left behind, child of", os.getppid())
        time.sleep(100)
    os._exit(0)
os.wait()
step(1)
print("parent", os.getppid())
until_stopped(); save_and_leave(1)
"""
    with launched(tmp_path, script, under=["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]) as launcher:
        launcher.reaches(lambda status: status.step == 1)
        launcher.says("parent 1")
        assert launcher.stop()[0] == 202
        assert launcher.wait() == Exit.YIELDED
    assert "cannot adopt" not in launcher.err


def test_a_command_that_the_image_lacks_is_a_configuration_error(tmp_path):
    with launched(tmp_path, command=["no-such-program"]) as launcher:
        assert launcher.wait() == Exit.CONFIGURATION
    assert launcher.words.cause == "command: cannot execute no-such-program: No such file or directory"
    assert launcher.words.fault.rank == -1


@pytest.mark.parametrize(
    ("arguments", "changes", "code", "cause"),
    [
        ([], {}, Exit.CONFIGURATION, "command line: the following arguments are required: command"),
        (
            ["--procs", "3", "--", "true"],
            {},
            Exit.CONFIGURATION,
            "--procs: 3, but the plan has 1 processes on each node",
        ),
        (["--", "true"], {"TRAINYARD_PLAN": ""}, Exit.FAILURE, "TRAINYARD_PLAN: not set; the operator sets it to "),
        (["--", "true"], {"TRAINYARD_PLAN": "/nowhere"}, Exit.FAILURE, "/nowhere: cannot read the plan: No such file"),
        (["--", "true"], {"TRAINYARD_PLAN": "/dev/null"}, Exit.FAILURE, "/dev/null: Plan: not JSON: "),
        (
            ["--", "true"],
            {"TRAINYARD_POD": "train-9"},
            Exit.FAILURE,
            "TRAINYARD_POD: pod train-9 is not a member of attempt 1",
        ),
        (["--", "true"], {"TRAINYARD_PORT": "http"}, Exit.FAILURE, "TRAINYARD_PORT: 'http' is not a port"),
    ],
)
def test_a_launcher_that_cannot_start_says_why(tmp_path, arguments, changes, code, cause):
    with launched(tmp_path, arguments=arguments, environment=changes) as launcher:
        assert launcher.wait() == code
    assert launcher.words.cause.startswith(cause)
    assert launcher.words.exit == code


def test_a_plan_newer_than_the_image_is_for_the_user_to_solve(tmp_path):
    with launched(tmp_path, plan=a_plan(format=99)) as launcher:
        assert launcher.wait() == Exit.CONFIGURATION
    assert "update the image" in launcher.words.cause


def test_an_error_of_the_launcher_itself_still_leaves_last_words_and_no_worker(tmp_path):
    before = """
import trainyard_trainer.launch.supervisor as s
def broken(self, report, *_): raise ZeroDivisionError("a bug")
s.Supervisor._hear = broken
"""
    with launched(tmp_path, "print('pid', os.getpid()); step(1); time.sleep(100)", before=before) as launcher:
        pid = int(launcher.says("\n").split()[-1])
        assert launcher.wait() == Exit.FAILURE
    assert launcher.words.cause == "the launcher failed: ZeroDivisionError: a bug"
    assert "Traceback" in launcher.err
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_killed_itself_it_has_already_said_what_is_durable(tmp_path):
    with launched(tmp_path, "print(STOP); step(1); save(1); step(2); time.sleep(100)") as launcher:
        launcher.reaches(lambda status: status.step == 2 and status.commit)
        folder = Path(launcher.says("\n").decode().strip()).parent
        launcher.signal(signal.SIGKILL)
        launcher.wait()
        shutil.rmtree(folder)
    assert launcher.words.exit == 137
    assert launcher.words.commit.step == 1


def test_a_taken_port_does_not_keep_the_gang_from_training(tmp_path):
    port = free_port()
    holder = socket.create_server(("", port))
    script = "step(1); print('training'); until_stopped(); save_and_leave(1)"
    with launched(
        tmp_path, script, port=port, before="import trainyard_trainer.launch.supervisor as s; s.BIND_SECONDS = 0.2"
    ) as launcher:
        launcher.says("training")
        until(lambda: "Address already in use" in launcher.err, "the warning")
        holder.close()
        assert "the operator cannot reach this pod" in launcher.reaches(lambda status: status.step == 1).warnings[0]
        launcher.signal(signal.SIGTERM)
        assert launcher.wait() == Exit.YIELDED


def test_it_ends_though_nobody_reads_its_log(tmp_path):
    reader, writer = os.pipe()
    script = """
import threading
step(1)
threading.Thread(target=lambda: print("x" * 10_000_000), daemon=True).start()
until_stopped(); say.stop_acknowledged(1); save(1); os._exit(75)
"""
    try:
        with launched(tmp_path, script, out=writer) as launcher:
            launcher.reaches(lambda status: status.step == 1)
            assert launcher.stop()[0] == 202
            assert launcher.wait() == Exit.YIELDED
    finally:
        os.close(reader)
        os.close(writer)


def test_output_survives_as_it_is_with_the_rank_on_each_line(tmp_path):
    script = r"""
out = sys.stdout.buffer
out.write(b"a line\n" + b"\xff\x00\x01 garbage\n" + b"L" * 200_000 + b"\n")
for n in range(20_000): out.write(b"flood %d\n" % n)
out.write(b"no newline at the end")
out.flush()
"""
    with launched(tmp_path, script, plan=a_plan(procs=2)) as launcher:
        assert launcher.wait() == Exit.DONE
    for rank in (0, 1):
        prefix = b"[rank %d] " % rank
        mine = [line[len(prefix) :] for line in launcher.out.split(b"\n") if line.startswith(prefix)]
        assert mine[:2] == [b"a line", b"\xff\x00\x01 garbage"]
        assert sum(line.count(b"L") for line in mine) == 200_000
        assert [line for line in mine if line.startswith(b"flood")] == [b"flood %d" % n for n in range(20_000)]
        assert mine[-1] == b"no newline at the end"
    assert all(line.startswith(b"[rank ") for line in launcher.out.split(b"\n") if line)
