"""What a gang proves before its first step, and what comes of it when a node does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.pretend import Pretend
from trainyard.api import names
from trainyard.api.conditions import Reason
from trainyard.api.fabric import FabricSpec
from trainyard.contract.network import Alike, PodNetwork, Trouble
from trainyard.contract.plan import Plan
from trainyard.contract.preflight import Finding, Preflight, PreflightResult
from trainyard.cycle import actions as act
from trainyard.lifecycle import deadlines
from trainyard.planner.collectives import Collective, bus_factor
from trainyard.world.records import Fabric
from unit.planner.measured import SYSTEMS

KIND = "node.kubernetes.io/instance-type"


@pytest.fixture
def cluster() -> Pretend:
    return Pretend().with_nodes().with_class("low", 10).with_class("high", 100)


def plan(cluster: Pretend, attempt: int = 1, name: str = "train") -> Plan:
    return cluster.plans["team", f"{name}-plan-{attempt}"]


def asked(cluster: Pretend, attempt: int = 1, name: str = "train") -> Preflight:
    found = plan(cluster, attempt, name).preflight
    assert found is not None
    return found


def running(cluster: Pretend, attempt: int = 1, name: str = "train", limit: int = 200) -> Pretend:
    return cluster.until(
        lambda: cluster.status(name).attempt == attempt and cluster.status(name).phase == "Running", limit
    )


def described(cluster: Pretend, **levels: str) -> None:
    """A Fabric of 10 Gb/s interfaces; levels: bandwidth of the uplink of a domain."""
    keys = {"spine": "network.topology.nvidia.com/spine", "leaf": "network.topology.nvidia.com/leaf"}
    tiers = [
        {"name": n, "nodeLabel": key, **({"bandwidth": levels[n]} if n in levels else {})} for n, key in keys.items()
    ]
    raw = {"kind": "tcp", "levels": tiers, "node": {"nics": 1, "nicBandwidth": "10Gbps"}}
    cluster.fabrics["ours"] = Fabric("ours", FabricSpec.model_validate(raw))


# What is asked ----------------------------------------------------------------------------------------------------------------


def test_nothing_is_expected_of_a_network_that_nobody_described(cluster: Pretend) -> None:
    cluster.submit("train", 4)
    running(cluster)
    found = asked(cluster)
    assert (found.expected_seconds, found.edge_bytes_per_second, found.nodes, found.alone) == (None, (), None, False)


def test_a_gang_is_expected_to_be_as_fast_as_its_plan_predicts(cluster: Pretend) -> None:
    described(cluster, leaf="10Gbps", spine="10Gbps")
    cluster.submit("train", 8)
    running(cluster)
    found, summary = asked(cluster), cluster.status("train").plan
    assert summary is not None
    assert found.expected_seconds is not None
    bus = bus_factor(Collective.ALL_REDUCE, 8) * found.message_bytes / found.expected_seconds
    assert bus == pytest.approx(summary.predicted_bus_bandwidth, rel=0.1)
    assert found.edge_bytes_per_second[0] < found.edge_bytes_per_second[2] * 1.001
    assert all(edge > 0 for edge in found.edge_bytes_per_second)
    assert found.alone


def test_a_fast_network_is_measured_by_a_message_at_which_the_model_is_right(cluster: Pretend) -> None:
    for node in cluster.nodes.values():
        node.labels.update({KIND: "p6-b200.48xlarge", "nvidia.com/gpu.product": "NVIDIA-B200"})  # type: ignore[attr-defined]
    cluster.submit("train", 4, processesPerNode=8)
    running(cluster)
    found = asked(cluster)
    assert found.message_bytes == 2**30
    assert found.expected_seconds is not None
    bus = bus_factor(Collective.ALL_REDUCE, 32) * found.message_bytes / found.expected_seconds
    assert bus == pytest.approx(dict(SYSTEMS["4 x p6-b200.48xlarge"].rows)[2**30] * 1e9, rel=0.1)


def test_a_message_is_lost_only_after_longer_than_it_should_take_and_the_network_needs_to_repeat_it(
    cluster: Pretend,
) -> None:
    cluster.submit("train", 8)
    running(cluster)
    assert 30 < asked(cluster).lost_seconds < 35
    cluster.delete_job("train")
    described(cluster, leaf="8Mbps", spine="8Mbps")
    cluster.submit("slow", 8)
    running(cluster, name="slow")
    found = asked(cluster, name="slow")
    assert found.expected_seconds is not None
    assert found.lost_seconds > 30 + 5 * found.expected_seconds > 60


def test_of_ways_up_that_nobody_described_no_speed_is_demanded(cluster: Pretend) -> None:
    described(cluster)
    cluster.submit("train", 4)
    running(cluster)
    found = asked(cluster)
    assert found.edge_bytes_per_second[:2] == (0.0, 0.0)
    assert found.edge_bytes_per_second[2] > 0
    assert not found.alone


def test_who_shares_its_links_is_not_alone(cluster: Pretend) -> None:
    described(cluster, leaf="10Gbps", spine="10Gbps")
    cluster.submit("first", 3)
    cluster.until(cluster.phase_is("first", "Running"))
    cluster.submit("train", 3)
    running(cluster)
    assert asked(cluster, name="first").alone
    assert not asked(cluster).alone


@pytest.mark.parametrize(("nodes", "spec"), [(1, {}), (4, {"network": {"preflight": False}})])
def test_who_has_no_peers_or_does_not_want_to_proves_nothing(
    cluster: Pretend, nodes: int, spec: dict[str, object]
) -> None:
    cluster.submit("train", nodes, **spec)
    running(cluster)
    assert plan(cluster).preflight is None


def test_the_status_says_what_was_measured(cluster: Pretend) -> None:
    cluster.submit("train", 4)
    running(cluster)
    network = cluster.status("train").network
    assert network is not None
    assert network.preflight is not None
    assert (network.preflight.finding, network.preflight.bus_bandwidth) == ("passed", 1e9)


# A node is found unfit --------------------------------------------------------------------------------------------------------


def test_a_slow_node_is_left_out_and_the_gang_starts_elsewhere_free_of_charge(cluster: Pretend) -> None:
    cluster.submit("train", 4)
    cluster.operate()
    bad = plan(cluster).members[1].node
    cluster.slow.add(bad)
    began = cluster.now
    running(cluster, 2)
    status = cluster.status("train")
    assert cluster.now - began < 30
    assert bad not in cluster.nodes_of("train")
    assert (status.restarts.failures, status.restarts.unfit) == (0, 1)
    listed = [(one.node, one.reason, one.until - one.time) for one in status.avoid]
    assert listed == [(bad, Reason.PREFLIGHT_FAILED, deadlines.AVOID)]
    told = [message for _, reason, message in cluster.events if reason == Reason.PREFLIGHT_FAILED]
    assert len(told) == 1
    assert f"; the job does without {bad} until" in told[0]
    assert status.last_failure is not None
    assert (status.last_failure.node, status.last_failure.reason) == (bad, Reason.PREFLIGHT_FAILED)


def test_a_verdict_counts_as_soon_as_it_is_heard_and_whoever_ends_first(cluster: Pretend) -> None:
    """Workers that lose their peers end by an error of their own before the others have left by 77."""
    cluster.submit("train", 4)
    cluster.operate()
    bad = plan(cluster).members[1].node
    cluster.until(lambda: len(cluster.launchers) == 4, 10)
    verdict = PreflightResult(Finding.FAILED, f"{bad} reaches 1 MB/s", nodes=(bad,))
    for launcher in cluster.launchers.values():
        launcher.preflight, launcher.step = verdict, 0
    cluster._answer()
    cluster._end(cluster.pod("train-3"), 1, "Error")
    running(cluster, 2)
    assert bad not in cluster.nodes_of("train")
    assert (cluster.status("train").restarts.failures, cluster.status("train").restarts.unfit) == (0, 1)


def test_the_others_keep_their_ranks(cluster: Pretend) -> None:
    cluster.submit("train", 3)
    cluster.operate()
    before = [member.node for member in plan(cluster).members]
    cluster.slow.add(before[1])
    running(cluster, 2)
    after = [member.node for member in plan(cluster, 2).members]
    assert [node for n, node in enumerate(after) if n != 1] == [node for n, node in enumerate(before) if n != 1]


def test_other_jobs_may_have_the_node(cluster: Pretend) -> None:
    cluster.submit("train", 4)
    cluster.operate()
    bad = plan(cluster).members[0].node
    cluster.slow.add(bad)
    running(cluster, 2)
    cluster.slow.clear()
    cluster.submit("other", 4)
    running(cluster, name="other")
    assert bad in cluster.nodes_of("other")


def test_where_there_is_no_other_place_the_job_waits_and_says_what_it_does_without_and_until_when(
    cluster: Pretend,
) -> None:
    cluster.submit("train", 8)
    cluster.slow.add("a1")
    cluster.until(lambda: cluster.status("train").restarts.unfit == 1).tick(120)
    status = cluster.status("train")
    assert (status.phase, status.attempt, status.restarts.unfit) == ("Pending", 1, 1)
    assert status.pending is not None
    assert "the job does without a1 until" in status.pending.message
    assert "a1 reaches 1 MB/s" in status.pending.message
    assert any("a1 may be tried again" in line for line in status.pending.unblock)
    cluster.slow.clear()
    cluster.now += deadlines.AVOID
    running(cluster, 2)
    assert cluster.status("train").avoid == ()


def test_attempts_that_find_one_bad_node_after_the_other_back_off(cluster: Pretend) -> None:
    cluster.submit("train", 2)
    cluster.slow.update({"a0", "a2", "b0"})
    starts: list[float] = []
    for attempt in (1, 2, 3):
        cluster.until(lambda n=attempt: cluster.status("train").attempt == n)  # type: ignore[misc]
        starts.append(cluster.now)
    running(cluster, 4)
    assert set(cluster.nodes_of("train")) == {"b2", "b3"}
    assert (cluster.status("train").restarts.failures, cluster.status("train").restarts.unfit) == (0, 3)
    assert cluster.now - starts[2] > starts[2] - starts[1] >= 5


def test_a_gang_that_is_slow_as_a_whole_pays_for_it_and_says_so_when_it_is_placed_again(cluster: Pretend) -> None:
    cluster.hopeless = True
    cluster.submit("train", 8, restart={"failures": 2, "per": "24h"})
    cluster.until(cluster.phase_is("train", "Failed"), 600)
    status = cluster.status("train")
    assert (status.restarts.failures, status.avoid) == (3, ())
    again = [m for _, reason, m in cluster.events if reason == Reason.GANG_STARTED and "attempt 2" in m]
    assert "attempt 1 failed before its first step, and no node was to blame" in again[0]


def test_a_node_that_was_reserved_before_it_was_found_unfit_is_not_taken(cluster: Pretend) -> None:
    cluster.submit("train", 4)
    cluster.operate()
    bad = plan(cluster).members[0].node
    cluster.slow.add(bad)
    for other in set(cluster.nodes) - {member.node for member in plan(cluster).members}:
        cluster.foreign(other)
    cluster.until(lambda: cluster.status("train").restarts.unfit == 1).tick(60)
    assert cluster.status("train").attempt == 1
    assert cluster.nodes_of("train") == []


def test_a_successor_knows_which_node_was_unfit(cluster: Pretend) -> None:
    cluster.submit("train", 4)
    cluster.operate()
    bad = plan(cluster).members[2].node
    cluster.slow.add(bad)
    for _ in range(20):
        cluster.now += 1
        cluster._move()
        cluster.operate(1)
        if cluster.status("train").ending is not None:
            break
    assert cluster.status("train").started_at is not None
    cluster.answers.clear()
    cluster.trials.clear()
    for uid, pod in list(cluster.pods.items()):
        cluster.pods[uid] = replace(pod, held=False, deleted=cluster.now)
        cluster._reap(uid, force=True)
    running(cluster, 2)
    assert bad not in cluster.nodes_of("train")


# Nodes that passed ------------------------------------------------------------------------------------------------------------


def test_nodes_that_passed_within_the_hour_are_not_measured_again(cluster: Pretend) -> None:
    cluster.submit("train", 3)
    running(cluster).tick(15)
    cluster.crash("train-1")
    running(cluster, 2).tick(5)
    assert asked(cluster, 2).nodes == ()
    lost = cluster.nodes_of("train")[2]
    cluster.lose_node(lost)
    running(cluster, 3).tick(5)
    assert asked(cluster, 3).nodes == (2,)
    cluster.now += deadlines.PROVEN
    cluster.crash("train-1")
    running(cluster, 4)
    assert asked(cluster, 4).nodes is None


@pytest.mark.parametrize("code", [76, 1])
def test_after_a_hang_all_are_measured_again(cluster: Pretend, code: int) -> None:
    """By the launcher's own verdict, or by a collective that timed out before."""
    cluster.submit("train", 4)
    running(cluster).tick(5)
    timeout = Trouble("CollectiveTimeout", 0, cluster.now, "Watchdog", bearing="secondary")
    cluster._end(cluster.pod("train-0"), code, "Error", trouble=timeout if code == 1 else None)
    running(cluster, 2)
    assert asked(cluster, 2).nodes is None


def test_a_plan_is_the_same_whenever_it_is_made(cluster: Pretend) -> None:
    """What is expected is what was said when the attempt was opened, whatever an administrator says meanwhile."""
    described(cluster, leaf="10Gbps", spine="10Gbps")
    cluster.submit("train", 4)
    running(cluster).tick(3)
    for pod in list(cluster.pods.values()):
        cluster._end(pod, 1, "Error")
    seen = []

    def watch(action: act.Action) -> bool:
        if isinstance(action, act.Create) and action.manifest["kind"] == "Pod":
            seen.append(action.manifest["metadata"]["annotations"][names.ANNOTATION_PLAN])
            described(cluster, leaf="1Gbps", spine="1Gbps")
            return len(seen) % 2 == 1
        return False

    cluster.interrupt = watch
    running(cluster, 2)
    assert len(seen) > 4
    assert len(set(seen)) == 1


# What pods find of their networks ---------------------------------------------------------------------------------------------

ALIKE = Alike(link_layer="Ethernet", adapters=8, rate_gbps=400.0, mtu=4096, family="AF_INET", nccl=(2, 27, 3))


def found(**other: object) -> PodNetwork:
    return PodNetwork(alike=replace(ALIKE, **other))  # type: ignore[arg-type]


def test_what_only_costs_is_a_warning(cluster: Pretend) -> None:
    cluster.networks = {node: found() for node in cluster.nodes} | {"a1": found(rate_gbps=200.0)}
    cluster.submit("train", 8)
    running(cluster).tick(5)
    network = cluster.status("train").network
    assert network is not None
    line = next(line for line in network.warnings if "Gb/s of each adapter" in line)
    assert "200 on a1" in line
    assert [m for _, reason, m in cluster.events if reason == Reason.NODES_UNLIKE] == [line]


def test_who_would_hang_the_gang_is_left_out_before_it_does(cluster: Pretend) -> None:
    cluster.trains = False
    cluster.submit("train", 4)
    cluster.operate()
    odd = plan(cluster).members[3].node
    cluster.networks = {node: found() for node in cluster.nodes} | {odd: found(link_layer="InfiniBand")}
    cluster.until(lambda: cluster.status("train").restarts.unfit == 1, 20)
    failure = cluster.status("train").last_failure
    assert failure is not None
    assert (failure.reason, failure.node) == (Reason.NODES_UNLIKE, odd)
    assert "link layer: Ethernet on 3 nodes, InfiniBand on" in failure.message
    cluster.trains = True
    running(cluster, 2)
    assert odd not in cluster.nodes_of("train")


def test_what_one_node_lacks_counts_unless_the_job_wants_no_preflight(cluster: Pretend) -> None:
    cluster.submit("train", 4)
    cluster.submit("bold", 4, network={"preflight": False})
    cluster.operate()
    for name in ("train", "bold"):
        cluster.networks[plan(cluster, name=name).members[1].node] = PodNetwork(faults=("mlx5_3 has no link",))
    cluster.until(lambda: cluster.status("train").restarts.unfit == 1, 20)
    running(cluster, name="bold")
    network = cluster.status("bold").network
    assert network is not None
    assert any("mlx5_3 has no link" in line for line in network.warnings)


@pytest.mark.parametrize("preflight", [True, False])
def test_case_13_an_interface_that_one_node_says_wrongly_leaves_out_that_node_and_one_that_all_have_none(
    cluster: Pretend, preflight: bool
) -> None:
    cluster.trains = False
    stranded = PodNetwork(faults=("GLOO_SOCKET_IFNAME: 'eth9' is no interface here",), stranded=True)
    cluster.submit("train", 4, network={"preflight": preflight})
    cluster.operate()
    odd = plan(cluster).members[2].node
    cluster.networks[odd] = stranded
    cluster.until(lambda: cluster.status("train").restarts.unfit == 1, 20)
    assert [one.node for one in cluster.status("train").avoid] == [odd]
    cluster.delete_job("train")
    cluster.networks = dict.fromkeys(cluster.nodes, stranded)
    cluster.submit("all", 4, restart={"failures": 1, "per": "24h"}, network={"preflight": preflight})
    cluster.until(cluster.phase_is("all", "Failed"), 200)
    assert cluster.status("all").avoid == ()


def test_what_all_nodes_lack_is_no_fault_of_theirs(cluster: Pretend) -> None:
    cluster.networks = {node: PodNetwork(faults=("NCCL_IB_HCA: '=mlx5_9' means none",)) for node in cluster.nodes}
    cluster.submit("train", 4, restart={"failures": 1, "per": "24h"})
    cluster.until(cluster.phase_is("train", "Failed"), 200)
    assert cluster.status("train").avoid == ()


@pytest.mark.parametrize(("rails", "warned"), [(None, True), ("isolated", False)])
def test_case_29_rings_that_an_old_library_builds_wrongly_only_where_rails_may_talk(
    cluster: Pretend, rails: str | None, warned: bool
) -> None:
    said = {"kind": "roce", "rdma": {"rails": rails} if rails else {}}
    cluster.fabrics["ours"] = Fabric("ours", FabricSpec.model_validate(said))
    cluster.networks = {node: found(nccl=(2, 21, 5)) for node in cluster.nodes}
    cluster.submit("train", 4)
    running(cluster).tick(5)
    network = cluster.status("train").network
    assert network is not None
    assert any("alternating rings" in line for line in network.warnings) is warned


def test_case_43_one_accelerator_of_each_pod_and_an_old_library(cluster: Pretend) -> None:
    cluster.networks = {node: found(nccl=(2, 17, 1)) for node in cluster.nodes}
    for name, gpus in (("one", 1), ("all", 8)):
        container = {"name": "trainer", "image": "x", "resources": {"limits": {"nvidia.com/gpu": gpus}}}
        cluster.submit(name, 2, template={"spec": {"containers": [container]}})
        running(cluster, name=name).tick(5)
        network = cluster.status(name).network
        assert network is not None
        assert any("all take the same adapter" in line for line in network.warnings) is (gpus == 1)
