"""Status and last words: read as they were written, and last words always fit."""

import dataclasses
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainyard.contract.codec import LATEST, MOST_INTEGER, ContractError
from trainyard.contract.exits import RESERVED, Exit
from trainyard.contract.network import Alike, Bearing, Fact, PodNetwork, Resolved, Trouble
from trainyard.contract.plan import Mark
from trainyard.contract.preflight import PreflightResult
from trainyard.contract.sent import MOST_NAMES
from trainyard.contract.status import (
    LAST_WORDS_BYTES,
    At,
    Commit,
    Fault,
    LastWords,
    Status,
    decode_last_words,
    decode_status,
    encode_last_words,
    encode_status,
)

finite = st.floats(allow_nan=False, allow_infinity=False)
numbers = st.integers(-MOST_INTEGER, MOST_INTEGER)
instants, spans = st.floats(0.0, LATEST), st.floats(-1e9, 1e9)
short = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
long = st.builds(lambda text, times: text * times, st.text(max_size=30), st.sampled_from([1, 30, 1000]))


def words_of(texts):
    commits = st.builds(Commit, numbers, numbers, texts, numbers, spans, instants)
    faults = st.builds(Fault, numbers, instants, texts, st.none() | numbers, st.none() | texts)
    maybe = st.none() | texts
    bearings = st.sampled_from([bearing.value for bearing in Bearing])
    troubles = st.builds(Trouble, texts, numbers, finite, texts, texts, maybe, maybe, numbers, bearings)
    places = st.builds(At, numbers, numbers, numbers, texts, st.none() | spans, st.none() | spans)
    names, figures = st.lists(texts, max_size=50).map(tuple), st.none() | finite
    edges = st.lists(finite, max_size=30).map(tuple)
    preflights = st.builds(PreflightResult, texts, texts, finite, figures, figures, names, edges)
    return st.builds(
        LastWords,
        attempt=numbers,
        node_rank=numbers,
        exit=numbers,
        cause=texts,
        step=numbers,
        commit=st.none() | commits,
        resumed=st.none() | st.builds(Mark, numbers, numbers),
        fault=st.none() | faults,
        notice_time=st.none() | instants,
        first_step_time=st.none() | instants,
        worker_exits=st.lists(st.integers(-64, 255), max_size=200).map(tuple),
        trouble=st.none() | troubles,
        preflight=st.none() | preflights,
        behind=st.none() | places,
    )


@given(words_of(short))
def test_short_last_words_arrive_as_they_were_said(words):
    text = encode_last_words(words)
    if len(text.encode()) < LAST_WORDS_BYTES:
        assert decode_last_words(text) == words


@given(words_of(long))
def test_last_words_always_fit_and_the_facts_stay(words):
    text = encode_last_words(words).encode()
    assert len(text) <= LAST_WORDS_BYTES
    said = decode_last_words(text)
    facts = ("attempt", "node_rank", "exit", "step", "resumed", "notice_time", "first_step_time")
    assert [getattr(said, fact) for fact in facts] == [getattr(words, fact) for fact in facts]
    assert (said.commit is None) == (words.commit is None)
    if said.commit and words.commit:
        assert dataclasses.replace(said.commit, path="") == dataclasses.replace(words.commit, path="")
    if said.fault and words.fault:
        assert (said.fault.rank, said.fault.exit_code) == (words.fault.rank, words.fault.exit_code)


def test_a_long_error_keeps_its_beginning_and_its_end():
    fault = Fault(3, 1.0, "RuntimeError: out of memory" + " x" * 5000 + " in layer 17", 1)
    said = decode_last_words(encode_last_words(LastWords(1, 0, 1, "failed", fault=fault)))
    assert said.fault.message.startswith("RuntimeError: out of memory")
    assert said.fault.message.endswith("in layer 17")
    assert said.cause == "failed"


@pytest.mark.parametrize("text", ["", "Killed", '{"attempt": 1}', '{"attempt":1,"node_rank":0,"exit":0,"cau'])
def test_a_message_that_is_not_ours_is_refused(text):
    with pytest.raises(ContractError):
        decode_last_words(text)


@given(short, numbers, finite, instants)
def test_a_status_arrives_as_it_was_said(text, number, figure, instant):
    status = Status(
        pod_uid=text,
        attempt=number,
        plan_digest=text,
        node_rank=number,
        phase=text,
        loss=figure,
        commit=Commit(number, number, text),
        resumed=Mark(number, number),
        fault=Fault(number, instant, text),
        warnings=(text, text),
    )
    assert decode_status(encode_status(status)) == status


NOW_IN_MILLISECONDS = 1_764_537_173_000
MANY = {f"level-{n}": 1.0 for n in range(MOST_NAMES + 1)}


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("commit.time", {"commit": {"attempt": 1, "step": 5, "path": "p", "time": NOW_IN_MILLISECONDS}}),
        ("commit.step", {"commit": {"attempt": 1, "step": 2**63, "path": "p"}}),
        ("fault.time", {"fault": {"rank": 0, "time": NOW_IN_MILLISECONDS, "message": ""}}),
        ("first_step_time", {"first_step_time": NOW_IN_MILLISECONDS}),
        ("notice_time", {"notice_time": -1.0}),
        ("ended_time", {"ended_time": NOW_IN_MILLISECONDS}),
        ("ended.commit.time", {"ended": {"attempt": 1, "node_rank": 0, "exit": 1, "cause": "", "commit": {
            "attempt": 1, "step": 5, "path": "p", "time": NOW_IN_MILLISECONDS}}}),
        ("step", {"step": 10**400}),
        ("ranks[0].step", {"ranks": [{"rank": 0, "step": 2**63}]}),
        ("step_seconds", {"step_seconds": 1e300}),
        ("sent.data", {"sent": {"data": MANY}}),
        ("sent.level_bytes", {"sent": {"level_bytes": MANY}}),
        ("sent.wire_bytes", {"sent": {"wire_bytes": 1e300}}),
        ("sent.data", {"sent": {"data": {"x" * 81: 1.0}}}),
    ],
)  # fmt: skip
def test_a_figure_that_no_status_of_a_job_could_hold_is_refused_by_its_name(field, said):
    known = {"pod_uid": "u", "attempt": 1, "plan_digest": "d", "node_rank": 0, "phase": "training"}
    decode_status(json.dumps(known))
    with pytest.raises(ContractError, match=re.escape(f"Status.{field}: expected")):
        decode_status(json.dumps(known | said))


def test_reserved_codes_are_those_with_a_meaning():
    assert {75, 76, 77, 78} == RESERVED
    assert (Exit.DONE, Exit.FAILURE) == (0, 1)


def test_what_a_pod_found_of_its_network_arrives_as_it_was_said():
    found = PodNetwork(
        interface="eth0",
        adapters=("mlx5_0",),
        alike=Alike("Ethernet", 1, 400.0, 4096, "AF_INET", (3,), (2, 30, 7), True, 1500),
        facts=(Fact("interface", "eth0", "route", "packets leave from 10.0.0.7"),),
        settings=(Resolved("NCCL_IB_HCA", "=mlx5_0", "1 of 2"),),
        warnings=("w",),
    )
    trouble = Trouble("FabricError", 3, 1.0, "line", device="mlx5_0", count=2)
    result = PreflightResult("warned", "slow", 1.0, 6e8, 1e9, (), (0.0, 6e8))
    status = Status("uid", 1, "d", 0, "training", network=found, preflight=result, trouble=(trouble,))
    assert decode_status(encode_status(status)) == status


def test_a_status_of_a_launcher_that_looks_at_no_network_is_read():
    status = decode_status('{"pod_uid": "u", "attempt": 1, "plan_digest": "d", "node_rank": 0, "phase": "training"}')
    assert (status.network, status.preflight, status.trouble) == (None, None, ())
