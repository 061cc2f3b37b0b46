"""Devices, annotations and rights that a network adds, and what of a template works against it."""

import pytest
from support.networks import GPU, a_fabric, a_spec, derived, some_nodes
from trainyard.network.profiles import profiles

EFA = "vpc.amazonaws.com/efa"
P5 = some_nodes(2, "p5.48xlarge", offers={EFA: 32})
GIB = some_nodes(2, "a4-highgpu-8g")
MOUNTED = {
    "volumeMounts": [
        {"name": "lib", "mountPath": "/usr/local/nvidia"},
        {"name": "gib", "mountPath": "/usr/local/gib"},
    ],
    "pod": {"volumes": [{"name": "lib", "hostPath": {"path": "/n"}}, {"name": "gib", "hostPath": {"path": "/g"}}]},
}


def names(settings):
    return {setting.name for setting in settings.settings}


def test_the_trainer_waits_for_the_daemon_of_tcpxo_by_the_file_that_this_writes():
    (daemon,) = profiles()["gcp-tcpxo"].host.init_containers
    written = {variable["name"]: variable["value"] for variable in daemon["env"]}["HEALTH_CHECK_LOG_FILE"]
    assert daemon["startupProbe"]["exec"]["command"] == ["cat", written]
    assert daemon["startupProbe"]["periodSeconds"] * daemon["startupProbe"]["failureThreshold"] >= 60, (
        "it takes half of that"
    )


def test_devices_that_the_container_asks_for_itself_are_not_added():
    settings = derived(a_spec(limits={GPU: 8, EFA: 32, "memory": "1Ti"}), P5)
    assert EFA not in settings.additions.resources
    assert settings.warnings == ()


def test_another_number_of_devices_than_the_accelerators_have_is_pointed_out():
    (line,) = derived(a_spec(limits={GPU: 8, EFA: 4}), P5).warnings
    assert "asks for 4; 8 accelerators of these nodes have 32" in line


def test_devices_that_nodes_do_not_offer_are_not_asked_for():
    lacking = [*P5[:1], *some_nodes(1, "p5.48xlarge", offers={EFA: 16}, first=1)]
    settings = derived(a_spec(), lacking)
    assert settings.additions.resources == {}
    assert any("1 of 2 nodes (n-1) offer fewer than 32" in line for line in settings.warnings)


@pytest.mark.parametrize(("limits", "huge"), [({"memory": "1Ti"}, True), ({"cpu": 8}, True), ({}, False)])
def test_huge_pages_come_only_beside_memory_or_cpu_as_the_api_server_wants(limits, huge):
    assert ("hugepages-2Mi" in derived(a_spec(limits={GPU: 8, **limits}), P5).additions.resources) == huge


def test_any_other_rdma_device_stands_in_for_the_profiles():
    nodes = some_nodes(2, offers={"rdma/ib": 1, "rdma/hca_a": 8})
    assert derived(a_spec(limits={GPU: 8, "rdma/hca_a": 8}), nodes).additions.resources == {}
    assert derived(a_spec(), nodes).additions.resources == {"rdma/ib": "1"}


def test_a_network_whose_needs_nobody_granted_is_not_used_and_says_so():
    settings = derived(a_spec(), GIB)
    assert not {"NCCL_NET", "NCCL_IB_TC", "LD_LIBRARY_PATH"} & names(settings)
    assert settings.additions.annotations == {}
    (line,) = settings.warnings[:1]
    assert "only a Fabric with spec.profile: gcp-gib gives" in " ".join(settings.warnings), line


def test_a_template_that_brings_what_is_needed_needs_no_grant():
    settings = derived(a_spec(**MOUNTED), GIB)
    assert {"NCCL_NET", "NCCL_IB_TC"} <= names(settings)
    assert settings.additions.volumes == ()


def test_a_fabric_replaces_annotations_volumes_and_sidecars_of_its_profile_by_name():
    fabric = a_fabric(
        profile="gcp-tcpxo",
        podAdditions={
            "annotations": {"networking.gke.io/interfaces": "[]"},
            "initContainers": [{"name": "tcpxo-daemon", "image": "mine:1"}],
            "volumes": [{"name": "sys", "hostPath": {"path": "/mysys"}}],
            "volumeMounts": [{"name": "sys", "mountPath": "/usr/local/nvidia"}],
            "resources": {"example.com/nic": "8"},
            "capabilities": ["SYS_NICE"],
        },
    )
    added = derived(a_spec(), some_nodes(2, "a3-megagpu-8g"), fabric).additions
    assert added.annotations["networking.gke.io/interfaces"] == "[]"
    assert "devices.gke.io/container.tcpxo-daemon" in added.annotations
    assert [container["image"] for container in added.init_containers] == ["mine:1"]
    assert {v["name"]: v["hostPath"]["path"] for v in added.volumes}["sys"] == "/mysys"
    assert [m["name"] for m in added.volume_mounts if m["mountPath"] == "/usr/local/nvidia"] == ["sys"]
    assert added.resources == {"example.com/nic": "8"}
    assert added.capabilities == ("SYS_NICE",)


def test_resources_and_rights_of_a_fabric_are_for_gangs_of_accelerators():
    fabric = a_fabric(
        podAdditions={"resources": {"rdma/x": "1"}, "capabilities": ["IPC_LOCK"], "annotations": {"a": "b"}}
    )
    for spec in (a_spec(nodes=1), a_spec(limits={"cpu": 4})):
        added = derived(spec, some_nodes(2), fabric).additions
        assert (added.resources, added.capabilities, added.annotations) == ({}, (), {"a": "b"})
    added = derived(a_spec(), some_nodes(2), fabric).additions
    assert (added.resources, added.capabilities) == ({"rdma/x": "1"}, ("IPC_LOCK",))


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"command": ["bash", "-c", "torchrun --rdzv-backend=c10d x.py"]}, "rendezvous c10d"),
        ({"command": ["bash", "-c", "torchrun --rdzv_backend etcd x.py"]}, "rendezvous c10d"),
        ({"command": ["bash", "-c", "M=$(getent hosts a || echo localhost)"]}, "trains alone"),
        ({"pod": {"hostNetwork": True}}, "hostNetwork"),
    ],
)
def test_what_in_a_template_works_against_its_network(spec, says):
    assert any(says in line for line in derived(a_spec(**spec), P5).warnings)
    assert not any(says in line for line in derived(a_spec(), P5).warnings)
