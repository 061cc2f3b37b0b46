"""A failure costs no pods: the next attempt begins in those that live, and only what was lost is made anew."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.pretend import PLAN_SECONDS, Pretend
from trainyard.api import names
from trainyard.api.conditions import Reason
from trainyard.cycle import actions as act
from trainyard.lifecycle import deadlines
from trainyard.world.records import Pod, Terminated


@pytest.fixture
def cluster() -> Pretend:
    return Pretend().with_nodes(per_leaf=4).with_class("low", 10).with_class("high", 100)


def running(cluster: Pretend, nodes: int = 4, **spec: Any) -> Pretend:
    cluster.submit("train", nodes, **spec)
    return cluster.until(cluster.phase_is("train", "Running"))


def again(cluster: Pretend, attempt: int = 2, limit: int = 120) -> Pretend:
    return cluster.until(
        lambda: cluster.status("train").attempt == attempt and cluster.status("train").phase == "Running", limit
    )


def playing(cluster: Pretend) -> list[Pod]:
    """The pods of the current attempt by their labels, in rank order."""
    attempt = cluster.status("train").attempt
    found = [p for p in cluster.pods.values() if p.membership is not None and p.membership.attempt == attempt]
    return sorted(found, key=lambda pod: pod.membership.rank if pod.membership else 0)


def uids(cluster: Pretend) -> list[str]:
    return [pod.uid for pod in playing(cluster)]


def failures(cluster: Pretend) -> tuple[int, int]:
    restarts = cluster.status("train").restarts
    return restarts.failures, restarts.nodes_lost


@pytest.mark.parametrize("brittle", [False, True], ids=["peers wait", "peers fail too"])
def test_a_worker_that_fails_costs_no_pod(cluster: Pretend, brittle: bool) -> None:
    cluster.brittle = brittle
    before = uids(running(cluster).tick(12))
    failed_at = cluster.now
    cluster.crash("train-1")
    assert uids(again(cluster)) == before
    assert cluster.now - failed_at <= 10, "this is what it is for"
    assert failures(cluster) == (1, 0)
    assert cluster.status("train").last_failure.pod == "train-1"  # type: ignore[union-attr]
    assert any("4 of 4 pods are kept" in message for _, _, message in cluster.events)
    cluster.tick(5)
    steps = cluster.history[cluster.job("train").uid]
    assert [after for earlier, after in pairwise(steps) if after <= earlier] == [11], "it goes on from its last save"


def test_a_lost_node_costs_its_own_pod_alone(cluster: Pretend) -> None:
    before = playing(running(cluster, 6))
    cluster.lose_node(before[2].node)
    after = playing(again(cluster))
    assert [pod.uid for n, pod in enumerate(after) if n != 2] == [pod.uid for n, pod in enumerate(before) if n != 2]
    assert after[2].name == "train-6"
    assert failures(cluster) == (0, 1)
    cluster.crash("train-0")
    assert uids(again(cluster, 3)) == [pod.uid for pod in after], "also what was made for the second attempt"
    cluster.lose_node(playing(cluster)[4].node)
    assert playing(again(cluster, 4))[4].name == "train-7", "no number is used twice"


def test_a_gang_that_goes_on_with_fewer_keeps_the_pods_of_the_rest(cluster: Pretend) -> None:
    before = playing(running(cluster, 16, minNodes=4))
    cluster.lose_node(before[5].node)
    after = playing(again(cluster))
    assert [pod.uid for pod in after] == [pod.uid for n, pod in enumerate(before) if n != 5]
    assert [pod.membership.rank for pod in after if pod.membership] == list(range(15))


def test_ranks_are_counted_anew_in_labels_and_plan_alike(cluster: Pretend) -> None:
    running(cluster, 16, minNodes=4)
    cluster.lose_node(playing(cluster)[0].node)
    again(cluster)
    for rank, pod in enumerate(playing(cluster)):
        launcher = cluster.launchers[pod.uid]
        assert (launcher.plan.attempt, launcher.plan.node_rank(pod.name)) == (2, rank)
        assert pod.membership is not None
        assert pod.membership.plan_digest == launcher.digest == cluster.status("train").plan.digest  # type: ignore[union-attr]


def test_a_launcher_that_refuses_the_plan_is_replaced(cluster: Pretend) -> None:
    before = uids(running(cluster))
    cluster.refuse_plans("train-2")
    cluster.crash("train-0")
    after = uids(again(cluster, 3))
    assert [n for n in range(4) if after[n] != before[n]] == [2]
    assert failures(cluster) == (1, 0), "what failed was charged once, and the handover is nobody's failure"
    told = [message for _, reason, message in cluster.events if reason == Reason.HANDOVER_FAILED]
    assert told == [
        "train-2 was kept for attempt 2 and is replaced: its launcher does not take the plan: HTTP 409: attempt: 2 is not after 7"
    ]


def test_a_launcher_that_falls_silent_is_replaced_within_its_deadline(cluster: Pretend) -> None:
    before = uids(running(cluster))
    cluster.freeze("train-2")
    cluster.crash("train-0")
    after = uids(again(cluster, 3, limit=60))
    assert [n for n in range(4) if after[n] != before[n]] == [2]
    assert failures(cluster) == (1, 0)
    thawed = next((one for uid, one in cluster.launchers.items() if uid == before[2]), None)
    assert thawed is None or thawed.plan.attempt == 1, "it was never told of a later attempt"


@pytest.mark.parametrize("told", [(), (0, 1)], ids=["nobody has the plan", "some have it"])
def test_a_specification_that_changes_while_the_plan_is_handed_over_is_not_blamed_on_launchers(
    cluster: Pretend, told: tuple[int, ...]
) -> None:
    before = playing(running(cluster))
    deaf = {pod.uid for rank, pod in enumerate(before) if rank not in told}
    cluster.interrupt = lambda action: isinstance(action, act.HandPlan) and action.pod_uid in deaf
    cluster.crash("train-0")
    cluster.until(lambda: cluster.status("train").attempt == 2, 60).tick(3)
    spec = cluster.job("train").spec
    assert spec is not None
    cluster.edit("train", checkpoint=spec.checkpoint.but(keep=7))
    cluster.tick()
    cluster.interrupt = None
    assert uids(again(cluster, 3, limit=30)) == [pod.uid for pod in before]
    assert failures(cluster) == (1, 0)
    assert [message for _, reason, message in cluster.events if reason == Reason.SPEC_CHANGED] == [
        "the specification changed before every member had its plan; the next attempt goes by the new one"
    ]
    assert not any(reason in (Reason.HANDOVER_FAILED, Reason.LABELS_CHANGED) for _, reason, _ in cluster.events)


def test_an_old_launcher_that_thaws_takes_no_part_in_what_follows(cluster: Pretend) -> None:
    before = playing(running(cluster))
    lost = before[2]
    cluster.lose_node(lost.node)
    again(cluster).tick(5)
    steps = len(cluster.history[cluster.job("train").uid])
    cluster.nodes[lost.node] = replace(cluster.nodes[lost.node], ready=True)
    if lost.uid in cluster.launchers:
        cluster.launchers[lost.uid].frozen = False
    cluster.tick(20)
    assert cluster.status("train").attempt == 2
    assert lost.uid not in uids(cluster)
    assert len(cluster.history[cluster.job("train").uid]) == steps + 20


def test_a_pod_that_ends_before_it_is_told_is_replaced_free_of_charge(cluster: Pretend) -> None:
    before = uids(running(cluster))
    hands = cluster._hand

    def ends_first(uid: str, plan: Any) -> None:
        if uid == before[1] and plan.attempt == 2:
            cluster._leave(cluster.pods[uid], cluster.launchers[uid])
        hands(uid, plan)

    cluster._hand = ends_first  # type: ignore[method-assign]
    cluster.brittle = True
    cluster.tick(2).crash("train-0")
    after = uids(again(cluster, 3))
    assert [n for n in range(4) if after[n] != before[n]] == [1]
    assert failures(cluster) == (1, 0)


def other_image(cluster: Pretend) -> None:
    job = cluster.job("train")
    assert job.spec is not None
    template = job.spec.template["spec"]
    containers = [{**template["containers"][0], "image": "trainyard/trainer:0.2.0"}]
    cluster.edit("train", template={"spec": {**template, "containers": containers}})


def other_setting(cluster: Pretend) -> None:
    job = cluster.job("train")
    assert job.spec is not None
    value = job.spec.network.model_validate({"env": [{"name": "NCCL_DEBUG", "value": "INFO"}]})
    cluster.edit("train", network=value)


@pytest.mark.parametrize("change", [other_image, other_setting])
def test_pods_that_would_be_made_otherwise_now_are_replaced(cluster: Pretend, change: Any) -> None:
    before = uids(running(cluster))
    change(cluster)
    cluster.crash("train-0")
    assert set(uids(again(cluster))).isdisjoint(before)
    assert failures(cluster) == (1, 0)


def test_what_leaves_its_nodes_keeps_no_pods(cluster: Pretend) -> None:
    running(cluster).tick(5)
    cluster.crash("train-0")
    cluster.edit("train", suspend=True)
    cluster.until(cluster.phase_is("train", "Suspended"), 60).tick(3)
    assert not any(pod.live for pod in cluster.pods.values())


def test_pods_that_wait_in_vain_end_by_themselves_and_are_no_second_failure(cluster: Pretend) -> None:
    running(cluster).tick(5)
    cluster.interrupt = lambda action: isinstance(action, act.WriteStatus) and action.status.attempt >= 2
    cluster.brittle = True
    cluster.crash("train-0")
    cluster.until(lambda: cluster.status("train").former is not None, 10)
    for _ in range(int(PLAN_SECONDS)):
        cluster.now += 1
        cluster._move()
    cluster.tick(2)
    assert not any(pod.live for pod in cluster.pods.values())
    cluster.interrupt = None
    again(cluster)
    assert failures(cluster) == (1, 0)


def test_who_fails_at_every_start_is_held_back_as_before(cluster: Pretend) -> None:
    running(cluster, restart={"failures": 100, "per": "24h"})
    cluster.trains = False
    begun: list[float] = []
    for attempt in range(1, 6):
        again(cluster, attempt, limit=400)
        begun.append(cluster.now)
        cluster.crash(playing(cluster)[0].name)
    gaps = [later - earlier for earlier, later in pairwise(begun)]
    assert gaps[-1] >= 15
    assert len(uids(cluster)) == 4


def test_the_plans_that_pods_mount_are_kept_and_no_others(cluster: Pretend) -> None:
    deleted: list[str] = []

    def note(action: act.Action) -> bool:
        if isinstance(action, act.DeletePlan):
            deleted.append(action.name)
        return False

    cluster.interrupt = note
    running(cluster, 6)
    cluster.crash("train-0")
    again(cluster)
    assert deleted == [], "all pods mount that of the first attempt"
    cluster.lose_node(playing(cluster)[2].node)
    again(cluster, 3)
    assert deleted == ["train-plan-2"], "which nobody was made for"
    for pod in list(cluster.pods.values()):
        cluster._end(pod, 1, "Error")
    again(cluster, 4)
    assert set(deleted) >= {"train-plan-1", "train-plan-3"}


def test_a_plan_goes_and_the_start_is_told_although_the_pods_of_the_next_attempt_are_refused(cluster: Pretend) -> None:
    deleted: list[str] = []

    def refuse(action: act.Action) -> bool:
        if isinstance(action, act.DeletePlan):
            deleted.append(action.name)
            return len(deleted) == 1  # the API server fails the first time
        return isinstance(action, act.Create) and action.manifest["kind"] == "Pod"

    running(cluster)
    cluster.edit("train", suspend=True)
    cluster.until(lambda: not cluster.pods, 60)
    cluster.interrupt = refuse
    cluster.edit("train", suspend=False)
    cluster.until(lambda: cluster.status("train").attempt == 2, 60).tick(5)
    assert not cluster.pods
    assert {*deleted} == {"train-plan-1"}
    assert len(deleted) >= 2
    assert sum(reason == Reason.GANG_STARTED for _, reason, _ in cluster.events) == 2


def test_a_plan_goes_although_the_pods_that_mounted_it_went_first(cluster: Pretend) -> None:
    deleted: list[str] = []

    def note(action: act.Action) -> bool:
        if isinstance(action, act.DeletePlan):
            deleted.append(action.name)
        return False

    cluster.interrupt = note
    running(cluster, 3, steps=200)
    cluster.crash("train-0")
    again(cluster)
    cluster.edit("train", suspend=True)
    cluster.until(lambda: len(cluster.pods) == 1, 120)
    cluster.delete_pod("train-0")  # which stayed for its logs
    cluster.until(lambda: not cluster.pods, 60)
    cluster.edit("train", suspend=False)
    again(cluster, 3)
    assert sorted(deleted) == ["train-plan-1", "train-plan-2"]


def test_while_a_kept_pod_is_waited_for_nothing_is_made_again_and_all_are_sent_one_text(cluster: Pretend) -> None:
    made: list[act.Action] = []
    sent: list[bytes] = []

    def note(action: act.Action) -> bool:
        if isinstance(action, act.Create | act.CreateControl):
            made.append(action)
        if isinstance(action, act.HandPlan):
            sent.append(action.plan)
        return False

    running(cluster)
    cluster.freeze("train-2")
    cluster.interrupt = note
    cluster.crash("train-0")
    cluster.until(lambda: cluster.status("train").attempt == 2, 30)
    of_the_opening = len(made)
    cluster.tick(8)
    assert cluster.status("train").attempt == 2
    assert len(made) == of_the_opening
    assert len({id(text) for text in sent[:4]}) == 1


def test_labels_that_change_before_a_plan_is_handed_over_cost_no_pod(cluster: Pretend) -> None:
    """The plan would be another now than the status says: it is nobody's fault, the launchers' least of all."""
    before = uids(running(cluster))
    changed = False

    def relabelled(action: act.Action) -> bool:
        nonlocal changed
        if isinstance(action, act.HandPlan) and not changed:
            changed = True
            node = cluster.nodes["a3"]
            cluster.nodes["a3"] = replace(node, labels={**node.labels, "network.topology.nvidia.com/leaf": "leaf-9"})
            return True
        return False

    cluster.interrupt = relabelled
    cluster.crash("train-0")
    after = uids(again(cluster, 3, limit=40))
    assert changed
    assert set(after) == set(before)
    assert failures(cluster) == (1, 0)
    assert not [message for _, reason, message in cluster.events if reason == Reason.HANDOVER_FAILED]


def test_of_a_large_gang_a_launcher_is_asked_less_often_and_counted_on_for_longer() -> None:
    """The poller begins 240 questions a second."""
    assert deadlines.heard(4) == pytest.approx(deadlines.HEARD, rel=0.01)
    for members in (1_000, 3_000, 10_000):
        assert deadlines.heard(members) > members / 240 + 10


def scenario(count: int, lose: bool) -> tuple[Pretend, int, list[str]]:
    """A failure and what follows it, with the operator killed before its count-th write after it. Another takes over, which has
    asked nobody yet."""
    cluster, seen, killed = Pretend().with_nodes(per_leaf=4), 0, False
    running(cluster, 3, steps=16).tick(4)
    before = uids(cluster)

    def kill(action: act.Action) -> bool:
        nonlocal seen, killed
        seen += 1
        if seen == count and not killed:
            killed = True
            cluster.answers.clear()
            cluster.trials.clear()
            return True
        return False

    cluster.interrupt = kill
    if lose:
        cluster.lose_node(cluster.pod("train-1").node)
    else:
        cluster.crash("train-1")
    again(cluster, limit=60)
    kept = [uid for uid in uids(cluster) if uid in before]
    cluster.until(cluster.phase_is("train", "Succeeded"), 120)
    return cluster, seen, kept


@pytest.mark.parametrize("lose", [False, True], ids=["a worker fails", "a node is lost"])
def test_the_operator_may_die_between_any_two_writes_of_a_handover(lose: bool) -> None:
    calm, writes, kept = scenario(0, lose)
    assert len(kept) == (2 if lose else 3)
    expected = (calm.status("train").attempt, failures(calm))
    for count in range(1, writes + 1):
        cluster, _, still = scenario(count, lose)
        found = (cluster.status("train").attempt, failures(cluster))
        assert (found, still) == (expected, kept), f"killed before write {count}:\n{cluster.story()}"


def test_a_pod_says_what_it_was_made_for_and_as_what(cluster: Pretend) -> None:
    made: list[Any] = []
    cluster.interrupt = lambda action: made.append(action) or False  # type: ignore[func-returns-value]
    running(cluster)
    pods = [a.manifest for a in made if isinstance(a, act.Create) and a.manifest["kind"] == "Pod"]
    forms = {pod["metadata"]["annotations"][names.ANNOTATION_FORM] for pod in pods}
    assert len(forms) == 1, "pods that differ in their identity alone are of one form"
    assert {pod["metadata"]["annotations"][names.ANNOTATION_MADE] for pod in pods} == {"1"}


@given(faults=st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.integers(1, 14)), min_size=1, max_size=5))
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whoever_lives_through_faults_on_a_node_that_is_kept_keeps_its_pod(faults: list[tuple[int, bool, int]]) -> None:
    cluster = running(Pretend().with_nodes(per_leaf=4), 6, restart={"failures": 100, "per": "1h"})
    for rank, whole_node, seconds in faults:
        cluster.tick(seconds)
        before, attempt = playing(cluster), cluster.status("train").attempt
        lost = {before[rank].node} if whole_node else set()
        if whole_node:
            cluster.lose_node(before[rank].node)
        else:
            cluster.crash(before[rank].name)
        again(cluster, attempt + 1, limit=400)
        failure = cluster.status("train").last_failure
        assert failure is not None
        lost |= {failure.node} if failure.times > 1 else set()
        after = playing(cluster)
        stays = {pod.uid for pod in before if pod.node not in lost and pod.node in {p.node for p in after}}
        assert stays <= {pod.uid for pod in after}
        assert not any(isinstance(pod.trainer, Terminated) for pod in after)


def test_a_pod_that_is_spared_leaves_a_node_that_a_job_before_it_holds_ready(cluster: Pretend) -> None:
    """Its own attempt cannot begin on it; left alone, it would be there when the spare is needed."""
    running(cluster, 3, priorityClassName="low", placement={"within": {"level": "leaf", "required": True}})
    for n in range(8):
        cluster.foreign(f"b{n}")
    cluster.submit("first", 5, priorityClassName="high", placement={"spares": 1})
    cluster.until(cluster.phase_is("first", "Running"))
    assert sorted(cluster.nodes_of("first")) == ["a3", "a4", "a5", "a6", "a7"]
    cluster.lose_node("a0")
    cluster.until(cluster.phase_is("train", "Pending"))
    cluster.crash("first-0")
    cluster.until(lambda: cluster.status("first").attempt == 2 and cluster.status("first").phase == "Running").tick(2)
    (held,) = cluster.status("first").plan.spares  # type: ignore[union-attr]
    assert held in {"a1", "a2"}
    assert cluster.phase_is("train", "Pending")()
    there = [p for p in cluster.pods.values() if p.membership is not None and p.membership.node == held and p.live]
    assert all(pod.deleted is not None for pod in there)
