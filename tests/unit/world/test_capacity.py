"""Room is what no live pod asks for."""

from hypothesis import given
from hypothesis import strategies as st
from support.clusters import GPU, a_node, a_pod
from trainyard.world.capacity import free
from trainyard.world.records import World


def room(*pods, gpus=8, without=()):
    nodes = {name: a_node(name, gpus=gpus) for name in ("x", "y")}
    world = World(nodes=nodes, pods={pod.uid: pod for pod in pods})
    return {name: left[GPU] for name, left in free(world, without).items()}


def test_every_live_pod_counts_ours_or_not():
    assert room(a_pod("ours", node="x", planned="x"), a_pod("foreign", node="x", requests={GPU: 2})) == {"x": 5, "y": 8}


def test_a_pod_that_ended_takes_nothing():
    assert room(a_pod("a", node="x", phase="Succeeded"), a_pod("b", node="x", phase="Failed")) == {"x": 8, "y": 8}


def test_an_unbound_pod_of_ours_counts_where_it_is_pinned():
    assert room(a_pod("ours", planned="y", phase="Pending")) == {"x": 8, "y": 7}


def test_a_pod_bound_elsewhere_than_its_pin_counts_where_it_is_bound():
    assert room(a_pod("ours", planned="y", node="x")) == {"x": 7, "y": 8}


def test_an_unbound_foreign_pod_counts_nowhere():
    assert room(a_pod("foreign", phase="Pending")) == {"x": 8, "y": 8}


def test_a_pod_on_a_node_that_is_not_known_takes_nothing():
    assert room(a_pod("early", node="not-seen-yet")) == {"x": 8, "y": 8}


def test_room_is_never_below_zero():
    assert room(a_pod("large", node="x", requests={GPU: 12}), a_pod("more", node="x")) == {"x": 0, "y": 8}


def test_what_is_left_out_is_gone():
    assert room(a_pod("leaving", node="x"), a_pod("staying", node="x"), without=["uid-leaving"]) == {"x": 7, "y": 8}


def test_a_resource_that_a_node_does_not_have_is_not_invented():
    pod = a_pod("odd", node="x", requests={"rdma/ib": 1})
    world = World(nodes={"x": a_node("x")}, pods={pod.uid: pod})
    assert "rdma/ib" not in free(world)["x"]


pods = st.lists(
    st.tuples(
        st.sampled_from(["", "x", "y", "gone"]), st.sampled_from([None, "x", "y"]), st.integers(0, 5), st.booleans()
    )
)


@given(pods)
def test_room_and_the_requests_of_the_living_make_up_what_is_allocatable(drawn):
    made = [
        a_pod(f"p{n}", node=node, planned=planned, requests={GPU: gpus}, phase="Running" if lives else "Failed")
        for n, (node, planned, gpus, lives) in enumerate(drawn)
    ]
    taken = {"x": 0, "y": 0, "": 0, "gone": 0}
    for node, planned, gpus, lives in drawn:
        taken[node or planned or ""] += gpus if lives else 0
    assert room(*made) == {name: max(0, 8 - taken[name]) for name in ("x", "y")}
