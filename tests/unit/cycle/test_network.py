"""What a gang's network is called, and that a gang on two networks does not start."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.pretend import Pretend
from trainyard.api.conditions import Reason
from trainyard.api.training_job import Network

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
