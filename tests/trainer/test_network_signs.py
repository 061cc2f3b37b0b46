"""Lines of NCCL, torch and gloo as they were seen in the field, and what they mean; counters of adapters from a fake tree.

Numbers are those of the table of misconfigurations that are known.
"""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.launching import a_plan
from support.machines import Machine
from trainyard.contract.network import Bearing, Sign
from trainyard.contract.preflight import Finding, PreflightResult
from trainyard_trainer.launch.ending import Ended, Happened, ending
from trainyard_trainer.launch.metrics import network_text, text
from trainyard_trainer.launch.network.counters import KINDS, WORDS, count, meaning
from trainyard_trainer.launch.network.signs import KEPT, LINE_BYTES, Ear, Signs, recognise


def troubles(*lines, rdma=True):
    signs = Signs()
    signs.rdma = rdma
    for at, line in enumerate(lines):
        signs.add(3, line.encode(), float(at))
    return signs.found()


def trouble(line, rdma=True):
    (one,) = troubles(line, rdma=rdma)
    return one


NEW = (
    "train-1:3468:3905 [4] transport/net_ib/p2p.cc:688 NCCL WARN NET/IB: Got completion from peer 10.216.210.236<54862> with "
    "status={}({}) opcode=IBV_WC_SEND(0) vendor_err={} req_type=Recv localGid ::ffff:10.8.0.1 remoteGids::ffff:10.8.1.1 "
    "hca mlx5_3"
)
OLD = (
    "train-1:3468:3905 [4] transport/net_ib.cc:1615 NCCL WARN NET/IB : Got completion from peer 10.216.210.236<54862> with "
    "status={} opcode=0 len=0 vendor err {} (Recv) localGid fd00:1148:9000:5000:4:200:3:ff22 remoteGidsfd00:1148::1"
)


@pytest.mark.parametrize(
    ("line", "device"),
    [
        (NEW.format("IBV_WC_RETRY_EXC_ERR", 12, 129), "mlx5_3"),
        (OLD.format(12, 129), None),
        (f"{OLD.format(12, 129)} hca mlx5_4", "mlx5_4"),
    ],
)
def test_case_21_a_peer_that_does_not_acknowledge(line, device):
    said = trouble(line)
    assert (said.sign, said.device, said.peer) == (Sign.FABRIC_ERROR, device, "10.216.210.236")
    assert "PFC" in said.hint
    assert said.bearing == Bearing.ERROR


def test_case_20_an_adapter_that_may_not_reach_memory():
    said = trouble(NEW.format("local protection error", 4, 81))
    assert (said.sign, said.device) == (Sign.FABRIC_ERROR, "mlx5_3")
    assert "ACS" in said.hint


def test_case_20_hints_of_nccl_decide_nothing():
    assert (
        recognise(
            b"NCCL WARN HINT: In many cases this error occurs when ACS is enabled which would break GPU Direct RDMA"
        )
        is None
    )


def test_case_30_a_link_that_flaps_is_named_before_what_followed():
    flushed = NEW.format("IBV_WC_WR_FLUSH_ERR", 5, 249)
    first, second, third = troubles(flushed, flushed, NEW.format("IBV_WC_RETRY_EXC_ERR", 12, 129), OLD.format(10, 136))
    assert (first.device, first.bearing, "did not acknowledge" in first.hint) == ("mlx5_3", Bearing.ERROR, True)
    assert (second.sign, second.bearing) == (Sign.FABRIC_ERROR, Bearing.ERROR)
    assert (third.bearing, third.count) == (Bearing.SECONDARY, 2)


@pytest.mark.parametrize(
    ("line", "device", "peer"),
    [
        (
            "host-01:1:1 [5] ibvwrap.c:262 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev "
            "mlx5_5:1, curr state INIT, next state RTR, local GID index 3, local GID ::ffff:10.8.0.1, remote GID ::ffff:10.8.1.1",
            "mlx5_5",
            "::ffff:10.8.1.1",
        ),
        (
            "worker-1:5771:5783 [0] misc/ibvwrap.cc:160 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out",
            None,
            None,
        ),
        (
            "resnet-0:1:2 [0] misc/ibvwrap.cc:187 NCCL WARN Call to ibv_modify_qp failed with error Network is unreachable",
            None,
            None,
        ),
    ],
)
def test_case_28_adapters_that_cannot_connect(line, device, peer):
    said = trouble(line)
    assert (said.sign, said.device, said.peer) == (Sign.CONNECTION_REFUSED, device, peer)
    assert "NCCL_CROSS_NIC=0" in said.hint


def test_case_28_a_connection_that_is_tried_again_is_no_trouble_yet():
    line = "NCCL INFO Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1, retrying 1/3 after 100 msec"
    assert troubles(line) == ()


@pytest.mark.parametrize(
    "call", ["ibv_reg_mr", "ibv_reg_mr_iova2", "ibv_create_qp", "ibv_create_cq", "ibv_reg_dmabuf_mr"]
)
def test_case_15_memory_that_cannot_be_locked(call):
    said = trouble(f"h:1:1 [0] misc/ibvwrap.cc:150 NCCL WARN Call to {call} failed with error Cannot allocate memory")
    assert said.sign == Sign.MEMLOCK
    assert "IPC_LOCK" in said.hint


@pytest.mark.parametrize(
    "line",
    [
        "h:1:1 [0] NCCL WARN Error while creating shared memory segment /dev/shm/nccl-yQ4Fzq (size 9637888), error: No space "
        "left on device (28)",
        "RuntimeError: unable to write to file </torch_123_456>: No space left on device (28) /dev/shm/torch_123",
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\nBus error",
    ],
)
def test_case_16_shared_memory_that_is_full(line):
    found = [trouble(part) for part in line.split("\n")[-1:]]
    assert [one.sign for one in found] == [Sign.SHM_TOO_SMALL]


def test_case_16_a_worker_killed_by_a_bus_error_had_too_little_shared_memory():
    words = ending(Happened(attempt=1, node_rank=0, workers=(Ended(0, -7, 1.0, 1.0),)))
    assert words.trouble.sign == Sign.SHM_TOO_SMALL
    assert words.cause.startswith("rank 0 was killed by SIGBUS: it said nothing; ShmTooSmall: ")


def test_case_37_sockets_in_the_place_of_adapters_are_a_trouble_where_there_are_adapters():
    line = "train-0:1:1 [0] NCCL INFO Using network Socket"
    assert trouble(line).sign == Sign.RDMA_NOT_USED
    assert troubles(line, rdma=False) == ()
    assert (
        troubles("train-0:1:1 [0] NCCL INFO Using network IB", "train-0:1:1 [0] NCCL INFO Using network Libfabric")
        == ()
    )


def test_case_35_a_pod_without_devices_or_their_library():
    assert trouble("h:1:1 [0] NCCL INFO NET/IB : No device found.").sign == Sign.RDMA_DEVICE_MISSING
    assert troubles("h:1:1 [0] NCCL INFO NET/IB : No device found.", rdma=False) == ()
    said = trouble("h:1:1 [0] plugin/net.cc:349 NCCL WARN Failed to initialize any NET plugin", rdma=False)
    assert said.sign == Sign.RDMA_UNAVAILABLE


def test_case_18_gpudirect_that_is_off():
    said = trouble("h:1:1 [3] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 2 'mlx5_2'")
    assert (said.sign, said.device) == (Sign.GPUDIRECT_OFF, "mlx5_2")
    assert troubles("h:1:1 [3] NCCL INFO NET/IB : GPU Direct RDMA Enabled for HCA 2 'mlx5_2'") == ()


def test_case_13_an_interface_that_is_not_there():
    for line in (
        "h:1:1 [0] bootstrap.cc:126 NCCL WARN Bootstrap : no socket interface found",
        "h:1:1 [0] transport/net_socket.cc:77 NCCL WARN NET/Socket : no interface found",
    ):
        assert trouble(line).sign == Sign.INTERFACE_WRONG
    said = trouble(
        "RuntimeError: [enforce fail at ../gloo/transport/tcp/device.cc:84] Unable to find address for: eth9"
    )
    assert (said.sign, said.device) == (Sign.INTERFACE_WRONG, "eth9")


def test_case_24_pods_with_other_versions_of_the_library():
    line = (
        "h:1:1 [0] init.cc:1043 NCCL WARN Mismatched NCCL version detected : rank 0 version 22907 rank 8 version 23007"
    )
    assert trouble(line).sign == Sign.VERSION_MISMATCH


def test_case_5_adapters_of_two_kinds_used_together():
    line = (
        "h:1:1 [0] NCCL WARN NET/IB : Attempted to merge incompatible devices: [0]mlx5_0:1/IB and [1]mlx5_1:1/RoCE. Try "
        "selecting NICs of only one link type using NCCL_IB_HCA"
    )
    assert trouble(line).sign == Sign.MIXED_LINK_LAYERS


def test_case_31_a_topology_of_another_machine():
    assert (
        trouble("h:1:1 [0] graph/topo.cc:2048 NCCL WARN Could not find any local path from gpu 4 to net.").sign
        == Sign.TOPOLOGY_WRONG
    )


def test_case_40_nvlink_between_nodes_without_a_channel():
    line = "h:1:1 [0] NCCL WARN MNNVL (cliqueSize 8) is available but not working on this system. Check the IMEX configuration"
    assert trouble(line).sign == Sign.NVLINK_DOMAIN


def test_case_14_pods_that_gloo_cannot_bring_together():
    line = "RuntimeError: Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:144] no error, remote=[127.0.0.1]:3211"
    assert trouble(line).sign == Sign.PEER_UNREACHABLE


@pytest.mark.parametrize(
    "line",
    [
        "[rank3]:[E1127 20:35:40 ProcessGroupNCCL.cpp:683] [Rank 3] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=42, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.",
        "RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 120000ms for recv operation to complete",
    ],
)
def test_a_collective_that_timed_out_follows_from_something(line):
    said = trouble(line)
    assert (said.sign, said.bearing) == (Sign.COLLECTIVE_TIMEOUT, Bearing.SECONDARY)
    fabric, timeout = troubles(line, OLD.format(12, 129))
    assert (fabric.sign, timeout.sign) == (Sign.FABRIC_ERROR, Sign.COLLECTIVE_TIMEOUT)


@given(st.text(max_size=200))
def test_what_people_print_means_nothing(line):
    assert recognise(line.encode("utf-8", "replace")) is None


@pytest.mark.parametrize(
    "line", ["step 10 loss 2.3", "NCCL version 2.30.7+cuda13.0", "h:1:1 [0] NCCL INFO Connected all rings"]
)
def test_ordinary_lines_mean_nothing(line):
    assert troubles(line) == ()


LINES = [OLD.format(12, 129), "step 10", "h:1:1 [0] NCCL INFO Using network Socket", "Bus error", "x" * 5000]


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=20))
def test_however_output_is_cut_into_pieces_the_same_is_heard(sizes):
    whole = ("\n".join(LINES * 3) + "\n").encode()
    signs = Signs()
    signs.rdma = True
    ear = Ear(0, signs)
    at = 0
    for size in itertools.cycle(sizes):
        ear.hear(whole[at : at + size], 1.0)
        at += size
        if at >= len(whole):
            break
    ear.end(2.0)
    assert sorted((one.sign, one.count) for one in signs.found()) == [
        ("FabricError", 3),
        ("RdmaNotUsed", 3),
        ("ShmTooSmall", 3),
    ]


def test_a_line_without_end_takes_no_memory():
    ear = Ear(0, Signs())
    for _ in range(100):
        ear.hear(b"x" * 60_000, 1.0)
    assert len(ear._partial) <= LINE_BYTES


def test_many_troubles_are_kept_up_to_a_bound():
    found = troubles(*(f"{OLD.format(12, 129)} hca mlx5_{n}" for n in range(100)))
    assert len(found) == KEPT


OFF = "h:1:1 [3] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA {} 'mlx5_{}'"
SOCKETS = "train-0:1:1 [0] NCCL INFO Using network Socket"


def heard(*lines):
    signs = Signs()
    signs.rdma = True
    for at, line in enumerate(lines):
        signs.add(3, line.encode(), float(at))
    return signs


def test_case_18_however_many_adapters_are_slow_an_error_that_comes_later_is_kept_and_first():
    signs = heard(*(OFF.format(n, n) for n in range(16)), SOCKETS, NEW.format("IBV_WC_RETRY_EXC_ERR", 12, 129))
    first, *others = signs.found()
    assert (first.sign, first.device) == (Sign.FABRIC_ERROR, "mlx5_3")
    assert [one.sign for one in others].count(Sign.GPUDIRECT_OFF) == KEPT - 2
    assert Sign.RDMA_NOT_USED in [one.sign for one in others], "one of each sign stays"
    assert signs.cause() == first


def test_case_18_each_adapter_is_one_observation_however_many_ranks_say_so():
    found = troubles(*(OFF.format(n % 2, n % 2) for n in range(20)))
    assert [(one.device, one.count, one.bearing) for one in found] == [
        ("mlx5_0", 10, Bearing.OBSERVATION),
        ("mlx5_1", 10, Bearing.OBSERVATION),
    ]


@pytest.mark.parametrize("line", [OFF.format(2, 2), SOCKETS, "h:1:1 [0] NCCL INFO NET/IB : No device found."])
def test_case_18_what_is_only_observed_is_never_why_a_worker_failed(line):
    signs = heard(line)
    assert len(signs.found()) == 1
    assert signs.cause() is None
    words = ending(
        Happened(1, 0, workers=(Ended(3, 1, 1.0, 1.0, tail="ValueError: no such file"),), trouble=signs.cause())
    )
    assert (words.trouble, words.cause) == (None, "rank 3 exited 1: ValueError: no such file")


def test_of_what_follows_from_others_a_collective_that_timed_out_is_said():
    timeout = "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=42)"
    assert heard(OLD.format(5, 249), timeout).cause().sign == Sign.COLLECTIVE_TIMEOUT


def test_case_16_a_bus_error_explains_more_than_a_collective_that_timed_out():
    cause = heard("Timed out waiting 120000ms for recv operation to complete").cause()
    words = ending(Happened(1, 0, workers=(Ended(0, -7, 1.0, 1.0),), trouble=cause))
    assert words.trouble.sign == Sign.SHM_TOO_SMALL


def test_the_last_words_name_the_cause_with_adapter_and_peer():
    found = troubles(NEW.format("IBV_WC_RETRY_EXC_ERR", 12, 129))
    words = ending(
        Happened(attempt=1, node_rank=0, workers=(Ended(3, 1, 1.0, 1.0, tail="RuntimeError: NCCL"),), trouble=found[0])
    )
    assert words.trouble == found[0]
    assert words.cause.startswith(
        "rank 3 exited 1: RuntimeError: NCCL; FabricError (mlx5_3, peer 10.216.210.236): the peer did not"
    )


def test_a_gang_that_is_done_has_no_cause():
    found = troubles(OLD.format(12, 129))
    assert ending(Happened(attempt=1, node_rank=0, workers=(Ended(3, 0, 1.0, 1.0),), trouble=found[0])).trouble is None


# Counters


@pytest.fixture
def counted(tmp_path):
    machine = Machine(tmp_path).hca("mlx5_0").hca("mlx5_10").hca("mlx5_2")
    for name, value in (
        ("np_cnp_sent", 7),
        ("rp_cnp_handled", 9),
        ("out_of_sequence", 3),
        ("packet_seq_err", 4),
        ("lifespan", 10),
    ):
        machine.write(f"sys/class/infiniband/mlx5_2/ports/1/hw_counters/{name}", str(value))
    machine.write("sys/class/infiniband/mlx5_2/ports/1/hw_counters/roce_adp_retrans", "12")
    machine.write("sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_wait", "100")
    machine.write("sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data", "250")
    machine.write("sys/class/infiniband/mlx5_10/ports/1/counters/port_xmit_wait", "N/A (no PMA)")
    return tmp_path


def test_counters_are_told_by_rail(counted):
    found = {(one.device, one.rail, one.kind): one.value for one in count(counted, ["mlx5_0", "mlx5_2"])}
    assert found == {
        ("mlx5_2", 1, "cnp_sent"): 7,
        ("mlx5_2", 1, "cnp_handled"): 9,
        ("mlx5_2", 1, "out_of_sequence"): 7,
        ("mlx5_2", 1, "retransmits"): 12,
        ("mlx5_0", 0, "pause"): 100,
        ("mlx5_0", 0, "sent_bytes"): 1000,
    }


def test_an_adapter_that_collectives_do_not_use_has_no_rail(counted):
    assert {one.rail for one in count(counted) if one.device == "mlx5_2"} == {None}


def test_a_machine_without_adapters_has_no_counters(tmp_path):
    assert list(count(tmp_path)) == []


def test_every_counter_has_a_meaning():
    assert all(meaning(kind) for kind, _, _ in (*KINDS, *WORDS))


def test_the_network_in_prometheus_text(counted):
    failed = PreflightResult(Finding.FAILED, "slow", 2.5, 1e8, 1e9, ("node-3",))
    said = network_text(
        count(counted, ["mlx5_0", "mlx5_2"]), troubles(NEW.format("IBV_WC_RETRY_EXC_ERR", 12, 129)), failed
    )
    assert 'trainyard_trainer_rdma_cnp_sent_total{device="mlx5_2",port="1",rail="1"} 7.0\n' in said
    assert "# TYPE trainyard_trainer_rdma_cnp_sent_total counter\n" in said
    assert (
        'trainyard_trainer_trouble_total{reason="FabricError",device="mlx5_3",peer="10.216.210.236",rank="3"} 1.0\n'
        in said
    )
    assert 'trainyard_trainer_preflight{finding="failed"} 1.0\n' in said
    assert "trainyard_trainer_preflight_bus_bandwidth_bytes 100000000.0\n" in said
    assert network_text([], (), None) == ""
    assert said.count("# TYPE") == len({line.split()[2] for line in said.splitlines() if line.startswith("# TYPE")})
    assert "\n\n" not in text(a_plan(), 0, [], None, 0.0) + said
