"""What device drivers publish of nodes: adapters near the accelerators, their MTU, and channels for NVLink beyond the node."""

from dataclasses import replace

import pytest
from support.networks import GPU, a_fabric, a_spec, annotated, derived, some_nodes, values
from trainyard.network.settings import Settings
from trainyard.world.records import Adapter

CLIQUE = "nvidia.com/gpu.clique"
ROCE = a_fabric(profile="roce", interface="eth0")
FRONT = Adapter("mlx5_2", near=False, mtu=9000)


def publishing(nodes, *adapters, **changes):
    return [replace(node, adapters=(*adapters, FRONT), **changes) for node in nodes]


def near(*names, mtu=9000):
    return [Adapter(name, near=True, mtu=mtu) for name in names]


def reason(settings: Settings, name: str) -> str:
    return next(setting.reason for setting in settings.settings if setting.name == name)


def test_adapters_under_the_roots_of_the_accelerators_are_written_by_name():
    settings = derived(a_spec(), publishing(some_nodes(2), *near("mlx5_0", "mlx5_1")), ROCE)
    assert values(settings)["NCCL_IB_HCA"] == "=mlx5_0,mlx5_1"
    assert "under the PCIe roots of the node's accelerators" in reason(settings, "NCCL_IB_HCA")


def test_each_node_gets_its_own():
    one, other = some_nodes(2)
    nodes = [*publishing([one], *near("mlx5_0")), *publishing([other], *near("mlx5_7"))]
    settings = derived(a_spec(), nodes, ROCE)
    assert [values(settings, node)["NCCL_IB_HCA"] for node in ("n-0", "n-1")] == ["=mlx5_0", "=mlx5_7"]


@pytest.mark.parametrize(
    ("spec", "nodes"),
    [
        (a_spec(limits={GPU: 4}), some_nodes(2)),
        (a_spec(pod={"resourceClaims": [{"name": "nics", "resourceClaimTemplateName": "t"}]}), some_nodes(2)),
    ],
    ids=["a part of the node", "devices that are claimed"],
)
def test_which_devices_a_pod_will_have_is_not_guessed(spec, nodes):
    assert "NCCL_IB_HCA" not in values(derived(spec, publishing(nodes, *near("mlx5_0")), ROCE))
    assert "NCCL_IB_HCA" not in values(derived(a_spec(), publishing(nodes), ROCE))


def test_what_an_administrator_or_a_profile_says_wins():
    nodes = publishing([annotated(node, **{"trainyard.dev/hcas": "ib0"}) for node in some_nodes(2)], *near("mlx5_0"))
    assert values(derived(a_spec(), nodes, ROCE))["NCCL_IB_HCA"] == "=ib0"
    said = a_fabric(profile="roce", rdma={"devices": ["mlx5_5"]})
    assert values(derived(a_spec(), publishing(some_nodes(2), *near("mlx5_0")), said))["NCCL_IB_HCA"] == "=mlx5_5"
    oci = publishing(some_nodes(2, "BM.GPU.H200.8"), *near("mlx5_1"))
    listed = values(derived(a_spec(), oci, a_fabric(profile="oci-roce-host")))["NCCL_IB_HCA"]
    assert listed.startswith("=mlx5_0,mlx5_3,")


def test_nodes_with_other_numbers_of_adapters_are_told_apart_before_they_hang():
    one, other = some_nodes(2)
    nodes = [*publishing([one], *near("mlx5_0", "mlx5_1")), *publishing([other], *near("mlx5_0"))]
    (line,) = [line for line in derived(a_spec(), nodes, ROCE).warnings if "number of adapters" in line]
    assert "2 on n-0" in line


def test_case_23_an_mtu_that_differs_between_nodes_is_told_before_they_are_taken():
    one, other = some_nodes(2)
    nodes = [*publishing([one], *near("mlx5_0")), *publishing([other], *near("mlx5_0", mtu=1500))]
    (line,) = [line for line in derived(a_spec(), nodes, ROCE).warnings if "MTU of the adapters" in line]
    assert "1024 on n-1, 4096 on n-0" in line
    jumbo = [*publishing([one], *near("mlx5_0")), *publishing([other], *near("mlx5_0", mtu=4220))]
    assert not any("MTU" in line for line in derived(a_spec(), jumbo, ROCE).warnings)  # both send 4096 at once


# NVLink beyond the node


def with_channels(nodes, clique="c.1"):
    offers = {GPU: 4, "rdma/ib": 1}
    return [
        replace(node, nvlink_channels=True, labels={**node.labels, CLIQUE: clique}, allocatable=offers)
        for node in nodes
    ]


def gb(count=2, kind="gb300-4x", **changes):
    return with_channels(some_nodes(count, kind), **changes)


FOUR = a_spec(limits={GPU: 4})


@pytest.mark.parametrize("kind", ["gb200-4x", "gb300-4x"])
def test_case_40_a_channel_is_claimed_where_the_driver_has_some_to_give(kind):
    settings = derived(FOUR, gb(kind=kind))
    assert settings.channel
    assert values(settings)["NCCL_MNNVL_ENABLE"] == "1"
    assert "each pod claims a channel of the job's ComputeDomain" in reason(settings, "NCCL_MNNVL_ENABLE")
    assert "NVIDIA_IMEX_CHANNELS" not in values(settings)


def test_over_two_cliques_nvlink_is_used_in_each_and_demanded_in_none():
    settings = derived(FOUR, [*gb(1), *with_channels(some_nodes(1, "gb300-4x", first=1), clique="c.2")])
    assert settings.channel
    assert "NCCL_MNNVL_ENABLE" not in values(settings)


@pytest.mark.parametrize(
    ("spec", "nodes"),
    [
        (FOUR, some_nodes(2, "gb300-4x", labels={CLIQUE: "c.1"})),
        (FOUR, [*gb(1), *some_nodes(1, "gb300-4x", labels={CLIQUE: "c.1"}, first=1)]),
        (FOUR, [replace(node, labels={"node.kubernetes.io/instance-type": "gb300-4x"}) for node in gb()]),
        (a_spec(limits={GPU: 2}), gb()),
        (a_spec(limits={GPU: 4}, nodes=1), gb(1)),
        (a_spec(limits={GPU: 4}, pod={"resourceClaims": [{"name": "x", "resourceClaimTemplateName": "t"}]}), gb()),
        (a_spec(limits={GPU: 4}, env={"NVIDIA_IMEX_CHANNELS": "0"}), gb()),
        (a_spec(limits={"cpu": 4}), gb()),
        (FOUR, with_channels(some_nodes(2, "b200-8x"))),
    ],
    ids=[
        "no driver",
        "a node without one",
        "not of a clique",
        "a part of the node",
        "one node",
        "claimed already",
        "the host's daemons",
        "no accelerators",
        "no NVLink beyond the node",
    ],
)
def test_otherwise_none_is_claimed(spec, nodes):
    assert not derived(spec, nodes).channel


def test_who_demands_nvlink_itself_is_not_warned_where_a_channel_is_claimed():
    demanding = a_spec(limits={GPU: 4}, env={"NCCL_MNNVL_ENABLE": "1"})
    assert not any("NCCL_MNNVL_ENABLE" in line for line in derived(demanding, gb()).warnings)
