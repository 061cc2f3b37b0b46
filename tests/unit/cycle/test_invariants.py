"""Invariants under random faults: jobs come and go, nodes die, workers are killed, and the operator dies between any two writes.

Whatever happens: no node is overcommitted by us, a gang is whole or on its way, a waiting job says why, and once the faults
are over every job ends.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.pretend import Pretend
from trainyard.cycle import actions as act
from trainyard.cycle import cycle
from trainyard.lifecycle.gang import is_open
from trainyard.world.records import Job, Node, World

CLASSES = {"low": 10, "middle": 50, "high": 100}


def check(cluster: Pretend) -> None:
    for node in cluster.nodes.values():
        ours = [
            p for p in cluster.pods.values() if p.live and (p.node or (p.membership and p.membership.node)) == node.name
        ]
        if any(p.membership is None for p in ours):
            continue
        assert sum(p.requests.get("nvidia.com/gpu", 0) for p in ours) <= node.allocatable["nvidia.com/gpu"], (
            cluster.story()
        )
    for job in cluster.jobs.values():
        status = job.status
        if is_open(job) and status.running_at is not None and status.stop is None and status.ending is None:
            mine = [p for p in cluster.pods.values() if p.membership and p.membership.job_uid == job.uid]
            current = [p for p in mine if p.membership and p.membership.attempt == status.attempt]
            assert job.spec is not None
            assert status.plan is not None
            assert job.spec.fewest_nodes <= status.plan.nodes <= job.spec.nodes, cluster.story()
            assert len(current) == status.plan.nodes, cluster.story()
            assert sorted(p.membership.rank for p in current if p.membership) == list(range(len(current)))
            shared = Counter(p.node for p in current)
            assert max(shared.values()) <= job.spec.placement.pods_per_node, cluster.story()
            assert not {*status.plan.spares} & {*shared}, cluster.story()
            check_spares(cluster, job)
            avoided = {one.node for one in status.avoid if one.attempt < status.attempt}
            assert not avoided & {*shared}, cluster.story()
        if status.phase == "Pending":
            assert status.pending is not None, cluster.story()
            assert status.pending.message, cluster.story()


def check_spares(cluster: Pretend, job: Job) -> None:
    """Nobody of equal or lower priority who takes a whole node is on one that is held ready, but for who is on the way out: of an
    attempt that is over."""
    assert job.spec is not None
    assert job.status.plan is not None
    mine = priority(cluster, job)
    for pod in cluster.pods.values():
        other = cluster.jobs.get(pod.membership.job_uid) if pod.membership else None
        if other is None or other is job or not pod.live or pod.membership is None:
            continue
        if other.status.started_at is None or pod.membership.attempt < other.status.attempt:
            continue
        whole = pod.requests.get("nvidia.com/gpu") == 8
        if whole and pod.membership.node in job.status.plan.spares:
            assert priority(cluster, other) > mine, cluster.story()


def priority(cluster: Pretend, job: Job) -> int:
    return cluster.world().priority(job.spec.priority_class_name if job.spec else None)


def shuffled(world: World, chance: random.Random) -> World:
    def mixed(mapping):  # type: ignore[no-untyped-def]
        items = list(mapping.items())
        chance.shuffle(items)
        return dict(items)

    return replace(
        world, nodes=mixed(world.nodes), pods=mixed(world.pods), jobs=mixed(world.jobs), answers=mixed(world.answers)
    )


def random_wishes(chance: random.Random, size: int) -> dict[str, Any]:
    """Fields that change which nodes a job gets, how many, and when."""
    wishes: dict[str, Any] = {}
    placement: dict[str, Any] = {}
    if chance.random() < 0.3:
        wishes["minNodes"] = chance.randint(1, size)
    if chance.random() < 0.3:
        wishes["maxRuntime"] = f"{chance.randint(20, 90)}m"
    if chance.random() < 0.3:
        container = {"name": "trainer", "image": "trainyard/trainer", "resources": {"limits": {"nvidia.com/gpu": 2}}}
        container["volumeMounts"] = [{"name": "checkpoints", "mountPath": "/checkpoints"}]
        volume = {"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints"}}
        wishes["template"] = {"spec": {"containers": [container], "volumes": [volume]}}
        placement["podsPerNode"] = chance.randint(1, 4)
    if chance.random() < 0.3:
        placement["within"] = {"level": "leaf", "required": True}
        placement["relax"] = [
            {"after": f"{chance.randint(1, 20)}s", "level": "spine"},
            {"after": "30s", "level": "cluster"},
        ]
    if chance.random() < 0.3:
        placement["spares"] = chance.randint(1, 2)
    if chance.random() < 0.3 and size % 2 == 0:
        placement["segments"] = {"nodes": 2, "level": "leaf", "required": chance.random() < 0.5}
    return {**wishes, "placement": placement}


def random_fault(cluster: Pretend, chance: random.Random) -> None:
    live = [p for p in cluster.pods.values() if p.membership and p.live and p.node and p.uid in cluster.launchers]
    ready = [n.name for n in cluster.nodes.values() if n.ready]
    match chance.randrange(10):
        case 0 if live:
            cluster.delete_pod(chance.choice(live).name)
        case 1 if live:
            cluster.crash(chance.choice(live).name)
        case 2 if live:
            cluster.freeze(chance.choice(live).name)
        case 3 if len(ready) > 6:
            cluster.lose_node(chance.choice(ready))
        case 4 if live:
            job = chance.choice(list(cluster.jobs.values()))
            cluster.edit(job.name, suspend=chance.random() < 0.3)
        case 5:  # another operator, which asked nobody yet
            cluster.answers.clear()
            cluster.trials.clear()
        case 6:
            cluster.sidecars = not cluster.sidecars
        case 7 if len(ready) > 6:
            del cluster.nodes[chance.choice(ready)]
        case 8 if len(cluster.slow) < 2:  # the largest gang has a place without both
            cluster.slow.add(chance.choice(ready))
        case _:
            pass


def repair(cluster: Pretend, every: Mapping[str, Node]) -> None:
    cluster.interrupt, cluster.sidecars = None, False
    cluster.slow.clear()
    for name, node in every.items():
        cluster.nodes[name] = replace(node, ready=True)
    for job in list(cluster.jobs.values()):
        cluster.edit(job.name, suspend=False)
    for launcher in cluster.launchers.values():
        launcher.frozen = False


@pytest.mark.timeout(120)
@given(seed=st.integers(0, 10**9))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_happens_no_node_is_promised_twice_and_every_job_ends(seed: int) -> None:
    chance = random.Random(seed)
    cluster = Pretend().with_nodes()
    every = dict(cluster.nodes)
    for name, value in CLASSES.items():
        cluster.with_class(name, value)
    cluster.interrupt = lambda action: chance.random() < 0.08
    for n in range(5):
        size = chance.randint(1, 5)
        limits = {"restart": {"failures": 1000, "per": "1h"}, **random_wishes(chance, size)}
        cluster.submit(
            f"job{n}", size, priorityClassName=chance.choice([*CLASSES, None]), steps=chance.randint(5, 40), **limits
        )
        for _ in range(chance.randint(1, 15)):
            if chance.random() < 0.15:
                random_fault(cluster, chance)
            cluster.tick()
            check(cluster)
    repair(cluster, every)
    for _ in range(1500):
        if all(job.status.phase == "Succeeded" for job in cluster.jobs.values()):
            break
        cluster.tick()
        check(cluster)
    assert {job.status.phase for job in cluster.jobs.values()} == {"Succeeded"}, cluster.story()


@given(seed=st.integers(0, 10**9))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_same_world_gives_the_same_actions_whatever_the_order_of_events(seed: int) -> None:
    chance = random.Random(seed)
    cluster = Pretend().with_nodes().with_class("low", 1).with_class("high", 2)
    for n in range(6):
        size = chance.randint(1, 4)
        wishes = random_wishes(chance, size)
        cluster.submit(f"job{n}", size, priorityClassName=chance.choice(["low", "high"]), steps=20, **wishes)
        cluster.tick(chance.randint(1, 4))
        cluster.now += 0.5
        assert cycle(cluster.world(), cluster.now) == cycle(shuffled(cluster.world(), chance), cluster.now)


@pytest.mark.parametrize("stale_for", range(1, 12))
def test_a_second_leader_with_an_old_view_does_no_harm(stale_for: int) -> None:
    cluster = Pretend().with_nodes().with_class("low", 1).with_class("high", 2)
    cluster.submit("v", 4, priorityClassName="low", steps=60)
    cluster.until(cluster.phase_is("v", "Running"))
    cluster.submit("u", 6, priorityClassName="high", steps=20)
    views: list[tuple[World, float]] = []
    for _ in range(60):
        views.append((cluster.world(), cluster.now))
        cluster.tick()
        if len(views) > stale_for:
            world, then = views[-stale_for]
            for turn in cycle(world, then).turns:
                cluster.perform(turn.actions)
        check(cluster)
    cluster.until(cluster.phase_is("u", "Succeeded"), 200)
    cluster.until(cluster.phase_is("v", "Succeeded"), 300)
    assert cluster.status("v").restarts.failures == 0, cluster.story()


def scenario() -> Pretend:
    cluster = Pretend().with_nodes().with_class("low", 1).with_class("high", 2)
    cluster.submit("v", 4, priorityClassName="low", steps=20)
    return cluster


def run_killed_at(count: int) -> tuple[Pretend, int]:
    """The preemption scenario, with the operator killed before its count-th write; a successor goes on from what is there."""
    cluster, seen = scenario(), 0
    killed = False

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
    cluster.until(cluster.phase_is("v", "Running"))
    cluster.submit("u", 6, priorityClassName="high", steps=10)
    cluster.until(lambda: all(job.status.phase == "Succeeded" for job in cluster.jobs.values()), 300)
    return cluster, seen


def test_the_operator_may_die_between_any_two_writes_of_a_preemption() -> None:
    calm, writes = run_killed_at(0)
    expected = {job.name: (job.status.attempt, job.status.restarts.failures) for job in calm.jobs.values()}
    for count in range(1, writes + 1):
        cluster, _ = run_killed_at(count)
        found = {job.name: (job.status.attempt, job.status.restarts.failures) for job in cluster.jobs.values()}
        assert found == expected, f"killed before write {count}:\n{cluster.story()}"
        steps = cluster.history[cluster.job("v").uid]
        assert steps == list(range(1, 21)), f"killed before write {count}"
