"""Requests as kube-scheduler counts them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainyard.world.resources import fits, parse_quantity, pod_requests


@pytest.mark.parametrize(
    ("text", "resource", "amount"),
    [
        ("1", "cpu", 1000),
        ("500m", "cpu", 500),
        ("0.1", "cpu", 100),
        ("1n", "cpu", 1),
        ("100u", "cpu", 1),
        (2, "cpu", 2000),
        (1.5, "cpu", 1500),
        (".5", "cpu", 500),
        ("5.", "cpu", 5000),
        ("8", "nvidia.com/gpu", 8),
        ("1k", "nvidia.com/gpu", 1000),
        ("16Gi", "memory", 16 << 30),
        ("1.5Gi", "memory", 3 << 29),
        ("1G", "memory", 10**9),
        ("1e3", "memory", 1000),
        ("1E", "memory", 10**18),
        ("1E2", "memory", 100),
        ("128974848", "memory", 128974848),
        ("100m", "memory", 1),
        ("0", "memory", 0),
        ("-1", "memory", -1),
    ],
)
def test_a_quantity_in_the_unit_of_its_resource(text, resource, amount):
    assert parse_quantity(text, resource) == amount


@pytest.mark.parametrize("text", ["", "eight", "1 Gi", "1gi", "1Kii", "Gi", "1e", "--1", "1_000"])
def test_what_is_no_quantity_says_what_one_looks_like(text):
    with pytest.raises(ValueError, match="is not a quantity; write for example"):
        parse_quantity(text, "memory")


def container(restart=None, limits=None, **requests):
    made = {"resources": {"requests": requests, **({"limits": limits} if limits else {})}}
    return {**made, **({"restartPolicy": restart} if restart else {})}


@pytest.mark.parametrize(
    ("pod", "cpu"),
    [
        ({"containers": [container(cpu="1"), container(cpu="2")]}, 3000),
        ({"containers": [container(cpu="1")], "initContainers": [container(cpu="5"), container(cpu="4")]}, 5000),
        ({"containers": [container(cpu="3")], "initContainers": [container(cpu="2")]}, 3000),
        # A sidecar runs beside the containers, and beside the init containers after it.
        ({"containers": [container(cpu="3")], "initContainers": [container("Always", cpu="2")]}, 5000),
        (
            {
                "containers": [container(cpu="1")],
                "initContainers": [container("Always", cpu="2"), container(cpu="4")],
            },
            6000,
        ),
        (
            {
                "containers": [container(cpu="1")],
                "initContainers": [container(cpu="4"), container("Always", cpu="2")],
            },
            4000,
        ),
        ({"containers": [container(cpu="1")], "overhead": {"cpu": "250m"}}, 1250),
        # A request of the whole pod stands for all of its containers.
        ({"containers": [container(cpu="1")], "resources": {"requests": {"cpu": "4"}}}, 4000),
        ({"containers": [container(cpu="1")], "resources": {"requests": {"cpu": "4"}}, "overhead": {"cpu": "1"}}, 5000),
        ({"containers": [container(limits={"cpu": "3"})]}, 3000),
        ({"containers": [container(limits={"cpu": "3"}, cpu="1")]}, 1000),
        ({"containers": [{"name": "no resources"}]}, 0),
        ({}, 0),
    ],
)
def test_requests_add_up_as_in_the_scheduler(pod, cpu):
    assert pod_requests(pod).get("cpu", 0) == cpu


def test_devices_are_requested_by_their_limit():
    pod = {"containers": [container(limits={"nvidia.com/gpu": 8, "rdma/ib": "8"})]}
    assert pod_requests(pod) == {"nvidia.com/gpu": 8, "rdma/ib": 8, "pods": 1}


amounts = st.dictionaries(st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), st.integers(0, 9), max_size=3)


@given(st.lists(amounts, max_size=3), st.lists(st.tuples(st.booleans(), amounts), max_size=4))
def test_a_pod_never_counts_less_than_what_runs_at_any_moment(containers, inits):
    """The moments: each init container beside the sidecars before it; then all containers beside all sidecars."""
    pod = {
        "containers": [container(**one) for one in containers],
        "initContainers": [container("Always" if sidecar else None, **one) for sidecar, one in inits],
    }
    moments = [[one for sidecar, one in inits[:n] if sidecar] + [inits[n][1]] for n in range(len(inits))]
    moments.append([one for sidecar, one in inits if sidecar] + containers)
    counted = pod_requests(pod)
    for name in ("cpu", "memory", "nvidia.com/gpu"):
        unit = 1000 if name == "cpu" else 1
        assert counted.get(name, 0) == max(sum(one.get(name, 0) for one in moment) for moment in moments) * unit


def test_what_a_node_does_not_have_it_has_none_of():
    assert fits({"cpu": 1000}, {"cpu": 1000})
    assert not fits({"cpu": 1001}, {"cpu": 1000})
    assert not fits({"rdma/ib": 1}, {"cpu": 1000})
    assert fits({"rdma/ib": 0}, {"cpu": 1000})
