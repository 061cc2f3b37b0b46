"""Arithmetic of traffic classes and timeouts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainyard.network.roce import dscp, ecn, gives_up_seconds, longest_timeout, traffic_class


@pytest.mark.parametrize(
    ("tc", "of_dscp", "of_ecn"),
    [
        (0, 0, 0), (41, 10, 1), (52, 13, 0), (84, 21, 0), (96, 24, 0), (104, 26, 0), (192, 48, 0), (106, 26, 2),
        (136, 34, 0), (184, 46, 0), (185, 46, 1),
    ],
)  # fmt: skip
def test_traffic_classes_that_vendors_write(tc, of_dscp, of_ecn):
    assert (dscp(tc), ecn(tc)) == (of_dscp, of_ecn)
    assert traffic_class(of_dscp, of_ecn) == tc


@given(st.integers(0, 63), st.integers(0, 3))
def test_a_traffic_class_holds_its_dscp_and_its_ecn_field(of_dscp, of_ecn):
    tc = traffic_class(of_dscp, of_ecn)
    assert 0 <= tc <= 255
    assert (dscp(tc), ecn(tc)) == (of_dscp, of_ecn)


@pytest.mark.parametrize(("of_dscp", "of_ecn"), [(64, 0), (-1, 0), (0, 4), (106, 0)])
def test_what_has_too_many_bits_is_refused(of_dscp, of_ecn):
    with pytest.raises(ValueError, match="bits"):
        traffic_class(of_dscp, of_ecn)


@pytest.mark.parametrize(
    ("timeout", "seconds"), [(14, 0.537), (18, 8.6), (20, 34.4), (21, 68.7), (22, 137.4), (23, 274.9)]
)
def test_how_long_an_adapter_tries(timeout, seconds):
    assert gives_up_seconds(timeout) == pytest.approx(seconds, rel=0.01)


@given(st.floats(0.001, 1e5), st.integers(0, 7))
def test_the_longest_timeout_ends_in_time_and_the_next_one_does_not(seconds, retries):
    timeout = longest_timeout(seconds, retries)
    assert gives_up_seconds(timeout, retries) < seconds or timeout == 1
    assert timeout == 31 or gives_up_seconds(timeout + 1, retries) >= seconds


@pytest.mark.parametrize("timeout", [0, 32])
def test_a_timeout_that_is_none_is_refused(timeout):
    with pytest.raises(ValueError, match="1 to 31"):
        gives_up_seconds(timeout)
