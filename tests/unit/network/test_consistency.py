"""What all members of a gang must have alike, by their labels and by what they report."""

from dataclasses import replace

import pytest
from support.networks import GPU, a_fabric, a_spec, annotated, derived, on, some_nodes
from trainyard.contract.alike import Unlike
from trainyard.contract.network import Alike
from trainyard.network.consistency import Report, before_admission, compare
from trainyard.network.container import pod_of

GANG = [
    Report(
        node=f"n-{rank}",
        rank=rank,
        alike=Alike(
            link_layer="Ethernet",
            adapters=8,
            rate_gbps=400.0,
            mtu=4096,
            family="AF_INET",
            gid_indexes=(3, 3),
            nccl=(2, 30, 7),
            gpudirect=True,
            interface_mtu=1500,
        ),
    )
    for rank in range(4)
]


def but(report, **changes):
    return replace(report, alike=replace(report.alike, **changes))


def told(nodes, fabric=None, /, **spec):
    return list(before_admission(on(nodes, fabric), pod_of(a_spec(**spec)), nodes))


def test_nodes_whose_health_check_finds_fault_with_their_rdma_are_named_before_the_gang_starts():
    nodes = [replace(node, rdma_faults=("RdmaLinkFlapping",) if n else ()) for n, node in enumerate(some_nodes(6))]
    (line,) = told(nodes, a_fabric(profile="roce"), nodes=6)
    assert line.startswith("condition RdmaLinkFlapping of n-1, n-2, n-3 and 2 more: ")
    assert told(nodes, a_fabric(kind="tcp"), nodes=6) == [], "nobody uses it there"


def test_nodes_alike_are_told_nothing():
    assert told(some_nodes(4, "p5.48xlarge", labels={"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"})) == []
    assert compare(GANG, roce=True) == Unlike()


def test_different_machines_of_one_network_differ_in_adapters_and_rates():
    nodes = [*some_nodes(3, "p5.48xlarge"), *some_nodes(1, "p5en.48xlarge", first=3)]
    assert told(nodes) == [
        "number of adapters: 32 on 3 nodes, 16 on n-3; NCCL ignores the difference, and collectives hang",
        "Gb/s of each adapter: 100 on 3 nodes, 200 on n-3; the slowest sets the pace",
    ]


def test_annotated_adapters_are_counted():
    nodes = [
        annotated(some_nodes(1)[0], **{"trainyard.dev/hcas": "mlx5_0,mlx5_1"}),
        annotated(some_nodes(1, first=1)[0], **{"trainyard.dev/hcas": "mlx5_0"}),
    ]
    assert [line.partition(":")[0] for line in told(nodes, a_fabric(kind="infiniband"))] == ["number of adapters"]


def test_different_accelerators_are_pointed_out_on_any_network():
    nodes = [
        *some_nodes(1, labels={"nvidia.com/gpu.product": "A"}),
        *some_nodes(1, labels={"nvidia.com/gpu.product": "B"}, first=1),
    ]
    assert told(nodes) == ["accelerators: A on n-0, B on n-1; the slowest sets the pace"]


def test_shares_of_nvlink_domains_should_be_equal():
    nodes = [
        *some_nodes(3, "gb200-4x", labels={"nvidia.com/gpu.clique": "c.1"}),
        *some_nodes(1, "gb200-4x", labels={"nvidia.com/gpu.clique": "c.2"}, first=3),
    ]
    assert "3 of c.1, 1 of c.2" in told(nodes)[0]
    assert told([*nodes[:1], *nodes[3:]]) == []


@pytest.mark.parametrize("spec", [{"nodes": 1}, {"limits": {"cpu": "4"}}])
def test_it_matters_only_for_gangs_of_accelerators(spec):
    assert told([*some_nodes(1, "p5.48xlarge"), *some_nodes(1, "p5en.48xlarge", first=1)], **spec) == []


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("link_layer", "InfiniBand", "link layer"),
        ("adapters", 7, "number of adapters"),
        ("rate_gbps", 200.0, "Gb/s of each adapter"),
        ("mtu", 1024, "MTU of the adapters"),
        ("interface_mtu", 9000, "MTU of the interface"),
        ("family", "AF_INET6", "address family"),
        ("nccl", (2, 27, 5), "NCCL version"),
        ("gpudirect", False, "GPUDirect"),
    ],
)
def test_one_pod_that_differs_is_named(field, value, what):
    gang = [*GANG[:3], but(GANG[3], **{field: value})]
    found = compare(gang, roce=True)
    lines = [*found.fatal, *found.costly]
    assert [line.partition(":")[0] for line in lines] == [what]
    assert "on n-3;" in lines[0]


@pytest.mark.parametrize(
    ("field", "value", "hangs"),
    [
        ("link_layer", "InfiniBand", True),
        ("adapters", 7, True),
        ("mtu", 1024, True),
        ("family", "AF_INET6", True),
        ("nccl", (2, 27, 5), True),
        ("rate_gbps", 200.0, False),
        ("interface_mtu", 9000, False),
        ("gpudirect", False, False),
    ],
)
def test_the_one_that_would_hang_the_gang_is_to_blame(field, value, hangs):
    gang = [*GANG[:3], but(GANG[3], **{field: value})]
    found = compare(gang, roce=True)
    assert (bool(found.fatal), found.nodes) == (hangs, ("n-3",) if hangs else ())
    assert bool(found.costly) is not hangs


def test_of_two_halves_neither_is_to_blame():
    halves = [*GANG[:2], *(but(report, mtu=1024) for report in GANG[2:])]
    found = compare(halves, roce=True)
    assert found.fatal
    assert found.nodes == ()
    assert compare(GANG, roce=True) == Unlike()


@pytest.mark.parametrize(
    "field", ["link_layer", "adapters", "rate_gbps", "mtu", "family", "nccl", "gpudirect", "interface_mtu"]
)
def test_what_a_pod_could_not_tell_is_held_against_nobody(field):
    assert compare([*GANG[:3], but(GANG[3], **{field: None})], roce=True) == Unlike()


@pytest.mark.parametrize(
    ("nccl", "options", "says"),
    [
        ((2, 20, 5), {"roce": True}, "takes row 0"),
        ((2, 17, 1), {"roce": False, "accelerators": 1}, "take the same adapter"),
        ((2, 22, 3), {"roce": False}, "GPUDirect"),
        ((2, 23, 4), {"roce": False}, "alternating rings"),
    ],
)
def test_what_an_old_library_gets_wrong(nccl, options, says):
    lines = compare([but(report, nccl=nccl) for report in GANG], **options).costly
    assert any(says in line for line in lines)
    assert all(line.startswith(f"NCCL {'.'.join(map(str, nccl))}:") for line in lines)


def test_warnings_reach_the_job():
    nodes = [*some_nodes(1, "p5.48xlarge"), *some_nodes(1, "p5en.48xlarge", first=1)]
    assert any("number of adapters" in warning for warning in derived(a_spec(limits={GPU: 8}), nodes).warnings)
