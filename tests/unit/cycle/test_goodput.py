"""Every second of a job belongs to one cause, whatever happens to it, to its launchers and to the operator."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.pretend import START, Pretend
from trainyard.lifecycle.goodput import CAUSES, so_far


def seconds(cluster, name="v"):
    """By cause, without those of which there is nothing."""
    goodput = cluster.status(name).goodput
    return {cause: getattr(goodput, cause) for cause in CAUSES if getattr(goodput, cause)}


def adds_up(cluster):
    for job in cluster.jobs.values():
        goodput = job.status.goodput
        if goodput is None:
            assert job.status.phase is None
            continue
        ms = {cause: round(getattr(goodput, cause) * 1000) for cause in CAUSES}
        assert min(ms.values()) >= 0
        assert sum(ms.values()) == round((goodput.until - goodput.since) * 1000), cluster.story()
        assert goodput.since == job.created
        assert goodput.until <= round(cluster.now, 3)
        until = job.status.ended_at if job.status.ended_at is not None else cluster.now
        assert sum(so_far(job.status, cluster.now).values()) == pytest.approx(until - job.created, abs=0.002)


def running(steps=None, claims=lambda launcher: {}):
    cluster = Pretend(claims=claims).with_nodes().with_class("low", 1).with_class("high", 2)
    cluster.submit("v", 4, priorityClassName="low", steps=steps)
    return cluster.until(lambda: cluster.status("v").progress is not None)


def test_a_job_that_nothing_happens_to_waits_starts_and_is_productive():
    cluster = running(steps=100)
    cluster.until(cluster.phase_is("v", "Succeeded"))
    spent = seconds(cluster)
    assert set(spent) == {"waiting", "starting", "productive"}
    assert spent["waiting"] <= 1
    assert sum(spent.values()) == cluster.status("v").ended_at - START
    assert cluster.status("v").goodput.percent == round(100 * spent["productive"] / sum(spent.values()))


def test_steps_that_a_kill_cost_are_recomputed_and_the_time_until_it_was_noticed_is_lost():
    cluster = running()
    cluster.until(lambda: cluster.launchers[cluster.pod("v-1").uid].step == 26)
    before = seconds(cluster)
    assert cluster.status("v").checkpoint.step == 20
    cluster.crash("v-1")
    cluster.until(lambda: cluster.status("v").attempt == 2 and cluster.status("v").progress.step >= 40)
    spent = seconds(cluster)
    furthest = cluster.history[cluster.job("v").uid][: cluster.history[cluster.job("v").uid].index(21, 22)]
    assert spent["recomputed"] == pytest.approx(max(furthest) - 20, abs=2), "a step takes a second"
    assert spent["lost"] > 0
    assert spent["productive"] > before["productive"]
    adds_up(cluster)


def test_a_hang_loses_the_time_until_it_is_found():
    cluster = running()
    cluster.until(lambda: cluster.status("v").progress.step == 5)
    cluster.freeze("v-2")
    cluster.until(lambda: cluster.status("v").attempt == 2)
    assert seconds(cluster)["lost"] >= 60, "a launcher may be silent for 60 s"
    assert seconds(cluster)["productive"] <= 8


def test_who_is_asked_to_leave_saves_and_waits_and_loses_nothing():
    cluster = running()
    cluster.until(lambda: cluster.status("v").progress.step == 5)
    cluster.submit("u", 6, priorityClassName="high", steps=20)
    cluster.until(lambda: cluster.status("v").attempt == 2 and cluster.status("v").progress.step > 10)
    spent = seconds(cluster)
    assert spent["checkpointing"] >= cluster.save_seconds
    assert spent["waiting"] >= 20, "u did its 20 steps meanwhile"
    assert "lost" not in spent
    assert "recomputed" not in spent


def test_suspended_is_not_waiting():
    cluster = running()
    cluster.edit("v", suspend=True)
    cluster.until(cluster.phase_is("v", "Suspended"))
    cluster.tick(50)
    cluster.edit("v", suspend=False)
    cluster.until(cluster.phase_is("v", "Running"))
    assert seconds(cluster)["suspended"] == pytest.approx(50, abs=2)


def test_what_the_trainer_says_divides_the_time_in_which_it_trains():
    cluster = running(claims=lambda launcher: {"load": 40.0, "save": launcher.step * 0.25, "eval": 0.0, "train": 1e6})
    cluster.until(lambda: cluster.status("v").progress.step >= 50)
    spent = seconds(cluster)
    assert spent["checkpointing"] == pytest.approx(spent["productive"] / 3, rel=0.25)
    adds_up(cluster)


def test_an_operator_that_was_away_finds_the_time_and_counts_none_twice():
    cluster = running()
    cluster.until(lambda: cluster.status("v").progress.step == 5)
    for _ in range(100):
        cluster.now += 1.0
        cluster._move()
    cluster.tick()
    assert seconds(cluster)["productive"] == pytest.approx(cluster.status("v").progress.step, abs=3)
    again = cluster.status("v").goodput
    cluster.operate()
    assert cluster.status("v").goodput == again
    adds_up(cluster)


@given(seed=st.integers(0, 10**9))
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_happens_and_whatever_launchers_claim_it_adds_up(seed):
    chance = random.Random(seed)
    cluster = Pretend().with_nodes(spines=1).with_class("low", 1).with_class("high", 2)
    cluster.claims = lambda launcher: {
        phase: chance.choice([0.0, launcher.step * 0.3, -5.0, 1e12, chance.random()])
        for phase in ("import", "init", "load", "warm-up", "train", "save", "eval", "data", "other")
    }
    cluster.interrupt = lambda action: chance.random() < 0.05
    for n in range(3):
        cluster.submit(f"job{n}", chance.randint(1, 4), priorityClassName=chance.choice(["low", "high"]), steps=40)
    until = {}
    for _ in range(120):
        live = [pod.name for pod in cluster.pods.values() if pod.live and pod.uid in cluster.launchers]
        match chance.randrange(12):
            case 0 if live:
                cluster.crash(chance.choice(live))
            case 1 if live:
                cluster.freeze(chance.choice(live))
            case 2 if live:
                cluster.delete_pod(chance.choice(live))
            case 3:
                cluster.answers.clear()
            case 4:
                cluster.edit(f"job{chance.randrange(3)}", suspend=chance.random() < 0.4)
            case 5:
                cluster.now += chance.random() * 30
        cluster.tick()
        adds_up(cluster)
        for job in cluster.jobs.values():
            if job.status.goodput is not None:
                assert job.status.goodput.until >= until.get(job.uid, 0.0)
                until[job.uid] = job.status.goodput.until
