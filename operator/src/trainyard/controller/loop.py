"""The loop: something changed or is due, freeze the world, judge it, carry out what it needs, again.

Level-based: a cycle knows only the world as it is, so an event or a whole process that is lost costs nothing but time.
Jobs are carried out side by side and each job's actions in their order; a job has one turn at a time. The next cycle waits a
moment for the turns of this one, since what they write is what it should see: a reservation that is on its way would otherwise
be given to somebody else. It does not wait longer than that, since one launcher that is slow to answer must not stop the rest.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from trainyard.api.conditions import Reason
from trainyard.controller.backoff import LASTING, Backoff
from trainyard.cycle.actions import Announce, Outcome, Turn, WriteStatus
from trainyard.kube.errors import ApiError
from trainyard.kube.writer import Failure, Performed
from trainyard.telemetry.logs import about
from trainyard.telemetry.metrics import Metrics
from trainyard.world.records import Job, Trial, Verdict, World

DEBOUNCE_SECONDS: Final = 0.03
"""A gang's pods change together: one cycle for all of them. Where a cycle takes longer than this, the pause is as long as the
cycle: watches and launchers' answers come in on the same thread, and in a large cluster something always changes."""
PATIENCE_SECONDS: Final = 0.5
"""How long a cycle waits for the turns of the one before."""
LONGEST_REST_SECONDS: Final = 10.0
"""However still the cluster is: whatever was overlooked is seen then."""

log = logging.getLogger(__name__)


class Mirror(Protocol):
    """What the loop needs of `kube.mirror.Mirror`."""

    @property
    def generation(self) -> int: ...
    async def change(self, since: int) -> int: ...
    def freeze(self) -> World: ...
    def trial(self, job_uid: str, trial: Trial) -> None: ...


class Loop:
    """Runs cycles while `run` runs; `wake` asks for one. clock: seconds since the epoch."""

    def __init__(
        self,
        mirror: Mirror,
        cycle: Callable[[World, float], Outcome],
        perform: Callable[[Turn], Awaitable[Performed]],
        metrics: Metrics,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._mirror = mirror
        self._cycle = cycle
        self._perform = perform
        self._metrics = metrics
        self._clock = clock
        self._woken = asyncio.Event()
        self._backoff = Backoff()
        self._at_work: dict[str, asyncio.Task[None]] = {}
        self._passed_over: set[str] = set()
        self._broken: dict[str, str] = {}
        self._tripped: dict[str, str] = {}
        self._took_seconds = 0.0

    def wake(self) -> None:
        """Run a cycle soon, whether or not anything is known to have changed."""
        self._woken.set()

    async def run(self) -> None:
        """Cycle for ever. What a cycle raises for one job is that job's, and so is what its turn raises; what else a cycle raises
        is a bug that ends the loop: the successor may have more luck, and no decision is made on half a state."""
        async with asyncio.TaskGroup() as turns:
            turns.create_task(self._follow(), name="wake-on-change")
            while True:
                self._woken.clear()
                wake = self._step(turns)
                await self._settle()
                await self._rest(wake)

    def _step(self, turns: asyncio.TaskGroup) -> float | None:
        """One cycle. Returns when the next is due at the latest."""
        world = self._mirror.freeze()
        now = self._clock()
        began = time.perf_counter()
        outcome = self._cycle(world, now)
        self._took_seconds = time.perf_counter() - began
        self._metrics.cycled(world, self._took_seconds)
        turns_of = _by_job(outcome)
        known = world.jobs.keys() | turns_of.keys()
        self._backoff.keep(known)
        self._tripped = {uid: bug for uid, bug in self._tripped.items() if uid in known}
        self._complain(outcome)
        for job_uid, todo in turns_of.items():
            if job_uid in self._at_work:
                self._passed_over.add(job_uid)
            elif not self._backoff.waits(job_uid, now):
                task = turns.create_task(self._carry_out(job_uid, todo, world), name=f"turn-{job_uid}")
                self._at_work[job_uid] = task
        self._gauge(now)
        return min((t for t in (outcome.wake, self._backoff.next(now)) if t is not None), default=None)

    def _complain(self, outcome: Outcome) -> None:
        """Each bug once for each job, with its traceback."""
        found = {broken.job_uid: repr(broken.error) for broken in outcome.broken}
        for broken in outcome.broken:
            if self._broken.get(broken.job_uid) != found[broken.job_uid]:
                log.error("%s cannot be judged and is left as it is: a bug", broken.key, exc_info=broken.error)
        self._broken = found
        self._metrics.broken_jobs.set(len(found.keys() | self._tripped.keys()))

    async def _carry_out(self, job_uid: str, todo: tuple[Turn, ...], world: World) -> None:
        job = world.jobs.get(job_uid)
        with about(job.key if job else job_uid, job.status.attempt if job else 0):
            try:
                for turn in todo:
                    performed = await self._perform(turn)
                    self._count(performed, job)
                    if performed.failure:
                        await self._fail(job_uid, job, performed.failure)
                        self.wake()  # so that the loop learns when this job is due again
                        return
                self._backoff.succeeded(job_uid)
                self._tripped.pop(job_uid, None)
            except Exception as bug:
                self._trip(job_uid, job, bug)
                self.wake()
            finally:
                del self._at_work[job_uid]
                self._gauge(self._clock())
                # What was written changes the mirror, and that wakes. But a cycle that passed over this job has decided something
                # for it that nobody carried out.
                if job_uid in self._passed_over:
                    self._passed_over.discard(job_uid)
                    self.wake()

    def _count(self, performed: Performed, job: Job | None) -> None:
        for action in performed.done:
            self._metrics.acted(action, "done")
            if isinstance(action, WriteStatus) and job:
                self._metrics.wrote(job.status, action.status)
        if performed.failure:
            self._metrics.acted(performed.failure.action, _result(performed.failure.error))

    async def _fail(self, job_uid: str, job: Job | None, failure: Failure) -> None:
        now = self._clock()
        kind = type(failure.action).__name__
        if failure.error.conflict:
            log.info("%s was computed from an older state: %s", kind, failure.error)
            self._backoff.conflicted(job_uid, now)
            return
        trouble = self._backoff.failed(job_uid, now, failure.error.retry_after_seconds)
        log.warning("%s failed, again in %.1f s: %s", kind, trouble.until - now, failure.error)
        if job and trouble.failures >= LASTING and not failure.error.namespace_leaving:
            # The job's status is the cycle's to write, and this is how it learns of it.
            message = f"{kind}: {failure.error.message}"
            self._mirror.trial(job_uid, Trial(job.generation, Verdict.WAIT, now, Reason.API_REFUSES, message))
            if trouble.failures == LASTING:
                said = Announce(job.namespace, job.name, job.uid, "Warning", Reason.API_REFUSES, message)
                self._count(await self._perform(Turn(job_uid, (said,))), None)

    def _trip(self, job_uid: str, job: Job | None, bug: Exception) -> None:
        """A turn raised: that job is left alone for a while, and the others are served. With the traceback, once for each bug."""
        trouble = self._backoff.failed(job_uid, self._clock())
        if self._tripped.get(job_uid) != repr(bug):
            key, again = job.key if job else job_uid, trouble.until - self._clock()
            log.error("what %s needs cannot be carried out, again in %.1f s: a bug", key, again, exc_info=bug)
        self._tripped[job_uid] = repr(bug)

    async def _settle(self) -> None:
        if self._at_work:
            await asyncio.wait(list(self._at_work.values()), timeout=PATIENCE_SECONDS)

    async def _rest(self, wake: float | None) -> None:
        """Until something happens or is due; then a little longer, for what comes with it."""
        due = LONGEST_REST_SECONDS if wake is None else min(LONGEST_REST_SECONDS, max(0.0, wake - self._clock()))
        try:
            async with asyncio.timeout(due):
                await self._woken.wait()
        except TimeoutError:
            pass
        await asyncio.sleep(max(DEBOUNCE_SECONDS, self._took_seconds))

    async def _follow(self) -> None:
        generation = self._mirror.generation
        while True:
            generation = await self._mirror.change(generation)
            self.wake()

    def _gauge(self, now: float) -> None:
        self._metrics.workqueue_depth.set(len(self._at_work))
        self._metrics.backing_off.set(self._backoff.waiting(now))


def _by_job(outcome: Outcome) -> Mapping[str, tuple[Turn, ...]]:
    """A job's turns in order. There may be several of a job that is gone: one for each pod that it left behind."""
    found: dict[str, tuple[Turn, ...]] = {}
    for turn in outcome.turns:
        found[turn.job_uid] = (*found.get(turn.job_uid, ()), turn)
    return found


def _result(error: ApiError) -> str:
    """How an action ended that did not succeed, as a label of few values."""
    if error.conflict:
        return "conflict"
    return "unavailable" if error.temporary else "refused"
