"""The head of the queue and those behind it: who may use meanwhile what it is waiting for, on a pretended cluster."""

from __future__ import annotations

import pytest
from support.pretend import START, Pretend
from trainyard.api.conditions import Reason
from trainyard.api.model import rfc3339
from trainyard.cycle import actions as act
from trainyard.cycle import cycle


@pytest.fixture
def cluster() -> Pretend:
    return Pretend().with_nodes().with_class("low", 10).with_class("high", 100)


def behind(cluster: Pretend, limit: str | None = "20m", **first: object) -> Pretend:
    """A job on six of eight nodes that may run for twenty minutes, and one behind it that needs all eight."""
    cluster.submit("first", 6, maxRuntime=limit, **first)  # type: ignore[arg-type]
    cluster.until(cluster.phase_is("first", "Running"))
    cluster.submit("large", 8, steps=5)
    return cluster.tick(3)


def message(cluster: Pretend, name: str) -> str:
    pending = cluster.status(name).pending
    assert pending is not None, cluster.story()
    return pending.message


def promised(cluster: Pretend) -> float:
    """When first has left at the latest: what it may run, its time to save, that of its pods' deletion."""
    began = cluster.status("first").running_at
    assert began is not None
    return began + 20 * 60 + 2 * 120 + 30


def test_the_head_says_when_it_starts_at_the_latest(cluster: Pretend) -> None:
    behind(cluster)
    assert message(cluster, "large").startswith("needs 8 nodes; 8 are eligible, 2 of them are free; it starts by ")
    assert rfc3339(promised(cluster)) in message(cluster, "large")


def test_a_younger_job_that_will_have_left_uses_the_nodes_meanwhile(cluster: Pretend) -> None:
    behind(cluster)
    cluster.submit("small", 2, steps=30, maxRuntime="5m")
    cluster.until(cluster.phase_is("small", "Succeeded"), 60)
    assert cluster.status("large").phase == "Pending"
    assert any("when the nodes are needed by others" in told for name, _, told in cluster.events if name == "small")


def test_a_younger_job_that_might_stay_longer_waits_and_says_what_would_help(cluster: Pretend) -> None:
    behind(cluster)
    cluster.submit("long", 2, maxRuntime="40m")
    cluster.submit("endless", 2)
    cluster.tick(5)
    for name in ("long", "endless"):
        pending = cluster.status(name).pending
        assert pending is not None
        assert pending.reason == Reason.BEHIND_OTHERS
        until = rfc3339(promised(cluster))
        assert f"2 more are free and kept for team/large, which came first, until {until}" in pending.message
        assert pending.unblock[-1] == f"a spec.maxRuntime with which it has left by {until}"


def test_where_nobody_says_how_long_it_runs_nothing_is_lent(cluster: Pretend) -> None:
    behind(cluster, limit=None)
    cluster.submit("small", 2, maxRuntime="1m")
    cluster.tick(10)
    assert cluster.status("small").phase == "Pending"
    assert "it starts by" not in message(cluster, "large")
    pending = cluster.status("small").pending
    assert pending is not None
    assert pending.unblock == ("team/large starts or is deleted",)


def test_what_is_free_is_not_kept_for_the_head_where_it_lies_as_well_on_what_others_leave() -> None:
    """Who uses an uplink now says nothing of the time when they have left."""
    cluster = Pretend().with_nodes(spines=1, leaves=4, per_leaf=2)
    cluster.submit("first", 6, maxRuntime="20m")
    cluster.until(cluster.phase_is("first", "Running"))
    cluster.submit("large", 4, steps=5)
    cluster.tick(3)
    assert "it starts by" in message(cluster, "large")
    cluster.submit("endless", 2)
    cluster.until(cluster.phase_is("endless", "Running"), 10)


def test_what_is_lent_is_given_back_in_time_though_its_time_to_train_is_not_over(cluster: Pretend) -> None:
    behind(cluster, limit="6m")
    kubelet, slow = cluster._kubelet, START + 250.0
    cluster._kubelet = (  # type: ignore[method-assign]
        lambda pod: kubelet(pod) if cluster.now > slow or not pod.name.startswith("small") else None
    )
    cluster.submit("small", 2, maxRuntime="1m30s")  # it begins to train only now that it should be done
    cluster.until(cluster.phase_is("small", "Starting"), 10)
    began = cluster.status("first").running_at
    assert began is not None
    cluster.until(cluster.phase_is("large", "Running"), 700)
    assert cluster.now <= began + 6 * 60 + 2 * 120 + 30 + 10
    assert cluster.status("small").restarts.failures == 0


def test_a_job_of_lower_priority_uses_them_without_a_limit_since_it_can_be_asked_to_leave(cluster: Pretend) -> None:
    cluster.submit("first", 6, priorityClassName="high", maxRuntime="2m")
    cluster.until(cluster.phase_is("first", "Running"))
    cluster.submit("large", 8, priorityClassName="high", steps=5)
    cluster.submit("filler", 2, priorityClassName="low")
    cluster.until(cluster.phase_is("filler", "Running"), 10)
    expected = message(cluster, "large")
    assert "it starts by" in expected
    cluster.submit("equal", 2, priorityClassName="high")
    cluster.tick(3)
    assert message(cluster, "large") == expected, "what it was promised does not move because of a lower one"
    cluster.until(cluster.phase_is("large", "Succeeded"), 400)
    assert cluster.status("filler").restarts.preemptions == 1


def test_the_head_is_not_delayed_by_any_number_of_those_behind_it(cluster: Pretend) -> None:
    behind(cluster, limit="3m")
    began = cluster.status("first").running_at
    assert began is not None
    for n in range(6):
        cluster.submit(f"small{n}", 1 + n % 2, steps=20, maxRuntime=f"{20 + 10 * n}s")
    cluster.until(cluster.phase_is("large", "Running"), 700)
    assert cluster.now <= began + 3 * 60 + 2 * 120 + 30
    assert sum(cluster.status(f"small{n}").attempt > 0 for n in range(6)) >= 3, "half of them ran meanwhile"


@pytest.mark.parametrize("how", ["an edit", "another operator"])
def test_the_head_is_not_overtaken_while_the_api_server_is_asked_again(cluster: Pretend, how: str) -> None:
    behind(cluster, limit=None)
    cluster.submit("small", 2)
    cluster.tick(3)
    assert cluster.status("small").phase == "Pending"
    if how == "an edit":
        cluster.edit("large", max_runtime="100h")
    else:
        del cluster.trials[cluster.job("large").uid]
    # The cycle in which the question is on its way.
    outcome = cycle(cluster.world(), cluster.now)
    doing = [action for of in outcome.turns for action in of.actions if isinstance(action, act.Create | act.TryPod)]
    assert [type(action) for action in doing] == [act.TryPod]


def test_nobody_leaves_for_an_equal_of_a_job_that_gathers_the_same_nodes() -> None:
    """What lower ones use of what is gathered is on loan: an equal that came later would make them leave, lose the nodes to who
    came first, and the lower ones would have them again, for ever."""
    cluster = Pretend().with_nodes(spines=1, leaves=1, per_leaf=9).with_class("high", 10)
    cluster.submit("peer", 4, priorityClassName="high")
    cluster.until(cluster.phase_is("peer", "Running"))
    cluster.submit("gathers", 6, priorityClassName="high")
    cluster.tick(3)
    cluster.submit("low", 5)
    cluster.until(cluster.phase_is("low", "Running"))
    cluster.submit("young", 2, priorityClassName="high")
    cluster.tick(120)
    assert cluster.status("young").phase == "Pending"
    assert (cluster.status("low").attempt, cluster.status("low").restarts.preemptions) == (1, 0)
    assert cluster.status("peer").phase == "Running"
