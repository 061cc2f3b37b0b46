"""Which commits count and which may go, for any set of commits and any lineage."""

import dataclasses
import itertools
import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from trainyard.contract.codec import ContractError
from trainyard.contract.plan import Axis, Lineage, Mark
from trainyard_trainer.checkpoint.record import (
    LEAST_KEPT,
    CommitRecord,
    StoredFile,
    Training,
    decode,
    encode,
    expendable,
    history,
)


def commit(attempt, step, parent=None):
    return CommitRecord(
        attempt=attempt,
        step=step,
        files=(StoredFile(".metadata", 10, "00"), StoredFile("__0_0.distcp", 20, "11")),
        world_size=2,
        mesh=(Axis("shard", 2),),
        job="6f1c",
        samples="aa",
        training=Training(0, "bb", {"layers": 2}, "cc"),
        time=1.5,
        parent=Mark(*parent) if parent else None,
    )


def marks(line):
    return [(record.attempt, record.step) for record in line]


def lineage(*history, resume=None):
    return Lineage(tuple(Mark(*mark) for mark in history), Mark(*resume) if resume else None)


@st.composite
def runs(draw):
    """A job's life: attempts that each go on from a commit of the one before, some of which wrote on after they were
    given up.
    """
    commits, history_marks, parent = [], [], None
    for attempt in range(1, draw(st.integers(1, 4)) + 1):
        step = parent[1] if parent else 0
        own = []
        for _ in range(draw(st.integers(0, 4))):
            step += draw(st.integers(1, 5))
            own.append(commit(attempt, step, parent))
            parent = (attempt, step)
        counted = draw(st.integers(0, len(own)))
        commits += own
        if counted:
            parent = (attempt, own[counted - 1].step)
            history_marks.append(parent)
        elif own:
            parent = (own[0].parent.attempt, own[0].parent.step) if own[0].parent else None
    return commits, history_marks, parent


@given(runs(), st.randoms())
def test_the_newest_commit_that_counts_comes_first_and_what_was_given_up_never(run, random):
    commits, history_marks, expected = run
    random.shuffle(commits)
    line = history(commits, lineage(*history_marks))
    assert (marks(line)[0] if line else None) == expected
    for newer, older in itertools.pairwise(line):
        assert newer.parent == older.mark


@given(runs(), st.data())
def test_nothing_newer_than_the_commit_to_resume_from_counts(run, data):
    commits, history_marks, _ = run
    whole = marks(history(commits, lineage(*history_marks)))
    assume(whole)
    resume = data.draw(st.sampled_from(whole))
    assert marks(history(commits, lineage(*history_marks, resume=resume))) == whole[whole.index(resume) :]


def test_an_attempt_that_nobody_could_ask_counts_with_all_it_committed():
    commits = [commit(1, 10), commit(1, 20, (1, 10)), commit(2, 30, (1, 20))]
    assert marks(history(commits, lineage((1, -1)))) == [(1, 20), (1, 10)]
    assert marks(history(commits, lineage((1, -1), (2, -1)))) == [(2, 30), (1, 20), (1, 10)]


def test_what_a_later_attempt_did_not_continue_is_not_history():
    # Attempt 2 fell back to step 10, so that step 20 of attempt 1 is no longer what step 30 came from.
    commits = [commit(1, 10), commit(1, 20, (1, 10)), commit(2, 30, (1, 10))]
    assert marks(history(commits, lineage((1, 20), (2, 30)))) == [(2, 30), (1, 10)]


def test_an_attempt_that_began_anew_ends_the_line():
    commits = [commit(1, 10), commit(2, 5)]
    assert marks(history(commits, lineage((1, 10), (2, 5)))) == [(2, 5)]


def test_a_commit_whose_parent_is_lost_still_leads_further_back():
    commits = [commit(1, 10), commit(2, 30, (1, 20))]
    assert marks(history(commits, lineage((1, 20), (2, 30)))) == [(2, 30), (1, 10)]


def test_no_lineage_is_no_history():
    assert history([commit(1, 10)], Lineage()) == ()


lines = st.lists(st.builds(Mark, st.integers(1, 5), st.integers(0, 50)), unique=True, max_size=12)


@given(lines, st.data(), st.integers(0, 6))
def test_retention_keeps_what_it_must(line, data, keep):
    good = data.draw(st.sets(st.sampled_from(line))) if line else set()
    named = data.draw(st.none() | st.sampled_from(line)) if line else None
    gone = expendable(line, good, keep, named)
    kept = [mark for mark in line if mark not in gone]
    newest_good = [mark for mark in line if mark in good]
    assert set(gone) <= set(line)
    assert named is None or named in kept
    assert set(newest_good[: max(keep, LEAST_KEPT)]) <= set(kept)
    if len(newest_good) < max(keep, LEAST_KEPT):
        assert gone == ()


@given(lines, st.integers(0, 6), st.data())
def test_where_all_are_good_exactly_the_newest_stay(line, keep, data):
    assert expendable(line, set(line), keep, None) == tuple(line[max(keep, LEAST_KEPT) :])


def test_a_record_is_read_as_it_was_written():
    record = commit(2, 30, (1, 20))
    assert decode(encode(record)) == record
    assert decode(encode(commit(1, 5))) == commit(1, 5)
    assert record.bytes == 30


@pytest.mark.parametrize("name", ["", ".", "..", "../step-1/x", "/etc/passwd", "a/b"])
def test_a_record_cannot_name_a_file_elsewhere(name):
    record = dataclasses.replace(commit(1, 5), files=(StoredFile(name, 1, "00"),))
    with pytest.raises(ContractError, match="not a name within the directory"):
        decode(encode(record))


def test_a_record_of_a_later_format_is_refused():
    text = json.dumps(json.loads(encode(commit(1, 5))) | {"format": 99})
    with pytest.raises(ContractError, match="99 is newer"):
        decode(text)
