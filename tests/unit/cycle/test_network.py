"""What a gang's network is called, and that a gang on two networks does not start."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.pretend import Pretend
from trainyard.api.conditions import Reason
from trainyard.api.fabric import FabricSpec
from trainyard.api.training_job import Network
from trainyard.contract.network import PodNetwork, Resolved
from trainyard.cycle import actions as act
from trainyard.world.capacity import place_of
from trainyard.world.records import Fabric

KIND = "node.kubernetes.io/instance-type"


@pytest.fixture
def cluster() -> Pretend:
    return Pretend().with_nodes()


def of_kind(cluster: Pretend, kind: str, *names: str) -> None:
    """Make nodes of this kind, with the devices that its network has."""
    for name in names:
        node = cluster.nodes[name]
        offers = {**node.allocatable, "vpc.amazonaws.com/efa": 32}
        cluster.nodes[name] = replace(node, labels={**node.labels, KIND: kind}, allocatable=offers)


def test_the_status_says_what_network_it_is_how_much_was_written_and_what_to_change(cluster: Pretend) -> None:
    of_kind(cluster, "p5.48xlarge", *cluster.nodes)
    cluster.submit("train", 4, network={"env": [{"name": "NCCL_IB_HCAS", "value": "mlx5"}]})
    cluster.until(cluster.phase_is("train", "Running"))
    told = cluster.status("train").network
    assert told is not None
    assert told.fabric == "aws-efa"
    assert told.settings >= 8
    assert [line for line in told.warnings if "NCCL_IB_HCA is nearest" in line]
    assert {message for _, reason, message in cluster.events if reason == Reason.QUESTIONABLE_SETTINGS} == set(
        told.warnings
    )


def test_a_job_that_switches_adapters_off_has_a_condition_that_says_so(cluster: Pretend) -> None:
    cluster.fabrics["ours"] = Fabric("ours", FabricSpec.model_validate({"profile": "roce", "interface": "eth0"}))
    cluster.submit("train", 4, network={"env": [{"name": "NCCL_IB_DISABLE", "value": "1"}]})
    cluster.submit("other", 2)
    cluster.until(lambda: cluster.status("train").phase == cluster.status("other").phase == "Running")
    of = {name: [c for c in cluster.status(name).conditions if c.type == "RdmaDisabled"] for name in ("train", "other")}
    assert [(c.status, c.reason) for c in of["train"]] == [("True", Reason.RDMA_DISABLED_BY_USER)]
    assert of["train"][0].message.startswith("NCCL_IB_DISABLE=1 of the job: collectives run over sockets")
    assert of["other"] == []


def test_the_status_says_of_each_variable_who_set_it_and_why_and_on_how_many_nodes(cluster: Pretend) -> None:
    cluster.fabrics["ours"] = Fabric("ours", FabricSpec.model_validate({"profile": "roce", "interface": "eth0"}))
    hcas = {"a0": "mlx5_0", "a1": "mlx5_1", "a2": "mlx5_1", "a3": "mlx5_1"}
    for name, listed in hcas.items():
        cluster.nodes[name] = replace(cluster.nodes[name], annotations={"trainyard.dev/hcas": listed})
    for name in ("b0", "b1", "b2", "b3"):
        cluster.foreign(name)
    found = Resolved("NCCL_IB_GID_INDEX", "3", "NCCL 2.20.5 takes row 0 unless told")
    cluster.networks = {name: PodNetwork(settings=(found,) if name != "a0" else ()) for name in cluster.nodes}
    cluster.submit("train", 4, network={"env": [{"name": "NCCL_DEBUG", "value": "INFO"}]})
    cluster.until(cluster.phase_is("train", "Running")).tick(5)
    told = cluster.status("train").network
    assert told is not None
    of = [(one.name, one.value, one.source, one.nodes) for one in told.variables]
    assert ("NCCL_IB_HCA", "=mlx5_0", "derived", 1) in of
    assert ("NCCL_IB_HCA", "=mlx5_1", "derived", 3) in of
    assert ("NCCL_IB_TC", "106", "derived", None) in of
    assert ("NCCL_DEBUG", "INFO", "job", None) in of
    assert ("NCCL_IB_GID_INDEX", "3", "pod", 3) in of
    assert all(one.reason for one in told.variables)


def test_a_gang_that_would_lie_on_two_networks_waits_and_says_so(cluster: Pretend) -> None:
    of_kind(cluster, "p5.48xlarge", "a0", "a1", "a2", "a3")
    of_kind(cluster, "a4-highgpu-8g", "b0", "b1", "b2", "b3")
    cluster.submit("train", 8)
    cluster.tick(60)
    status = cluster.status("train")
    assert (status.phase, status.attempt) == ("Pending", 0)
    assert status.pending is not None
    assert status.pending.reason == Reason.NETWORK_UNCLEAR
    assert "4 on aws-efa, 4 on gcp-gib" in status.pending.message
    assert cluster.pods == {}
    of_kind(cluster, "p5.48xlarge", "b0", "b1", "b2", "b3")
    cluster.until(cluster.phase_is("train", "Running"))


def test_a_gang_is_looked_for_on_each_network_by_itself(cluster: Pretend) -> None:
    of_kind(cluster, "p5.48xlarge", "a0", "a1", "a2", "b0", "b1")
    of_kind(cluster, "a4-highgpu-8g", "a3", "b2", "b3")
    cluster.submit("three", 3)
    cluster.submit("five", 5)
    cluster.until(lambda: cluster.status("three").phase == cluster.status("five").phase == "Running")
    assert set(cluster.nodes_of("three")) == {"a3", "b2", "b3"}
    assert set(cluster.nodes_of("five")) == {"a0", "a1", "a2", "b0", "b1"}


def test_a_gang_takes_the_nodes_of_others_on_one_network_rather_than_of_two(cluster: Pretend) -> None:
    cluster.with_class("low", 10).with_class("high", 100)
    of_kind(cluster, "p5.48xlarge", "a0", "a1", "a2", "a3")
    of_kind(cluster, "a4-highgpu-8g", "b0", "b1", "b2", "b3")
    cluster.submit("lower", 2, priorityClassName="low")
    cluster.until(cluster.phase_is("lower", "Running"))
    lower = set(cluster.nodes_of("lower"))
    cluster.foreign("b0" if lower & {"a0", "a1", "a2", "a3"} else "a0")
    cluster.submit("higher", 4, priorityClassName="high")
    cluster.until(cluster.phase_is("higher", "Running"))
    assert len({node[0] for node in cluster.nodes_of("higher")}) == 1


def test_nodes_that_were_reserved_and_are_now_on_another_network_are_given_back(cluster: Pretend) -> None:
    cluster.with_class("low", 10).with_class("high", 100)
    of_kind(cluster, "p5.48xlarge", *cluster.nodes)
    for node in ("b0", "b1", "b2", "b3"):
        cluster.foreign(node)
    cluster.submit("lower", 4, priorityClassName="low")
    cluster.until(cluster.phase_is("lower", "Running")).tick(3)
    cluster.save_seconds = 20.0
    cluster.submit("higher", 4, priorityClassName="high")
    cluster.until(lambda: cluster.status("higher").reservation is not None).tick(2)
    of_kind(cluster, "a4-highgpu-8g", "a0")
    cluster.until(lambda: cluster.status("lower").phase == "Pending").tick(5)
    waits = cluster.status("higher")
    assert (waits.phase, waits.attempt) == ("Pending", 0)
    assert not any(pod.name.startswith("higher") for pod in cluster.pods.values())


def test_a_network_that_does_not_exist_is_waited_for(cluster: Pretend) -> None:
    cluster.submit("train", 2, network={"fabric": "roec"})
    cluster.tick(30)
    pending = cluster.status("train").pending
    assert pending is not None
    assert (pending.reason, "roec is neither a Fabric nor built in" in pending.message) == (
        Reason.NETWORK_UNCLEAR,
        True,
    )
    cluster.edit("train", network=Network(fabric="tcp"))
    cluster.until(cluster.phase_is("train", "Running"))
    told = cluster.status("train").network
    assert told is not None
    assert told.fabric == "tcp"


def test_pods_without_accelerators_may_lie_on_two_networks_and_are_told(cluster: Pretend) -> None:
    of_kind(cluster, "p5.48xlarge", "a0", "a1", "a2", "a3")
    template = {
        "spec": {
            "containers": [
                {
                    "name": "trainer",
                    "image": "trainyard/trainer:0.1.0",
                    "resources": {"limits": {"cpu": "60"}},
                    "volumeMounts": [{"name": "checkpoints", "mountPath": "/checkpoints"}],
                }
            ],
            "volumes": [{"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints"}}],
        }
    }
    cluster.submit("train", 8, template=template)
    cluster.until(cluster.phase_is("train", "Running"))
    told = cluster.status("train").network
    assert told is not None
    assert "different networks" in told.warnings[0]


# What the network adds is taken from the node ---------------------------------------------------------------------------------


def overbooked(cluster: Pretend) -> list[str]:
    """Nodes on which more is asked for than there is."""
    found = []
    for name, node in cluster.nodes.items():
        pods = [pod for pod in cluster.pods.values() if pod.live and place_of(pod) == name]
        asked = {resource for pod in pods for resource in pod.requests}
        if any(sum(p.requests.get(r, 0) for p in pods) > node.allocatable.get(r, 0) for r in asked):
            found.append(name)
    return found


def test_interfaces_that_the_network_adds_are_not_promised_twice(cluster: Pretend) -> None:
    of_kind(cluster, "p5.48xlarge", *cluster.nodes)
    cluster.foreign("a0", gpus=0, **{"vpc.amazonaws.com/efa": 1})
    cluster.submit("train", 8)
    cluster.tick(20)
    pending = cluster.status("train").pending
    assert pending is not None
    assert (cluster.status("train").attempt, pending.reason) == (0, Reason.INSUFFICIENT_NODES)
    cluster.submit("seven", 7)
    cluster.delete_job("train")
    cluster.until(cluster.phase_is("seven", "Running"))
    assert "a0" not in cluster.nodes_of("seven")
    assert {pod.requests.get("vpc.amazonaws.com/efa") for pod in cluster.pods.values() if pod.membership} == {32}
    assert overbooked(cluster) == []


def test_nodes_that_offer_fewer_devices_of_their_network_are_another_part_of_it(cluster: Pretend) -> None:
    of_kind(cluster, "p5.48xlarge", *cluster.nodes)
    offers = {**cluster.nodes["a0"].allocatable, "vpc.amazonaws.com/efa": 0}
    cluster.nodes["a0"] = replace(cluster.nodes["a0"], allocatable=offers)
    cluster.submit("train", 7)
    cluster.until(cluster.phase_is("train", "Running"))
    assert "a0" not in cluster.nodes_of("train")


@pytest.mark.parametrize("members_are_made", [True, False])
def test_what_sidecars_of_the_fabric_ask_is_room_that_is_taken(cluster: Pretend, members_are_made: bool) -> None:
    sidecar = {
        "name": "tuner",
        "image": "tuner:1",
        "restartPolicy": "Always",
        "resources": {"requests": {"cpu": "40"}},
    }
    spec = FabricSpec.model_validate({"kind": "tcp", "podAdditions": {"initContainers": [sidecar]}})
    cluster.fabrics["ours"] = Fabric("ours", spec)
    if not members_are_made:
        cluster.interrupt = lambda action: isinstance(action, act.Create) and action.manifest["kind"] == "Pod"
    half = {
        "spec": {
            "containers": [
                {"name": "trainer", "image": "trainyard/trainer:0.1.0", "resources": {"limits": {"nvidia.com/gpu": 4}}}
            ]
        }
    }
    cluster.submit("one", 8, template=half, checkpoint={})
    cluster.submit("two", 8, template=half, checkpoint={})
    cluster.tick(20)
    assert (cluster.status("one").attempt, cluster.status("two").attempt) == (1, 0)
    assert overbooked(cluster) == []
