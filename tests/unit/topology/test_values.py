"""What a value is called as a domain."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clusters import a_node
from trainyard.topology.tree import Level, build, is_private
from trainyard.topology.values import LONGEST, PRIVATE, fnv64a, name_of


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        # The test vectors of draft-eastlake-fnv.
        (b"", 0xCBF29CE484222325),
        (b"a", 0xAF63DC4C8601EC8C),
        (b"foobar", 0x85944171F73967E8),
    ],
)
def test_the_hash_is_fnv_1a(data, expected):
    assert fnv64a(data) == expected


def test_a_long_value_is_called_as_topograph_calls_it():
    # NVIDIA/topograph pkg/engines/k8s/labeler_test.go.
    value = "S3very-very-long-id-to-check-label-value-limits-of-63-characters"
    assert name_of(value) == "xf946c4acef2d5939"


def test_a_value_that_a_label_could_have_is_its_own_name():
    assert name_of("a" * LONGEST) == "a" * LONGEST
    assert name_of("a" * (LONGEST + 1)) != "a" * (LONGEST + 1)


def test_length_is_counted_in_bytes():
    assert name_of("ü" * 31) == "ü" * 31
    assert name_of("ü" * 32).startswith("x")


def test_space_around_a_value_does_not_count():
    assert name_of("  leaf-1 ") == name_of("leaf-1") == "leaf-1"
    assert name_of("   ") == ""


@given(st.text())
def test_every_name_is_short_and_never_private(value):
    name = name_of(value)
    assert len(name.encode(errors="surrogatepass")) <= LONGEST
    assert not is_private(name)


def test_a_value_that_looks_private_does_not_make_a_node_a_neighbour_of_none():
    nodes = [
        a_node("x", labels={"net": f"{PRIVATE}y"}),
        a_node("y", labels={}),
        a_node("z", labels={"net": f"{PRIVATE}y"}),
    ]
    tree = build(nodes, [Level("leaf", "net")])
    assert tree.domain("x", 1) == tree.domain("z", 1) != tree.domain("y", 1)
