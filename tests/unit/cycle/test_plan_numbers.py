"""What the status says of a plan: how good it is, and what is predicted of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.pretend import Pretend
from trainyard.api.training_job import PlanSummary


@pytest.fixture
def cluster() -> Pretend:
    """Two spines of two leaves of four nodes with a product that is known."""
    found = Pretend().with_nodes(per_leaf=4).with_class("low", 10).with_class("high", 100)
    for name, node in found.nodes.items():
        found.nodes[name] = replace(node, labels={**node.labels, "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"})
    return found


def plan_of(cluster: Pretend, name: str = "train") -> PlanSummary:
    cluster.until(cluster.phase_is(name, "Running"), 60)
    plan = cluster.status(name).plan
    assert plan is not None
    return plan


def test_a_plan_that_nothing_could_better_is_called_optimal(cluster: Pretend) -> None:
    cluster.submit("train", 4)
    quality = plan_of(cluster).quality
    assert quality is not None
    assert (quality.summary, quality.spent) == ("optimal", False)
    assert 0 < quality.lower_bound <= quality.cost


def test_a_gang_that_is_spread_further_is_predicted_to_cost_more(cluster: Pretend) -> None:
    cluster.submit("near", 3)
    cluster.submit("far", 4, placement={"avoidNodes": ["a0", "a4", "b0", "b4"]})
    near, far = plan_of(cluster, "near"), plan_of(cluster, "far")
    assert near.span == "leaf"
    assert far.span != "leaf"
    assert far.quality.cost > near.quality.cost  # type: ignore[union-attr]
    assert far.predicted_bus_bandwidth <= near.predicted_bus_bandwidth


def test_a_plan_that_waited_for_its_nodes_says_how_good_it_is(cluster: Pretend) -> None:
    cluster.submit("v", 16, priorityClassName="low")
    cluster.until(cluster.phase_is("v", "Running"))
    cluster.submit("train", 4, priorityClassName="high")
    assert plan_of(cluster).quality.summary == "optimal"  # type: ignore[union-attr]


def test_a_repaired_plan_is_weighed_against_what_was_free(cluster: Pretend) -> None:
    cluster.submit("train", 6)
    before = plan_of(cluster)
    cluster.lose_node(cluster.nodes_of("train")[0])
    cluster.until(lambda: cluster.status("train").attempt == 2, 90)
    after = plan_of(cluster)
    assert after.spans == before.spans
    assert after.quality.summary == "optimal"  # type: ignore[union-attr]
    assert after.quality.cost == before.quality.cost  # type: ignore[union-attr]


def test_the_share_of_communication_is_said_where_the_model_is_known(cluster: Pretend) -> None:
    cluster.submit("train", 2, trainer={"model": {"preset": "base"}}, processesPerNode=8)
    plan = plan_of(cluster)
    assert plan.communication_share is not None
    assert 0 < plan.communication_share < 1
    assert plan.predicted_bus_bandwidth > 1e9
    assert plan.bottleneck != ""


def test_of_a_script_of_ones_own_no_share_is_said(cluster: Pretend) -> None:
    container = {"name": "trainer", "image": "own", "command": ["t"], "resources": {"limits": {"nvidia.com/gpu": 8}}}
    cluster.submit("train", 2, template={"spec": {"containers": [container]}}, checkpoint={})
    plan = plan_of(cluster)
    assert plan.communication_share is None
    assert plan.predicted_bus_bandwidth > 1e9


def test_the_mesh_of_an_attempt_stays_while_its_pods_are_made(cluster: Pretend) -> None:
    cluster.submit("train", 2, processesPerNode=8, trainer={"model": {"preset": "base"}}, parallelism={})
    cluster.interrupt = lambda action: type(action).__name__ == "Create" and action.manifest["kind"] == "Pod"  # type: ignore[union-attr]
    cluster.operate()
    mesh = cluster.status("train").plan.mesh  # type: ignore[union-attr]
    for name, node in cluster.nodes.items():
        cluster.nodes[name] = replace(node, labels={**node.labels, "nvidia.com/gpu.product": "NVIDIA-A10"})
    cluster.interrupt = None
    assert plan_of(cluster).mesh == mesh
    assert {axis.name: axis.size for axis in cluster.plans[("team", "train-plan-1")].mesh} == mesh
    assert cluster.status("train").attempt == 1
