"""What network devices tell of a node's place becomes what the node says of itself."""

import random

from hypothesis import given
from hypothesis import strategies as st
from support.clusters import a_node
from trainyard.kube.slices import CHANNELS, DRIVERS, GPUS, SLICES, Hung, Places, Slice, together, told
from trainyard.topology.detection import detect
from trainyard.topology.tree import build

ISLAND, LEAF = "oke.dra.net/hpcIslandId", "oke.dra.net/localBlockId"


def a_device(**attributes):
    """As DRANET publishes one: attributes of all types, the place among them."""
    own = {"dra.net/ifName": {"string": "rdma0"}, "dra.net/mtu": {"int": 9000}, "dra.net/rdma": {"bool": True}}
    return {"name": "pci-0000-03-00-0", "attributes": own | attributes}


def a_slice(node, *devices, driver="dra.net"):
    return SLICES[0].shape.one.validate_python(
        {
            "metadata": {"name": f"{node}-{driver}-x", "uid": "u", "resourceVersion": "1"},
            "spec": {"driver": driver, "nodeName": node, "pool": {"name": node}, "devices": list(devices)},
        }
    )


def an_adapter(name, root="", **attributes):
    """As DRANET publishes an RDMA adapter."""
    own = {"dra.net/rdmaDevice": {"string": name}, "resource.kubernetes.io/pcieRoot": {"string": root}}
    return a_device(**own, **attributes)


def a_gpu(root):
    """As NVIDIA's driver publishes one."""
    return {"name": "gpu-0", "attributes": {"resource.kubernetes.io/pcieRoot": {"string": root}}}


def placed(nodes, *slices):
    return Places().on(nodes, together(slices))


def test_the_place_is_read_and_everything_else_left():
    place = {ISLAND: {"string": "i1"}, LEAF: {"string": " b7 "}}
    assert told(a_slice("n", a_device(**place), a_device(**place))) == Slice("n", {ISLAND: "i1", LEAF: "b7"})


def test_a_slice_that_tells_of_no_place_is_of_no_interest():
    assert told(a_slice("n", a_device())) is None
    assert told(a_slice("n", a_device(**{LEAF: {"string": " "}}))) is None
    assert told(a_slice("n", a_device(**{LEAF: {"int": 7}}))) is None
    assert told(a_slice(None, a_device(**{LEAF: {"string": "b"}}))) is None
    assert told({"metadata": {}, "spec": {"nodeName": "n", "devices": [{"attributes": None}]}}) is None
    assert told({"metadata": {}}) is None


def test_of_devices_that_disagree_the_first_in_the_alphabet_counts():
    devices = [a_device(**{LEAF: {"string": leaf}}) for leaf in ("c", "a", "b")]
    assert told(a_slice("n", *devices)) == Slice("n", {LEAF: "a"})


def test_attributes_tell_the_network_where_labels_do_not():
    nodes = {name: a_node(name) for name in ("x", "y", "z")}
    slices = [
        Slice("x", {ISLAND: "i", LEAF: "1"}),
        Slice("y", {ISLAND: "i", LEAF: "2"}),
        Slice("z", {ISLAND: "i", LEAF: "2"}),
    ]
    there = placed(nodes, *slices)
    found = detect(there.values())
    assert (found.source, [level.name for level in found.levels]) == ("oci-dranet", ["island", "leaf"])
    tree = build(there.values(), found.levels)
    assert tree.domain("y", 2) == tree.domain("z", 2) != tree.domain("x", 2)


def test_a_label_wins_over_an_attribute_of_its_name():
    (node,) = placed({"x": a_node("x", labels={LEAF: "label"})}, Slice("x", {LEAF: "attribute", ISLAND: "i"})).values()
    assert (node.labels[LEAF], node.labels[ISLAND]) == ("label", "i")


def test_what_is_as_it_was_is_the_same_record():
    places, nodes = Places(), {name: a_node(name) for name in ("x", "y")}
    first = places.on(nodes, {"x": Slice("x", {LEAF: "1"})})
    second = places.on(nodes, {"x": Slice("x", {LEAF: "1"})})
    assert second["x"] is first["x"]
    assert second["y"] is nodes["y"]
    assert places.on(nodes, {"x": Slice("x", {LEAF: "2"})})["x"].labels[LEAF] == "2"
    assert places.on(nodes, {})["x"] is nodes["x"]


def test_a_slice_of_a_node_that_is_not_there_tells_nothing():
    assert placed({}, Slice("gone", {LEAF: "1"})) == {}


def test_an_adapter_under_the_root_of_an_accelerator_is_near_it():
    """Front-end adapters hang elsewhere; so is told which ones carry the collectives."""
    slices = [
        told(a_slice("x", an_adapter("mlx5_10", "pci0000:1b", **{"dra.net/mtu": {"int": 4220}}))),
        told(a_slice("x", an_adapter("mlx5_2", "pci0000:3a"), a_device(), an_adapter("mlx5_1", "pci0000:5c"))),
        told(a_slice("x", a_gpu("pci0000:1b"), a_gpu("pci0000:5c"), driver=GPUS)),
    ]
    (node,) = placed({"x": a_node("x")}, *slices).values()
    assert [(a.name, a.near, a.mtu) for a in node.adapters] == [
        ("mlx5_1", True, 9000),
        ("mlx5_2", False, 9000),
        ("mlx5_10", True, 4220),
    ]


def test_adapters_that_a_pod_never_sees_under_their_name_are_left_out():
    down = an_adapter("mlx5_0", **{"dra.net/state": {"string": "down"}})
    cut = an_adapter("mlx5_1", **{"dra.net/sriovVfs": {"int": 8}})
    whole = an_adapter("mlx5_2", **{"dra.net/sriovVfs": {"int": 0}, "dra.net/state": {"string": "up"}})
    assert told(a_slice("x", down, cut)) is None
    assert told(a_slice("x", down, cut, whole)) == Slice("x", adapters=(Hung("mlx5_2", "", 9000),))


def test_a_node_with_channels_has_nvlink_beyond_it():
    nodes = {name: a_node(name) for name in "xy"}
    channels = told(a_slice("x", {"name": "channel-0", "attributes": {}}, driver=CHANNELS))
    found = placed(nodes, channels, Slice("x", {LEAF: "1"}))
    assert [found[name].nvlink_channels for name in "xy"] == [True, False]
    assert found["x"].labels[LEAF] == "1"
    assert told(a_slice("x", driver=CHANNELS)) is None


def test_each_driver_is_watched_by_itself():
    assert [kind.fields for kind in SLICES] == [f"spec.driver={driver}" for driver in DRIVERS]


@given(
    st.lists(
        st.tuples(
            st.sampled_from("xy"),
            st.dictionaries(st.sampled_from([ISLAND, LEAF]), st.sampled_from("123")),
            st.lists(st.builds(Hung, st.sampled_from("ab"), st.sampled_from("rs"), st.none()), max_size=2),
            st.frozensets(st.sampled_from("rs")),
            st.booleans(),
        )
    ),
    st.randoms(),
)
def test_slices_in_any_order_tell_the_same(said, shuffle: random.Random):
    nodes = {name: a_node(name) for name in "xyz"}
    slices = [Slice(node, place, tuple(hung), roots, channels) for node, place, hung, roots, channels in said]
    expected = placed(nodes, *slices)
    shuffle.shuffle(slices)
    assert placed(nodes, *slices) == expected
