"""Every profile: its data make sense, its values are what NCCL reads, and pods are rendered with all of it."""

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.networks import ALL_PROFILES, GPU, a_spec, derived, equipped, some_nodes, values
from support.rendering import a_job, a_plan
from trainyard.contract import matcher
from trainyard.network.meanings import meaning
from trainyard.network.profiles import profiles
from trainyard.network.profiles.model import Profile, Transport
from trainyard.network.reading import integer, misread
from trainyard.network.roce import dscp, ecn, gives_up_seconds, traffic_class
from trainyard.network.variables import RELICS, VARIABLES, Kind, is_read
from trainyard.planner.machines import MACHINES
from trainyard.render.pod import pods

every = pytest.mark.parametrize("profile", ALL_PROFILES, ids=lambda profile: profile.name)
fast = pytest.mark.parametrize(
    "profile", [profile for profile in ALL_PROFILES if profile.transport.fast], ids=lambda profile: profile.name
)

VENDORS = [
    ("NCCL_IB_HCA", "ibp"),
    ("NCCL_IB_HCA", "erdma"),
    ("NCCL_IB_HCA", "mlx5"),
    ("NCCL_IB_HCA", "mlx5_0,mlx5_1,mlx5_3,mlx5_4"),
    ("NCCL_IB_HCA", "=mlx5_0,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_9,mlx5_10,mlx5_11"),
    (
        "NCCL_IB_HCA",
        "=mlx5_0,mlx5_1,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7,mlx5_8,mlx5_9,mlx5_10,mlx5_12,mlx5_13,mlx5_14,mlx5_15,mlx5_16,mlx5_17",
    ),
    ("NCCL_SOCKET_IFNAME", "eth0"),
    ("NCCL_SOCKET_IFNAME", "eth0,eth1"),
    ("NCCL_SOCKET_IFNAME", "=eth0"),
    ("NCCL_SOCKET_IFNAME", "eth"),
    ("NCCL_IB_TC", "41"),
    ("NCCL_IB_TC", "52"),
    ("NCCL_IB_FIFO_TC", "84"),
    ("NCCL_IB_FIFO_TC", "185"),
    ("NCCL_IB_TC", "96"),
    ("NCCL_IB_TC", "136"),
    ("NCCL_PROTO", "Simple,LL128"),
    ("NCCL_ALGO", "COLLNETCHAIN"),
    ("NCCL_NET_GDR_LEVEL", "PIX"),
    ("NCCL_NET_GDR_LEVEL", "SYS"),
    ("NCCL_IB_ADDR_FAMILY", "AF_INET6"),
    ("NCCL_IB_ADDR_RANGE", "fd02::/16"),
    ("NCCL_FASTRAK_IFNAME", "eth1,eth2,eth3,eth4,eth5,eth6,eth7,eth8"),
    ("UCX_NET_DEVICES", "ibp0:1,ibp1:1,ibp7:1"),
]
"""Values that vendors' guides write, beside those of the profiles."""

WRITTEN = [
    *VENDORS,
    *((name, value) for profile in ALL_PROFILES for name, value in profile.env.items()),
    *((n, v) for profile in ALL_PROFILES for machine in profile.machines for n, v in machine.env.items()),
    *((n, v) for p in ALL_PROFILES for n, v in values(derived(a_spec(), *equipped(p))).items()),
]


@every
def test_what_a_profile_writes_is_read_and_read_as_it_is_meant(profile: Profile):
    for name, value in values(derived(a_spec(), *equipped(profile))).items():
        assert name not in RELICS
        if name.startswith("NCCL_"):
            assert is_read(name), name
        if name in VARIABLES:
            assert misread(VARIABLES[name], value) is None, name


@every
def test_a_profile_says_where_its_values_are_from(profile: Profile):
    assert all(len(source) > 10 for source in profile.sources)
    assert profile.title


@every
def test_its_machines_are_found_by_it_and_have_as_many_adapters_as_names(profile: Profile):
    for machine in profile.machines:
        assert not machine.devices or len(machine.devices) == len(set(machine.devices)) == machine.nics
        for kind in machine.instance_types:
            label = {"node.kubernetes.io/instance-type": kind.replace("*", "x")}
            assert profile.machine(label) is machine


def test_the_machines_of_the_profiles_are_those_that_predictions_are_made_with():
    """Two rooms that may not know each other keep the same facts; this is where they are compared."""
    compared = 0
    for profile in ALL_PROFILES:
        for kind, known in MACHINES.items():
            machine = profile.machine({"node.kubernetes.io/instance-type": kind})
            if machine is not None:
                compared += 1
                assert (machine.nics, machine.nic_gbps * 1e9 / 8) == (known.nics, known.nic_bytes_per_second), kind
    assert compared > 20


@fast
def test_a_pod_of_a_gang_gets_all_that_its_network_wants(profile: Profile):
    nodes, fabric = equipped(profile)
    job = a_job(container={"resources": {"limits": {GPU: 8, "memory": "1Ti"}}}, nodes=2)
    settings = derived(job.spec, nodes, fabric)
    assert all("hostNetwork" in warning for warning in settings.warnings)
    for made in pods(job, a_plan(job, [node.name for node in nodes]), [0, 1], settings):
        spec, container = made["spec"], made["spec"]["containers"][0]
        env = {v["name"]: v.get("value") for v in container["env"]}
        assert profile.env.items() <= env.items()
        assert profile.annotations.items() <= made["metadata"]["annotations"].items()
        limits = container["resources"]["limits"]
        assert profile.resources.keys() <= limits.keys()
        assert (profile.fixed_resources.items() if profile.resources else {}.items()) <= limits.items()
        added = container.get("securityContext", {}).get("capabilities", {}).get("add", [])
        assert ("IPC_LOCK" in added) == (profile.transport.verbs or profile.transport is Transport.EFA)
        volumes = {volume["name"] for volume in spec["volumes"]}
        mounts = [mount["name"] for mount in container["volumeMounts"]]
        assert {volume["name"] for volume in profile.host.volumes} <= volumes
        assert {mount["name"] for mount in profile.host.volume_mounts} <= set(mounts)
        assert set(mounts) <= volumes
        assert bool(spec.get("hostNetwork")) == profile.host.host_network
        assert [c["name"] for c in spec.get("initContainers", [])] == [c["name"] for c in profile.host.init_containers]
        for sidecar in spec.get("initContainers", []):
            assert sidecar["restartPolicy"] == "Always"
            assert {mount["name"] for mount in sidecar["volumeMounts"]} <= volumes
        assert next(v for v in spec["volumes"] if v["name"] == "trainyard-shm")["emptyDir"] == {"medium": "Memory"}
        assert env.get("NCCL_NET") == profile.net
        json.dumps(made)


@fast
def test_a_single_node_and_a_pod_over_gloo_get_nothing_of_it(profile: Profile):
    nodes, fabric = equipped(profile, 1)
    for spec in (a_spec(nodes=1), a_spec(nodes=2, limits={"cpu": "4"})):
        settings = derived(spec, nodes, fabric)
        found = values(settings)
        assert not {"NCCL_NET", "NCCL_IB_HCA", "NCCL_IB_TC"} & found.keys()
        assert not profile.env.keys() & found.keys()
        assert settings.additions.resources == {}
        assert settings.additions.capabilities == ()
        assert (settings.host_network, settings.privileged) == (False, False)


@fast
def test_recognition_alone_gives_no_rights_on_the_node(profile: Profile):
    nodes, _ = equipped(profile)
    settings = derived(a_spec(), nodes)
    assert (settings.host_network, settings.privileged) == (False, False)
    assert settings.additions.volumes == ()
    assert settings.additions.init_containers == ()
    assert set(settings.additions.capabilities) <= {"IPC_LOCK"}


@every
def test_a_gid_index_is_never_written(profile: Profile):
    assert "NCCL_IB_GID_INDEX" not in values(derived(a_spec(), *equipped(profile)))


@fast
def test_roce_variables_are_for_roce(profile: Profile):
    found = values(derived(a_spec(), *equipped(profile)))
    roce = {"NCCL_IB_TC", "NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE"} & found.keys()
    assert bool(roce) == (profile.transport is Transport.ROCE)
    if profile.roce is not None and profile.roce.dscp is not None:
        tc = int(found["NCCL_IB_TC"])
        assert (dscp(tc), ecn(tc)) == (profile.roce.dscp, profile.roce.ecn)


@fast
def test_adapters_give_up_before_the_process_group(profile: Profile):
    timeout = values(derived(a_spec(), *equipped(profile))).get("NCCL_IB_TIMEOUT")
    assert timeout is None or gives_up_seconds(int(timeout)) < 120


@pytest.mark.parametrize(
    ("name", "tc"),
    [("oci-roce", "41"), ("gcp-gib", "52"), ("coreweave-gb300", "96"), ("roce-ainic", "104"), ("roce", "106"),
     ("alibaba-lingjun", "136")],
)  # fmt: skip
def test_traffic_classes_are_those_of_the_vendors(name, tc):
    assert values(derived(a_spec(), *equipped(profiles()[name])))["NCCL_IB_TC"] == tc


@pytest.mark.parametrize(
    ("kind", "gpus", "count"),
    [
        ("p4d.24xlarge", 8, 4), ("p4de.24xlarge", 8, 4), ("p5.48xlarge", 8, 32), ("p5e.48xlarge", 8, 32),
        ("p5en.48xlarge", 8, 16), ("p6-b200.48xlarge", 8, 8), ("p6e-gb200.36xlarge", 4, 4), ("p5.48xlarge", 1, 4),
        ("p5.48xlarge", 3, 12), ("p4d.24xlarge", 1, 1),
    ],
)  # fmt: skip
def test_efa_devices_are_as_many_as_the_accelerators_have(kind, gpus, count):
    settings = derived(a_spec(limits={GPU: gpus}), some_nodes(2, kind, offers={"vpc.amazonaws.com/efa": 32}))
    assert settings.additions.resources["vpc.amazonaws.com/efa"] == str(count)


def test_a_file_with_a_field_that_does_not_exist_is_refused():
    said = yaml.safe_load("{title: t, sources: [somewhere or other], transport: tcp, evn: {}}")
    with pytest.raises(ValueError, match="evn"):
        Profile.model_validate({"name": "x", **said})


@pytest.mark.parametrize(
    ("env", "says"), [({"NCCL_IB_TC": "1"}, "follows"), ({"RANK": "0"}, "plan"), ({"NCCL_X": 1}, "string")]
)
def test_a_file_that_says_by_env_what_a_field_says_is_refused(env, says):
    with pytest.raises(ValueError, match=says):
        Profile.model_validate({"name": "x", "title": "t", "sources": ["s"], "transport": "tcp", "env": env})


def conf(variables):
    """A file as NCCL_CONF_FILE names it."""
    return "".join(f"{name}={value}\n" for name, value in variables)


def read_conf(text):
    """As NCCL reads one (setEnvFile in src/misc/param.cc): up to the first =, and the rest of the line."""
    return [tuple(line.split("=", 1)) for line in text.splitlines() if not line.startswith("#") and "=" in line]


@given(st.lists(st.sampled_from(WRITTEN), max_size=8))
def test_every_value_passes_through_env_and_file_and_parser_unchanged(written):
    assert read_conf(conf(written)) == written
    for name, value in written:
        variable = VARIABLES.get(name)
        if variable is None:
            continue
        if variable.kind is Kind.MATCHERS:
            assert str(matcher.parse(value)) == value
        elif variable.kind in (Kind.NUMBER, Kind.SIZE, Kind.SWITCH):
            assert str(integer(value).value) == value
        if name.endswith("_TC"):
            assert traffic_class(dscp(int(value)), ecn(int(value))) == int(value)


@every
def test_whoever_asks_is_told_what_each_variable_does(profile):
    of_machines = [(name, value) for machine in profile.machines for name, value in machine.env.items()]
    assert [pair for pair in (*profile.env.items(), *of_machines) if meaning(*pair) is None] == []


def test_the_class_of_control_messages_is_told_by_its_dscp():
    assert meaning("NCCL_IB_FIFO_TC", "84") == "control messages have DSCP 21, a class of their own"
    assert meaning("NCCL_COLLNET_ENABLE", "0") != meaning("NCCL_COLLNET_ENABLE", "1")
