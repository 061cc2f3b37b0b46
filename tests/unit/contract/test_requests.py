"""A request is obeyed by the pod it was signed for, as it was signed, in its time, and by nobody else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainyard.contract.codec import MOST_INTEGER, ContractError
from trainyard.contract.requests import (
    HEADER_EXPIRES,
    HEADER_POD,
    HEADER_SIGNATURE,
    VALID_SECONDS,
    Checkpoint,
    Stop,
    decode_checkpoint,
    decode_stop,
    encode_checkpoint,
    encode_stop,
    job_key,
    refusal,
    sign,
)

NOW = 1_800_000_000.0
keys = st.binary(min_size=1, max_size=40)
texts = st.text(max_size=20)
requests = st.tuples(texts, texts, st.binary(max_size=40), texts)
EXPIRES = NOW + VALID_SECONDS


@given(keys, requests)
def test_what_was_signed_verifies(key, request_):
    method, path, body, uid = request_
    assert refusal(key, method, path, body, sign(key, method, path, body, uid, EXPIRES), uid, NOW) is None


@given(keys, requests, requests)
def test_no_other_request_verifies_by_the_same_signature(key, signed, sent):
    headers = sign(key, *signed, EXPIRES)
    why = refusal(key, *sent[:3], headers, sent[3], NOW)
    assert (why is None) == (signed == sent)


@given(keys, keys, requests)
def test_another_key_does_not_verify(key, other, request_):
    headers = sign(other, *request_, EXPIRES)
    assert (refusal(key, *request_[:3], headers, request_[3], NOW) is None) == (key == other)


@given(st.floats(-1e12, 1e12))
def test_it_verifies_in_its_time_alone(late):
    headers = sign(b"k", "POST", "/", b"", "uid", EXPIRES)
    why = refusal(b"k", "POST", "/", b"", headers, "uid", NOW + late)
    assert (why is None) == (-VALID_SECONDS <= late <= VALID_SECONDS)


@given(st.dictionaries(st.sampled_from([HEADER_POD, HEADER_EXPIRES, HEADER_SIGNATURE]), st.text(max_size=20)))
def test_any_headers_are_answered(headers):
    assert refusal(b"k", "POST", "/", b"", headers, "uid", NOW) == "the signature does not verify"


def test_parts_cannot_be_moved_between_fields():
    headers = sign(b"k", "POST", "/v1/stop", b"body", "uid", EXPIRES)
    assert refusal(b"k", "POST", "/v1/sto", b"pbody", headers, "uid", NOW) is not None


@pytest.mark.parametrize("case", [str.lower, str.upper, str.title])
def test_header_names_have_no_case(case):
    headers = {case(name): value for name, value in sign(b"k", "POST", "/", b"", "uid", EXPIRES).items()}
    assert refusal(b"k", "POST", "/", b"", headers, "uid", NOW) is None


def test_a_header_of_arbitrary_bytes_is_refused():
    headers = sign(b"k", "POST", "/", b"", "uid", EXPIRES) | {
        HEADER_SIGNATURE: b"\xff\xfe".decode("ascii", "surrogateescape")
    }
    assert refusal(b"k", "POST", "/", b"", headers, "uid", NOW) == "the signature does not verify"


def test_another_pods_request_says_whose_it_is():
    headers = sign(b"k", "POST", "/", b"", "pod-a", EXPIRES)
    assert refusal(b"k", "POST", "/", b"", headers, "pod-b", NOW) == "signed for pod pod-a, not for this one"


def test_the_jobs_key_is_derived_and_differs_by_job():
    key = job_key(b"operator", "job-1")
    assert key == job_key(b"operator", "job-1")
    assert len({key, job_key(b"operator", "job-2"), job_key(b"other", "job-1")}) == 3
    assert key.decode("ascii").isalnum()


@given(st.integers(-MOST_INTEGER, MOST_INTEGER), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=50))
def test_bodies_are_read_as_they_were_written(attempt, deadline, reason):
    reason = reason.encode("utf-8", "replace").decode()
    assert decode_stop(encode_stop(Stop(attempt, deadline, reason))) == Stop(attempt, deadline, reason)
    assert decode_checkpoint(encode_checkpoint(Checkpoint(attempt, reason))) == Checkpoint(attempt, reason)


def test_a_deadline_that_is_no_time_is_refused():
    with pytest.raises(ContractError, match="NaN is not a number"):
        decode_stop('{"attempt": 1, "deadline": NaN, "reason": ""}')
