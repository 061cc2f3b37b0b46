"""Several jobs on a pretended cluster: who gets which nodes, who must leave, who waits and what it says."""

from __future__ import annotations

from importlib import import_module

import pytest
from support.pretend import Pretend
from trainyard.api.conditions import Reason
from trainyard.api.training_job import Reservation
from trainyard.cycle import actions as act
from trainyard.cycle import cycle


@pytest.fixture
def cluster() -> Pretend:
    return Pretend().with_nodes().with_class("low", 10).with_class("middle", 50).with_class("high", 100)


ONE_SPINE = {"within": {"level": "spine", "required": True}}


def contested(cluster: Pretend) -> Pretend:
    """V on spine A, F on half of spine B, U of higher priority for one whole spine, W of lower priority for the same."""
    cluster.submit("v", 4, priorityClassName="low", steps=80)
    cluster.until(cluster.phase_is("v", "Running"))
    cluster.submit("f", 2, priorityClassName="middle", steps=30)
    cluster.until(cluster.phase_is("f", "Running"))
    cluster.submit("w", 4, steps=10)
    cluster.submit("u", 4, priorityClassName="high", placement=ONE_SPINE, steps=60)
    return cluster


def reserved(cluster: Pretend) -> Reservation:
    """Run cycles up to the one that reserves nodes for U, and no further."""
    for _ in range(10):
        found = cluster.status("u").reservation
        if found is not None:
            return found
        cluster.operate(1)
    raise AssertionError(cluster.story())


def test_the_reservation_is_written_before_anybody_is_asked(cluster: Pretend) -> None:
    reservation = reserved(contested(cluster))
    assert [victim.name for victim in reservation.victims] == ["v"]
    assert reservation.nodes == ("a0", "a1", "a2", "a3")
    assert cluster.status("v").stop is None


def test_the_victim_yields_its_nodes_to_the_one_they_were_reserved_for(cluster: Pretend) -> None:
    contested(cluster)
    cluster.until(cluster.phase_is("u", "Running"), 60)
    assert cluster.nodes_of("u") == ["a0", "a1", "a2", "a3"]
    assert cluster.status("w").phase == "Pending"
    assert cluster.status("v").restarts.preemptions == 1


def test_the_pods_of_the_next_are_made_only_when_the_victims_are_terminal(cluster: Pretend) -> None:
    contested(cluster)
    while not any(pod.name.startswith("u-") for pod in cluster.pods.values()):
        assert len([pod for pod in cluster.pods.values() if pod.node.startswith("a") and pod.live]) <= 4
        cluster.tick()
    assert not [pod for pod in cluster.pods.values() if pod.name.startswith("v-") and pod.live]


def test_the_victim_waits_in_numbers_and_resumes_elsewhere_at_its_step(cluster: Pretend) -> None:
    contested(cluster)
    cluster.until(cluster.phase_is("u", "Running"), 60)
    pending = cluster.status("v").pending
    assert pending is not None
    assert pending.message == "needs 4 nodes; 8 are eligible, 2 of them are free"
    assert pending.unblock[0] == "run with 2 of 4 nodes: spec.minNodes: 2"
    assert pending.unblock[1].startswith("2 more free nodes in the cluster")
    cluster.until(cluster.phase_is("v", "Running"), 60)
    assert cluster.status("f").phase == "Succeeded"
    assert cluster.status("u").phase == "Running"
    assert cluster.nodes_of("v") == ["b0", "b1", "b2", "b3"]
    for name in ("v", "u", "w"):
        cluster.until(cluster.phase_is(name, "Succeeded"), 200)
    steps = cluster.history[cluster.job("v").uid]
    assert steps == list(range(1, 81)), "no step is lost and none is done twice"
    assert cluster.status("v").restarts.failures == 0


def test_a_victim_that_does_not_answer_is_deleted_at_its_deadline(cluster: Pretend) -> None:
    contested(cluster)
    for member in range(4):
        cluster.freeze(f"v-{member}")
    cluster.until(cluster.phase_is("u", "Running"), 400)
    assert cluster.nodes_of("u") == ["a0", "a1", "a2", "a3"]


def test_nobody_is_asked_to_leave_where_it_would_not_help(cluster: Pretend) -> None:
    cluster.submit("v", 4, priorityClassName="low")
    cluster.until(cluster.phase_is("v", "Running"))
    cluster.submit("u", 9, priorityClassName="high")
    cluster.tick(10)
    assert cluster.status("v").phase == "Running"
    assert cluster.status("u").pending.reason == Reason.INSUFFICIENT_NODES  # type: ignore[union-attr]


def test_a_class_that_never_preempts_waits(cluster: Pretend) -> None:
    cluster.with_class("polite", 1000, preempts=False)
    cluster.submit("v", 8, priorityClassName="low", steps=20)
    cluster.until(cluster.phase_is("v", "Running"))
    cluster.submit("u", 4, priorityClassName="polite")
    cluster.tick(10)
    assert (cluster.status("v").phase, cluster.status("u").phase) == ("Running", "Pending")
    cluster.until(cluster.phase_is("u", "Running"), 60)


def test_equals_are_served_by_age_and_a_large_one_is_not_starved(cluster: Pretend) -> None:
    cluster.submit("first", 6, priorityClassName="low", steps=30)
    cluster.until(cluster.phase_is("first", "Running"))
    cluster.submit("large", 8, priorityClassName="low", steps=10)
    cluster.tick(2)
    cluster.submit("small", 2, priorityClassName="low", steps=10)
    cluster.tick(5)
    pending = cluster.status("small").pending
    assert pending is not None
    assert pending.reason == Reason.BEHIND_OTHERS
    assert "team/large" in pending.message
    cluster.until(cluster.phase_is("large", "Succeeded"), 100)
    cluster.until(cluster.phase_is("small", "Succeeded"), 100)


def test_lower_priority_may_use_what_a_higher_one_gathers(cluster: Pretend) -> None:
    cluster.submit("first", 6, priorityClassName="high", steps=60)
    cluster.until(cluster.phase_is("first", "Running"))
    cluster.submit("large", 8, priorityClassName="high", steps=10)
    cluster.submit("filler", 2, priorityClassName="low", steps=200)
    cluster.until(cluster.phase_is("filler", "Running"), 10)
    cluster.until(cluster.phase_is("large", "Running"), 100)
    assert cluster.status("filler").restarts.preemptions == 1


def test_a_preempted_job_keeps_its_age_in_the_queue(cluster: Pretend) -> None:
    contested(cluster)
    created = cluster.job("v").created
    cluster.until(cluster.phase_is("u", "Running"), 60)
    assert cluster.status("v").queued_at == created


def test_a_reservation_whose_node_is_lost_is_planned_again(cluster: Pretend) -> None:
    reserved(contested(cluster))
    cluster.lose_node("a3")
    cluster.until(lambda: cluster.status("f").phase == "Succeeded", 100)
    cluster.until(cluster.phase_is("u", "Running"), 200)
    assert cluster.nodes_of("u") == ["b0", "b1", "b2", "b3"]


@pytest.mark.parametrize("room", ["trainyard.cycle.cycle.decide", "trainyard.cycle.plans.place"])
def test_a_job_that_trips_a_bug_is_named_and_the_others_are_served(
    cluster: Pretend, monkeypatch: pytest.MonkeyPatch, room: str
) -> None:
    module, _, name = room.rpartition(".")
    where = import_module(module)
    real = getattr(where, name)

    def trips(*arguments: object) -> object:
        asked = [getattr(a, "key", None) or getattr(a, "job", None) for a in arguments]
        if "team/cursed" in asked:
            raise ZeroDivisionError("the bug")
        return real(*arguments)

    monkeypatch.setattr(where, name, trips)
    cluster.submit("cursed", 2, priorityClassName="high")
    cluster.submit("fine", 2, priorityClassName="low")
    cluster.until(cluster.phase_is("fine", "Running"), 20)
    broken = cycle(cluster.world(), cluster.now).broken
    assert [(found.key, str(found.error)) for found in broken] == [("team/cursed", "the bug")]
    assert cluster.nodes_of("cursed") == []


def test_only_the_first_of_many_that_wait_are_told_what_was_planned_for_them(cluster: Pretend) -> None:
    for node in cluster.nodes:
        cluster.foreign(node)
    for n in range(8):
        cluster.submit(f"job{n}", n + 1)
    cluster.tick(3)
    helps = [cluster.status(f"job{n}").pending.unblock for n in range(8)]  # type: ignore[union-attr]
    assert all(helps), "each is told something"
    assert all(any("for example" in text for text in some) for some in helps[:4])
    assert helps[4:] == [(f"{n} more free nodes",) for n in range(5, 9)]


def test_a_job_that_waits_is_written_only_when_something_is_otherwise(cluster: Pretend) -> None:
    cluster.submit("first", 5, priorityClassName="middle", maxRuntime="1h")
    cluster.until(cluster.phase_is("first", "Running"))
    cluster.submit("large", 8, priorityClassName="middle", minNodes=7)
    cluster.submit("near", 3, priorityClassName="middle", placement={"within": {"level": "leaf", "required": True}})
    cluster.submit("small", 1, priorityClassName="middle")
    cluster.foreign("b3", gpus=4)
    cluster.tick(5)
    waiting = {cluster.job(name).uid for name in ("large", "near", "small")}
    assert {cluster.status(name).phase for name in ("large", "near", "small")} == {"Pending"}
    written: list[str] = []
    cluster.interrupt = lambda action: (
        isinstance(action, act.WriteStatus) and action.uid in waiting and bool(written.append(action.name) or False)
    )
    cluster.tick(120)
    assert written == []
