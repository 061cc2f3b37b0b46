"""A pretended cluster for the operator's real judgement: what would happen to a queue, without anything happening.

Its hands are as simple as can be: pods are bound where their plan says and run at once, every node stays well, a gang makes one
step a second until its work is done, and saves when it is asked to leave. Time jumps from one event to the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Final

from trainyard.api import names
from trainyard.api.conditions import Phase
from trainyard.contract.exits import Exit
from trainyard.contract.plan import Plan
from trainyard.contract.plan import decode as decode_plan
from trainyard.contract.status import Commit, LastWords, Status, encode_last_words
from trainyard.cycle import actions as act
from trainyard.cycle.cycle import cycle
from trainyard.world.inventory import Inventory
from trainyard.world.records import (
    Answer,
    Job,
    Membership,
    Pod,
    Running,
    Terminated,
    Trial,
    Verdict,
    World,
)
from trainyard.world.resources import pod_requests

SAVE_SECONDS: Final = 30.0
"""How long a gang takes to save when it is asked to leave."""

HEARD: Final = 10 * 365 * 86400.0
"""How far ahead a launcher's answer is dated: it never falls silent here, and needs no instant of its own to say so again."""

MOST_CYCLES: Final = 20
"""How often the operator may think again at one instant."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A job of the queue. at: when it is applied, from the beginning; work: seconds that it trains, None: until nobody looks."""

    job: Job
    at: float = 0.0
    work: float | None = None


@dataclass(frozen=True, slots=True)
class Stint:
    """One attempt of a job: its nodes in rank order, when it started and when it left them; None: it still runs.

    yielded: it left because it was asked to.
    """

    key: str
    attempt: int
    nodes: tuple[str, ...]
    started: float
    ended: float | None = None
    yielded: bool = False


@dataclass(slots=True)
class _Gang:
    """An attempt under way. base: steps that it began with; noticed: when it was first asked to leave."""

    job: str
    plan: Plan
    digest: str
    started: float
    base: int
    work: float | None
    pods: list[str] = field(default_factory=list)
    noticed: float | None = None
    saves: bool = True

    def step(self, now: float) -> int:
        """Steps done, one a second; none are made while it saves."""
        until = now if self.noticed is None else min(now, self.noticed)
        done = self.base + int(until - self.started)
        return done if self.work is None else min(done, int(self.work))

    def leaves(self) -> float:
        """When it ends if nothing happens."""
        if self.noticed is not None:
            return self.noticed + (SAVE_SECONDS if self.saves else 0.0)
        return inf if self.work is None else self.started + max(0.0, self.work - self.base)


class Pretended:
    """A cluster that begins as a world is: its nodes, classes and Fabrics, and its pods as something that stays.

    releases: when pods that stay leave after all, by uid.
    """

    def __init__(self, world: World, now: float, releases: Mapping[str, float] | None = None) -> None:
        self.now = now
        self.jobs: dict[str, Job] = {}
        self.stints: list[Stint] = []
        self._nodes, self._classes, self._fabrics = world.nodes, world.priority_classes, world.fabrics
        self._pods: dict[str, Pod] = {uid: replace(pod, membership=None) for uid, pod in world.pods.items()}
        self._releases = dict(releases or {})
        self._trials: dict[str, Trial] = {}
        self._plans: dict[tuple[str, int], Plan] = {}
        self._gangs: dict[str, _Gang] = {}
        self._saved: dict[str, Commit] = {}
        self._work: dict[str, float | None] = {}
        self._inventory = Inventory()
        self._version = 0

    def run(self, submissions: Iterable[Submission], until: float) -> None:
        """Let time pass to an instant, or until nothing more can happen. Submissions count from now."""
        queue = sorted(submissions, key=lambda one: one.at)
        begin = self.now
        while True:
            while queue and begin + queue[0].at <= self.now:
                one = queue.pop(0)
                self._work[one.job.uid] = one.work
                self.jobs[one.job.uid] = replace(one.job, created=self.now, resource_version=self._next())
            self._move()
            wake = self._operate()
            times = [begin + queue[0].at] if queue else []
            times += [gang.leaves() for gang in self._gangs.values()]
            times += [time for time in self._releases.values() if time > self.now]
            times += [wake] if wake is not None and any(_waits(job) for job in self.jobs.values()) else []
            after = min((time for time in times if time > self.now), default=inf)
            if after > until:
                self.now = until if after < inf else self.now
                return
            self.now = after

    def _operate(self) -> float | None:
        """Cycles until one has nothing to do. Returns when the operator wants to look again."""
        wake = None
        for _ in range(MOST_CYCLES):
            outcome = cycle(self._world(), self.now, self._inventory)
            for broken in outcome.broken:
                raise broken.error
            wake = outcome.wake
            if not outcome.turns:
                break
            for turn in outcome.turns:
                for action in turn.actions:
                    self._perform(action)
            self._move()
        return wake

    def _world(self) -> World:
        return World(
            nodes=self._nodes,
            pods=dict(self._pods),
            jobs=dict(self.jobs),
            priority_classes=self._classes,
            fabrics=self._fabrics,
            answers=self._answers(),
            trials=dict(self._trials),
        )

    def _perform(self, action: act.Action) -> None:
        match action:
            case act.WriteStatus(uid=uid, status=status):
                self._store(replace(self.jobs[uid], status=status))
            case act.HoldJob(uid=uid):
                self._store(replace(self.jobs[uid], held=True))
            case act.ReleaseJob(uid=uid):
                self._store(replace(self.jobs[uid], held=False))
            case act.TryPod(job_uid=uid, generation=generation):
                self._trials[uid] = Trial(generation, Verdict.ACCEPTED, self.now)
            case act.Create(manifest=manifest):
                self._create(manifest)
            case act.AskStop(job_uid=uid):
                self._notice(uid)
            case act.DeletePod(uid=uid):
                self._delete(uid)
            case act.ReleasePod(uid=uid):
                self._release(uid)
            case _:
                pass  # events, Secrets and plans that are deleted change nothing here

    def _store(self, job: Job) -> None:
        self.jobs[job.uid] = replace(job, resource_version=self._next())

    def _next(self) -> str:
        self._version += 1
        return str(self._version)

    def _create(self, manifest: Mapping[str, Any]) -> None:
        kind, meta = manifest["kind"], manifest["metadata"]
        if kind == "ConfigMap":
            plan = decode_plan(manifest["data"][names.PLAN_KEY])
            self._plans[(plan.uid, plan.attempt)] = plan
        if kind != "Pod":
            return
        labels, notes = meta["labels"], meta["annotations"]
        membership = Membership(
            job_uid=labels[names.LABEL_JOB_UID],
            attempt=int(labels[names.LABEL_ATTEMPT]),
            member=int(labels[names.LABEL_MEMBER]),
            rank=int(labels[names.LABEL_RANK]),
            node=notes[names.ANNOTATION_NODE],
            plan_digest=notes[names.ANNOTATION_PLAN],
        )
        uid = f"{membership.job_uid}/{membership.member}"
        if uid in self._pods:
            return
        self._pods[uid] = Pod(
            namespace=meta["namespace"],
            name=meta["name"],
            uid=uid,
            created=self.now,
            node=membership.node,
            phase="Running",
            requests=pod_requests(manifest["spec"]),
            ip="192.0.2.1",
            grace_seconds=float(manifest["spec"].get("terminationGracePeriodSeconds") or 0),
            held=names.FINALIZER_POD in meta.get("finalizers", ()),
            trainer=Running(self.now),
            membership=membership,
        )
        self._join(membership, uid)

    def _join(self, membership: Membership, pod: str) -> None:
        uid = membership.job_uid
        gang = self._gangs.get(uid)
        if gang is None or gang.plan.attempt != membership.attempt:
            plan = self._plans[(uid, membership.attempt)]
            saved = self._saved.get(uid)
            base = saved.step if saved is not None else 0
            gang = _Gang(uid, plan, membership.plan_digest, self.now, base, self._work.get(uid))
            gang.saves = plan.checkpoints is not None
            self._gangs[uid] = gang
            first = Stint(self.jobs[uid].key, membership.attempt, (self._pods[pod].node,), self.now)
            self.stints.append(first)
        else:
            stint = self.stints[self._stint(gang)]
            self.stints[self._stint(gang)] = replace(stint, nodes=(*stint.nodes, self._pods[pod].node))
        gang.pods.append(pod)

    def _stint(self, gang: _Gang) -> int:
        mine = (self.jobs[gang.job].key, gang.plan.attempt)
        return max(n for n, stint in enumerate(self.stints) if (stint.key, stint.attempt) == mine)

    def _notice(self, job: str) -> None:
        gang = self._gangs.get(job)
        if gang is not None and gang.noticed is None:
            gang.noticed = self.now

    def _delete(self, uid: str) -> None:
        pod = self._pods.get(uid)
        if pod is None:
            return
        if pod.deleted is None:
            self._pods[uid] = pod = replace(pod, deleted=self.now)
        if pod.membership is not None:
            self._notice(pod.membership.job_uid)
        self._reap(uid)

    def _release(self, uid: str) -> None:
        if uid in self._pods:
            self._pods[uid] = replace(self._pods[uid], held=False)
            self._reap(uid)

    def _reap(self, uid: str) -> None:
        pod = self._pods[uid]
        if pod.deleted is not None and not pod.held and not pod.live:
            del self._pods[uid]

    def _move(self) -> None:
        """What ends at this instant ends."""
        for uid in [uid for uid, time in self._releases.items() if time <= self.now]:
            del self._releases[uid]
            self._pods.pop(uid, None)
        for gang in list(self._gangs.values()):
            if gang.leaves() <= self.now:
                self._end(gang)

    def _end(self, gang: _Gang) -> None:
        step, done = gang.step(self.now), gang.noticed is None
        commit = Commit(gang.plan.attempt, step, f"step-{step}", seconds=SAVE_SECONDS, time=self.now)
        if gang.saves:
            self._saved[gang.job] = commit
        code = Exit.DONE if done else Exit.YIELDED if gang.saves else Exit.FAILURE
        for uid in gang.pods:
            pod = self._pods.get(uid)
            if pod is None or pod.membership is None:
                continue
            words = LastWords(
                attempt=gang.plan.attempt,
                node_rank=pod.membership.rank,
                exit=code,
                cause="its work is done" if done else "it was asked to leave",
                step=step,
                commit=commit if gang.saves else None,
                first_step_time=gang.started,
            )
            ended = Terminated(code, "Completed" if done else "Error", encode_last_words(words), self.now)
            self._pods[uid] = replace(pod, trainer=ended, phase="Succeeded" if done else "Failed")
            self._reap(uid)
        at = self._stint(gang)
        self.stints[at] = replace(self.stints[at], ended=self.now, yielded=not done)
        del self._gangs[gang.job]

    def _answers(self) -> dict[str, Answer]:
        """What the launchers say now."""
        found = {}
        for gang in self._gangs.values():
            saved = self._saved.get(gang.job)
            for uid in gang.pods:
                pod = self._pods.get(uid)
                if pod is None or pod.membership is None:
                    continue
                status = Status(
                    pod_uid=uid,
                    attempt=gang.plan.attempt,
                    plan_digest=gang.digest,
                    node_rank=pod.membership.rank,
                    phase="training",
                    step=gang.step(self.now),
                    first_step_time=gang.started,
                    notice_time=gang.noticed,
                    commit=saved if saved is not None and saved.attempt == gang.plan.attempt else None,
                )
                found[uid] = Answer(asked=gang.started, status=status, time=self.now + HEARD)
        return found


def _waits(job: Job) -> bool:
    return job.status.phase in (None, Phase.PENDING)
