"""The attempt after one that a fault ended: where it goes on, on a pretended cluster."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.pretend import Pretend
from trainyard.api.training_job import Former
from trainyard.cycle import actions as act


def leaf(node: str) -> str:
    return f"{node[0]}{int(node[1:]) // 4}"


ONE_SPINE = {"within": {"level": "spine", "required": True}}


def large() -> Pretend:
    """Two spines of two leaves of four nodes."""
    return Pretend().with_nodes(per_leaf=4).with_class("low", 10).with_class("high", 100)


@pytest.fixture
def cluster() -> Pretend:
    return large()


def running(cluster: Pretend, nodes: int = 6, **spec: object) -> Pretend:
    cluster.submit("train", nodes, **spec)  # type: ignore[arg-type]
    return cluster.until(cluster.phase_is("train", "Running"))


def again(cluster: Pretend, attempt: int = 2, limit: int = 200) -> Pretend:
    return cluster.until(
        lambda: cluster.status("train").attempt == attempt and cluster.status("train").phase == "Running", limit
    )


def held_back(cluster: Pretend, attempt: int = 2) -> Pretend:
    """No later attempt begins, since the write that would open it fails; `interrupt` ends it."""
    cluster.interrupt = lambda action: isinstance(action, act.WriteStatus) and action.status.attempt >= attempt
    return cluster


def told(cluster: Pretend, part: str) -> bool:
    return any(part in message for name, _, message in cluster.events if name == "train")


def test_a_lost_node_is_replaced_and_all_others_keep_node_and_rank(cluster: Pretend) -> None:
    before = running(cluster).nodes_of("train")
    cluster.lose_node(before[2])
    after = again(cluster).nodes_of("train")
    assert [b for n, b in enumerate(before) if n != 2] == [a for n, a in enumerate(after) if n != 2]
    assert after[2] not in before
    assert told(cluster, f"5 ranks keep their nodes; replaced: {before[2]} by {after[2]}")


def test_a_second_failed_node_does_not_evict_the_gang(cluster: Pretend) -> None:
    before = running(cluster).nodes_of("train")
    cluster.lose_node(before[1])
    middle = again(cluster).nodes_of("train")
    cluster.lose_node(middle[4])
    after = again(cluster, 3).nodes_of("train")
    assert [n for n in range(6) if after[n] != before[n]] == [1, 4]
    assert cluster.status("train").restarts.nodes_lost == 2


def test_two_nodes_that_fail_at_once_are_one_repair(cluster: Pretend) -> None:
    before = running(cluster).nodes_of("train")
    for node in before[1:3]:
        cluster.lose_node(node)
    after = again(cluster).nodes_of("train")
    assert [n for n in range(6) if after[n] != before[n]] == [1, 2]
    assert cluster.status("train").attempt == 2


def test_a_node_that_fails_while_the_next_attempt_waits_for_it_is_replaced_as_well(cluster: Pretend) -> None:
    before = running(cluster).nodes_of("train")
    cluster.lose_node(before[0])
    held_back(cluster).until(lambda: cluster.status("train").former is not None, 60)
    cluster.lose_node(before[3])
    cluster.interrupt = None
    cluster.until(lambda: cluster.status("train").attempt == 2, 60)
    cluster.until(cluster.phase_is("train", "Running"), 200)
    after = cluster.nodes_of("train")
    assert [n for n in range(6) if after[n] != before[n]] == [0, 3]


def test_a_drained_node_is_replaced_and_all_others_stay(cluster: Pretend) -> None:
    before = running(cluster).nodes_of("train")
    cluster.nodes[before[5]] = replace(cluster.nodes[before[5]], unschedulable=True)
    cluster.delete_pod("train-5")
    after = again(cluster).nodes_of("train")
    assert [n for n in range(6) if after[n] != before[n]] == [5]
    assert cluster.status("train").restarts.preemptions == 1


def test_a_script_that_fails_comes_back_on_its_nodes_until_one_is_to_blame(cluster: Pretend) -> None:
    before = running(cluster).nodes_of("train")
    cluster.tick(12).crash("train-3")
    assert again(cluster).nodes_of("train") == before
    cluster.tick(12).crash("train-3")
    after = again(cluster, 3).nodes_of("train")
    assert cluster.status("train").last_failure.times == 2  # type: ignore[union-attr]
    assert [n for n in range(6) if after[n] != before[n]] == [3]


def test_the_nodes_of_a_gang_that_a_fault_ended_are_not_given_to_an_older_one_of_its_rank(cluster: Pretend) -> None:
    running(cluster, 12)
    older = cluster.submit("older", 8, steps=5)
    cluster.jobs[older.uid] = replace(older, created=1.0)
    cluster.tick(3)
    before = cluster.nodes_of("train")
    held_back(cluster).crash("train-0")
    cluster.until(lambda: cluster.status("train").started_at is None, 30).tick(3)
    cluster.interrupt = None
    assert again(cluster).nodes_of("train") == before
    assert cluster.status("older").attempt == 0


def test_what_the_last_attempt_had_is_not_kept_for_longer_than_its_time(cluster: Pretend) -> None:
    running(cluster, 12)
    cluster.submit("next", 10, steps=5)
    held_back(cluster).tick(2).crash("train-0")
    cluster.until(lambda: cluster.status("train").former is not None, 30)
    cluster.interrupt = None
    job = cluster.job("train")
    status = job.status
    assert isinstance(status.former, Former)
    cluster.jobs[job.uid] = job.with_status(status.but(not_before=cluster.now + 300))
    cluster.until(cluster.phase_is("next", "Succeeded"), 60)


def test_a_job_of_higher_priority_may_have_them(cluster: Pretend) -> None:
    running(cluster, 12, priorityClassName="low")
    held_back(cluster).tick(2).crash("train-0")
    cluster.until(lambda: cluster.status("train").former is not None, 30)
    cluster.interrupt = None
    cluster.submit("urgent", 16, priorityClassName="high", steps=5)
    cluster.until(cluster.phase_is("urgent", "Succeeded"), 90)
    cluster.until(cluster.phase_is("train", "Running"), 30)


def test_a_preempted_job_is_placed_anew(cluster: Pretend) -> None:
    running(cluster, 8, priorityClassName="low")
    cluster.submit("urgent", 12, priorityClassName="high", steps=5)
    cluster.until(lambda: cluster.status("train").started_at is None, 60)
    assert cluster.status("train").former is None


def test_a_status_holds_the_names_of_a_gang_once(cluster: Pretend) -> None:
    running(cluster)
    assert (cluster.status("train").reservation, cluster.status("train").former) == (None, None)
    held_back(cluster).crash("train-0")
    cluster.until(lambda: cluster.status("train").former is not None, 30)
    cluster.interrupt = None
    again(cluster)
    assert cluster.status("train").former is None


# Spares ---------------------------------------------------------------------------------------------------------------


def test_spares_are_held_ready_and_take_the_place_of_what_fails(cluster: Pretend) -> None:
    before = running(cluster, 6, placement={"spares": 2}).nodes_of("train")
    spares = cluster.status("train").plan.spares  # type: ignore[union-attr]
    assert {node[0] for node in (*before, *spares)} == {"a"}
    assert len({*before, *spares}) == 8
    cluster.submit("other", 9)
    cluster.tick(5)
    pending = cluster.status("other").pending
    assert pending is not None
    assert "2 more are free and kept for team/train, whose spares they are" in pending.message
    cluster.lose_node(before[1])
    after = again(cluster).nodes_of("train")
    assert after[1] in spares
    assert [n for n in range(6) if after[n] != before[n]] == [1]
    assert cluster.status("train").plan.spares == tuple(s for s in spares if s != after[1])  # type: ignore[union-attr]


def test_spares_are_no_reason_to_wait(cluster: Pretend) -> None:
    running(cluster, 16, placement={"spares": 2})
    assert cluster.status("train").plan.spares == ()  # type: ignore[union-attr]


def test_a_job_of_higher_priority_may_have_spares_and_one_of_lower_may_not(cluster: Pretend) -> None:
    cluster.with_class("middle", 50)
    running(cluster, 6, priorityClassName="middle", placement={"spares": 2})
    cluster.submit("lower", 9, priorityClassName="low")
    cluster.tick(5)
    assert cluster.status("lower").phase == "Pending"
    cluster.submit("higher", 10, priorityClassName="high")
    cluster.until(cluster.phase_is("higher", "Running"), 10)
    assert cluster.status("train").attempt == 1


# In general -----------------------------------------------------------------------------------------------------------


@given(nodes=st.integers(2, 8), lost=st.sets(st.integers(0, 7), min_size=1, max_size=3))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whoever_survives_keeps_node_and_rank_as_long_as_its_leaf_has_a_replacement(nodes: int, lost: set[int]) -> None:
    cluster = large()
    before = running(cluster, nodes, placement=ONE_SPINE).nodes_of("train")
    gone = {rank for rank in lost if rank < nodes}
    for rank in gone:
        cluster.lose_node(before[rank])
    if not gone:
        return
    cluster.until(lambda: cluster.status("train").attempt == 2, 90)
    after = cluster.until(cluster.phase_is("train", "Running"), 90).nodes_of("train")
    assert len(set(after)) == nodes
    by_leaf = Counter(leaf(node) for node in before) + Counter(leaf(before[rank]) for rank in gone)
    if max(by_leaf.values()) <= 4:
        assert {rank for rank in range(nodes) if after[rank] != before[rank]} == gone


# Giving way in part ---------------------------------------------------------------------------------------------------


def test_an_elastic_victim_gives_up_what_is_needed_and_goes_on_with_the_rest(cluster: Pretend) -> None:
    before = running(cluster, 16, priorityClassName="low", minNodes=4).nodes_of("train")
    cluster.tick(5).submit("urgent", 4, priorityClassName="high")
    cluster.submit("equal", 8, priorityClassName="low")
    cluster.until(cluster.phase_is("urgent", "Running"), 60)
    cluster.until(cluster.phase_is("train", "Running"), 30)
    after = cluster.nodes_of("train")
    assert len(after) == 12
    assert after == [node for node in before if node not in cluster.nodes_of("urgent")], "who stays keeps its order"
    assert cluster.status("equal").attempt == 0, "what it keeps is not given to its equals meanwhile"
    steps = cluster.history[cluster.job("train").uid]
    assert steps == list(range(1, len(steps) + 1)), "no step is lost and none is done twice"
    assert cluster.status("train").restarts.failures == 0


def test_a_victim_that_cannot_run_with_the_rest_gives_all_of_it(cluster: Pretend) -> None:
    running(cluster, 16, priorityClassName="low", minNodes=14)
    cluster.tick(5).submit("urgent", 4, priorityClassName="high", steps=30)
    cluster.until(cluster.phase_is("urgent", "Running"), 60)
    assert cluster.status("train").phase == "Pending"
    assert cluster.status("train").former is None


def test_the_victim_that_loses_least_is_asked(cluster: Pretend) -> None:
    cluster.submit("saved", 8, priorityClassName="low")
    cluster.until(cluster.phase_is("saved", "Running"))
    cluster.submit("unsaved", 8, priorityClassName="low", checkpoint={})
    cluster.until(cluster.phase_is("unsaved", "Running")).tick(300)
    cluster.submit("urgent", 4, priorityClassName="high")
    cluster.until(cluster.phase_is("urgent", "Running"), 60)
    assert (cluster.status("saved").restarts.preemptions, cluster.status("unsaved").restarts.preemptions) == (1, 0)


def test_a_victim_whose_pods_are_not_made_yet_counts_with_all_of_its_nodes(cluster: Pretend) -> None:
    cluster.submit("starting", 16, priorityClassName="low")
    cluster.interrupt = lambda action: (
        isinstance(action, act.Create)
        and action.manifest["kind"] == "Pod"
        and action.manifest["metadata"]["name"] > "starting-2"
    )
    cluster.tick(3)
    assert len(cluster.pods) < 16
    cluster.submit("urgent", 16, priorityClassName="high")
    cluster.operate()
    assert [v.name for v in cluster.status("urgent").reservation.victims] == ["starting"]  # type: ignore[union-attr]
    cluster.interrupt = None
    cluster.until(cluster.phase_is("urgent", "Running"), 60)


# Between the plan and its pods ----------------------------------------------------------------------------------------


def test_a_node_that_vanishes_between_plan_and_pods_is_planned_around_and_nothing_is_booked_twice(
    cluster: Pretend,
) -> None:
    cluster.interrupt = lambda action: isinstance(action, act.Create)  # the operator dies behind its first write
    cluster.submit("train", 6)
    cluster.submit("other", 6)
    cluster.operate()
    planned = cluster.status("train").reservation
    assert planned is not None
    assert not cluster.pods
    del cluster.nodes[planned.nodes[0]]
    cluster.interrupt = None
    cluster.until(cluster.phase_is("train", "Running"), 60)
    cluster.until(cluster.phase_is("other", "Running"), 60)
    train, other = cluster.nodes_of("train"), cluster.nodes_of("other")
    assert len({*train, *other}) == 12
    assert planned.nodes[0] not in train
    assert cluster.status("train").restarts.failures == 0


def test_nodes_that_are_reserved_and_vanish_are_not_waited_for(cluster: Pretend) -> None:
    running(cluster, 16, priorityClassName="low")
    cluster.submit("urgent", 4, priorityClassName="high")
    cluster.until(lambda: cluster.status("urgent").reservation is not None, 10)
    gone = cluster.status("urgent").reservation.nodes[0]  # type: ignore[union-attr]
    del cluster.nodes[gone]
    cluster.until(cluster.phase_is("urgent", "Running"), 90)
    assert gone not in cluster.nodes_of("urgent")


def test_a_repair_of_the_built_in_trainer_is_weighed_by_predicted_steps(cluster: Pretend) -> None:
    for name, node in cluster.nodes.items():
        cluster.nodes[name] = replace(node, labels={**node.labels, "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"})
    before = running(cluster, 4, trainer={"model": {"preset": "base"}}, processesPerNode=8).nodes_of("train")
    cluster.lose_node(before[0])
    after = again(cluster).nodes_of("train")
    assert len(after) == 4
    assert told(cluster, "3 ranks keep their nodes") or told(cluster, "on other nodes than the last attempt's")


def test_labels_that_change_between_plan_and_pods_are_no_failure(cluster: Pretend) -> None:
    cluster.interrupt = lambda action: isinstance(action, act.Create)
    cluster.submit("train", 6)
    cluster.operate()
    first = cluster.status("train").reservation.nodes[0]  # type: ignore[union-attr]
    node = cluster.nodes[first]
    cluster.nodes[first] = replace(node, labels={**node.labels, "network.topology.nvidia.com/leaf": "leaf-9"})
    cluster.interrupt = None
    cluster.until(cluster.phase_is("train", "Running"), 60)
    assert (cluster.status("train").attempt, cluster.status("train").restarts.failures) == (2, 0)
