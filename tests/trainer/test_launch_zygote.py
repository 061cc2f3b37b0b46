"""Workers that are forked from one process that has imported the trainer are workers like any other."""

import os
import signal
from pathlib import Path

import pytest
from support.launching import until
from support.stand_ins import forked, spoken
from trainyard.contract.exits import Exit

WHO = 'print(LOCAL, os.getpid(), IMPORTED_BY, os.getpgid(0), os.environ["OMP_NUM_THREADS"], *sys.argv[1:])\n'


def test_all_workers_share_one_import_and_are_reaped_by_the_launcher(tmp_path):
    with forked(tmp_path, WHO + "step(1); until_stopped(); save_and_leave(1)") as launcher:
        launcher.reaches(lambda status: status.step == 1)
        said = until(lambda: len(spoken(launcher)) == 2 and spoken(launcher), "both workers' words")
        pids = {int(words[0]) for words in said.values()}
        until(lambda: pids < set(launcher.children()), "both workers among its children")
        assert len(launcher.children()) == 3, "their parent stays, to become those of a later attempt"
        names = {Path(f"/proc/{pid}/comm").read_text().strip() for pid in pids}
        assert names == {"rank-0", "rank-1"}, "as ps and top show them"
        assert launcher.stop()[0] == 202
        assert launcher.wait() == Exit.YIELDED
    assert set(said) == {0, 1}
    assert {words[1] for words in said.values()}.isdisjoint(words[0] for words in said.values())
    assert len({words[1] for words in said.values()}) == 1
    assert all(words[2] == words[0] for words in said.values())
    assert all(words[3:] == ["1", "--flag", "value"] for words in said.values())


@pytest.mark.parametrize(
    ("script", "exits", "message"),
    [
        ("if LOCAL: raise RuntimeError('in a fork')\nuntil_stopped()", (-15, 1), "RuntimeError: in a fork"),
        ("if LOCAL: sys.exit(3)\nuntil_stopped()", (-15, 3), "it said nothing"),
        ("if LOCAL: ending = 4\nelse: until_stopped()", (-15, 4), "it said nothing"),
        ("if LOCAL: os.kill(os.getpid(), signal.SIGKILL)\nuntil_stopped()", (-15, -9), "it said nothing"),
    ],
)
def test_a_forked_worker_ends_like_any_process(tmp_path, script, exits, message):
    with forked(tmp_path, script) as launcher:
        assert launcher.wait() == Exit.FAILURE
    assert launcher.words.worker_exits == exits
    assert launcher.words.fault.message.endswith(message)
    assert launcher.words.fault.rank == 1


@pytest.mark.parametrize(
    "preload",
    [
        "raise ImportError('no torch here')",
        "TRAINER = ()\ndef preload(modules):\n    import os; os.kill(os.getpid(), 9)",
    ],
)
def test_where_importing_fails_the_workers_start_the_plain_way(tmp_path, preload):
    with forked(tmp_path, WHO, preload=preload) as launcher:
        assert launcher.wait() == Exit.DONE
    assert all(words[1] == words[0] for words in spoken(launcher).values())
    assert "each imports it itself" in launcher.err


def test_a_stop_while_the_trainer_is_imported_is_seen_by_the_workers(tmp_path):
    wait = (
        "TRAINER = ()\ndef preload(modules):\n    import os, time\n"
        "    while not os.path.exists(os.environ['SCRIPT'] + '.go'): time.sleep(0.01)\n"
    )
    with forked(tmp_path, "until_stopped(); say.stop_acknowledged(0); ending = 75", preload=wait) as launcher:
        launcher.reaches(lambda status: status.phase == "starting")
        assert launcher.stop()[0] == 202
        (tmp_path / "stand-ins" / "script.py.go").touch()
        assert launcher.wait() == Exit.YIELDED
    assert launcher.words.worker_exits == (75, 75)


def test_an_import_that_never_ends_is_cut_at_the_deadline(tmp_path):
    with forked(tmp_path, "", preload="import time\nprint('importing')\ntime.sleep(100)") as launcher:
        launcher.says("[zygote] importing")
        zygote = launcher.children()
        assert launcher.stop(seconds=0.3)[0] == 202
        assert launcher.wait() == Exit.FAILURE
    assert "still there at the deadline" in launcher.words.cause
    for pid in zygote:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_zygote_that_dies_between_two_forks_is_a_failure_and_leaves_nothing(tmp_path):
    before = """
import os, signal, trainyard_trainer.launch.zygote as z
fork = z.Zygote.fork
def fork_once(self, environment):
    if environment["LOCAL_RANK"] == "1": os.kill(self._pid, signal.SIGKILL)
    return fork(self, environment)
z.Zygote.fork = fork_once
"""
    with forked(tmp_path, "print('up'); until_stopped()", before=before) as launcher:
        assert launcher.wait() == Exit.FAILURE
    assert launcher.words.fault.rank == -1
    assert launcher.words.worker_exits == (-signal.SIGTERM,)
