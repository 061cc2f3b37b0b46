"""The loop: what is judged when, and what happens to turns that fail, linger or are passed over."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import pytest
from trainyard.api.training_job import TrainingJobStatus
from trainyard.controller.backoff import LASTING
from trainyard.controller.loop import PATIENCE_SECONDS, Loop
from trainyard.cycle.actions import Announce, Outcome, Turn
from trainyard.kube.errors import ApiError
from trainyard.kube.writer import Failure, Performed
from trainyard.telemetry.metrics import Metrics
from trainyard.world.records import Job, Trial, Verdict, World

DEADLINE_SECONDS = 5.0


@dataclass
class Cluster:
    """A world in memory that counts its changes, as the mirror does."""

    jobs: dict[str, Job] = field(default_factory=dict)
    trials: dict[str, Trial] = field(default_factory=dict)
    generation: int = 0
    bell: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, *names: str) -> None:
        for name in names:
            self.jobs[name] = Job("n", name, name, 1, "1", 0.0, None, TrainingJobStatus())
        self.touch()

    def touch(self) -> None:
        self.generation += 1
        self.bell.set()

    async def change(self, since: int) -> int:
        while self.generation == since:
            self.bell.clear()
            await self.bell.wait()
        return self.generation

    def freeze(self) -> World:
        return World(jobs=dict(self.jobs), trials=dict(self.trials))

    def trial(self, job_uid: str, trial: Trial) -> None:
        self.trials[job_uid] = trial
        self.touch()


def say(uid: str) -> Turn:
    return Turn(uid, (Announce("n", uid, uid, "Normal", "Valid", ""),))


def a_turn_each(world: World, _: float) -> Outcome:
    return Outcome(tuple(say(uid) for uid in world.jobs))


def done(turn: Turn) -> Performed:
    return Performed(turn.job_uid, turn.actions)


def failed(turn: Turn, code: int = 403, retry_after_seconds: float | None = None) -> Performed:
    error = ApiError("create pods", code, "Forbidden", "no more pods", retry_after_seconds=retry_after_seconds)
    return Performed(turn.job_uid, (), Failure(turn.actions[0], error))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition():  # noqa: ASYNC110 (what is waited for has no event)
            await asyncio.sleep(0.005)


@asynccontextmanager
async def running(loop: Loop) -> AsyncIterator[None]:
    task = asyncio.create_task(loop.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_change_of_the_world_is_judged_at_once() -> None:
    cluster, seen = Cluster(), list[int]()

    def cycle(world: World, _: float) -> Outcome:
        seen.append(len(world.jobs))
        return Outcome(())

    async with running(Loop(cluster, cycle, None, Metrics("0"))):  # type: ignore[arg-type]
        await until(lambda: seen == [0])
        cluster.add("a")
        await until(lambda: seen == [0, 1])


async def test_changes_that_come_together_are_judged_together() -> None:
    cluster, cycles = Cluster(), list[int]()

    def cycle(world: World, _: float) -> Outcome:
        cycles.append(len(world.jobs))
        return Outcome(())

    async with running(Loop(cluster, cycle, None, Metrics("0"))):  # type: ignore[arg-type]
        await until(lambda: cycles == [0])
        for name in "abcdefgh":
            cluster.add(name)
            await asyncio.sleep(0)
        await until(lambda: cycles[-1] == 8)
        assert len(cycles) <= 3


async def test_a_long_cycle_leaves_as_much_time_for_everything_else() -> None:
    cluster, times = Cluster(), list[tuple[float, float]]()

    def cycle(*_: object) -> Outcome:
        began = time.perf_counter()
        time.sleep(0.1)
        times.append((began, time.perf_counter()))
        return Outcome((), wake=0.0)  # something is always due

    async with running(Loop(cluster, cycle, None, Metrics("0"))):  # type: ignore[arg-type]
        await until(lambda: len(times) == 3)
    assert all(began - ended >= 0.09 for (_, ended), (began, _) in pairwise(times))


async def test_what_is_due_is_judged_when_it_is_due() -> None:
    times = list[float]()

    def cycle(_: World, now: float) -> Outcome:
        times.append(now)
        return Outcome((), wake=times[0] + 0.2)

    async with running(Loop(Cluster(), cycle, None, Metrics("0"))):  # type: ignore[arg-type]
        await until(lambda: len(times) >= 2)
    assert 0.2 <= times[1] - times[0] < 1.0


async def test_a_job_has_one_turn_at_a_time_and_is_judged_again_if_one_was_passed_over() -> None:
    cluster, release, begun = Cluster(), asyncio.Event(), Counter[str]()

    async def perform(turn: Turn) -> Performed:
        begun[turn.job_uid] += 1
        if turn.job_uid == "slow" and begun["slow"] == 1:
            await release.wait()
        return done(turn)

    cluster.add("slow")
    async with running(Loop(cluster, a_turn_each, perform, Metrics("0"))):
        await until(lambda: begun["slow"] == 1)
        cluster.add("quick")
        await until(lambda: begun["quick"] >= 1)  # the slow one stops nobody
        assert begun["slow"] == 1
        release.set()
        await until(lambda: begun["slow"] == 2)


async def test_the_next_cycle_waits_a_moment_for_what_this_one_writes() -> None:
    cluster, written, seen = Cluster(), list[str](), list[int]()

    def cycle(world: World, now: float) -> Outcome:
        seen.append(len(written))
        return a_turn_each(world, now) if not written else Outcome(())

    async def perform(turn: Turn) -> Performed:
        cluster.touch()
        await asyncio.sleep(PATIENCE_SECONDS / 5)
        written.append(turn.job_uid)
        return done(turn)

    cluster.add("a", "b")
    async with running(Loop(cluster, cycle, perform, Metrics("0"))):
        await until(lambda: len(seen) >= 2)
    assert seen[:2] == [0, 2]


async def test_a_job_that_fails_is_tried_again_and_holds_up_nobody() -> None:
    cluster, begun, metrics = Cluster(), Counter[str](), Metrics("0")

    async def perform(turn: Turn) -> Performed:
        begun[turn.job_uid] += 1
        return failed(turn) if turn.job_uid == "bad" and begun["bad"] == 1 else done(turn)

    cluster.add("bad", "good")
    async with running(Loop(cluster, a_turn_each, perform, metrics)):
        await until(lambda: begun["bad"] == 2)
    value = metrics.registry.get_sample_value
    assert value("trainyard_actions_total", {"kind": "Announce", "result": "refused"}) == 1
    assert begun["good"] >= 1


async def test_the_server_decides_how_long_a_job_waits() -> None:
    cluster, begun = Cluster(), Counter[str]()

    async def perform(turn: Turn) -> Performed:
        begun[turn.job_uid] += 1
        return failed(turn, 503, retry_after_seconds=60.0) if turn.job_uid == "bad" else done(turn)

    cluster.add("bad")
    async with running(Loop(cluster, a_turn_each, perform, Metrics("0"))):
        await until(lambda: begun["bad"] == 1)
        cluster.add("good")
        await until(lambda: begun["good"] == 1)
        cluster.touch()
        await until(lambda: begun["good"] == 2)
    assert begun["bad"] == 1


async def test_what_a_job_left_behind_is_not_tried_without_a_pause_either() -> None:
    cluster, tries = Cluster(), list[float]()

    async def perform(turn: Turn) -> Performed:
        tries.append(asyncio.get_running_loop().time())
        return failed(turn, code=500)

    loop = Loop(cluster, lambda *_: Outcome((say("gone"),)), perform, Metrics("0"))
    async with running(loop):
        await until(lambda: len(tries) == 2)
    assert tries[1] - tries[0] >= 0.5


async def test_lasting_trouble_reaches_the_jobs_status_by_way_of_the_world_and_is_announced_once() -> None:
    cluster, failures, announced = Cluster(), list[bool](), list[Announce]()
    clock = iter(range(0, 10**9, 1000))  # whatever the pause, it is over at the next look

    async def perform(turn: Turn) -> Performed:
        (action,) = turn.actions
        if isinstance(action, Announce) and action.kind == "Warning":
            announced.append(action)
            return done(turn)
        failures.append("a" in cluster.trials)
        return failed(turn)

    cluster.add("a")
    async with running(Loop(cluster, a_turn_each, perform, Metrics("0"), clock=lambda: float(next(clock)))):
        await until(lambda: len(failures) >= LASTING + 2)
    assert failures[: LASTING + 1] == [False] * LASTING + [True]
    trial = cluster.trials["a"]
    assert (trial.verdict, trial.reason, trial.message) == (Verdict.WAIT, "ApiRefuses", "Announce: no more pods")
    assert [(action.reason, action.message) for action in announced] == [("ApiRefuses", "Announce: no more pods")]


async def test_a_bug_in_one_jobs_turn_is_that_jobs_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster, begun, metrics = Cluster(), Counter[str](), Metrics("0")
    mended = asyncio.Event()

    async def perform(turn: Turn) -> Performed:
        begun[turn.job_uid] += 1
        if turn.job_uid == "bad" and not mended.is_set():
            raise ZeroDivisionError
        return done(turn)

    cluster.add("bad", "good")
    broken = partial(metrics.registry.get_sample_value, "trainyard_jobs_broken")
    async with running(Loop(cluster, a_turn_each, perform, metrics)):
        await until(lambda: begun["bad"] == 2)
        assert broken() == 1
        mended.set()
        await until(lambda: begun["bad"] == 3)
        cluster.add("later")
        await until(lambda: begun["later"] == 1)
        await until(lambda: broken() == 0)
    assert [record.exc_info is not None for record in caplog.records if "a bug" in record.message] == [True]


async def test_a_bug_of_the_cycle_itself_ends_the_loop_aloud() -> None:
    def cycle(*_: object) -> Outcome:
        raise ZeroDivisionError

    task = asyncio.create_task(Loop(Cluster(), cycle, None, Metrics("0")).run())  # type: ignore[arg-type]
    await asyncio.wait([task], timeout=DEADLINE_SECONDS)
    assert task.done()
    assert isinstance(task.exception(), ExceptionGroup)
