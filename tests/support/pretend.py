"""A pretended cluster: does to a world what an API server, a scheduler, kubelets and launchers would do, second by second.

The brain under test is the real one; only the hands are pretended. Time moves when `tick` says so. Faults are ordinary calls:
`lose_node`, `delete_pod`, `crash`, and `interrupt` (the operator dies after some of its writes).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trainyard.api import names
from trainyard.api.fabric import Observed
from trainyard.api.training_job import TrainingJobSpec, TrainingJobStatus
from trainyard.contract.network import PodNetwork, Trouble
from trainyard.contract.plan import Mark, Plan, digest
from trainyard.contract.plan import decode as decode_plan
from trainyard.contract.preflight import Finding, PreflightResult
from trainyard.contract.sent import Sent
from trainyard.contract.status import At, Commit, Fault, LastWords, Status, encode_last_words
from trainyard.cycle import actions as act
from trainyard.cycle import cycle
from trainyard.world.inventory import Inventory
from trainyard.world.records import (
    Answer,
    Degraded,
    Fabric,
    Job,
    Marks,
    Membership,
    Node,
    Pod,
    PriorityClass,
    Running,
    Terminated,
    Trial,
    Verdict,
    Waiting,
    World,
)
from trainyard.world.resources import pod_requests

START = 1_000_000.0
PLAN_SECONDS = 60.0
"""How long a launcher whose workers have failed waits for a later plan."""
LEVELS = ("spine", "leaf")


@dataclass
class Launcher:
    """What a pretended launcher knows: the pod's progress, and when it will leave. ended: how its workers ended, while it waits
    for a later plan; refuses: why it would not take one."""

    plan: Plan
    started: float
    step: int = 0
    commit: Commit | None = None
    resumed: Mark | None = None
    notice: float | None = None
    leaves: float | None = None
    frozen: bool = False
    fails: Fault | None = None
    ended: LastWords | None = None
    ended_time: float = 0.0
    refuses: str = ""
    exit: int | None = None
    preflight: PreflightResult | None = None
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        self.digest = digest(self.plan)


@dataclass
class Pretend:
    """A cluster of nodes with GPUs in a tree of spines and leaves, all pods of which are Trainyard's or `foreign`'s.

    save_seconds: how long a save takes after a stop was noticed. reachable: whether the operator reaches launchers at all.
    trains: whether a whole gang makes a step each second. speaks: whether its workers report.
    brittle: whether workers fail a second after a peer has, as over gloo; otherwise they wait for it.
    sidecars: whether pods outlive their trainers until they are deleted. slow: nodes that a preflight finds out, if it measures
    them; hopeless: whether it finds the gang slow as a whole; finds: what it finds instead. networks: what a pod finds of its
    network, by node; troubles: what libraries complain of there.
    steps: how many steps a job needs, by name (default: for ever).
    marks: by whose verdicts nodes are marked for all; None: by nobody's.
    claims: what a launcher says of its seconds by phase. places: where it says that its workers are, given its rank. sent: what
    it says that a step sends.
    """

    now: float = START
    save_seconds: float = 3.0
    reachable: bool = True
    trains: bool = True
    speaks: bool = True
    brittle: bool = False
    sidecars: bool = False
    slow: set[str] = field(default_factory=set)
    hopeless: bool = False
    finds: PreflightResult | None = None
    networks: dict[str, PodNetwork] = field(default_factory=dict)
    troubles: dict[str, tuple[Trouble, ...]] = field(default_factory=dict)
    marks: Marks | None = None
    steps: dict[str, int] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    classes: dict[str, PriorityClass] = field(default_factory=dict)
    fabrics: dict[str, Fabric] = field(default_factory=dict)
    plans: dict[tuple[str, str], Plan] = field(default_factory=dict)
    launchers: dict[str, Launcher] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)
    trials: dict[str, Trial] = field(default_factory=dict)
    events: list[tuple[str, str, str]] = field(default_factory=list)
    claims: Callable[[Launcher], Mapping[str, float]] = field(default=lambda launcher: {})
    sent: Sent | None = None
    places: Callable[[Launcher, int], tuple[At, ...]] = field(default=lambda launcher, rank: ())
    verdict: Callable[[act.TryPod], Trial] | None = None
    interrupt: Callable[[act.Action], bool] | None = None
    history: dict[str, list[int]] = field(default_factory=dict)
    commits: dict[str, list[Commit]] = field(default_factory=dict)
    inventory: Inventory = field(default_factory=Inventory)
    _version: int = 0

    # What a test says -------------------------------------------------------------------------------------------------

    def with_nodes(self, spines: int = 2, leaves: int = 2, per_leaf: int = 2, gpus: int = 8) -> Pretend:
        """Nodes named a0, a1, ... per spine, in leaves of equal size."""
        for spine in range(spines):
            for n in range(leaves * per_leaf):
                name = f"{chr(ord('a') + spine)}{n}"
                labels = {
                    "network.topology.nvidia.com/spine": f"spine-{chr(ord('a') + spine)}",
                    "network.topology.nvidia.com/leaf": f"leaf-{n // per_leaf}",
                }
                amounts = {"nvidia.com/gpu": gpus, "cpu": 64_000, "memory": 1 << 40, "pods": 110}
                self.nodes[name] = Node(name, f"uid-{name}", labels, amounts, ready_since=self.now - 3600)
        return self

    def with_class(self, name: str, value: int, preempts: bool = True) -> Pretend:
        """A PriorityClass."""
        self.classes[name] = PriorityClass(name, value, preempts)
        return self

    def submit(self, name: str, nodes: int, namespace: str = "team", steps: int | None = None, **spec: Any) -> Job:
        """A job whose members want all GPUs of a node. spec: further fields, in camelCase."""
        if steps is not None:
            self.steps[name] = steps
        container = {
            "name": "trainer",
            "image": "trainyard/trainer:0.1.0",
            "resources": {"limits": {"nvidia.com/gpu": 8}},
            "volumeMounts": [{"name": "checkpoints", "mountPath": "/checkpoints"}],
        }
        volume = {"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints"}}
        template = {"spec": {"containers": [container], "volumes": [volume]}}
        raw = {
            "nodes": nodes,
            "template": template,
            "processesPerNode": 1,
            "checkpoint": {"volume": "checkpoints"},
            **spec,
        }
        return self.add(name, namespace, TrainingJobSpec.model_validate(raw))

    def add(self, name: str, namespace: str, spec: TrainingJobSpec | None, **fields: Any) -> Job:
        """A job as the API server has it after `kubectl apply`."""
        uid = f"uid-{namespace}-{name}-{self._next()}"
        job = Job(
            namespace=namespace,
            name=name,
            uid=uid,
            generation=1,
            resource_version=str(self._next()),
            created=self.now,
            spec=spec,
            status=TrainingJobStatus(),
            **fields,
        )
        self.jobs[uid] = job
        return job

    def edit(self, name: str, **spec: Any) -> None:
        """Change fields of a job's specification, in snake_case."""
        job = self.job(name)
        assert job.spec is not None
        self.jobs[job.uid] = replace(job, spec=job.spec.but(**spec), generation=job.generation + 1)

    def delete_job(self, name: str) -> None:
        """kubectl delete tj."""
        job = self.job(name)
        self.jobs[job.uid] = replace(job, deleted=self.now)
        self._collect(job.uid)

    def delete_pod(self, name: str, grace: float | None = None) -> None:
        """kubectl delete pod."""
        pod = self.pod(name)
        seconds = pod.grace_seconds if grace is None else grace
        self.pods[pod.uid] = replace(pod, deleted=self.now, grace_seconds=seconds)

    def crash(self, name: str, rank: int = 0, signal: str = "SIGKILL") -> None:
        """A worker of a pod is killed."""
        self.launchers[self.pod(name).uid].fails = Fault(rank, self.now, f"worker ended by {signal}", None, signal)

    def refuse_plans(self, name: str, why: str = "HTTP 409: attempt: 2 is not after 7") -> None:
        """A pod's launcher takes no later plan."""
        self.launchers[self.pod(name).uid].refuses = why

    def freeze(self, name: str) -> None:
        """SIGSTOP for everything in a pod."""
        self.launchers[self.pod(name).uid].frozen = True

    def lose_node(self, name: str) -> None:
        """The node's network is cut: it becomes NotReady, and nothing on it answers or ends."""
        self.nodes[name] = replace(self.nodes[name], ready=False, missed=True, ready_since=self.now)
        for pod in self.pods.values():
            if pod.node == name and pod.uid in self.launchers:
                self.launchers[pod.uid].frozen = True

    def foreign(self, node: str, gpus: int = 8, name: str = "", **others: int) -> None:
        """A pod of somebody else, bound. others: what it takes besides, by resource."""
        uid = name or f"foreign-{self._next()}"
        self.pods[uid] = Pod(
            "other", uid, uid, self.now, node, "Running", {"nvidia.com/gpu": gpus, "pods": 1, **others}
        )

    # What a test asks -------------------------------------------------------------------------------------------------

    def job(self, name: str) -> Job:
        """The job of a name."""
        return next(job for job in self.jobs.values() if job.name == name)

    def pod(self, name: str) -> Pod:
        """The pod of a name."""
        return next(pod for pod in self.pods.values() if pod.name == name)

    def status(self, name: str) -> TrainingJobStatus:
        """The status of a job."""
        return self.job(name).status

    def nodes_of(self, name: str) -> list[str]:
        """Where the members of a job are bound that live and may stay, in rank order."""
        uid = self.job(name).uid
        mine = [
            p
            for p in self.pods.values()
            if p.membership and p.membership.job_uid == uid and p.live and p.deleted is None
        ]
        return [pod.node for pod in sorted(mine, key=lambda pod: pod.membership.rank if pod.membership else 0)]

    def world(self) -> World:
        """Everything as the operator sees it."""
        return World(
            nodes=dict(self.nodes),
            pods=dict(self.pods),
            jobs=dict(self.jobs),
            priority_classes=dict(self.classes),
            fabrics=dict(self.fabrics),
            answers=dict(self.answers),
            trials=dict(self.trials),
            marks=self.marks,
        )

    # How time passes --------------------------------------------------------------------------------------------------

    def tick(self, seconds: int = 1) -> Pretend:
        """Let time pass: each second the cluster moves, then the operator has a few cycles."""
        for _ in range(seconds):
            self.now += 1.0
            self._move()
            self.operate()
        return self

    def operate(self, cycles: int = 6) -> None:
        """Run cycles until one has nothing to do."""
        for _ in range(cycles):
            outcome = cycle(self.world(), self.now, self.inventory)
            if not outcome.turns:
                return
            for turn in outcome.turns:
                self.perform(turn.actions)

    def until(self, condition: Callable[[], bool], limit: int = 600) -> Pretend:
        """Tick until something holds; an assertion with what there is where it does not in time."""
        for _ in range(limit):
            if condition():
                return self
            self.tick()
        raise AssertionError(f"did not come true within {limit} s:\n{self.story()}")

    def phase_is(self, name: str, phase: str) -> Callable[[], bool]:
        """A condition for `until`."""
        return lambda: self.status(name).phase == phase

    def story(self) -> str:
        """What there is, for a reader of a failed test."""
        lines = [
            f"{job.name}: {job.status.phase} {job.status.pending and job.status.pending.message}"
            for job in self.jobs.values()
        ]
        lines += [f"  {pod.name} on {pod.node or '-'} {pod.phase} {pod.trainer}" for pod in self.pods.values()]
        return "\n".join(lines + [" ".join(event) for event in self.events[-12:]])

    def perform(self, actions: Iterable[act.Action]) -> None:
        """Carry actions out in order; `interrupt` may end a turn at any of them."""
        for action in actions:
            if self.interrupt is not None and self.interrupt(action):
                return
            if not self._perform(action):
                return

    def _perform(self, action: act.Action) -> bool:
        match action:
            case act.WriteStatus(uid=uid, resource_version=version, status=status):
                job = self.jobs.get(uid)
                if job is None or job.resource_version != version:
                    return False
                self._store(replace(job, status=_through_json(status)))
            case act.WriteObserved(name=name, uid=uid, resource_version=version, observed=observed):
                fabric = self.fabrics.get(name)
                if fabric is None or (fabric.uid, fabric.resource_version) != (uid, version):
                    return False
                heard = Observed.model_validate(observed.to_manifest())
                self.fabrics[name] = replace(fabric, observed=heard, resource_version=str(self._next()))
            case act.HoldJob(uid=uid):
                if uid not in self.jobs or self.jobs[uid].deleted is not None:
                    return False
                self._store(replace(self.jobs[uid], held=True))
            case act.ReleaseJob(uid=uid):
                if uid in self.jobs:
                    self._store(replace(self.jobs[uid], held=False))
                    self._collect(uid)
            case act.Create(manifest=manifest):
                self._create(manifest)
            case act.DeletePod(uid=uid, grace_seconds=grace):
                self._delete(uid, grace)
            case act.ReleasePod(uid=uid):
                if uid in self.pods:
                    self.pods[uid] = replace(self.pods[uid], held=False)
                    self._reap(uid)
            case act.AskStop(pod_uid=uid, stop=stop):
                self._ask(uid, stop)
            case act.HandPlan(pod_uid=uid, plan=plan):
                self._hand(uid, decode_plan(plan))
            case act.Relabel(uid=uid, attempt=attempt, rank=rank, plan_digest=said_plan):
                pod = self.pods.get(uid)
                if pod is not None and pod.membership is not None:
                    says = replace(pod.membership, attempt=attempt, rank=rank, plan_digest=said_plan)
                    self.pods[uid] = replace(pod, membership=says)
            case act.TryPod(job_uid=uid, generation=generation):
                accepted = Trial(generation, Verdict.ACCEPTED, self.now)
                self.trials[uid] = self.verdict(action) if self.verdict is not None else accepted
            case act.MarkNode(name=name, uid=uid, degraded=degraded):
                node = self.nodes.get(name)
                if node is None or node.uid != uid:
                    return False
                said = Degraded(float(round(action.time)), action.reason, action.message)
                self.nodes[name] = replace(node, degraded=said if degraded else None)
                self.events.append((name, action.reason, action.message))
            case act.Announce(name=name, reason=reason, message=message):
                self.events.append((name, str(reason), message))
            case act.CreateControl() | act.DeletePlan():
                pass
        return True

    def _store(self, job: Job) -> None:
        self.jobs[job.uid] = replace(job, resource_version=str(self._next()))

    def _next(self) -> int:
        self._version += 1
        return self._version

    def _create(self, manifest: Mapping[str, Any]) -> None:
        kind, meta = manifest["kind"], manifest["metadata"]
        namespace, name = meta["namespace"], meta["name"]
        if kind == "ConfigMap":
            self.plans.setdefault((namespace, name), decode_plan(manifest["data"][names.PLAN_KEY]))
        if kind != "Pod" or any(p.name == name and p.namespace == namespace for p in self.pods.values()):
            return
        labels, notes = meta["labels"], meta["annotations"]
        membership = Membership(
            job_uid=labels[names.LABEL_JOB_UID],
            attempt=int(labels[names.LABEL_ATTEMPT]),
            member=int(labels[names.LABEL_MEMBER]),
            rank=int(labels[names.LABEL_RANK]),
            node=notes[names.ANNOTATION_NODE],
            plan_digest=notes[names.ANNOTATION_PLAN],
            made=int(notes[names.ANNOTATION_MADE]),
            form=notes[names.ANNOTATION_FORM],
        )
        pod = Pod(
            namespace=namespace,
            name=name,
            uid=f"pod-{name}-{self._next()}",
            created=self.now,
            node="",
            phase="Pending",
            requests=pod_requests(manifest["spec"]),
            grace_seconds=float(manifest["spec"]["terminationGracePeriodSeconds"]),
            held=names.FINALIZER_POD in meta.get("finalizers", ()),
            membership=membership,
        )
        self.pods[pod.uid] = pod

    def _delete(self, uid: str, grace: int | None) -> None:
        pod = self.pods.get(uid)
        if pod is None:
            return
        seconds = pod.grace_seconds if grace is None else float(grace)
        if not pod.node:
            seconds = 0.0  # no kubelet ends it: only a finalizer keeps the object, as it is
        if pod.killed is None or self.now + seconds < pod.killed:
            self.pods[uid] = replace(pod, deleted=self.now, grace_seconds=seconds)
        self._reap(uid, force=grace == 0)

    def _reap(self, uid: str, force: bool = False) -> None:
        """The object goes when it is deleted, free of finalizers, and its kubelet has ended it (or nobody waits for that)."""
        pod = self.pods.get(uid)
        if pod is not None and pod.deleted is not None and not pod.held and (force or not pod.live or not pod.node):
            del self.pods[uid]
            self.launchers.pop(uid, None)
            self.answers.pop(uid, None)

    def _collect(self, job_uid: str) -> None:
        """A job without finalizer is gone, and the garbage collector deletes what it owned."""
        job = self.jobs.get(job_uid)
        if job is None or job.deleted is None or job.held:
            return
        del self.jobs[job_uid]
        for pod in list(self.pods.values()):
            if pod.membership is not None and pod.membership.job_uid == job_uid:
                self._delete(pod.uid, None)

    def _ask(self, uid: str, stop: Any) -> None:
        answer = self.answers.get(uid)
        if answer is not None:
            self.answers[uid] = replace(answer, stop_sent=self.now)
        launcher = self.launchers.get(uid)
        if launcher is None or launcher.frozen or not self.reachable or stop.attempt != launcher.plan.attempt:
            return
        launcher.notice = launcher.notice or self.now

    def _hand(self, uid: str, plan: Plan) -> None:
        """POST /v1/plan: a launcher begins a later attempt in place, whatever its workers are at."""
        launcher, pod = self.launchers.get(uid), self.pods.get(uid)
        if pod is None:
            return
        known = replace(self.answers.get(uid, Answer(asked=self.now)), plan_sent=self.now, plan_refused="")
        self.answers[uid] = known
        if launcher is None or launcher.frozen or not self.reachable or not isinstance(pod.trainer, Running):
            self.answers[uid] = replace(known, error="timed out")
            return
        if digest(plan) == launcher.digest:
            return
        if launcher.refuses or launcher.notice is not None or plan.attempt <= launcher.plan.attempt:
            self.answers[uid] = replace(known, plan_refused=launcher.refuses or "HTTP 409")
            return
        resumed = self._newest(plan)
        step = resumed.step if resumed is not None else 0
        self.launchers[uid] = Launcher(plan, self.now, step=step, resumed=resumed)

    def _move(self) -> None:
        for pod in list(self.pods.values()):
            stays = self.sidecars and pod.deleted is None
            if isinstance(pod.trainer, Terminated) and pod.live and not stays:
                self.pods[pod.uid] = replace(pod, phase="Succeeded" if pod.trainer.exit_code == 0 else "Failed")
        for pod in sorted(self.pods.values(), key=lambda pod: pod.name):
            if pod.membership is None:
                continue
            if not pod.node and pod.deleted is None:
                self._bind(pod)
            elif pod.node and self.nodes.get(pod.node, None) is not None and self.nodes[pod.node].ready:
                self._kubelet(self.pods[pod.uid])
        self._gangs()
        self._answer()
        for pod in list(self.pods.values()):
            self._reap(pod.uid)

    def _bind(self, pod: Pod) -> None:
        assert pod.membership is not None
        node = self.nodes.get(pod.membership.node)
        used = sum(
            p.requests.get("nvidia.com/gpu", 0) for p in self.pods.values() if p.live and node and p.node == node.name
        )
        wanted = pod.requests.get("nvidia.com/gpu", 0)
        if node is None or not node.ready or used + wanted > node.allocatable["nvidia.com/gpu"]:
            self.pods[pod.uid] = replace(pod, unscheduled="0/1 nodes are available: Insufficient nvidia.com/gpu")
            return
        self.pods[pod.uid] = replace(pod, node=node.name, unscheduled="")

    def _kubelet(self, pod: Pod) -> None:
        assert pod.membership is not None
        if isinstance(pod.trainer, Waiting) and pod.deleted is None:
            plan = self.plans[(pod.namespace, f"{self._job_name(pod)}-plan-{pod.membership.made}")]
            resumed = self._newest(plan)
            step = resumed.step if resumed is not None else 0
            self.pods[pod.uid] = replace(pod, phase="Running", ip="10.0.0.1", trainer=Running(self.now))
            self.launchers[pod.uid] = Launcher(plan, self.now, step=step, resumed=resumed)
            return
        launcher = self.launchers.get(pod.uid)
        if pod.deleted is not None and isinstance(pod.trainer, Waiting):
            self._end(pod, 137, "Killed")
        elif pod.deleted is not None and launcher is not None and isinstance(pod.trainer, Running):
            if not launcher.frozen:
                launcher.notice = launcher.notice or self.now
                if launcher.ended is not None:
                    self._leave(pod, launcher)
                    return
            if pod.killed is not None and self.now >= pod.killed:
                self._end(pod, 137, "Killed")

    def _newest(self, plan: Plan) -> Mark | None:
        """The commit that a trainer would load: the newest of the lineage."""
        if plan.lineage.resume is not None:
            return plan.lineage.resume
        limits = {mark.attempt: mark.step for mark in plan.lineage.history}
        counted = [
            c for c in self.commits.get(plan.uid, ()) if c.attempt in limits and limits[c.attempt] in (-1, c.step)
        ]
        newest = max(counted, key=lambda c: (c.attempt, c.step), default=None)
        return Mark(newest.attempt, newest.step) if newest is not None else None

    def _job_name(self, pod: Pod) -> str:
        assert pod.membership is not None
        return pod.name.removesuffix(f"-{pod.membership.member}")

    def _gangs(self) -> None:
        """Launchers of one attempt move together: a step needs all of them, a stop of one is agreed by all."""
        gangs: dict[tuple[str, int], list[Pod]] = {}
        for pod in self.pods.values():
            if pod.membership is not None and pod.uid in self.launchers and isinstance(pod.trainer, Running):
                attempt = self.launchers[pod.uid].plan.attempt
                gangs.setdefault((pod.membership.job_uid, attempt), []).append(pod)
        for (_, attempt), pods in gangs.items():
            crew = [self.launchers[pod.uid] for pod in pods]
            plan = crew[0].plan
            whole = len(pods) == len(plan.members) and not any(launcher.frozen for launcher in crew)
            self._train(pods, crew, plan, attempt, whole)

    def _train(self, pods: list[Pod], crew: list[Launcher], plan: Plan, attempt: int, whole: bool) -> None:
        broken = any(launcher.ended for launcher in crew)
        for pod, launcher in zip(pods, crew, strict=True):
            if launcher.ended is not None:
                if self.now - launcher.ended_time >= PLAN_SECONDS or launcher.notice is not None:
                    self._leave(pod, launcher)
            elif launcher.fails is not None and not launcher.frozen:
                self._fail(pod, launcher, 1, launcher.fails)
            elif broken and self.brittle and not launcher.frozen:
                self._fail(pod, launcher, 1, Fault(0, self.now, "Connection closed by peer"))
        if not whole or any(launcher.fails or launcher.ended for launcher in crew):
            for pod, launcher in zip(pods, crew, strict=True):
                # Nothing can be saved without the others: a launcher that is asked to leave does so, and says so.
                lasts = launcher.ended is None and not launcher.frozen and launcher.fails is None
                if lasts and launcher.notice is not None and self.now - launcher.notice >= 2:
                    self._end(pod, 1, "Error")
            return
        if crew[0].preflight is None and plan.preflight is not None:
            result = self._prove(plan)
            for pod, launcher in zip(pods, crew, strict=True):
                launcher.preflight = result
                if result.finding == Finding.FAILED:
                    self._fail(pod, launcher, 77, None, result)
            if result.finding == Finding.FAILED:
                return
        notices = [launcher.notice for launcher in crew if launcher.notice is not None]
        last = self.steps.get(plan.job)
        if notices and (self.speaks or all(launcher.step > 0 for launcher in crew)):
            if self.now - min(notices) >= self.save_seconds:
                if all(launcher.step > 0 for launcher in crew):  # before the first step there is nothing to save
                    self._commit(crew, attempt)
                for pod in pods:
                    self._end(pod, 75, "Error")
            return
        if notices and not self.speaks and self.now - min(notices) >= self.save_seconds:
            for pod in pods:
                self._end(pod, 1, "Error")  # a script that knows no contract ends by the SIGTERM that it is sent
        if notices or not self.trains:
            return
        for launcher in crew:
            launcher.step += 1
        self.history.setdefault(plan.uid, []).append(crew[0].step)
        if crew[0].step % 10 == 0:
            self._commit(crew, attempt)
        if last is not None and crew[0].step >= last:
            self._commit(crew, attempt)
            for pod in pods:
                self._end(pod, 0, "Completed")

    def _prove(self, plan: Plan) -> PreflightResult:
        """What a preflight would find: it sees only the nodes that it measures."""
        assert plan.preflight is not None
        if self.finds is not None:
            return self.finds
        asked = range(len(plan.members)) if plan.preflight.nodes is None else plan.preflight.nodes
        found = tuple(plan.members[rank].node for rank in asked if plan.members[rank].node in self.slow)
        if found:
            return PreflightResult(Finding.FAILED, f"{found[0]} reaches 1 MB/s with another", nodes=found)
        if self.hopeless:
            return PreflightResult(Finding.FAILED, "all nodes are equally slow, and no other job uses their links")
        finding = Finding.PASSED if asked else Finding.SKIPPED
        return PreflightResult(finding, "as fast as predicted", 1.0, 1e9, 1e9)

    def _commit(self, crew: list[Launcher], attempt: int) -> None:
        step = crew[0].step
        for launcher in crew:
            launcher.commit = Commit(attempt, step, f"/checkpoints/step-{step}", time=self.now)
        self.commits.setdefault(crew[0].plan.uid, []).append(Commit(attempt, step, f"/checkpoints/step-{step}"))

    def _fail(
        self, pod: Pod, launcher: Launcher, code: int, fault: Fault | None, preflight: PreflightResult | None = None
    ) -> None:
        """Its workers end badly: a launcher that can be told of a later plan says so and waits for one, another ends."""
        if launcher.notice is not None or not self.reachable:
            self._end(pod, code, "Error", fault, preflight)
            return
        launcher.ended = self._words(pod, launcher, code, fault, preflight)
        launcher.ended_time = self.now

    def _leave(self, pod: Pod, launcher: Launcher) -> None:
        """It has waited long enough, or was told to: it ends as it would have at once."""
        assert launcher.ended is not None
        message = encode_last_words(launcher.ended)
        ended = Terminated(launcher.ended.exit, "Error", message, self.now)
        self.pods[pod.uid] = replace(self.pods[pod.uid], trainer=ended)

    def _end(
        self,
        pod: Pod,
        code: int,
        reason: str,
        fault: Fault | None = None,
        preflight: PreflightResult | None = None,
        trouble: Trouble | None = None,
        behind: At | None = None,
    ) -> None:
        launcher = self.launchers.get(pod.uid)
        message = ""
        if launcher is not None and reason != "Killed":
            words = self._words(pod, launcher, code, fault, preflight, trouble, behind)
            message = encode_last_words(words)
        # The pod's phase follows at the next second, as a kubelet's does: until then its room is taken.
        self.pods[pod.uid] = replace(self.pods[pod.uid], trainer=Terminated(code, reason, message, self.now))

    def _words(
        self,
        pod: Pod,
        launcher: Launcher,
        code: int,
        fault: Fault | None,
        preflight: PreflightResult | None = None,
        trouble: Trouble | None = None,
        behind: At | None = None,
    ) -> LastWords:
        return LastWords(
            attempt=launcher.plan.attempt,
            node_rank=launcher.plan.node_rank(pod.name),
            exit=code,
            cause="pretended",
            step=launcher.step,
            commit=launcher.commit,
            resumed=launcher.resumed,
            fault=fault,
            preflight=preflight,
            trouble=trouble,
            behind=behind,
        )

    def _answer(self) -> None:
        for pod in self.pods.values():
            launcher = self.launchers.get(pod.uid)
            if launcher is None or not isinstance(pod.trainer, Running) or pod.membership is None:
                continue
            known = self.answers.get(pod.uid, Answer(asked=self.now))
            if launcher.frozen or not self.reachable:
                self.answers[pod.uid] = replace(known, error="timed out")
                continue
            status = Status(
                pod_uid=pod.uid,
                attempt=launcher.plan.attempt,
                plan_digest=launcher.digest,
                node_rank=launcher.plan.node_rank(pod.name),
                phase="ended" if launcher.ended else "training" if self.speaks else "starting",
                step=launcher.step,
                first_step_time=launcher.started if self.speaks else None,
                notice_time=launcher.notice,
                commit=launcher.commit,
                resumed=launcher.resumed,
                network=self.networks.get(pod.node, PodNetwork()),
                preflight=launcher.preflight,
                trouble=self.troubles.get(pod.node, ()),
                phase_seconds=self.claims(launcher),
                sent=self.sent,
                ranks=self.places(launcher, pod.membership.rank),
                ended=launcher.ended,
                ended_time=launcher.ended_time if launcher.ended else None,
            )
            self.answers[pod.uid] = dataclasses.replace(known, status=status, time=self.now, error="")


def _through_json(status: TrainingJobStatus) -> TrainingJobStatus:
    """As the API server would give it back."""
    return TrainingJobStatus.model_validate(status.to_manifest())
