"""The emulated network as data: places, addresses, rates."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainyard_lab.fabric import LONGEST_LINK_NAME, MBIT, Topology, limit

topologies = st.builds(
    Topology,
    spines=st.integers(1, 4),
    leaves_per_spine=st.integers(1, 4),
    nodes_per_leaf=st.integers(1, 8),
)


def test_the_lab_has_two_spines_of_two_leaves_of_two_nodes_in_topology_order():
    places = [(node.name, node.spine, node.leaf) for node in Topology().nodes]
    assert places == [
        ("node-0", "spine-a", "leaf-a1"),
        ("node-1", "spine-a", "leaf-a1"),
        ("node-2", "spine-a", "leaf-a2"),
        ("node-3", "spine-a", "leaf-a2"),
        ("node-4", "spine-b", "leaf-b1"),
        ("node-5", "spine-b", "leaf-b1"),
        ("node-6", "spine-b", "leaf-b2"),
        ("node-7", "spine-b", "leaf-b2"),
    ]


def test_links_are_slower_the_higher_they_are():
    rates = Counter(link.bits_per_second // MBIT for link in Topology().links)
    assert rates == {200: 2, 400: 4, 2000: 8}


@given(topologies)
def test_bridges_and_links_are_a_tree_so_no_broadcast_circles(topology: Topology):
    ends = [link.above[2] for link in topology.links] + [link.below[2] for link in topology.links]
    between_bridges = [link for link in topology.links if link.below[2] is not None]
    assert set(filter(None, ends)) | {"core"} == set(topology.bridges)
    assert len(between_bridges) == len(topology.bridges) - 1


@given(topologies)
def test_no_name_or_address_is_used_twice_and_every_name_fits_the_kernel(topology: Topology):
    ports = [port[:2] for link in topology.links for port in (link.below, link.above)]
    inside = [*ports, *((topology.switches, bridge) for bridge in topology.bridges)]
    assert len(set(inside)) == len(inside)
    assert max(len(name) for _, name in inside) <= LONGEST_LINK_NAME
    addresses = [topology.host_address, *(node.address for node in topology.nodes)]
    subnets = [node.pod_network for node in topology.nodes]
    assert len(set(addresses)) == len(addresses)
    assert len(set(subnets)) == len(subnets)


def test_a_limit_is_of_the_rate_with_4_ms_of_bucket_and_50_ms_of_queue_and_passes_the_host_by():
    commands = list(limit("eth0", 400 * MBIT, "10.99.0.1"))
    assert any("rate 400000000 burst 200000 cburst 200000" in command for command in commands)
    assert any("bfifo limit 2500000" in command for command in commands)
    by_the_host = [command for command in commands if "10.99.0.1/32" in command]
    assert {"src", "dst"} == {command.split("match ip ")[1].split()[0] for command in by_the_host}
    assert all(command.endswith("flowid 1:1") for command in by_the_host)


def test_a_prefix_that_the_kernel_would_refuse_is_refused_with_what_fits():
    with pytest.raises(ValueError, match=r"'trainyard-training-host', longer than .* 15 characters; use at most 10"):
        Topology(prefix="trainyard-training")


def test_a_node_that_does_not_exist_is_answered_with_those_that_do():
    with pytest.raises(KeyError, match="no node 'node-9'; there are node-0, node-1, "):
        Topology().node("node-9")
