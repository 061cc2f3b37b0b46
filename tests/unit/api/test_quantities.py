"""Bandwidths and latencies as they are written, and what is answered to those that are none."""

from __future__ import annotations

import pytest
from trainyard.api.quantities import bytes_per_second, latency_seconds
from trainyard.api.validate import read_fabric


@pytest.mark.parametrize(
    ("text", "expected"),
    [("400Gbps", 50e9), ("50GB/s", 50e9), ("200Mbps", 25e6), ("12.8Tbps", 1.6e12), ("8bps", 1.0), ("1.5kB/s", 1500.0)],
)
def test_bits_and_bytes_are_told_apart_by_their_unit(text: str, expected: float) -> None:
    assert bytes_per_second(text) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "expected"), [("5us", 5e-6), ("0.3us", 3e-7), ("800ns", 8e-7), ("2ms", 2e-3), ("0s", 0)]
)
def test_latencies_are_in_gos_units(text: str, expected: float) -> None:
    assert latency_seconds(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["400", "400G", "400Gb/s", "400Gib/s", "-1Gbps", "0Gbps", "0.0GB/s", "400 Gbps", ""])
def test_what_is_no_bandwidth_is_answered_with_the_fields_path(text: str) -> None:
    read = read_fabric({"spec": {"levels": [{"name": "leaf", "nodeLabel": "x", "bandwidth": text}]}})
    assert [e.path for e in read.errors] == ["spec.levels[0].bandwidth"]
    assert "write bits as in 400Gbps or bytes as in 50GB/s" in read.errors[0].message


@pytest.mark.parametrize("text", ["5", "5 us", "us", "1m", "-1us"])
def test_what_is_no_latency_likewise(text: str) -> None:
    read = read_fabric({"spec": {"node": {"latency": text}}})
    assert [e.path for e in read.errors] == ["spec.node.latency"]
    assert "such as 5us" in read.errors[0].message


def test_a_tier_says_its_bandwidth_in_one_way() -> None:
    both = {"name": "leaf", "nodeLabel": "x", "bandwidth": "1Tbps", "oversubscription": 2}
    read = read_fabric({"spec": {"levels": [both]}})
    assert [e.path for e in read.errors] == ["spec.levels[0].oversubscription"]
    assert "leave one out" in read.errors[0].message


@pytest.mark.parametrize(
    ("where", "said"),
    [({"oversubscription": 0.5}, "0.5 is too small; use 1.0 or more"), ({"oversubscription": "2"}, None)],
)
def test_a_ratio_is_one_or_more(where: dict[str, object], said: str | None) -> None:
    errors = read_fabric({"spec": {"levels": [{"name": "leaf", "nodeLabel": "x", **where}]}}).errors
    assert [e.message for e in errors] == ([said] if said else [])
