"""The verdict on an attempt: a code with a meaning only where the facts confirm it, whatever has happened."""

import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainyard.contract.exits import RESERVED, Exit
from trainyard.contract.plan import Mark
from trainyard.contract.status import Commit, Fault
from trainyard_trainer.launch.ending import Ended, Hang, Happened, Notice, ending, first_fault, signal_name
from trainyard_trainer.launch.hang import Silence
from trainyard_trainer.report import Failed

NOTICE = Notice(1010.0, "preempted", clock=10.0)
COMMIT = Commit(1, 5, "/ckpt/5", time=1.0)
AFTER: dict[str, Any] = {"commit": COMMIT, "saved": 11.0}
BEFORE: dict[str, Any] = {"commit": COMMIT, "saved": 9.0}
CONFIGURATION = Failed(at=1.0, rank=0, error="ValueError", message="heads", configuration=True)


def happened(*codes, **facts):
    workers = tuple(code if isinstance(code, Ended) else ended(n, code, 20.0 + n) for n, code in enumerate(codes))
    return Happened(**{"attempt": 1, "node_rank": 0, "step": 5, "workers": workers, **facts})


def ended(rank, code, clock, **more):
    """The clock of the day was set back meanwhile: what came first is not to be read from it."""
    return Ended(rank, code, 1000.0 - clock, clock, **more)


def told(rank, code, clock=30.0, **more):
    return ended(rank, code, clock, told=True, **more)


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        (happened(0, 0), Exit.DONE),
        (happened(0, 0, notice=NOTICE), Exit.DONE),
        (happened(75, 75, notice=NOTICE, **AFTER), Exit.YIELDED),
        (happened(75, 0, notice=NOTICE, **AFTER), Exit.YIELDED),
        (happened(75, notice=NOTICE, **BEFORE, agreed_step=5), Exit.YIELDED),
        (happened(75, notice=NOTICE, agreed_step=0), Exit.YIELDED),
        (happened(75, notice=NOTICE, agreed_step=7, resumed=Mark(1, 7)), Exit.YIELDED),
        (happened(75, notice=NOTICE), Exit.FAILURE),
        (happened(75, notice=NOTICE, **BEFORE), Exit.FAILURE),
        (happened(75, notice=NOTICE, **BEFORE, agreed_step=6), Exit.FAILURE),
        (happened(75, notice=NOTICE, agreed_step=8, resumed=Mark(1, 7)), Exit.FAILURE),
        (happened(75, **AFTER), Exit.FAILURE),
        (happened(75, **AFTER, agreed_step=5), Exit.FAILURE),
        (happened(ended(0, 75, 9.0), notice=NOTICE, **AFTER), Exit.FAILURE),
        (happened(75, 1, notice=NOTICE, **AFTER), Exit.FAILURE),
        (happened(75, told(1, -9), notice=NOTICE, **AFTER), Exit.FAILURE),
        (happened(75, told(1, -9), notice=NOTICE, **AFTER, overdue=True), Exit.FAILURE),
        (happened(76), Exit.FAILURE),
        (happened(77), Exit.FAILURE),
        (happened(78), Exit.FAILURE),
        (happened(ended(0, 78, 1.0, failed=CONFIGURATION)), Exit.CONFIGURATION),
        (happened(ended(0, 1, 1.0, failed=CONFIGURATION)), Exit.FAILURE),
        (happened(1, told(1, -15, failed=CONFIGURATION)), Exit.CONFIGURATION),
        (happened(0, hang=Hang(Silence(0, 5, 200.0), 1.0)), Exit.HANG),
        (happened(), Exit.FAILURE),
        (happened(error=Fault(-1, 1.0, "bug")), Exit.FAILURE),
        (happened(error=Fault(-1, 1.0, "no such program"), error_exit=Exit.CONFIGURATION), Exit.CONFIGURATION),
    ],
)
def test_a_table_of_verdicts(facts, code):
    assert ending(facts).exit == code


codes = st.sampled_from([0, 1, 2, 75, 76, 77, 78, 137, 143, 255, -6, -9, -11, -15, -64])
times = st.floats(0, 40)
failures = st.none() | st.builds(
    Failed,
    at=times,
    rank=st.integers(0, 3),
    error=st.text(max_size=5),
    message=st.text(max_size=9),
    configuration=st.booleans(),
)
everything = st.builds(
    Happened,
    attempt=st.just(1),
    node_rank=st.integers(0, 3),
    workers=st.lists(
        st.builds(Ended, st.integers(0, 9), codes, times, times, st.booleans(), failures, st.text(max_size=20)),
        max_size=4,
    ).map(tuple),
    notice=st.none() | st.builds(Notice, times, st.text(max_size=5), times),
    agreed_step=st.none() | st.integers(0, 9),
    commit=st.none() | st.builds(Commit, st.just(1), st.integers(0, 9), st.text(max_size=5), time=times),
    saved=st.none() | times,
    resumed=st.none() | st.builds(Mark, st.integers(1, 2), st.integers(0, 9)),
    step=st.integers(0, 9),
    hang=st.none() | st.builds(Hang, st.builds(Silence, st.integers(0, 9), st.integers(0, 9), times), times),
    overdue=st.booleans(),
)


@given(everything)
def test_every_history_has_a_verdict_and_a_cause(facts):
    words = ending(facts)
    assert words.exit in set(Exit)
    assert words.cause or any(worker.failed for worker in facts.workers)
    assert words.worker_exits == tuple(worker.code for worker in facts.workers)


@given(everything)
def test_a_yield_was_asked_for_and_lost_nothing(facts):
    if ending(facts).exit != Exit.YIELDED:
        return
    assert facts.notice is not None
    assert all(worker.code in (Exit.DONE, Exit.YIELDED) for worker in facts.workers)
    came_from = facts.resumed.step if facts.resumed else 0
    saved_after = facts.commit is not None and facts.saved is not None and facts.saved >= facts.notice.clock
    saved_there = facts.commit is not None and facts.commit.step == facts.agreed_step
    assert saved_after or saved_there or facts.agreed_step == came_from


@given(everything)
def test_done_means_that_all_workers_say_so(facts):
    if ending(facts).exit == Exit.DONE:
        assert {worker.code for worker in facts.workers} == {Exit.DONE}


@given(everything)
def test_a_reserved_code_is_never_just_a_workers_own(facts):
    without_proof = [w for w in facts.workers if w.code in RESERVED and w.failed is None]
    if without_proof and facts.notice is None and facts.hang is None and len(facts.workers) == 1:
        assert ending(facts).exit == Exit.FAILURE


def at(facts, fault):
    return [w for w in facts.workers if (w.rank, w.time) == (fault.rank, fault.time)]


@given(everything)
def test_the_fault_is_the_first_that_was_not_the_launchers_doing(facts):
    fault = first_fault(facts.workers, facts.notice)
    if fault is None:
        return
    own = [w for w in facts.workers if not w.obeyed and w.code not in (0, 75)]
    configuration = any(w.failed and w.failed.configuration for w in facts.workers)
    assert configuration or not own or min(w.clock for w in at(facts, fault)) <= min(w.clock for w in own)


def test_signals_have_their_names():
    assert signal_name(signal.SIGKILL) == "SIGKILL"
    assert signal_name(40) == "signal 40"
    assert ending(happened(-11)).cause == "rank 0 was killed by SIGSEGV: it said nothing"
