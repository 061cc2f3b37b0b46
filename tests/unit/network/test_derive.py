"""Few settings, each with its source; the job's own win, identity excepted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.networks import a_spec, annotated, derived, some_nodes
from support.networks import values as named
from trainyard.api.fabric import FabricSpec
from trainyard.api.names import is_reserved_env
from trainyard.api.training_job import TrainingJobSpec
from trainyard.network.choice import described
from trainyard.network.derive import derive as derive_on
from trainyard.network.settings import Source

CUDA = {"nvidia.com/gpu": 8}
SPEAKS = {
    "NCCL_DEBUG": "WARN",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_FR_BUFFER_SIZE": "2000",
}
"""What makes a failure of NCCL speak."""


def job(*, limits=None, env=(), network=(), **container):
    """A job of one container; env and network as (name, value)."""
    variables = [{"name": name, "value": value} for name, value in env]
    made = {"name": "trainer", "resources": {"limits": limits or {}}, "env": variables, **container}
    wishes = [{"name": name, "value": value} for name, value in network]
    return TrainingJobSpec.model_validate(
        {"nodes": 2, "template": {"spec": {"containers": [made]}}, "network": {"env": wishes}}
    )


def fabric(*, env=(), **spec):
    return FabricSpec.model_validate({"env": [{"name": name, "value": value} for name, value in env], **spec})


def derive(on, spec):
    return derive_on(described(on), spec)


def values(settings):
    return {setting.name: setting.value for setting in settings.settings}


@pytest.mark.parametrize(
    ("on", "limits", "expected"),
    [
        (None, None, {}),
        (None, CUDA, SPEAKS),
        (None, {"nvidia.com/mig-1g.10gb": "1"}, SPEAKS),
        (None, {"nvidia.com/gpu": 0}, {}),
        (None, {"amd.com/gpu": 8}, SPEAKS),
        (None, {"google.com/tpu": 8}, {}),
        (fabric(), None, {}),
        (fabric(interface="eth0"), None, {"GLOO_SOCKET_IFNAME": "eth0"}),
        (fabric(kind="tcp", interface="eth0"), None, {"GLOO_SOCKET_IFNAME": "eth0"}),
        (
            fabric(interface="eth0"),
            CUDA,
            {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "=eth0", **SPEAKS},
        ),
        (
            fabric(kind="tcp", interface="eth0"),
            CUDA,
            {
                "GLOO_SOCKET_IFNAME": "eth0",
                "NCCL_SOCKET_IFNAME": "=eth0",
                "NCCL_IB_DISABLE": "1",
                **SPEAKS,
            },
        ),
        (fabric(env=[("NCCL_IB_TC", "106")]), None, {}),
        (fabric(env=[("NCCL_IB_TC", "106")]), CUDA, {**SPEAKS, "NCCL_IB_TC": "106"}),
        (fabric(env=[("OMP_NUM_THREADS", "4")]), None, {"OMP_NUM_THREADS": "4"}),
        (fabric(env=[("TP_SOCKET_IFNAME", "eth1")]), None, {"TP_SOCKET_IFNAME": "eth1"}),
        (fabric(env=[("FI_PROVIDER", "efa"), ("UCX_TLS", "tcp")]), None, {}),
        (fabric(env=[("NCCL_DEBUG", "INFO")]), CUDA, {**SPEAKS, "NCCL_DEBUG": "INFO"}),
    ],
)
def test_what_follows_from_a_fabric(on, limits, expected):
    assert values(derive(on, job(limits=limits))) == expected


def test_every_setting_says_where_it_came_from_and_why():
    found = derive(fabric(interface="eth0", env=[("MALLOC_ARENA_MAX", "2")]), job(network=[("NCCL_ALGO", "Ring")]))
    assert {setting.name: setting.source for setting in found.settings} == {
        "GLOO_SOCKET_IFNAME": Source.DERIVED,
        "MALLOC_ARENA_MAX": Source.FABRIC,
        "NCCL_ALGO": Source.JOB,
    }
    assert all(setting.reason for setting in found.settings)


@pytest.mark.parametrize("place", ["env", "network"])
def test_the_jobs_own_wins_over_the_fabrics(place):
    on = fabric(interface="eth0", env=[("NCCL_IB_TC", "106")])
    found = derive(on, job(**{place: [("NCCL_IB_TC", "41"), ("GLOO_SOCKET_IFNAME", "net1")]}))
    ours = {setting.name for setting in found.settings if setting.source is not Source.JOB}
    assert ours == set()


def test_identity_is_nobodys_to_set():
    found = derive(fabric(env=[("RANK", "0")]), job(network=[("WORLD_SIZE", "1")], env=[("TRAINYARD_POD", "me")]))
    assert values(found) == {}
    assert found.warnings == (
        "TRAINYARD_POD is left out: who a process is in the gang is the plan's to say",
        "WORLD_SIZE is left out: who a process is in the gang is the plan's to say",
    )


@pytest.mark.parametrize("place", ["env", "network"])
def test_an_interface_that_gloo_cannot_read_is_pointed_out(place):
    found = derive(None, job(**{place: [("GLOO_SOCKET_IFNAME", "=eth0")]}))
    assert found.warnings == (
        "GLOO_SOCKET_IFNAME: '=eth0' is no interface; gloo knows neither = nor ^, write plain names such as eth0",
    )


def test_env_from_is_pointed_out_since_it_loses_against_any_setting():
    found = derive(None, job(envFrom=[{"configMapRef": {"name": "mine"}}]))
    assert [warning.partition(":")[0] for warning in found.warnings] == ["envFrom"]


def test_additions_are_passed_on():
    added = {"volumes": [{"name": "torch", "hostPath": {"path": "/opt/torch"}}]}
    assert derive(fabric(podAdditions=added), job()).additions.volumes == tuple(added["volumes"])
    assert derive(None, job()).additions.volumes == ()


names = st.sampled_from(["A", "B", "NCCL_DEBUG", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "RANK", "TRAINYARD_POD"])
variables = st.lists(st.tuples(names, st.sampled_from(["x", "y"])), max_size=5, unique_by=lambda pair: pair[0])


@given(variables, variables, variables)
def test_each_name_once_and_the_jobs_last(of_fabric, of_template, of_network):
    found = derive(fabric(interface="eth0", env=of_fabric), job(limits=CUDA, env=of_template, network=of_network))
    listed = [setting.name for setting in found.settings]
    assert len(listed) == len(set(listed))
    assert not any(is_reserved_env(name) for name in listed)
    sources = [setting.source is Source.JOB for setting in found.settings]
    assert sources == sorted(sources)
    assert {s.name: s.value for s in found.settings if s.source is Source.JOB} == {
        name: value for name, value in of_network if not is_reserved_env(name)
    }
    assert not {s.name for s in found.settings if s.source is not Source.JOB} & {name for name, _ in of_template}


# On a fast network, and where nodes differ ------------------------------------------------------------------------------

HCAS = "trainyard.dev/hcas"
INTERFACE = "trainyard.dev/interface"


def test_adapters_are_the_nodes_own_where_nodes_differ():
    nodes = [
        annotated(some_nodes(1, first=0)[0], **{HCAS: "mlx5_0,mlx5_1"}),
        annotated(some_nodes(1, first=1)[0], **{HCAS: "mlx5_10, mlx5_2"}),
    ]
    settings = derived(a_spec(), nodes, fabric(kind="infiniband", interface="eth0"))
    assert named(settings, "n-0")["NCCL_IB_HCA"] == "=mlx5_0,mlx5_1"
    assert named(settings, "n-1")["NCCL_IB_HCA"] == "=mlx5_2,mlx5_10"
    assert "NCCL_IB_HCA" not in named(settings)
    assert named(settings, "n-0").keys() == named(settings, "n-1").keys() == {*named(settings), "NCCL_IB_HCA"}


def test_nodes_alike_share_all_settings():
    settings = derived(a_spec(), some_nodes(4, "b200-8x"))
    assert settings.by_node == {}
    assert named(settings)["NCCL_IB_HCA"] == "=ibp0,ibp1,ibp2,ibp3,ibp4,ibp5,ibp6,ibp7"


def test_a_pod_with_a_part_of_a_machine_finds_the_adapters_near_its_accelerators_itself():
    assert "NCCL_IB_HCA" not in named(derived(a_spec(limits={"nvidia.com/gpu": 4}), some_nodes(2, "b200-8x")))


@pytest.mark.parametrize(
    ("said", "net"),
    [
        ({}, True),
        ({"NCCL_IB_DISABLE": "1"}, False),
        ({"NCCL_IB_DISABLE": "0"}, True),
        ({"NCCL_NET": "socket"}, False),
        ({"NCCL_NET_PLUGIN": "mine"}, False),
        ({"NCCL_NET_PLUGIN": "none"}, True),
    ],
)
def test_the_fast_network_is_not_demanded_of_a_job_that_switched_it_off(said, net):
    found = named(derived(a_spec(env=said), some_nodes(2, "b200-8x", offers={"rdma/ib": 1})))
    assert ("NCCL_NET" in found) == (net and "NCCL_NET" not in said)
    assert ("NCCL_IB_HCA" in found) == (net or "NCCL_NET_PLUGIN" in said)
    on = fabric(profile="roce", env=list(said.items()))
    by_fabric = named(derived(a_spec(), some_nodes(2), on))
    assert (by_fabric.get("NCCL_NET") == "IB") == net


def test_the_narrower_word_on_adapters_wins():
    of_machine, of_fabric = some_nodes(1, "b200-8x")[0], fabric(profile="coreweave-ib", rdma={"devices": ["a", "b"]})
    of_node = annotated(of_machine, **{HCAS: "c"})
    assert named(derived(a_spec(), [of_machine]))["NCCL_IB_HCA"].startswith("=ibp0,")
    assert named(derived(a_spec(), [of_machine], of_fabric))["NCCL_IB_HCA"] == "=a,b"
    assert named(derived(a_spec(), [of_node], of_fabric))["NCCL_IB_HCA"] == "=c"
    job_says = a_spec(wishes={"NCCL_IB_HCA": "d"})
    assert named(derived(job_says, [of_node], of_fabric))["NCCL_IB_HCA"] == "d"


def test_on_the_hosts_network_the_interface_is_the_nodes_and_no_profiles():
    nodes = [
        annotated(some_nodes(1, "b200-8x", first=0)[0], **{INTERFACE: "ens1"}),
        annotated(some_nodes(1, "b200-8x", first=1)[0], **{INTERFACE: "ens2"}),
        *some_nodes(1, "b200-8x", first=2),
    ]
    settings = derived(a_spec(pod={"hostNetwork": True}), nodes)
    assert [named(settings, f"n-{n}").get("NCCL_SOCKET_IFNAME") for n in range(3)] == ["=ens1", "=ens2", None]
    in_pods = derived(a_spec(), nodes)
    assert named(in_pods)["NCCL_SOCKET_IFNAME"] == "=eth0"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, {"NCCL_IB_TC": "106", "NCCL_IB_ADDR_FAMILY": "AF_INET"}),
        ({"dscp": 24}, {"NCCL_IB_TC": "96"}),
        ({"dscp": 24, "ecn": 1}, {"NCCL_IB_TC": "97"}),
        ({"ecn": 0}, {"NCCL_IB_TC": "104"}),
        ({"addressFamily": "AF_INET6"}, {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}),
        ({"addressRange": "10.4.0.0/16"}, {"NCCL_IB_ADDR_RANGE": "10.4.0.0/16"}),
        ({"serviceLevel": 3}, {"NCCL_IB_SL": "3"}),
        ({"rails": "isolated"}, {"NCCL_CROSS_NIC": "0"}),
        ({"rails": "one"}, {"NCCL_CROSS_NIC": "1"}),
        ({"rails": "routed"}, {}),
        ({"timeout": 18}, {"NCCL_IB_TIMEOUT": "18"}),
        ({"timeout": 23}, {"NCCL_IB_TIMEOUT": "21"}),
        ({"devices": ["mlx5_1"]}, {"NCCL_IB_HCA": "=mlx5_1"}),
    ],
)
def test_each_field_of_a_fabric_replaces_the_profiles_own(said, expected):
    found = named(derived(a_spec(), some_nodes(2), fabric(kind="roce", rdma=said)))
    assert expected.items() <= found.items()
    if "rails" not in said or said["rails"] == "routed":
        assert "NCCL_CROSS_NIC" not in found


def test_a_range_of_addresses_of_one_family_is_not_written_for_another():
    found = named(
        derived(a_spec(), some_nodes(2), fabric(profile="coreweave-gb300", rdma={"addressFamily": "AF_INET"}))
    )
    assert (found["NCCL_IB_ADDR_FAMILY"], found.get("NCCL_IB_ADDR_RANGE")) == ("AF_INET", None)


def test_the_fabrics_variables_win_over_what_follows_and_over_the_profile():
    on = fabric(profile="gcp-gib", env=[("NCCL_IB_TC", "1"), ("NCCL_IB_QPS_PER_CONNECTION", "2"), ("NCCL_NET", "IB")])
    settings = derived(a_spec(), some_nodes(2), on)
    assert {"NCCL_IB_TC": "1", "NCCL_IB_QPS_PER_CONNECTION": "2", "NCCL_NET": "IB"}.items() <= named(settings).items()
    assert {s.source for s in settings.settings if s.name.startswith("NCCL_IB_QPS")} == {Source.FABRIC}


@pytest.mark.parametrize(
    ("cliques", "pod", "expected"),
    [
        (["c.1", "c.1"], {"resourceClaims": [{"name": "channel", "resourceClaimTemplateName": "t"}]}, "1"),
        (["c.1", "c.2"], {"resourceClaims": [{"name": "channel", "resourceClaimTemplateName": "t"}]}, None),
        (["c.1", "c.1"], {}, "0"),
    ],
)
def test_nvlink_beyond_the_node_is_demanded_in_one_clique_and_only_with_a_channel(cliques, pod, expected):
    nodes = [
        node
        for n, clique in enumerate(cliques)
        for node in some_nodes(1, "gb300-4x", labels={"nvidia.com/gpu.clique": clique}, first=n)
    ]
    assert named(derived(a_spec(pod=pod), nodes)).get("NCCL_MNNVL_ENABLE") == expected


@pytest.mark.parametrize("who", ["fabric", "wish", "template"])
def test_channels_that_are_named_are_channels_wherever_they_are_named(who):
    """Of daemons that the host runs itself: NCCL is to use them, and a job that asks for it hears nothing."""
    nodes = some_nodes(2, "gb300-4x", labels={"nvidia.com/gpu.clique": "c.1"})
    said = {"NVIDIA_IMEX_CHANNELS": "0"}
    on = fabric(profile="coreweave-gb300", env=[*said.items()] if who == "fabric" else ())
    job_says = {"wishes": said} if who == "wish" else {"env": said} if who == "template" else {}
    assert named(derived(a_spec(**job_says), nodes, on))["NCCL_MNNVL_ENABLE"] == "1"
    asks = {**job_says, "env": {**job_says.get("env", {}), "NCCL_MNNVL_ENABLE": "1"}}
    assert [line for line in derived(a_spec(**asks), nodes, on).warnings if "ComputeDomain" in line] == []


def test_the_family_of_the_meeting_is_the_fabrics():
    on = fabric(interface="eth0", addressFamily="AF_INET6")
    assert named(derived(a_spec(), some_nodes(2), on))["NCCL_SOCKET_FAMILY"] == "AF_INET6"
    assert "NCCL_SOCKET_FAMILY" not in named(derived(a_spec(limits={"cpu": 4}), some_nodes(2), on))


def test_each_reason_of_what_follows_from_a_machine_says_of_which():
    settings = derived(a_spec(), some_nodes(2, "BM.GPU.H100.8"), fabric(profile="oci-roce-host"))
    by_name = {setting.name: setting for setting in settings.settings}
    assert by_name["NCCL_CUMEM_ENABLE"].source is Source.PROFILE
    assert "BM.GPU.H100.8" in by_name["NCCL_CUMEM_ENABLE"].reason
    assert "10 << 2 | 1" in by_name["NCCL_IB_TC"].reason
    assert "longer than the process group's 120 s" in by_name["NCCL_IB_TIMEOUT"].reason


marks = st.sampled_from([{}, {HCAS: "mlx5_0"}, {HCAS: "mlx5_0,mlx5_3"}, {INTERFACE: "ens1"}])


@given(st.lists(st.tuples(st.sampled_from(["p5.48xlarge", "p5en.48xlarge", ""]), marks), min_size=1, max_size=5))
def test_a_node_gets_what_it_would_get_alone(drawn):
    nodes = [annotated(some_nodes(1, kind, first=n)[0], **mark) for n, (kind, mark) in enumerate(drawn)]
    on = fabric(profile="roce")
    whole = derived(a_spec(nodes=5), nodes, on)
    for node in nodes:
        assert named(whole, node.name) == named(derived(a_spec(nodes=5), [node], on))
        listed = [setting.name for setting in whole.on(node.name).settings]
        assert len(listed) == len(set(listed))
    assert named(derived(a_spec(nodes=5), nodes[::-1], on)) == named(whole)
