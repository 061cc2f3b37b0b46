"""Lists of devices and interfaces, as NCCL reads them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainyard.contract.matcher import MAX_ITEMS, Item, Matcher, Port, exactly, interfaces, parse, select

DEVICES = [Port(f"mlx5_{n}", 1) for n in range(18)] + [Port("mlx5_bond_0", 1)]


@pytest.mark.parametrize(
    ("value", "count"),
    [
        ("", 19),
        ("mlx5", 19),
        ("mlx5_1", 9),
        ("=mlx5_1", 1),
        ("=mlx5_1,mlx5_10", 2),
        ("=mlx5_1,=mlx5_10", 1),
        ("^mlx5_1", 10),
        ("^=mlx5_1", 18),
        ("=^mlx5_1", 0),
        ("=mlx5_1:1", 1),
        ("=mlx5_1:2", 0),
        ("^mlx5_bond", 18),
        # Of the source, beyond what recipes write.
        ("=mlx5_1:1:3:0", 1),
        ("=mlx5_1::3", 1),
        ("=mlx5_1:x", 0),
        (",,=", 0),
        ("=,mlx5_1,", 1),
        ("=", 19),
        ("^", 0),
        ("MLX5", 0),
        ("mlx5_1 ", 0),
    ],
)
def test_what_a_list_selects(value, count):
    assert len(select(value, DEVICES)) == count


def test_a_prefix_takes_what_begins_like_it():
    assert [port.name for port in select("mlx5_1", DEVICES)] == ["mlx5_1", *(f"mlx5_{n}" for n in range(10, 18))]


def test_more_items_than_nccl_keeps_are_dropped():
    value = "=" + ",".join(f"mlx5_{n}" for n in range(MAX_ITEMS + 5))
    assert len(parse(value).items) == MAX_ITEMS


def test_a_device_of_two_ports_is_taken_by_port():
    assert select("=mlx5_0:2", [Port("mlx5_0", 1), Port("mlx5_0", 2)]) == (Port("mlx5_0", 2),)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("eth", ["eth0", "eth0.100", "eth1"]),
        ("=eth0", ["eth0"]),
        ("^lo,docker", ["eth0", "eth0.100", "eth1", "pod-id-link0"]),
        ("e", ["lo", "eth0", "eth0.100", "eth1", "docker0", "pod-id-link0"]),
        ("", ["lo", "eth0", "eth0.100", "eth1", "docker0", "pod-id-link0"]),
        ("=eth9", []),
    ],
)
def test_interfaces_are_matched_alike_and_a_single_character_is_not_looked_at(value, found):
    assert list(interfaces(value, ["lo", "eth0", "eth0.100", "eth1", "docker0", "pod-id-link0"])) == found


def test_an_exact_list_is_in_natural_order_and_each_name_once():
    assert exactly(["mlx5_10", "mlx5_2", "mlx5_2", "ibp0"]) == "=ibp0,mlx5_2,mlx5_10"
    with pytest.raises(ValueError, match="all devices"):
        exactly([])


names = st.text("abmlx5_0123.-", min_size=1, max_size=8)
numbers = st.integers(-1, 12)
matchers = st.builds(
    Matcher,
    st.booleans(),
    st.booleans(),
    st.lists(st.builds(Item, names, numbers, numbers, numbers), min_size=1, max_size=6).map(tuple),
)
devices = st.lists(st.builds(Port, names, st.integers(1, 3)), max_size=8)


@given(matchers)
def test_what_is_written_is_read_back(matcher):
    assert parse(str(matcher)) == matcher


@given(st.text("^=,:mlx5_01 ", max_size=20), devices)
def test_reading_and_writing_changes_no_choice(value, present):
    assert str(parse(str(parse(value)))) == str(parse(value))
    assert select(str(parse(value)), present) == select(value, present)


@given(devices)
def test_an_exact_list_of_devices_takes_them_and_no_other(present):
    wanted = {port.name for port in present[::2]}
    if wanted:
        assert {port.name for port in select(exactly(wanted), present)} == wanted


@given(matchers, devices)
def test_an_exclusion_takes_what_the_list_leaves(matcher, present):
    excluded = Matcher(not matcher.negate, matcher.exact, matcher.items)
    assert all(matcher.takes(port) != excluded.takes(port) for port in present)
