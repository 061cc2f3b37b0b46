"""The rate we keep and the pauses we make."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainyard.kube.pacing import Backoff, TokenBucket


def test_a_burst_goes_at_once_and_the_rest_at_the_rate():
    bucket = TokenBucket(per_second=10, burst=3)
    assert [round(bucket.reserve(100.0), 3) for _ in range(5)] == [0, 0, 0, 0.1, 0.2]


def test_a_server_that_asks_for_rest_gets_it_from_every_request():
    bucket = TokenBucket(per_second=10, burst=3)
    bucket.hold(107.5)
    assert bucket.reserve(100.0) == 7.5
    assert bucket.reserve(108.0) == 0


def test_a_turn_that_would_come_too_late_is_not_taken():
    bucket = TokenBucket(per_second=10, burst=1)
    assert [bucket.reserve(100.0, within=0.15) for _ in range(4)] == [0, 0.1, None, None]
    assert bucket.reserve(100.1, within=0.15) == pytest.approx(0.1)
    bucket.hold(130.0)
    assert bucket.reserve(110.0, within=10.0) is None
    assert bucket.reserve(110.0, within=20.0) == 20.0


@given(st.lists(st.floats(0, 5), min_size=1, max_size=60))
def test_no_more_turns_than_the_rate_allows(gaps):
    bucket, now, sent = TokenBucket(per_second=10, burst=5), 0.0, []
    for gap in gaps:
        now += gap
        sent.append(now + bucket.reserve(now))
    for first, begin in enumerate(sent):
        for last in range(first, len(sent)):
            assert last - first + 1 <= 5 + (sent[last] - begin) * 10 + 1e-6 + 1


def test_pauses_grow_to_a_bound_and_are_never_shorter_than_asked():
    backoff = Backoff(0.2, 30)
    pauses = [backoff.pause() for _ in range(50)]
    assert 0.1 <= pauses[0] <= 0.2
    assert all(15 <= pause <= 30 for pause in pauses[8:])
    assert backoff.pause(at_least=90) == 90
    backoff.reset()
    assert backoff.pause() <= 0.2
