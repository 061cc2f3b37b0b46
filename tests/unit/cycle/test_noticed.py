"""What pods find of their network, and what libraries run by, is said in status and in Events though it fails nothing."""

from __future__ import annotations

from support.pretend import Pretend
from trainyard.api.conditions import Reason
from trainyard.contract.network import PodNetwork, Trouble
from trainyard.lifecycle.noticed import CHARACTERS, MOST
from trainyard.network.settings import MOST_WARNINGS

SMALL = "/dev/shm has 64 MiB, and processes of a node share 1 GiB or more in it"


def gang(**found: tuple[str, ...]) -> Pretend:
    """A gang of four whose pods find these warnings, by node."""
    cluster = Pretend().with_nodes()
    cluster.networks = {node: PodNetwork(warnings=warnings) for node, warnings in found.items()}
    cluster.submit("train", 4)
    return cluster.until(cluster.phase_is("train", "Running")).tick(5)


def warnings(cluster: Pretend) -> tuple[str, ...]:
    network = cluster.status("train").network
    assert network is not None
    return network.warnings


def told(cluster: Pretend, *reasons: Reason) -> list[str]:
    return [message for _, reason, message in cluster.events if reason in reasons]


def off(device: str) -> Trouble:
    return Trouble("GpuDirectOff", 0, 1.0, "NCCL INFO", "through the host's memory", device, bearing="observation")


def test_what_pods_find_stands_in_status_and_in_one_event_however_many_say_it() -> None:
    cluster = gang(a0=(SMALL,), a1=(SMALL, "no libibverbs"), a2=(SMALL,), a3=(SMALL,))
    lines = [f"{SMALL} (on all 4 nodes)", "no libibverbs (on a1)"]
    assert [line for line in warnings(cluster) if "(on " in line] == lines
    assert told(cluster, Reason.NETWORK_DOUBTFUL) == lines
    assert len(told(cluster.tick(60), Reason.NETWORK_DOUBTFUL)) == 2, "once, however long it runs"


def test_lines_that_differ_in_a_number_are_one() -> None:
    cluster = gang(
        a0=("mlx5_0: its PCIe link is slow", "mlx5_1: its PCIe link is slow"), a3=("mlx5_7: its PCIe link is slow",)
    )
    assert told(cluster, Reason.NETWORK_DOUBTFUL) == ["mlx5_0: its PCIe link is slow (on a0, a3)"]


def test_case_18_gpudirect_that_is_off_is_told_while_the_job_runs_and_ends_nothing() -> None:
    cluster = gang()
    cluster.troubles["a0"] = (off("mlx5_0"), off("mlx5_1"))
    cluster.tick(5)
    said = "GpuDirectOff: through the host's memory"
    assert told(cluster, Reason.GPUDIRECT_OFF) == [f"{said} (on a0)"]
    cluster.troubles |= {node: (off("mlx5_0"),) for node in ("a1", "a2", "a3")}
    cluster.tick(30)
    assert warnings(cluster)[0] == f"{said} (on all 4 nodes)"
    assert len(told(cluster, Reason.GPUDIRECT_OFF)) == 1, "more nodes are the same news"
    status = cluster.status("train")
    assert (status.phase, status.attempt) == ("Running", 1)


def test_case_37_sockets_in_the_place_of_adapters_are_told_while_the_job_runs() -> None:
    cluster = gang()
    cluster.troubles["a2"] = (Trouble("RdmaNotUsed", 16, 1.0, "line", "over sockets", bearing="observation"),)
    assert told(cluster.tick(5), Reason.RDMA_NOT_USED) == ["RdmaNotUsed: over sockets (on a2)"]


def test_an_error_is_for_the_end_to_name() -> None:
    cluster = gang()
    cluster.troubles["a0"] = (
        Trouble("FabricError", 0, 1.0, "line"),
        Trouble("OfANewerLauncher", 0, 1.0, "", bearing="observation"),
    )
    before = warnings(cluster)
    assert warnings(cluster.tick(5)) == before
    assert told(cluster, Reason.FABRIC_ERROR) == []


def test_whatever_pods_say_a_status_and_its_events_are_bounded() -> None:
    words = ("".join(chr(97 + n) for n in (i % 26, i // 26)) for i in range(200))
    cluster = gang(a0=tuple(f"{word} {'x' * 5000}" for word in words))
    cluster.troubles["a1"] = (off("mlx5_0"),)
    cluster.tick(5)
    assert len(told(cluster, Reason.NETWORK_DOUBTFUL)) == MOST
    assert len(warnings(cluster)) <= MOST_WARNINGS
    assert max(map(len, warnings(cluster))) <= CHARACTERS + 100
    assert told(cluster, Reason.GPUDIRECT_OFF), "what is seen while it runs comes first"
    assert len(told(cluster.tick(30), Reason.NETWORK_DOUBTFUL)) == MOST


def test_another_attempt_says_it_again() -> None:
    cluster = gang(a1=(SMALL,))
    cluster.crash("train-0")
    cluster.until(lambda: cluster.status("train").attempt == 2 and cluster.status("train").phase == "Running").tick(5)
    assert f"{SMALL} (on a1)" in warnings(cluster)
