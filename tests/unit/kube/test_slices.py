"""What network devices tell of a node's place becomes what the node says of itself."""

import random

from hypothesis import given
from hypothesis import strategies as st
from support.clusters import a_node
from trainyard.kube.slices import SLICES, Places, Slice, place_told
from trainyard.topology.detection import detect
from trainyard.topology.tree import build

ISLAND, LEAF = "oke.dra.net/hpcIslandId", "oke.dra.net/localBlockId"


def a_device(**attributes):
    """As DRANET publishes one: attributes of all types, the place among them."""
    own = {"dra.net/ifName": {"string": "rdma0"}, "dra.net/mtu": {"int": 9000}, "dra.net/rdma": {"bool": True}}
    return {"name": "pci-0000-03-00-0", "attributes": own | attributes}


def a_slice(node, *devices):
    return SLICES.shape.one.validate_python(
        {
            "metadata": {"name": f"{node}-dra.net-x", "uid": "u", "resourceVersion": "1"},
            "spec": {"driver": "dra.net", "nodeName": node, "pool": {"name": node}, "devices": list(devices)},
        }
    )


def test_the_place_is_read_and_everything_else_left():
    place = {ISLAND: {"string": "i1"}, LEAF: {"string": " b7 "}}
    assert place_told(a_slice("n", a_device(**place), a_device(**place))) == Slice("n", {ISLAND: "i1", LEAF: "b7"})


def test_a_slice_that_tells_of_no_place_is_of_no_interest():
    assert place_told(a_slice("n", a_device())) is None
    assert place_told(a_slice("n", a_device(**{LEAF: {"string": " "}}))) is None
    assert place_told(a_slice("n", a_device(**{LEAF: {"int": 7}}))) is None
    assert place_told(a_slice(None, a_device(**{LEAF: {"string": "b"}}))) is None
    assert place_told({"metadata": {}, "spec": {"nodeName": "n", "devices": [{"attributes": None}]}}) is None
    assert place_told({"metadata": {}}) is None


def test_of_devices_that_disagree_the_first_in_the_alphabet_counts():
    devices = [a_device(**{LEAF: {"string": leaf}}) for leaf in ("c", "a", "b")]
    assert place_told(a_slice("n", *devices)) == Slice("n", {LEAF: "a"})


def test_attributes_tell_the_network_where_labels_do_not():
    nodes = {name: a_node(name) for name in ("x", "y", "z")}
    told = [
        Slice("x", {ISLAND: "i", LEAF: "1"}),
        Slice("y", {ISLAND: "i", LEAF: "2"}),
        Slice("z", {ISLAND: "i", LEAF: "2"}),
    ]
    placed = Places().on(nodes, told)
    found = detect(placed.values())
    assert (found.source, [level.name for level in found.levels]) == ("oci-dranet", ["island", "leaf"])
    tree = build(placed.values(), found.levels)
    assert tree.domain("y", 2) == tree.domain("z", 2) != tree.domain("x", 2)


def test_a_label_wins_over_an_attribute_of_its_name():
    placed = Places().on({"x": a_node("x", labels={LEAF: "label"})}, [Slice("x", {LEAF: "attribute", ISLAND: "i"})])
    assert (placed["x"].labels[LEAF], placed["x"].labels[ISLAND]) == ("label", "i")


def test_what_is_as_it_was_is_the_same_record():
    places, nodes = Places(), {name: a_node(name) for name in ("x", "y")}
    first = places.on(nodes, [Slice("x", {LEAF: "1"})])
    second = places.on(nodes, [Slice("x", {LEAF: "1"})])
    assert second["x"] is first["x"]
    assert second["y"] is nodes["y"]
    assert places.on(nodes, [Slice("x", {LEAF: "2"})])["x"].labels[LEAF] == "2"
    assert places.on(nodes, [])["x"] is nodes["x"]


def test_a_slice_of_a_node_that_is_not_there_tells_nothing():
    assert Places().on({}, [Slice("gone", {LEAF: "1"})]) == {}


@given(
    st.lists(
        st.tuples(
            st.sampled_from("xy"), st.dictionaries(st.sampled_from([ISLAND, LEAF]), st.sampled_from("123"), min_size=1)
        )
    ),
    st.randoms(),
)
def test_slices_in_any_order_tell_the_same(told, shuffle: random.Random):
    nodes = {name: a_node(name) for name in "xyz"}
    slices = [Slice(node, attributes) for node, attributes in told]
    expected = Places().on(nodes, slices)
    shuffle.shuffle(slices)
    assert Places().on(nodes, slices) == expected
