"""How many nodes a job takes, how far apart, and how long it holds out for better: on a pretended cluster."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from support.pretend import Pretend
from trainyard.api.conditions import Reason
from trainyard.cycle import cycle

ONE_LEAF = {"level": "leaf", "required": True}


@pytest.fixture
def cluster() -> Pretend:
    """Two spines of two leaves of two nodes."""
    return Pretend().with_nodes().with_class("low", 10).with_class("high", 100)


def message(cluster: Pretend, name: str) -> str:
    pending = cluster.status(name).pending
    assert pending is not None, cluster.story()
    return pending.message


# minNodes -------------------------------------------------------------------------------------------------------------


def test_an_elastic_job_starts_with_all_its_nodes_where_they_are_free(cluster: Pretend) -> None:
    cluster.submit("train", 6, minNodes=2)
    cluster.until(cluster.phase_is("train", "Running"), 10)
    assert len(cluster.nodes_of("train")) == 6


def test_an_elastic_job_starts_with_the_most_nodes_that_are_free_rather_than_wait(cluster: Pretend) -> None:
    for node in ("a0", "a1", "b3"):
        cluster.foreign(node)
    cluster.submit("train", 8, minNodes=2, processesPerNode=8)
    cluster.until(cluster.phase_is("train", "Running"), 10)
    status, plan = cluster.status("train"), cluster.plans[("team", "train-plan-1")]
    assert sorted(cluster.nodes_of("train")) == ["a2", "a3", "b0", "b1", "b2"]
    assert (status.plan.nodes, status.ready_nodes, status.next_member) == (5, 5, 5)  # type: ignore[union-attr]
    assert [axis.size for axis in plan.mesh] == [40]
    placed = next(c for c in status.conditions if c.type == "Placed")
    assert placed.message == "attempt 1 holds 5 nodes"
    assert any("starts on 5 of 8 nodes" in told for _, _, told in cluster.events)


def test_an_elastic_job_waits_where_fewer_than_its_fewest_are_free(cluster: Pretend) -> None:
    for node in ("a0", "a1", "b3"):
        cluster.foreign(node)
    cluster.submit("train", 8, minNodes=6)
    cluster.tick(5)
    assert message(cluster, "train") == "needs 8 nodes; 8 are eligible, 5 of them are free"


def test_the_fewest_hold_within_a_required_level_as_well(cluster: Pretend) -> None:
    cluster.foreign("a1")
    cluster.submit("train", 4, minNodes=3, placement={"within": {"level": "spine", "required": True}})
    cluster.foreign("b0")
    cluster.until(cluster.phase_is("train", "Running"), 10)
    assert cluster.nodes_of("train") == ["a2", "a3", "a0"]


def test_an_attempt_of_another_size_begins_in_the_pods_that_live(cluster: Pretend) -> None:
    cluster.submit("train", 8, minNodes=2)
    cluster.until(cluster.phase_is("train", "Running"), 10)
    cluster.lose_node("a0")
    cluster.until(lambda: cluster.status("train").attempt == 2 and cluster.status("train").phase == "Running", 100)
    live = sorted(pod.name for pod in cluster.pods.values() if pod.live and pod.deleted is None)
    assert live == [f"train-{n}" for n in range(1, 8)]
    assert cluster.status("train").restarts.failures == 0


# segments -------------------------------------------------------------------------------------------------------------


def torn(cluster: Pretend, **segments: object) -> Pretend:
    """Five nodes are free, one of the first leaf; four are wanted in pairs."""
    for node in ("a1", "b2", "b3"):
        cluster.foreign(node)
    return cluster.submit("train", 4, placement={"segments": {"nodes": 2, "level": "leaf", **segments}}) and cluster


def test_consecutive_ranks_of_a_segment_lie_in_one_domain(cluster: Pretend) -> None:
    torn(cluster).until(cluster.phase_is("train", "Running"), 10)
    assert cluster.nodes_of("train") == ["a2", "a3", "b0", "b1"]


def test_a_job_waits_for_whole_segments_and_says_so(cluster: Pretend) -> None:
    cluster.foreign("b0")
    torn(cluster).tick(5)
    assert "they hold 1 whole segment" in message(cluster, "train")
    assert "in segments of 2 within one leaf each" in message(cluster, "train")


def test_segments_that_are_only_wished_for_are_torn_rather_than_waited_for(cluster: Pretend) -> None:
    cluster.foreign("b0")
    torn(cluster, required=False).until(cluster.phase_is("train", "Running"), 10)
    assert sorted(cluster.nodes_of("train")) == ["a0", "a2", "a3", "b1"]


def test_a_level_of_segments_that_does_not_exist_is_said_with_the_fields_path(cluster: Pretend) -> None:
    torn(cluster, level="rack").tick(5)
    told = "spec.placement.segments.level: no level is called rack; the cluster's levels are: spine, leaf"
    assert message(cluster, "train") == told


# relax ----------------------------------------------------------------------------------------------------------------


def relaxed(cluster: Pretend, **more: object) -> Pretend:
    """A job of three nodes for one leaf of two, which may be any spine after 60 s and anywhere after 120 s."""
    relax = [{"after": "60s", "level": "spine"}, {"after": "2m", "level": "cluster"}]
    cluster.submit("train", 3, placement={"within": ONE_LEAF, "relax": relax}, **more)  # type: ignore[arg-type]
    return cluster


def test_a_required_level_holds_until_its_deadline_and_not_longer(cluster: Pretend) -> None:
    relaxed(cluster).tick(59)
    assert cluster.status("train").phase == "Pending"
    assert "from 1970-01-12T13:47:40Z on one spine is enough" in message(cluster, "train")
    cluster.tick(2)
    assert {node[0] for node in cluster.nodes_of("train")} == {"a"}


def test_the_last_deadline_lets_it_go_anywhere(cluster: Pretend) -> None:
    for node in ("a0", "a1", "a2", "b0", "b1"):
        cluster.foreign(node)
    relaxed(cluster).tick(100)
    assert "needs 3 nodes within one spine" in message(cluster, "train")
    assert message(cluster, "train").endswith("on any nodes are enough")
    cluster.tick(21)
    assert sorted(cluster.nodes_of("train")) == ["a3", "b2", "b3"]


def test_the_operator_looks_again_when_a_deadline_is_due(cluster: Pretend) -> None:
    relaxed(cluster).operate()
    assert cycle(cluster.world(), cluster.now).wake == cluster.job("train").created + 60


def test_a_job_that_comes_back_holds_out_for_its_level_anew(cluster: Pretend) -> None:
    relaxed(cluster)
    cluster.until(cluster.phase_is("train", "Running"), 90).tick(200)
    cluster.edit("train", suspend=True)
    cluster.until(cluster.phase_is("train", "Suspended"), 30).tick(300)
    cluster.edit("train", suspend=False)
    cluster.tick(50)
    assert cluster.status("train").phase == "Pending"
    cluster.until(cluster.phase_is("train", "Running"), 20)


@pytest.mark.parametrize(
    ("levels", "said"),
    [
        (
            ["rack"],
            "spec.placement.relax[0].level: no level is called rack; the cluster's levels are: spine, leaf, cluster",
        ),
        (["leaf"], "spec.placement.relax[0].level: leaf is not broader than leaf"),
        (["cluster", "spine"], "spec.placement.relax[1].level: spine is not broader than cluster"),
    ],
)
def test_a_level_that_relaxes_nothing_is_said_with_the_fields_path(
    cluster: Pretend, levels: list[str], said: str
) -> None:
    relax = [{"after": f"{n}m", "level": level} for n, level in enumerate(levels, start=1)]
    cluster.submit("train", 2, placement={"within": ONE_LEAF, "relax": relax})
    cluster.tick(3)
    accepted = next(c for c in cluster.status("train").conditions if c.type == "Accepted")
    assert (accepted.status, accepted.reason) == ("False", Reason.UNKNOWN_LEVEL)
    assert said in accepted.message
    assert message(cluster, "train") == accepted.message
    cluster.edit("train", placement=cluster.job("train").spec.placement.but(relax=()))  # type: ignore[union-attr]
    cluster.until(cluster.phase_is("train", "Running"), 10)


# Without any labels ---------------------------------------------------------------------------------------------------


def test_a_cluster_without_labels_is_one_domain(cluster: Pretend) -> None:
    for name, node in cluster.nodes.items():
        cluster.nodes[name] = replace(node, labels={})
    cluster.submit("train", 8)
    cluster.until(cluster.phase_is("train", "Running"), 10)


def test_nodes_that_offer_nothing_are_no_place(cluster: Pretend) -> None:
    for name, node in cluster.nodes.items():
        cluster.nodes[name] = replace(node, allocatable=dict.fromkeys(node.allocatable, 0))
    cluster.submit("train", 1)
    cluster.tick(3)
    assert "0 are eligible" in message(cluster, "train")
    assert "offers less than" in message(cluster, "train")


def test_far_more_nodes_than_there_are_is_answered_in_numbers(cluster: Pretend) -> None:
    cluster.submit("train", 20_000)
    cluster.tick(3)
    assert message(cluster, "train") == "needs 20000 nodes; 8 are eligible, 8 of them are free"


# podsPerNode ----------------------------------------------------------------------------------------------------------


def quarter(cluster: Pretend, name: str, nodes: int, per_node: int, **spec: object) -> None:
    """A job each member of which takes two of a node's eight GPUs."""
    container = {
        "name": "trainer",
        "image": "own",
        "command": ["train"],
        "resources": {"limits": {"nvidia.com/gpu": 2}},
    }
    pod = {"spec": {"containers": [container]}}
    cluster.submit(name, nodes, template=pod, checkpoint={}, placement={"podsPerNode": per_node}, **spec)  # type: ignore[arg-type]


def test_members_that_take_a_part_of_a_node_share_it_as_far_as_they_may(cluster: Pretend) -> None:
    quarter(cluster, "four", 8, 4)
    quarter(cluster, "two", 8, 2)
    quarter(cluster, "one", 2, 1)
    cluster.tick(10)
    assert sorted(Counter(cluster.nodes_of("four")).values()) == [4, 4]
    assert sorted(Counter(cluster.nodes_of("two")).values()) == [2, 2, 2, 2]
    assert sorted(Counter(cluster.nodes_of("one")).values()) == [1, 1]
    plan = cluster.plans[("team", "four-plan-1")]
    assert [member.node for member in plan.members] == cluster.nodes_of("four"), "ranks of a node are neighbours"
    assert any("with 8 members on 2 nodes within one leaf" in told for _, _, told in cluster.events)


def test_members_of_a_lost_node_are_replaced_together_and_the_others_stay() -> None:
    cluster = Pretend().with_nodes(per_leaf=4)
    quarter(cluster, "train", 8, 4)
    before = cluster.until(cluster.phase_is("train", "Running"), 10).nodes_of("train")
    cluster.lose_node(before[0])
    cluster.until(lambda: cluster.status("train").attempt == 2 and cluster.status("train").phase == "Running", 120)
    after = cluster.nodes_of("train")
    assert after[4:] == before[4:]
    assert len({*after[:4]}) == 1


def test_a_gang_of_parts_waits_in_members(cluster: Pretend) -> None:
    quarter(cluster, "train", 33, 4)
    cluster.tick(3)
    assert "needs 33" in message(cluster, "train")
    assert cluster.status("train").phase == "Pending"


# When labels change under a running job -------------------------------------------------------------------------------


def test_a_running_job_keeps_its_plan_when_labels_change_and_a_condition_says_so(cluster: Pretend) -> None:
    cluster.submit("train", 4)
    before = cluster.until(cluster.phase_is("train", "Running"), 10).nodes_of("train")
    node = cluster.nodes["a3"]
    cluster.nodes["a3"] = replace(node, labels={**node.labels, "network.topology.nvidia.com/leaf": "leaf-9"})
    cluster.tick(3)
    changed = next(c for c in cluster.status("train").conditions if c.type == "TopologyChanged")
    assert (changed.status, changed.reason) == ("True", Reason.LABELS_CHANGED)
    assert "leaf: the nodes lie in 3 domains instead of 2" in changed.message
    assert (cluster.nodes_of("train"), cluster.status("train").attempt) == (before, 1)
    assert cluster.status("train").plan.spans == {"spine": 1, "leaf": 2}  # type: ignore[union-attr]
    cluster.nodes["a3"] = node
    cluster.tick(3)
    assert not [c for c in cluster.status("train").conditions if c.type == "TopologyChanged"]


# Kinds of nodes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mixed", "placed"), [(False, "Pending"), (True, "Running")])
def test_kinds_of_accelerators_are_mixed_where_the_job_says_so(cluster: Pretend, mixed: bool, placed: str) -> None:
    for name, node in cluster.nodes.items():
        product = "H100" if name < "b" else "B200"
        cluster.nodes[name] = replace(node, labels={**node.labels, "nvidia.com/gpu.product": product})
    cluster.submit("train", 6, placement={"mixed": mixed})
    cluster.tick(5)
    assert cluster.status("train").phase == placed, cluster.story()


# Growing again --------------------------------------------------------------------------------------------------------


def smaller(cluster: Pretend) -> Pretend:
    """A job of eight nodes that runs on five, since strangers are on the others."""
    for node in ("a0", "a1", "b3"):
        cluster.foreign(node, name=f"on-{node}")
    cluster.submit("train", 8, minNodes=2)
    cluster.until(cluster.phase_is("train", "Running"), 10).tick(60)
    assert cluster.status("train").plan.nodes == 5  # type: ignore[union-attr]
    return cluster


def free_again(cluster: Pretend) -> None:
    for node in ("a0", "a1", "b3"):
        del cluster.pods[f"on-{node}"]


def test_a_gang_that_runs_smaller_starts_again_with_all_its_nodes_when_they_are_free(cluster: Pretend) -> None:
    smaller(cluster)
    free_again(cluster)
    cluster.tick(500)
    assert cluster.status("train").attempt == 1, "not so soon after its start"
    cluster.until(lambda: cluster.status("train").attempt == 2 and cluster.status("train").phase == "Running", 80)
    assert len(cluster.nodes_of("train")) == 8
    steps = cluster.history[cluster.job("train").uid]
    assert steps == list(range(1, len(steps) + 1)), "no step is lost and none is done twice"
    assert cluster.status("train").restarts.failures == 0
    cluster.tick(1300)
    assert cluster.status("train").attempt == 2


def test_a_gang_does_not_grow_for_less_than_all_its_nodes(cluster: Pretend) -> None:
    smaller(cluster)
    del cluster.pods["on-a0"]
    cluster.tick(700)
    assert cluster.status("train").attempt == 1


def test_a_gang_does_not_grow_while_somebody_waits_for_nodes(cluster: Pretend) -> None:
    smaller(cluster)
    cluster.submit("waits", 6)
    free_again(cluster)
    cluster.tick(700)
    assert (cluster.status("train").attempt, cluster.status("waits").phase) == (1, "Pending")


def test_the_operator_looks_again_when_a_gang_may_grow(cluster: Pretend) -> None:
    smaller(cluster)
    began = cluster.status("train").running_at
    wake = cycle(cluster.world(), cluster.now).wake
    assert began is not None
    assert wake is not None
    assert wake <= began + 600
