"""What a pod finds of its network, on fake machines. Numbers are those of the table of misconfigurations that are known."""

from dataclasses import replace

import pytest
from support.machines import GIB, PART, Machine
from trainyard.contract.network import PODNETWORK_BYTES, Fact, PodNetwork, bounded, decode_network, encode_network
from trainyard_trainer.launch.network import surroundings as asking
from trainyard_trainer.launch.network import tree
from trainyard_trainer.launch.network.resolve import changed, resolve

MIB = 2**20


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path).interface("eth0", "10.0.0.7")


def found(machine, environment=None, part=PART):
    return resolve(machine.around, part, environment or {})


def settings(machine, environment=None, part=PART):
    return {s.name: s.value for s in found(machine, environment, part).settings}


def fact(said, name):
    return next(f for f in said.facts if f.name == name)


def only(texts, *parts):
    """The one text that holds all of these."""
    (match,) = [text for text in texts if all(part in text for part in parts)]
    return match


def with_gpus(machine, count=8, **changes):
    for n in range(count):
        machine.gpu(n, bus=f"0000:1{n}:00.0", **changes)
    return machine


def with_nccl(machine, version, tmp_path):
    machine.write(f"packages/nvidia_nccl_cu13-{version}.dist-info/METADATA", "")
    return machine.but(packages=(tmp_path / "packages",))


# The socket interface


def test_case_12_the_interface_of_pod_identity_is_not_taken(machine):
    machine.interface("pod-id-link0", "169.254.170.23")
    said = found(machine)
    assert said.interface == "eth0"
    assert settings(machine) == {"GLOO_SOCKET_IFNAME": "eth0"}


def test_case_7_the_interface_is_that_of_the_route_to_rank_0(machine):
    machine.interface("cali1", "10.1.0.1").interface("net1", "192.168.7.3").routes(_10_0_0_1="192.168.7.3")
    said = found(machine)
    assert said.interface == "net1"
    assert fact(said, "interface").source == "route"
    assert fact(said, "interface").reason == "packets to rank 0, 10.0.0.1, leave from 192.168.7.3"


def test_case_8_each_pod_finds_its_own_name_where_nodes_call_their_interfaces_otherwise(tmp_path):
    names = {"a": "ens1", "b": "eth0"}
    for node, name in names.items():
        (tmp_path / node).mkdir()
        there = with_gpus(Machine(tmp_path / node).interface(name, "10.0.0.7").interface("docker0", "172.17.0.1"))
        there.routes(_10_0_0_1="10.0.0.7")
        assert settings(there) == {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}"}


def test_case_10_docker0_is_not_taken_before_the_way_to_rank_0(machine):
    machine.interface("docker0", "172.17.0.1").routes(_10_0_0_1="10.0.0.7")
    assert found(machine).interface == "eth0"


def test_rank_0_finds_its_own_interface_by_its_address(machine):
    machine.interface("net1", "10.0.0.1").routes(_10_0_0_1="127.0.0.1")
    said = found(machine)
    assert said.interface == "net1"
    assert fact(said, "interface").source == "addresses of this pod"


def test_while_rank_0s_name_is_unknown_the_default_route_counts(machine):
    machine.interface("net1", "192.168.7.3").routes(default="10.0.0.7").but(address_of=lambda name: None)
    said = found(machine)
    assert said.interface == "eth0"
    assert "train-0.train is not known yet" in fact(said, "interface").reason


def test_where_no_way_can_be_told_nothing_is_written(machine):
    machine.interface("net1", "192.168.7.3").but(address_of=lambda name: None)
    assert found(machine).interface is None
    assert settings(machine) == {}


def test_the_name_of_rank_0_is_asked_for_only_where_it_decides(machine):
    def asked(name):
        raise AssertionError("asked")

    machine.but(address_of=asked)
    assert found(machine).interface == "eth0"
    machine.interface("net1", "192.168.7.3").routes(default="10.0.0.7")
    assert found(machine, part=replace(PART, nodes=1)).interface == "eth0"


def test_a_gang_on_one_node_gets_no_variables(machine):
    with_gpus(machine).hca("mlx5_0")
    assert settings(machine, part=replace(PART, nodes=1)) == {}


def test_an_interface_that_is_down_is_no_candidate(machine):
    machine.interface("net1", "192.168.7.3", flags="0x1002")
    assert found(machine).interface == "eth0"


def test_case_9_the_interface_is_written_as_a_whole_name_for_nccl(tmp_path):
    machine = with_gpus(Machine(tmp_path)).interface("bond0.123", "10.9.0.7").interface("bond0", "10.0.0.7")
    machine.routes(_10_0_0_1="10.0.0.7")
    assert settings(machine) == {"GLOO_SOCKET_IFNAME": "bond0", "NCCL_SOCKET_IFNAME": "=bond0"}


# What the user wrote


def test_case_13_a_name_that_does_not_exist_is_refused_with_those_that_do(machine):
    with_gpus(machine).interface("pod-id-link0", "169.254.170.23")
    (refused,) = found(machine, {"NCCL_SOCKET_IFNAME": "eth9"}).refused
    assert refused == (
        "NCCL_SOCKET_IFNAME: 'eth9' matches no interface: pod train-1 on node-1 has eth0 (10.0.0.7), lo (127.0.0.1, loopback), "
        "pod-id-link0 (169.254.170.23, no other node is reached by it); write =eth0, or leave it out"
    )


@pytest.mark.parametrize("name", ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"])
def test_case_13_a_name_that_only_the_node_or_its_network_says_is_a_fault_of_the_node(machine, name):
    said = found(with_gpus(machine), {name: "eth9", "TRAINYARD_GIVEN": f"X,{name}"}, replace(PART, built_in=True))
    assert (said.refused, said.stranded) == ((), True)
    only(said.faults, name, "'eth9'", "the node's annotation trainyard.dev/interface", "should say", "eth0")
    said = found(machine, {name: "eth9", "TRAINYARD_GIVEN": "X"}, replace(PART, built_in=True))
    assert (len(said.refused), said.faults, said.stranded) == (1, (), False)


def test_case_13_nccls_variable_is_only_told_of_where_nothing_reads_it(machine):
    said = found(machine, {"NCCL_SOCKET_IFNAME": "eth9"})
    assert said.refused == ()
    only(said.warnings, "matches no interface", "eth0 (10.0.0.7)", "nothing reads it in a pod without accelerators")


@pytest.mark.parametrize(
    ("value", "why"),
    [("=eth0", "neither = nor ^"), ("^lo", "neither = nor ^"), ("10.0.0.7", "an address"), ("eth", "'eth' is no")],
)
def test_case_14_a_value_that_gloo_does_not_understand_is_refused(machine, value, why):
    (refused,) = found(machine, {"GLOO_SOCKET_IFNAME": value}).refused
    assert why in refused
    assert "write eth0, or leave it out" in refused


def test_case_14_a_script_of_ones_own_that_may_use_nccl_alone_is_warned(machine):
    with_gpus(machine)
    said = found(machine, {"GLOO_SOCKET_IFNAME": "eth9"})
    assert said.refused == ()
    only(said.warnings, "GLOO_SOCKET_IFNAME", "eth9")
    assert found(machine, {"GLOO_SOCKET_IFNAME": "eth9"}, replace(PART, built_in=True)).refused


def test_case_11_a_list_of_what_not_to_take_is_told_what_else_it_takes(machine):
    with_gpus(machine).interface("pod-id-link0", "169.254.170.23")
    said = found(machine, {"NCCL_SOCKET_IFNAME": "^lo,docker"})
    only(said.warnings, "'^lo,docker' also takes pod-id-link0")
    assert said.refused == ()


def test_what_is_set_stays(machine):
    with_gpus(machine).hca("mlx5_0")
    mine = {"NCCL_SOCKET_IFNAME": "eth0", "GLOO_SOCKET_IFNAME": "eth0", "NCCL_IB_HCA": "=mlx5_0"}
    assert settings(machine, mine) == {}


def test_a_single_character_is_not_looked_at_by_nccl(machine):
    with_gpus(machine)
    assert found(machine, {"NCCL_SOCKET_IFNAME": "x"}).refused == ()


def test_without_cuda_devices_rdma_plays_no_part(machine):
    machine.hca("mlx5_0")
    said = found(machine, {"NCCL_IB_HCA": "nonsense"})
    assert said.alike.adapters is None
    assert (said.warnings, said.faults) == ((), ())
    assert settings(machine) == {"GLOO_SOCKET_IFNAME": "eth0"}


# Adapters


def test_case_5_the_management_adapter_on_ethernet_is_left_out(machine):
    with_gpus(machine)
    for n in range(8):
        machine.hca(f"mlx5_{n}")
    machine.roce("mlx5_8", "net8", "10.8.0.1", rate=100)
    assert settings(machine)["NCCL_IB_HCA"] == "=" + ",".join(f"mlx5_{n}" for n in range(8))
    said = found(machine)
    assert fact(said, "adapter mlx5_8").reason == "not used: it is Ethernet, and the others are InfiniBand"
    assert (said.alike.link_layer, said.alike.adapters, said.alike.rate_gbps) == ("InfiniBand", 8, 400.0)


def test_case_5_a_slower_adapter_of_the_same_kind_is_left_out(machine):
    with_gpus(machine).hca("mlx5_0").hca("mlx5_1").hca("mlx5_bond_0", rate=100)
    assert settings(machine)["NCCL_IB_HCA"] == "=mlx5_0,mlx5_1"


def test_case_5_a_list_that_mixes_link_layers_is_told(machine):
    with_gpus(machine).hca("mlx5_0").roce("mlx5_1", "net1", "10.8.0.1")
    only(found(machine, {"NCCL_IB_HCA": "mlx5"}).warnings, "mixes Ethernet and InfiniBand")


def test_case_4_a_beginning_of_names_is_told_what_it_takes(machine):
    with_gpus(machine)
    for n in range(18):
        machine.hca(f"mlx5_{n}")
    said = found(machine, {"NCCL_IB_HCA": "mlx5_1"})
    only(said.warnings, "'mlx5_1' takes 9 adapters here: mlx5_1, mlx5_10", "mlx5_17")
    assert said.alike.adapters == 9
    assert "mlx5_9" in settings(machine)["NCCL_IB_HCA"].split(",")[9]  # natural order


def test_case_6_adapters_without_a_link_are_left_out(machine):
    with_gpus(machine).hca("mlx5_0")
    machine.hca("mlx5_1", state="1: DOWN", physical="3: Disabled").hca("mlx5_2", state="2: INIT")
    assert settings(machine)["NCCL_IB_HCA"] == "=mlx5_0"
    only(found(machine, {"NCCL_IB_HCA": "=mlx5_0,mlx5_1"}).faults, "mlx5_1", "has no link")


def test_case_25_an_adapter_whose_interface_is_in_another_pod_is_left_out(machine):
    with_gpus(machine).roce("mlx5_0", "net1", "10.8.0.1")
    rows = ((0, "fe80::1", "IB/RoCE v1", "net2"), (3, "10.8.1.1", "RoCE v2", "net2"))
    machine.hca("mlx5_1", link_layer="Ethernet", gids=rows)
    assert settings(machine)["NCCL_IB_HCA"] == "=mlx5_0"
    assert "belong to net2, which is not in this pod" in fact(found(machine), "adapter mlx5_1").reason


def test_case_26_an_adapter_without_an_ip_address_is_left_out(machine):
    with_gpus(machine).hca("mlx5_0", link_layer="Ethernet", gids=(), netdev="net1")
    machine.hca("mlx5_1", link_layer="Ethernet", gids=((1, "fe80::1", "RoCE v2", "net2"),), netdev="net2")
    said = found(machine, {"NCCL_NET": "IB"})
    only(
        said.faults,
        "no RDMA adapter can be used",
        "mlx5_0: its table of addresses is empty",
        "mlx5_1: its addresses are link-local",
    )
    assert "NCCL_IB_HCA" not in settings(machine)
    assert said.alike.adapters == 0


def test_case_35_an_adapter_without_its_device_file_is_left_out(machine):
    with_gpus(machine).hca("mlx5_0", opens=False)
    only(found(machine, {"NCCL_NET": "ib"}).faults, "mlx5_0: its file in /dev/infiniband is not in this pod")
    only(found(machine).warnings, "no RDMA adapter can be used")


def test_case_35_an_image_without_verbs_is_told(machine, tmp_path):
    with_gpus(machine).hca("mlx5_0")
    (tmp_path / "usr/lib/x86_64-linux-gnu/libibverbs.so.1").unlink()
    only(found(machine).warnings, "libibverbs is not in the image")


def test_case_37_an_image_without_the_plugin_that_nccl_is_told_to_use_is_told(machine):
    with_gpus(machine).hca("rdmap0s0", link_layer="Unspecified")
    asked = {"NCCL_NET": "AWS Libfabric"}
    only(found(machine, asked).warnings, "NCCL_NET", "no libnccl-net is in the image")
    machine.write("opt/mine/lib/libnccl-net-ofi.so", "")
    only(found(machine, asked).warnings, "NCCL_NET")
    assert not any("libnccl-net" in w for w in found(machine, {**asked, "LD_LIBRARY_PATH": "/opt/mine/lib"}).warnings)
    machine.write("opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net.so", "")
    assert not any("libnccl-net" in w for w in found(machine, asked).warnings)


def test_a_part_of_a_node_takes_the_adapters_next_to_its_accelerators(machine):
    for n in range(8):
        root, bridge = f"pci0000:{n // 4}0", f"0000:{n // 4}0:0{n % 4}.0"
        machine.gpu(n, bus=f"0000:a{n}:00.0", root=root, bridges=(bridge,), numa=n // 4, given=n in (2, 5))
        machine.hca(f"mlx5_{n}", bus=f"0000:b{n}:00.0", root=root, bridges=(bridge,), numa=n // 4)
    assert settings(machine)["NCCL_IB_HCA"] == "=mlx5_2,mlx5_5"
    assert "nearer" in fact(found(machine), "adapter mlx5_3").reason


@pytest.fixture
def of_amd(machine):
    """Eight accelerators of AMD, two of them the pod's, each with an adapter of its own."""
    for n in range(8):
        root, bridge = f"pci0000:{n // 4}0", f"0000:{n // 4}0:0{n % 4}.0"
        machine.amd_gpu(128 + n, bus=f"0000:a{n}:00.0", root=root, bridges=(bridge,), numa=n // 4, given=n in (2, 5))
        more = {"bus": f"0000:b{n}:00.0", "root": root, "bridges": (bridge,), "numa": n // 4}
        machine.roce(f"ionic_{n}", f"net{n}", f"10.8.{n}.7", row=1, **more)
    return machine


def test_a_pod_with_accelerators_of_amd_finds_its_adapters_and_interface(of_amd):
    given = settings(of_amd)
    assert given["NCCL_IB_HCA"] == "=ionic_2,ionic_5"
    assert given["NCCL_SOCKET_IFNAME"] == "=eth0"
    assert found(of_amd).alike.adapters == 2


def test_case_13_a_wrong_interface_ends_a_pod_of_amd_as_any_other(of_amd):
    only(found(of_amd, {"NCCL_SOCKET_IFNAME": "=eth9"}).refused, "NCCL_SOCKET_IFNAME", "'=eth9' matches no interface")


def test_a_card_of_amd_that_only_drives_a_screen_is_no_accelerator(machine):
    with_gpus(machine).amd_gpu(128, bus="0000:a0:00.0", given=False)
    assert len(tree.accelerators(machine.root)) == 8
    (machine.root / "dev/kfd").unlink()
    machine.write("dev/dri/renderD128", "")
    assert {accelerator.given for accelerator in tree.accelerators(machine.root)} == {True}, "those of NVIDIA"


def test_where_no_bridge_is_shared_the_numa_node_decides(machine):
    for n in range(4):
        machine.gpu(n, bus=f"0000:a{n}:00.0", root=f"pci0000:a{n}", bridges=(), numa=n // 2, given=n >= 2)
        machine.hca(f"mlx5_{3 - n}", bus=f"0000:b{n}:00.0", root=f"pci0000:b{n}", bridges=(), numa=n // 2)
    assert settings(machine)["NCCL_IB_HCA"] == "=mlx5_0,mlx5_1"


def test_a_whole_node_takes_all_adapters_wherever_they_are(machine):
    with_gpus(machine, 2)
    for n in range(4):
        machine.hca(f"mlx5_{n}", root=f"pci0000:f{n}", bridges=(), numa=1)
    assert found(machine).alike.adapters == 4


def test_rdma_that_was_switched_off_is_not_looked_at(machine):
    with_gpus(machine).hca("mlx5_0")
    for off in ({"NCCL_IB_DISABLE": "1"}, {"NCCL_NET": "Socket"}):
        assert "NCCL_IB_HCA" not in settings(machine, off)
        assert found(machine, off).faults == ()


def test_adapters_of_efa_are_counted_and_get_no_list(machine):
    with_gpus(machine)
    for n in range(32):
        machine.hca(f"rdmap{n}s0", link_layer="Unspecified", rate=100)
    assert "NCCL_IB_HCA" not in settings(machine)
    assert found(machine).alike.adapters == 32


# PCIe


def test_an_adapter_that_its_pcie_link_cannot_feed_is_told(machine):
    for name, own, above in (
        ("mlx5_0", "32.0 GT/s PCIe", "32.0 GT/s PCIe"),
        ("mlx5_1", "32.0 GT/s PCIe", "16.0 GT/s PCIe"),
    ):
        bridge = f"0000:15:0{name[-1]}.0"
        with_gpus(machine, 1).hca(name, bus=f"0000:8{name[-1]}:00.0", bridges=(bridge,))
        for device, speed in ((bridge, above), (f"{bridge}/0000:8{name[-1]}:00.0", own)):
            machine.write(f"sys/devices/pci0000:15/{device}/current_link_speed", speed)
            machine.write(f"sys/devices/pci0000:15/{device}/current_link_width", "16")
    only(found(machine).warnings, "PCIe", "mlx5_1 has 400 Gb/s", "0000:15:01.0 (16 GT/s, 16 lanes) no more than 252")
    machine.write("sys/devices/pci0000:15/0000:15:00.0/current_link_width", "4")
    only(found(machine).warnings, "PCIe", "mlx5_0", "4 lanes) no more than 126")


@pytest.mark.parametrize(("speed", "lanes"), [("Unknown", "0"), ("20.0 GT/s", "16"), ("16.0 GT/s PCIe", "255x")])
def test_what_a_machine_does_not_tell_of_its_pcie_links_is_no_news(machine, speed, lanes):
    with_gpus(machine, 1).hca("mlx5_0", bus="0000:80:00.0")
    machine.write("sys/devices/pci0000:15/0000:15:01.0/0000:80:00.0/current_link_speed", speed)
    machine.write("sys/devices/pci0000:15/0000:15:01.0/0000:80:00.0/current_link_width", lanes)
    assert not any(w.startswith("PCIe") for w in found(machine).warnings)


# Addresses of RoCE


def test_case_1_an_old_nccl_is_given_the_row_of_ipv4_over_roce_v2(machine, tmp_path):
    with_gpus(machine).roce("mlx5_0", "net1", "10.8.0.1").roce("mlx5_1", "net2", "10.8.1.1")
    assert "NCCL_IB_GID_INDEX" not in settings(machine)
    with_nccl(machine, "2.20.5", tmp_path)
    said = settings(machine)
    assert said["NCCL_IB_GID_INDEX"] == "3"
    assert found(machine).alike.nccl == (2, 20, 5)


def test_case_1_a_new_nccl_finds_the_row_itself(machine, tmp_path):
    with_gpus(with_nccl(machine, "2.30.7", tmp_path)).roce("mlx5_0", "net1", "10.8.0.1")
    assert "NCCL_IB_GID_INDEX" not in settings(machine)


@pytest.mark.parametrize(
    ("row", "why"), [(0, "is of IB/RoCE v1"), (1, "is link-local"), (2, "is of IB/RoCE v1"), (7, "is empty")]
)
def test_case_1_a_row_that_the_user_chose_wrongly_is_told(machine, row, why):
    with_gpus(machine).roce("mlx5_0", "net1", "10.8.0.1")
    only(found(machine, {"NCCL_IB_GID_INDEX": str(row)}).warnings, f"row {row} of mlx5_0", why)


def test_case_1_a_row_that_is_right_is_no_news(machine):
    with_gpus(machine).roce("mlx5_0", "net1", "10.8.0.1")
    assert found(machine, {"NCCL_IB_GID_INDEX": "3"}).warnings == ()


def test_case_2_rows_that_differ_are_not_made_one(machine, tmp_path):
    with_gpus(with_nccl(machine, "2.20.5", tmp_path)).roce("mlx5_0", "net1", "10.8.0.1")
    machine.roce("mlx5_1", "net2", "10.8.1.1", row=5)
    said = found(machine)
    assert "NCCL_IB_GID_INDEX" not in settings(machine)
    assert said.alike.gid_indexes == (3, 5)
    only(said.warnings, "NCCL 2.20.5: takes one row for all adapters", "(3, 5)")


def test_case_2_a_table_with_gaps_needs_a_newer_nccl(machine, tmp_path):
    with_gpus(with_nccl(machine, "2.23.4", tmp_path)).roce("mlx5_0", "net1", "10.8.0.1", row=6)
    only(found(machine).warnings, "NCCL 2.23.4: looks no further than the first empty row", "mlx5_0")


def test_case_3_rows_that_changed_since_the_last_attempt_are_told(machine):
    with_gpus(machine).roce("mlx5_0", "net1", "10.8.0.1")
    before = found(machine)
    now = replace(before, alike=replace(before.alike, gid_indexes=(5,)))
    assert list(changed(before, before)) == []
    only(changed(before, now), "rows of the adapters' addresses have changed", "3 and 5")


def test_ipv6_is_named_where_adapters_have_nothing_else(machine):
    with_gpus(machine).roce("ibp0", "net1", "fd02::1").roce("ibp1", "net2", "fd02::2")
    assert settings(machine)["NCCL_IB_ADDR_FAMILY"] == "AF_INET6"
    assert found(machine).alike.family == "AF_INET6"


def test_ipv4_is_the_libraries_own_choice_and_not_written(machine):
    with_gpus(machine).roce("mlx5_0", "net1", "10.8.0.1")
    assert "NCCL_IB_ADDR_FAMILY" not in settings(machine)
    assert found(machine).alike.family == "AF_INET"


def test_adapters_of_two_families_are_told(machine):
    with_gpus(machine).roce("mlx5_0", "net1", "10.8.0.1").roce("mlx5_1", "net2", "fd02::2")
    only(found(machine).warnings, "some adapters have only IPv4 and others only IPv6")


def test_a_range_leaves_only_the_compute_network(machine):
    with_gpus(machine).roce("mlx5_0", "net1", "10.8.0.1").roce("mlx5_1", "net2", "172.16.0.1")
    said = found(machine, {"NCCL_IB_ADDR_RANGE": "10.8.0.0/16"})
    assert said.alike.adapters == 1
    assert "in NCCL_IB_ADDR_RANGE 10.8.0.0/16" in fact(said, "adapter mlx5_1").reason


def test_infiniband_gets_no_variables_of_roce(machine):
    with_gpus(machine).hca("mlx5_0")
    assert set(settings(machine)) == {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA"}
    only(found(machine, {"NCCL_IB_GID_INDEX": "3"}).warnings, "InfiniBand has no such tables in use")


# MTU


def test_case_23_an_interface_of_1500_on_a_fast_adapter_is_told(machine):
    with_gpus(machine).roce("mlx5_0", "net1", "10.8.0.1", mtu=1500)
    said = found(machine)
    assert said.alike.mtu == 1024
    only(said.warnings, "MTU: adapters send 1024 bytes at once")


def test_case_23_adapters_of_different_mtu_are_told(machine):
    with_gpus(machine).roce("mlx5_0", "net1", "10.8.0.1", mtu=9000).roce("mlx5_1", "net2", "10.8.1.1", mtu=1500)
    only(found(machine).warnings, "MTU: the adapters differ (mlx5_0 4096, mlx5_1 1024)")


# Limits


def test_case_15_little_lockable_memory_is_told_where_adapters_are_used(machine):
    machine.but(memlock_bytes=64 * 1024)
    with_gpus(machine)
    assert found(machine).warnings == ()
    machine.hca("mlx5_0")
    only(found(machine).warnings, "locked memory is limited to 64 KiB", "IPC_LOCK")
    assert found(machine.but(memlock_bytes=None)).warnings == ()


def test_case_16_shared_memory_of_64_mib_is_told(machine):
    with_gpus(machine.but(shm_bytes=64 * MIB))
    only(found(machine).warnings, "/dev/shm has 64 MiB", "emptyDir with medium Memory")
    only(found(machine.but(shm_bytes=None)).warnings, "there is no /dev/shm")
    assert found(machine.but(shm_bytes=2 * GIB)).warnings == ()


def test_case_18_memory_that_adapters_do_not_reach_is_told(machine):
    with_gpus(machine).hca("mlx5_0")
    machine.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.1")
    said = found(machine)
    assert said.alike.gpudirect is False
    only(said.warnings, "GPUDirect is off")
    machine.write("sys/module/nvidia_peermem/version", "1")
    assert found(machine).alike.gpudirect is True
    assert found(machine).warnings == ()


def test_case_18_dma_buf_of_the_open_driver_will_do(machine):
    with_gpus(machine).hca("mlx5_0")
    machine.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.1")
    machine.write("proc/sys/kernel/osrelease", "5.10.0")
    assert found(machine).alike.gpudirect is False
    machine.write("proc/sys/kernel/osrelease", "6.8.0-41-generic")
    assert found(machine).alike.gpudirect is True


def test_case_19_a_version_that_overlooks_gpudirect_is_told(machine, tmp_path):
    machine.write("sys/module/nvidia_peermem/version", "1")
    with_gpus(with_nccl(machine, "2.22.3", tmp_path)).hca("mlx5_0")
    only(found(machine).warnings, "NCCL 2.22.3: may overlook that GPUDirect is there")


def test_case_31_a_topology_file_that_is_not_there_or_of_another_machine_is_told(machine):
    with_gpus(machine, 2)
    name = {"NCCL_TOPO_FILE": "/opt/topo.xml"}
    only(found(machine, name).warnings, "/opt/topo.xml is not in this pod")
    machine.write("opt/topo.xml", '<system><pci busid="ffff:ff:01.0"/></system>')
    only(found(machine, name).warnings, "is of another machine", "0000:10:00.0")
    machine.write("opt/topo.xml", '<system><pci busid="0000:10:00.0"/><pci busid="00000000:11:00.0"/></system>')
    assert found(machine, name).warnings == ()
    machine.gpu(7, bus="0000:17:00.0", given=False)
    only(found(machine, name).warnings, "this pod has only some of its accelerators")


@pytest.mark.parametrize(("torch", "written"), [("2.7.1+cu126", True), ("2.8.0", False), ("2.15.0", False)])
def test_case_46_an_old_torch_keeps_flight_records_under_the_name_that_it_reads(machine, tmp_path, torch, written):
    with_gpus(machine).write(f"packages/torch-{torch}.dist-info/METADATA", "")
    machine.write("packages/torchvision-0.1.0.dist-info/METADATA", "")
    machine.but(packages=(tmp_path / "packages",))
    old = "TORCH_NCCL_TRACE_BUFFER_SIZE"
    assert settings(machine, {"TORCH_FR_BUFFER_SIZE": "2000"}).get(old) == ("2000" if written else None)
    assert old not in settings(machine, {"TORCH_FR_BUFFER_SIZE": "2000", old: "5"})


@pytest.mark.parametrize("file", ["libnccl.so.2.21.5", "libnccl.so.2"])
def test_the_version_of_nccl_is_that_of_a_library_or_not_known(machine, file):
    with_gpus(machine).write(f"usr/lib/x86_64-linux-gnu/{file}", "")
    assert found(machine).alike.nccl == ((2, 21, 5) if file.endswith("5") else None)
    assert found(machine, {"NCCL_VERSION": "2.26.2-1+cuda12.8"}).alike.nccl is not None


# The record


def test_what_was_found_travels_as_json(machine):
    with_gpus(machine).hca("mlx5_0")
    said = found(machine)
    assert decode_network(encode_network(said)) == said
    assert all(f.source for f in said.facts)
    assert all(s.reason for s in said.settings)


def test_what_was_found_has_a_bound():
    long = PodNetwork(
        facts=tuple(Fact(f"f{n}", "v" * 1000, "s" * 1000) for n in range(200)), warnings=("w" * 9000,) * 99
    )
    small = bounded(long)
    assert len(encode_network(small).encode()) <= PODNETWORK_BYTES
    assert small.facts[0].name == "f0"


# The real machine


def test_this_machine_answers(monkeypatch):
    monkeypatch.setattr(asking, "LOOK_UP_SECONDS", 0.0)
    here = asking.surroundings()
    assert "127.0.0.1" in here.addresses["lo"]
    assert here.source_of("127.0.0.1") == "127.0.0.1"
    assert here.address_of("localhost") in ("127.0.0.1", "::1")
    assert here.address_of("no-such-host.invalid") is None
    assert any(path.joinpath("pytest").is_dir() for path in here.packages)
    said = resolve(here, replace(PART, nodes=1), {})
    assert {f.name for f in said.facts} >= {"interface"}
