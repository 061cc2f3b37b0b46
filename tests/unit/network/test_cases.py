"""Misconfigurations that people reported, by their number in the list of docs/network.md: what the plan does about each.

Those that only a pod or a running job can see are tested where they are seen.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.networks import GPU, a_fabric, a_spec, annotated, derived, fabrics, some_nodes, values
from support.rendering import a_job
from trainyard.contract import matcher
from trainyard.contract.network import Alike
from trainyard.network.choice import Unclear, choose_network
from trainyard.network.consistency import Report, compare
from trainyard.network.profiles import profiles
from trainyard.render.pod import trial_pod

HCAS = "trainyard.dev/hcas"
INTERFACE = "trainyard.dev/interface"
ROCE = a_fabric(profile="roce", interface="eth0", rdma={"dscp": 26, "ecn": 2, "devices": ["mlx5_0", "mlx5_1"]})
IB = a_fabric(profile="infiniband", interface="eth0", rdma={"devices": ["mlx5_0", "mlx5_1"]})
TCP = a_fabric(kind="tcp", interface="eth0")
EFA = "vpc.amazonaws.com/efa"
P5 = some_nodes(2, "p5.48xlarge", offers={EFA: 32})
ALIKE = Alike("Ethernet", 8, 400.0, 4096, "AF_INET", (3,), (2, 30, 7), True, 1500)


def warned(spec, fabric=ROCE, nodes=None):
    return derived(spec, nodes or some_nodes(2), fabric).warnings


def said(warnings, *words):
    return any(all(word in line for word in words) for line in warnings)


def report(rank=0, **changes):
    return Report(f"n-{rank}", rank, replace(ALIKE, **changes))


def at_start(reports, **of_network):
    found = compare(reports, **of_network)
    return [*found.fatal, *found.costly]


def reported(**of_second):
    return at_start([report(), report(1, **of_second)], roce=True)


def test_case_01_no_gid_index_but_the_address_family_by_which_the_right_row_is_found():
    found = values(derived(a_spec(), some_nodes(2), ROCE))
    assert found["NCCL_IB_ADDR_FAMILY"] == "AF_INET"
    assert "NCCL_IB_GID_INDEX" not in found
    assert said(warned(a_spec(env={"NCCL_IB_GID_INDEX": "0"})), "NCCL_IB_GID_INDEX", "leave it out")
    old = [report(nccl=(2, 20, 5))]
    assert said(at_start(old, roce=True), "row 0")


def test_case_02_one_index_for_a_gang_is_pointed_out_and_so_are_tables_with_gaps_on_old_libraries():
    assert said(warned(a_spec(env={"NCCL_IB_GID_INDEX": "3"})), "a pod's table of addresses is its own")
    differ = [report(nccl=(2, 20, 5)), report(1, nccl=(2, 20, 5), gid_indexes=(5,))]
    assert said(at_start(differ, roce=True), "another on different adapters (3, 5)")
    gaps = [report(nccl=(2, 25, 1), gid_indexes=(5,))]
    assert said(at_start(gaps, roce=True), "first gap")


def test_case_04_an_exact_list_and_a_word_on_how_much_a_prefix_takes():
    many = a_fabric(profile="infiniband", rdma={"devices": [f"mlx5_{n}" for n in range(12)]})
    assert values(derived(a_spec(), some_nodes(2), many))["NCCL_IB_HCA"].startswith("=mlx5_0,mlx5_1,")
    assert said(warned(a_spec(env={"NCCL_IB_HCA": "mlx5_1"}), many), "of the network's 12 adapters it takes 3")


def test_case_04_a_prefix_is_answered_by_what_machines_and_nodes_say_too():
    coreweave = warned(a_spec(env={"NCCL_IB_HCA": "ibp"}), None, some_nodes(2, "gd-8xh200ib-i128"))
    assert said(coreweave, "of the network's 8 adapters it takes 8: ibp0, ibp1")
    of_nodes = [
        annotated(node, **{HCAS: listed})
        for node, listed in zip(some_nodes(2), ("mlx5_1,mlx5_10", "mlx5_7"), strict=True)
    ]
    differ = warned(a_spec(env={"NCCL_IB_HCA": "mlx5_1"}), a_fabric(profile="roce"), of_nodes)
    assert said(differ, "of the network's 2 adapters of", "it takes 2: mlx5_1, mlx5_10")
    assert said(differ, "means none of the network's adapters of", "mlx5_7")


def test_case_24_ranks_with_another_number_of_adapters_fail_rather_than_hang():
    assert values(derived(a_spec(), some_nodes(2), ROCE))["NCCL_IGNORE_NET_MISMATCH"] == "0"
    assert "NCCL_IGNORE_NET_MISMATCH" not in values(derived(a_spec(), P5)), "the plugin's adapters are its own"


def test_case_05_front_end_adapters_are_not_in_the_list():
    nodes = some_nodes(2, "BM.GPU.H100.8")
    value = values(derived(a_spec(), nodes, a_fabric(profile="oci-roce-host")))["NCCL_IB_HCA"]
    taken = matcher.select(value, [matcher.Port(f"mlx5_{n}", 1) for n in range(18)])
    assert {port.name for port in taken} == {f"mlx5_{n}" for n in range(18)} - {"mlx5_2", "mlx5_11"}


def test_case_07_08_10_12_the_interface_is_one_exact_name_of_each_node():
    """veth of another pod, names that differ between nodes, docker0, pod-id-link0: an exact name takes none of them."""
    present = ["lo", "docker0", "veth1234", "pod-id-link0", "cali12", "eth0", "eth0.100", "ens1", "ens12"]
    nodes = [
        annotated(some_nodes(1)[0], **{INTERFACE: "ens1"}),
        annotated(some_nodes(1, first=1)[0], **{INTERFACE: "eth0"}),
    ]
    on_host = derived(a_spec(pod={"hostNetwork": True}), nodes, IB)
    for node, name in (("n-0", "ens1"), ("n-1", "eth0")):
        found = values(on_host, node)
        assert list(matcher.interfaces(found["NCCL_SOCKET_IFNAME"], present)) == [name]
        assert found["GLOO_SOCKET_IFNAME"] == name
    in_pods = values(derived(a_spec(), some_nodes(2), IB))
    assert list(matcher.interfaces(in_pods["NCCL_SOCKET_IFNAME"], present)) == ["eth0"]


def test_case_09_a_vlan_of_the_interface_is_not_the_interface():
    bond = a_fabric(kind="tcp", interface="bond0")
    value = values(derived(a_spec(), some_nodes(2), bond))["NCCL_SOCKET_IFNAME"]
    assert matcher.interfaces(value, ["bond0", "bond0.123"]) == ("bond0",)


def test_case_11_a_list_of_what_not_to_take_is_pointed_out():
    assert said(warned(a_spec(env={"NCCL_SOCKET_IFNAME": "^lo,docker"})), "NCCL_SOCKET_IFNAME", "name what to take")
    assert said(warned(a_spec(env={"NCCL_IB_HCA": "^mlx5_bond"})), "NCCL_IB_HCA", "name what to take")


@pytest.mark.parametrize("value", ["=eth0", "^lo", "10.0.0.1", "fd00::1"])
def test_case_14_gloo_gets_a_plain_name_and_a_word_on_anything_else(value):
    assert values(derived(a_spec(limits={"cpu": 4}), some_nodes(2), TCP)) == {"GLOO_SOCKET_IFNAME": "eth0"}
    assert said(warned(a_spec(env={"GLOO_SOCKET_IFNAME": value}), TCP), "GLOO_SOCKET_IFNAME", "no interface")


def test_case_15_adapters_may_lock_memory():
    assert derived(a_spec(), some_nodes(2), ROCE).additions.capabilities == ("IPC_LOCK",)
    assert derived(a_spec(), some_nodes(2), TCP).additions.capabilities == ()


def test_case_16_each_pod_has_shared_memory_of_its_own_as_large_as_its_memory():
    """No size: the kubelet gives a volume in memory as much as the pod may have. What is in it counts in that."""
    spec = a_spec(limits={GPU: 8, "memory": "256Gi"})
    job = replace(a_job(), spec=spec)
    made = trial_pod(job, derived(spec, some_nodes(2), ROCE))["spec"]
    (volume,) = [volume for volume in made["volumes"] if volume["name"] == "trainyard-shm"]
    assert volume["emptyDir"] == {"medium": "Memory"}
    container = made["containers"][0]
    assert {"name": "trainyard-shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
    assert container["resources"]["limits"]["memory"] == "256Gi"


def test_case_17_shared_memory_of_the_host_is_pointed_out():
    spec = a_spec(
        volumeMounts=[{"name": "shm", "mountPath": "/dev/shm"}],
        pod={"volumes": [{"name": "shm", "hostPath": {"path": "/dev/shm"}}]},
    )
    assert said(warned(spec), "/dev/shm", "shared by all pods")
    own = a_spec(
        volumeMounts=[{"name": "shm", "mountPath": "/dev/shm"}],
        pod={"volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}]},
    )
    assert not said(warned(own), "/dev/shm")


def test_case_19_a_library_that_overlooks_gpudirect():
    assert said(at_start([report(nccl=(2, 22, 3))], roce=True), "GPUDirect")
    assert not said(at_start([report(nccl=(2, 23, 4))], roce=True, cross_nic=False), "GPUDirect")


def test_case_21_packets_that_no_switch_protects():
    assert said(warned(a_spec(env={"NCCL_IB_TC": "0"})), "DSCP 0", "write 106")
    assert values(derived(a_spec(), some_nodes(2), ROCE))["NCCL_IB_TC"] == "106"


def test_case_22_the_dscp_where_the_whole_byte_belongs():
    assert said(warned(a_spec(env={"NCCL_IB_TC": "26"})), "is the network's DSCP", "write 106")


def test_case_23_one_pod_with_another_mtu():
    assert said(reported(mtu=1024), "MTU", "1024 on n-1, 4096 on n-0")


def test_case_24_nodes_with_different_adapters():
    mixed = [*P5[:1], *some_nodes(1, "p4d.24xlarge", offers={EFA: 4}, first=1)]
    assert said(derived(a_spec(), mixed).warnings, "number of adapters", "hang")
    assert isinstance(choose_network([*P5, *some_nodes(1, "b200-8x", first=2)], {}), Unclear)
    assert said(reported(adapters=4), "number of adapters")
    assert said(reported(link_layer="InfiniBand"), "link layer")


def test_case_27_the_family_of_the_addresses_by_which_ranks_meet():
    v6 = a_fabric(kind="tcp", interface="eth0", addressFamily="AF_INET6")
    assert values(derived(a_spec(), some_nodes(2), v6))["NCCL_SOCKET_FAMILY"] == "AF_INET6"
    assert said(warned(a_spec(env={"NCCL_SOCKET_FAMILY": "IPv6"}), v6), "NCCL_SOCKET_FAMILY", "is ignored")


def test_case_28_rails_that_do_not_reach_each_other():
    isolated = a_fabric(profile="roce", rdma={"rails": "isolated"})
    assert values(derived(a_spec(), some_nodes(2), isolated))["NCCL_CROSS_NIC"] == "0"
    assert said(warned(a_spec(env={"NCCL_CROSS_NIC": "1"}), isolated), "NCCL_CROSS_NIC", "write 0")


def test_case_29_alternating_rings():
    old = [report(nccl=(2, 22, 3), gpudirect=False)]
    assert said(at_start(old, roce=True, cross_nic=True), "alternating rings")
    assert not said(at_start(old, roce=True, cross_nic=False), "alternating rings")


def test_case_30_adapters_wait_as_long_as_the_process_group_lets_them():
    found = values(derived(a_spec(), some_nodes(2), ROCE))
    assert found["NCCL_IB_TIMEOUT"] == "21"  # 69 s; 22 is 137 s, and the process group waits for 120
    assert said(warned(a_spec(env={"NCCL_IB_TIMEOUT": "23"})), "275 s", "120 s")


def test_case_31_a_topology_file_is_nobodys_default():
    assert not any("NCCL_TOPO_FILE" in profile.env for profile in profiles().values())
    assert said(warned(a_spec(env={"NCCL_TOPO_FILE": "/opt/topo.xml"})), "NCCL_TOPO_FILE", "one whole machine")


def test_case_32_relaxed_ordering_is_said_on_virtual_machines():
    nodes = some_nodes(2, "Standard_ND96isr_H100_v5", offers={"rdma/ib": 8})
    assert values(derived(a_spec(), nodes))["NCCL_IB_PCI_RELAXED_ORDERING"] == "1"


def test_case_33_two_pods_of_a_job_on_a_node():
    together = a_spec(limits={GPU: 4})
    together = together.but(placement=together.placement.but(pods_per_node=2))
    assert said(warned(together), "podsPerNode", "NVLink")


@pytest.mark.parametrize("name", ["NCCL_HOSTID", "NCCL_GRAPH_FILE", "NCCL_COMM_ID"])
def test_case_34_what_is_not_safe_stands_but_is_called_so(name):
    assert said(warned(a_spec(env={name: "x"})), name, "not safe")


@pytest.mark.parametrize("said_so", [{"NCCL_IB_DISABLE": "1"}, {"NCCL_NET": "Socket"}])
def test_adapters_that_the_job_switches_off_are_known_to_be(said_so):
    assert "collectives run over sockets" in derived(a_spec(env=said_so), some_nodes(2), ROCE).over_sockets
    assert not derived(a_spec(env=said_so), some_nodes(2), TCP).over_sockets, "there are none"
    assert not derived(a_spec(env=dict.fromkeys(said_so, "0")), some_nodes(2), ROCE).over_sockets


def test_case_35_37_without_a_device_or_a_plugin_the_job_fails_at_once():
    assert values(derived(a_spec(), some_nodes(2), IB))["NCCL_NET"] == "IB"
    assert values(derived(a_spec(), P5))["NCCL_NET"] == "AWS Libfabric", "a name that plugins of every version take"
    without = derived(a_spec(), some_nodes(2, "p5.48xlarge"))
    assert said(without.warnings, EFA, "fails at once")


def test_case_36_no_attempt_starts_with_devices_of_the_host_on_efa():
    spec = a_spec(
        volumeMounts=[{"name": "ib", "mountPath": "/dev/infiniband"}],
        pod={"volumes": [{"name": "ib", "hostPath": {"path": "/dev/infiniband"}}]},
    )
    assert said([derived(spec, P5).problem], "/dev/infiniband", "breaks EFA")
    elsewhere = derived(spec, some_nodes(2), ROCE)
    assert not elsewhere.problem
    assert said(elsewhere.warnings, "/dev/infiniband", "the devices of others")
    assert not any("/dev/infiniband" in str(volume) for volume in profiles()["aws-efa"].host.volumes)


def test_case_38_too_little_memory_beside_huge_pages():
    assert said(derived(a_spec(limits={GPU: 8, "memory": "32Gi"}), P5).warnings, "resources.limits.memory", "64Gi")
    assert not said(derived(a_spec(limits={GPU: 8, "memory": "1Ti"}), P5).warnings, "resources.limits.memory")


def test_case_39_as_many_devices_as_the_accelerators_have():
    assert derived(a_spec(), P5).additions.resources[EFA] == "32"
    assert derived(a_spec(limits={GPU: 2}), P5).additions.resources[EFA] == "8"
    assert said(derived(a_spec(limits={GPU: 8, EFA: 1}), P5).warnings, EFA, "have 32")


def test_case_40_nvlink_beyond_the_node_only_with_a_channel():
    nodes = some_nodes(2, "gb300-4x", labels={"nvidia.com/gpu.clique": "c.1"})
    claims = {"resourceClaims": [{"name": "imex", "resourceClaimTemplateName": "t"}]}
    assert values(derived(a_spec(), nodes))["NCCL_MNNVL_ENABLE"] == "0"
    assert values(derived(a_spec(pod=claims), nodes))["NCCL_MNNVL_ENABLE"] == "1"
    assert said(derived(a_spec(env={"NCCL_MNNVL_ENABLE": "1"}), nodes).warnings, "NCCL_MNNVL_ENABLE", "ComputeDomain")


def test_case_41_an_equals_sign_in_a_value_and_a_comma_in_a_list_survive():
    value = "=mlx5_0,mlx5_1:1"
    settings = derived(a_spec(wishes={"NCCL_IB_HCA": value}), some_nodes(2), ROCE)
    assert values(settings)["NCCL_IB_HCA"] == value
    assert str(matcher.parse(value)) == value


def test_case_43_one_accelerator_a_pod_on_an_old_library():
    old = [report(nccl=(2, 17, 1))]
    assert said(at_start(old, roce=False, accelerators=1), "take the same adapter")
    assert not said(at_start(old, roce=False, accelerators=8), "take the same adapter")


@pytest.mark.parametrize(("name", "value"), [("NCCL_ALGO", "Tree"), ("NCCL_PROTO", "LL"), ("NCCL_BUFFSIZE", "1")])
def test_case_44_what_is_forced_for_all_sizes(name, value):
    assert said(warned(a_spec(env={name: value})), name, "NCCL chooses by size")


def test_case_45_a_rendezvous_that_loses_the_order_of_ranks():
    spec = a_spec(command=["torchrun", "--rdzv-backend=c10d", "train.py"])
    assert said(warned(spec), "c10d", "order of the plan")


def test_case_46_a_failure_leaves_its_flight_record():
    found = values(derived(a_spec(), some_nodes(2), TCP))
    assert (found["TORCH_NCCL_ASYNC_ERROR_HANDLING"], found["TORCH_NCCL_DUMP_ON_TIMEOUT"]) == ("3", "1")
    assert found["TORCH_FR_BUFFER_SIZE"] == "2000"
    assert said(warned(a_spec(env={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"})), "flight record")


def test_case_47_ports_of_the_hosts_network():
    assert said(warned(a_spec(pod={"hostNetwork": True})), "hostNetwork", "29500", "28028")
    assert not any(p.host.host_network for p in profiles().values() if p.name != "oci-roce-host")


def test_case_48_a_script_that_undoes_the_pods_variables():
    spec = a_spec(command=["bash", "-c", "source /usr/local/gib/scripts/set_nccl_env.sh && python3 train.py"])
    assert said(warned(spec, a_fabric(profile="gcp-gib")), "set_nccl_env.sh", "undoes")


def test_case_49_the_images_own_file_is_left_alone():
    conf = a_spec(
        volumeMounts=[{"name": "conf", "mountPath": "/etc/nccl.conf", "subPath": "nccl.conf"}],
        pod={"volumes": [{"name": "conf", "configMap": {"name": "nccl"}}]},
    )
    assert said(warned(conf), "/etc/nccl.conf", "hides")
    for profile in profiles().values():
        assert not any("nccl.conf" in str(mount) for mount in profile.host.volume_mounts)


def test_case_50_a_node_that_takes_itself_for_the_master():
    spec = a_spec(command=["bash", "-c", "export MASTER=$(getent hosts $M || echo localhost); python3 train.py"])
    assert said(warned(spec), "trains alone")
    assert said(warned(a_spec(env={"PET_MASTER_ADDR": "localhost"})), "PET_MASTER_ADDR is left out")


def test_the_network_of_a_gang_is_one_whatever_its_fabrics():
    """Beside the list: a Fabric for some of the nodes only."""
    known = fabrics(site=a_fabric(kind="roce", nodeSelector={"on": "it"}))
    assert isinstance(choose_network([*some_nodes(1, labels={"on": "it"}), *some_nodes(1, first=1)], known), Unclear)


BY_THE_PLAN = {
    4,
    5,
    9,
    11,
    *range(14, 18),
    *range(21, 25),
    27,
    28,
    29,
    *range(32, 35),
    36,
    *range(38, 42),
    *range(43, 51),
}
"""Of the list, what labels and the job itself tell."""
IN_THE_POD = {*range(1, 9), 10, *range(12, 17), 18, 19, 20, 21, 23, 24, 25, 26, 28, 30, 31, 35, 37, 40, 42, 45, 50}
"""What a pod finds when it starts, a preflight measures, or a running job says."""


def test_every_case_has_a_test_where_it_is_seen():
    """By the numbers in the names of tests, so that none is lost when they are moved."""
    tests = Path(__file__).parents[2]

    def numbers(kind):
        text = "".join(file.read_text() for file in (tests / kind).rglob("test_*.py"))
        named = re.findall(r"def test_cases?_((?:\d+_(?:and_)?)+)", text)
        return {int(number) for name in named for number in re.findall(r"\d+", name)}

    assert set(range(1, 51)) == BY_THE_PLAN | IN_THE_POD
    assert BY_THE_PLAN - numbers("unit") == set()
    assert IN_THE_POD - numbers("trainer") == set()
    page = (tests.parent / "docs/network.md").read_text().rpartition("\n## ")[2]
    assert [int(number) for number in re.findall(r"(?m)^\| (\d+) \|", page)] == list(range(1, 51))
