"""A pod stays where its workers fail: the launcher says how the attempt ended, and begins the next one in its place."""

import os
import signal

import pytest
from support.launching import a_plan, launched, until
from support.stand_ins import COMMAND, forked, spoken
from trainyard.contract import requests
from trainyard.contract.exits import Exit
from trainyard.contract.plan import encode
from trainyard.contract.status import WorkerPhase

FAILS_FIRST = """
wait_for("asked")
if os.environ["TORCHELASTIC_RUN_ID"].endswith("-1"):
    step(1); save(1); raise RuntimeError("a bad day")
step(2); until_stopped(); save(2, 2); say.stop_acknowledged(2); sys.exit(75)
"""


def ended(launcher):
    """Wait until its workers have ended and it waits for a later plan, having been asked how it goes."""
    launcher.reaches(lambda status: True)
    launcher.opens("asked")
    return launcher.reaches(lambda status: status.ended)


def hand_over(launcher, attempt=2, **changes):
    return launcher.post(requests.PATH_PLAN, encode(a_plan(attempt=attempt, **changes)).encode())


def test_after_a_failure_it_says_how_it_ended_and_begins_again_in_its_place(tmp_path):
    with launched(tmp_path, FAILS_FIRST, stays=60) as launcher:
        status = ended(launcher)
        assert (status.attempt, status.phase, status.ended.exit) == (1, WorkerPhase.ENDED, Exit.FAILURE)
        assert "a bad day" in status.ended.fault.message
        assert status.ended_time >= status.ended.fault.time
        assert launcher.words == status.ended, "a pod that is killed now has said it"
        assert launcher.post(requests.PATH_CHECKPOINT, b'{"attempt": 1, "reason": "drain"}')[0] == 409
        assert hand_over(launcher)[0] == 202
        status = launcher.reaches(lambda status: status.attempt == 2 and status.step == 2)
        assert (status.ended, status.fault) == (None, None)
        assert hand_over(launcher)[0] == 202, "it has that plan already"
        assert hand_over(launcher, rendezvous_port=29501)[0] == 409, "there is one plan of an attempt"
        assert launcher.stop(attempt=2)[0] == 202
        assert launcher.wait() == Exit.YIELDED
    assert (launcher.words.attempt, launcher.words.commit.attempt) == (2, 2)


def test_where_no_plan_comes_it_exits_as_it_would_have(tmp_path):
    with launched(tmp_path, FAILS_FIRST, stays=0.2) as launcher:
        launcher.reaches(lambda status: True)
        launcher.opens("asked")
        assert launcher.wait() == Exit.FAILURE
    assert launcher.words.worker_exits == (1,)
    assert "waiting for a later plan" in launcher.err


@pytest.mark.parametrize("how", ["signal", "request"])
def test_asked_to_leave_while_it_waits_it_goes_at_once(tmp_path, how):
    with launched(tmp_path, FAILS_FIRST, stays=60) as launcher:
        said = ended(launcher).ended
        if how == "signal":
            launcher.signal(signal.SIGTERM)
        else:
            assert launcher.stop()[0] == 202
        assert launcher.wait() == Exit.FAILURE
    assert launcher.words == said


@pytest.mark.parametrize(
    ("script", "environment", "code"),
    [
        ("raise RuntimeError('nobody could send a plan')", {"TRAINYARD_CONTROL_KEY_FILE": os.devnull}, Exit.FAILURE),
        ("raise RuntimeError('nobody asks')", {}, Exit.FAILURE),
        ("say.failed(ValueError('steps: 0'), configuration=True); sys.exit(78)", {}, Exit.CONFIGURATION),
        ("step(1); sys.exit(0)", {}, Exit.DONE),
    ],
    ids=["no key", "nobody asks", "a configuration that cannot work", "done"],
)
def test_it_does_not_wait_for_what_cannot_come_or_would_not_help(tmp_path, script, environment, code):
    with launched(tmp_path, script, environment=environment, stays=60) as launcher:
        assert launcher.wait() == code
    assert "waiting for a later plan" not in launcher.err


def test_it_does_not_wait_after_a_stop(tmp_path):
    with launched(tmp_path, "step(1); until_stopped(); sys.exit(1)", stays=60) as launcher:
        launcher.reaches(lambda status: status.step == 1)
        assert launcher.stop()[0] == 202
        assert launcher.wait() == Exit.FAILURE


def test_a_plan_ends_workers_that_hang_and_would_not_be_told(tmp_path):
    script = """
if os.environ["TORCHELASTIC_RUN_ID"].endswith("-1"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    step(1); time.sleep(100)
step(2); until_stopped(); save(2, 2); say.stop_acknowledged(2); sys.exit(75)
"""
    with launched(tmp_path, script, stays=60) as launcher:
        launcher.reaches(lambda status: status.step == 1)
        assert hand_over(launcher)[0] == 202
        status = launcher.reaches(lambda status: status.attempt == 2 and status.step == 2)
        assert status.ended is None
        assert launcher.stop(attempt=2)[0] == 202
        assert launcher.wait() == Exit.YIELDED


WHO = 'print(LOCAL, os.getpid(), IMPORTED_BY, os.environ["TORCHELASTIC_RUN_ID"], flush=True)\n'
DIES_FIRST = (
    WHO
    + """
while not os.path.exists(os.path.join(os.path.dirname(os.environ["SCRIPT"]), "..", "asked")): time.sleep(0.01)
if os.environ["TORCHELASTIC_RUN_ID"].endswith("-1"):
    step(1)
    if LOCAL: os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(100)
step(2); until_stopped(); save(2, 2); say.stop_acknowledged(2); ending = 75
"""
)


def of_attempt(launcher, attempt):
    return [words for words in spoken(launcher).values() if words[-1].endswith(f"-{attempt}")]


def test_the_next_attempts_workers_are_forked_from_the_parent_that_is_there(tmp_path):
    with forked(tmp_path, DIES_FIRST, stays=60) as launcher:
        assert ended(launcher).ended.worker_exits == (-signal.SIGTERM, -signal.SIGKILL)
        first = of_attempt(launcher, 1)
        (parent,) = launcher.children()
        assert hand_over(launcher, procs=2)[0] == 202
        launcher.reaches(lambda status: status.attempt == 2 and status.step == 2)
        later = until(lambda: len(of_attempt(launcher, 2)) == 2 and of_attempt(launcher, 2), "both workers' words")
        assert {words[1] for words in (*first, *later)} == {str(parent)}
        assert {words[0] for words in first}.isdisjoint(words[0] for words in later)
        assert launcher.stop(attempt=2)[0] == 202
        assert launcher.wait() == Exit.YIELDED
    with pytest.raises(ProcessLookupError):
        os.kill(parent, 0)


def test_where_that_parent_has_died_there_is_a_new_one(tmp_path):
    with forked(tmp_path, DIES_FIRST, stays=60) as launcher:
        ended(launcher)
        (parent,) = launcher.children()
        os.kill(parent, signal.SIGKILL)
        until(lambda: not launcher.children(), "its end")
        assert hand_over(launcher, procs=2)[0] == 202
        launcher.reaches(lambda status: status.attempt == 2 and status.step == 2)
        assert launcher.stop(attempt=2)[0] == 202
        assert launcher.wait() == Exit.YIELDED


@pytest.mark.parametrize("command", [None, COMMAND], ids=["started plainly", "forked"])
def test_outside_of_a_pod_no_worker_outlives_a_launcher_that_is_killed(tmp_path, command):
    script = "step(1); time.sleep(100)"
    with launched(tmp_path, script) if command is None else forked(tmp_path, script) as launcher:
        launcher.reaches(lambda status: status.step == 1)
        children = launcher.children()
        launcher.process.kill()
        launcher.process.wait()
        until(lambda: not any(_lives(pid) for pid in children), "the end of all that it had started")


def _lives(pid):
    """Whether a process runs; a zombie that nobody reaps has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False
