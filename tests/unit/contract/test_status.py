"""Status and last words: read as they were written, and last words always fit."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainyard.contract.codec import ContractError
from trainyard.contract.exits import RESERVED, Exit
from trainyard.contract.plan import Mark
from trainyard.contract.status import (
    LAST_WORDS_BYTES,
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
numbers = st.integers(-(2**63), 2**63)
short = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
long = st.builds(lambda text, times: text * times, st.text(max_size=30), st.sampled_from([1, 30, 1000]))


def words_of(texts):
    commits = st.builds(Commit, numbers, numbers, texts, numbers, finite, finite)
    faults = st.builds(Fault, numbers, finite, texts, st.none() | numbers, st.none() | texts)
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
        notice_time=st.none() | finite,
        first_step_time=st.none() | finite,
        worker_exits=st.lists(st.integers(-64, 255), max_size=200).map(tuple),
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


@given(short, numbers, finite)
def test_a_status_arrives_as_it_was_said(text, number, figure):
    status = Status(
        pod_uid=text,
        attempt=number,
        plan_digest=text,
        node_rank=number,
        phase=text,
        loss=figure,
        commit=Commit(number, number, text),
        resumed=Mark(number, number),
        fault=Fault(number, figure, text),
        warnings=(text, text),
    )
    assert decode_status(encode_status(status)) == status


def test_reserved_codes_are_those_with_a_meaning():
    assert {75, 76, 77, 78} == RESERVED
    assert (Exit.DONE, Exit.FAILURE) == (0, 1)
