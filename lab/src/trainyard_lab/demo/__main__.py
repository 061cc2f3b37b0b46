"""`make demo`: from a machine with nothing on it to a job that was preempted, saved, and went on at the very step.

What decides the exit code is states and counts; seconds are shown. The lab stays up, for a second look or a second run;
`make demo-down` takes it away.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import yaml

from trainyard_lab import __main__ as lab_commands
from trainyard_lab import cluster, images, kubectl
from trainyard_lab.api import Api, ApiError
from trainyard_lab.controlplane import ControlPlane
from trainyard_lab.demo import figures, history, jobs, story
from trainyard_lab.demo.install import HelmFailed, install
from trainyard_lab.demo.observe import Snapshot, look
from trainyard_lab.layout import Lab
from trainyard_lab.processes import ProcessError
from trainyard_lab.progress import say, step

NAMESPACE = "demo"
LOOK_SECONDS = 0.5
MEBIBYTES = 2.0
RANDOM_ORDERS = 20
# Every wait ends; these are many times what a slow machine needs.
TRAIN_SECONDS = 900.0
PREEMPT_SECONDS = 1200.0


class Unexpected(Exception):
    """The demonstration did not go as it should; the message says what was there instead."""


class Stage:
    """The namespace being watched: every look is kept, and what changed is told."""

    def __init__(self, lab: Lab, plane: ControlPlane) -> None:
        self.lab = lab
        self.api = Api(plane)
        self.seen: list[Snapshot] = [Snapshot(time.time())]
        self._plane = plane
        self._began = time.time()

    def apply(self, *objects: jobs.Object) -> None:
        """kubectl apply."""
        self._kubectl("apply", "--namespace", NAMESPACE, "--filename", "-", text=yaml.safe_dump_all(objects))

    def apply_file(self, path: Path) -> None:
        """kubectl apply -f, as a user would."""
        say(f"$ kubectl apply -f {path.relative_to(jobs.ROOT)}")
        self._kubectl("apply", "--namespace", NAMESPACE, "--filename", str(path))

    def logs(self, pod: str) -> str:
        """What a pod wrote."""
        return self._kubectl("logs", "--namespace", NAMESPACE, pod)

    def _kubectl(self, *arguments: str, text: str | None = None) -> str:
        words = [str(kubectl.program()), "--kubeconfig", str(self._plane.kubeconfig), *arguments]
        done = subprocess.run(words, input=text, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode:
            raise Unexpected(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def until(self, what: str, holds: Callable[[Snapshot], bool], within_seconds: float) -> Snapshot:
        """Look and tell until something holds. A job that fails meanwhile ends it at once."""
        deadline = time.monotonic() + within_seconds
        while True:
            snapshot = look(self.api, NAMESPACE, time.time())
            for line in story.tell(self.seen[-1], snapshot, self.lab.topology.nodes):
                say(f"{snapshot.time - self._began:6.1f}  {line}")
            self.seen.append(snapshot)
            if holds(snapshot):
                return snapshot
            for job in snapshot.jobs.values():
                if job.phase == "Failed":
                    raise Unexpected(f"{job.name} failed while waiting for {what}: {job.status.get('lastFailure')}")
            if time.monotonic() > deadline:
                states = ", ".join(f"{job.name} {job.phase} {job.waits}" for job in snapshot.jobs.values())
                raise Unexpected(f"{what}: not within {within_seconds:.0f} s; there is {states}")
            time.sleep(LOOK_SECONDS)

    def history(self, job: str) -> tuple[history.Step, ...]:
        """The steps that a job wrote to the shared volume, read from the volume itself."""
        claim = self.api.get(f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims/checkpoints")
        folder = self.lab.volumes / claim["spec"]["volumeName"]
        uid = self.seen[-1].jobs[job].uid
        return history.read(folder / f"{NAMESPACE}.{job}.{uid[:8]}" / "history.jsonl")

    def fresh(self) -> None:
        """An empty namespace, whatever an earlier run left."""
        path = f"/api/v1/namespaces/{NAMESPACE}"
        self.api.delete(path)
        deadline = time.monotonic() + 180
        while self.api.find(path) is not None:
            if time.monotonic() > deadline:
                raise Unexpected(f"namespace {NAMESPACE} of an earlier run does not go away")
            time.sleep(LOOK_SECONDS)
        self.api.create(
            "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        )


def phase_is(job: str, phase: str) -> Callable[[Snapshot], bool]:
    """A condition for `until`."""
    return lambda snapshot: job in snapshot.jobs and snapshot.jobs[job].phase == phase


def reached(job: str, steps: int) -> Callable[[Snapshot], bool]:
    """A condition for `until`."""
    return lambda snapshot: job in snapshot.jobs and snapshot.jobs[job].step >= steps


def train(stage: Stage) -> None:
    """One job from a user's manifest, undisturbed."""
    say("\n== Train: four nodes, from the sample as it is")
    stage.apply_file(jobs.SAMPLE)
    stage.until("small-lm to end", phase_is("small-lm", "Succeeded"), TRAIN_SECONDS)
    stage.until("its pods to end", lambda s: not any(pod.phase == "Running" for pod in s.pods), TRAIN_SECONDS)


def preempt(stage: Stage) -> None:
    """V holds spine A, F half of spine B; U may have V's nodes, and W may not."""
    say("\n== Preempt: V on one spine, F on half of the other; then U, which outranks V, and W, which outranks nobody")
    stage.apply(*jobs.priority_classes(), jobs.victim())
    stage.until("v to train", reached("v", 10), TRAIN_SECONDS)
    stage.apply(jobs.short())
    stage.until("f to train", phase_is("f", "Running"), TRAIN_SECONDS)
    stage.apply(jobs.bystander())
    stage.until("w to wait", phase_is("w", "Pending"), TRAIN_SECONDS)
    stage.apply(jobs.urgent())
    names = ("v", "f", "u", "w")
    stage.until("all to end", lambda s: all(phase_is(name, "Succeeded")(s) for name in names), PREEMPT_SECONDS)


@dataclass(frozen=True, slots=True)
class Orders:
    """What the measurement found. nodes: by rank. seconds of the planned order and of each random one."""

    nodes: tuple[str, ...]
    planned_seconds: float
    random_seconds: tuple[float, ...]
    random_orders: tuple[tuple[int, ...], ...]


def measure(stage: Stage) -> Orders:
    """All-reduce over all nodes, the planned order against random ones, on the emulated links."""
    say(
        f"\n== Measure: all-reduce of {MEBIBYTES:.0f} MiB over all nodes, planned order against {RANDOM_ORDERS} random ones"
    )
    stage.apply(jobs.measurement(len(stage.lab.topology.nodes), (MEBIBYTES,), (RANDOM_ORDERS,)))
    ended = stage.until("the measurement to end", phase_is("measure", "Succeeded"), TRAIN_SECONDS)
    members = ended.members("measure")
    found = next(
        json.loads(line) for line in reversed(stage.logs(members[0].name).splitlines()) if line.startswith("{")
    )
    return Orders(
        nodes=tuple(pod.node for pod in members),
        planned_seconds=found["planned"],
        random_seconds=tuple(found["random"]),
        random_orders=tuple(map(tuple, found["orders"])),
    )


def judge(stage: Stage) -> list[str]:
    """Everything that must hold, by states and counts alone; what does not is returned in sentences."""
    wrong: list[str] = []
    last = stage.seen[-1]
    v, u = last.jobs["v"], last.jobs["u"]
    spines = {node.name: node.spine for node in stage.lab.topology.nodes}

    def places(snapshot: Snapshot, job: str) -> set[str]:
        return {spines[pod.node] for pod in snapshot.members(job) if pod.node}

    if (v.attempt, v.restarts("preemptions"), v.restarts("failures")) != (2, 1, 0):
        wrong.append(f"v should have two attempts, one preemption and no failure; it has {v.status.get('restarts')}")
    if u.attempt != 1:
        wrong.append(f"u should have needed one attempt; it needed {u.attempt}")
    both = [
        s
        for s in stage.seen
        if phase_is("v", "Running")(s) and s.jobs["v"].attempt == 2 and phase_is("u", "Running")(s)
    ]
    if not both:
        wrong.append("v should have resumed while u still trained")
    elif len(places(both[0], "v")) != 1 or places(both[0], "v") == places(both[0], "u"):
        wrong.append(f"v should have resumed on the other spine: {places(both[0], 'v')} beside {places(both[0], 'u')}")
    if not any("free" in s.jobs["v"].waits for s in stage.seen if phase_is("v", "Pending")(s)):
        wrong.append("v should have said in numbers why it waited")
    if any(phase_is("w", "Running")(s) and not phase_is("u", "Succeeded")(s) for s in stage.seen if "u" in s.jobs):
        wrong.append("w should not have run before u was done")
    for name in ("small-lm", "v", "u", "f", "w"):
        steps = stage.history(name)
        if not history.gapless(steps, last.jobs[name].step):
            wrong.append(f"the history of {name} should be gapless")
    compared = history.compare(stage.history("v"), stage.history("small-lm"))
    if not compared.equal:
        wrong.append(f"v should equal the undisturbed run bit for bit: {compared}")
    return wrong


def report(stage: Stage, measured: Orders) -> str:
    """The table."""
    compared = history.compare(stage.history("v"), stage.history("small-lm"))
    timed = figures.times(stage.seen, "v", "u")
    topology, tree = stage.lab.topology, figures.tree_of(stage.lab.topology)
    nodes, orders = measured.nodes, measured.random_orders
    planned, message = tuple(range(len(nodes))), MEBIBYTES * 2**20
    model = figures.ring_seconds(topology, nodes, planned, message)
    model_random = median(figures.ring_seconds(topology, nodes, order, message) for order in orders)
    edges = median(figures.ring_edges(tree, nodes, order) for order in orders)
    usual, of = median(measured.random_seconds), f"median of {len(orders)}"
    rows = [
        ("steps lost", str(len(compared.lost))),
        ("steps repeated", str(len(compared.repeated))),
        ("steps that differ from the undisturbed run", f"{len(compared.differing)} of {compared.steps}"),
        ("notice to durable checkpoint", figures.seconds(timed.to_durable)),
        ("nodes free to first new step", figures.seconds(timed.to_first_step)),
        (
            f"ring edges that leave a leaf, {len(nodes)} nodes",
            f"{figures.ring_edges(tree, nodes, planned)} planned, {edges:g} random ({of})",
        ),
        (
            f"all-reduce of {MEBIBYTES:.0f} MiB",
            f"{measured.planned_seconds:.2f} s planned, {usual:.2f} s random ({of})",
        ),
        (
            "planned over random",
            f"{measured.planned_seconds / usual:.2f} measured, {model / model_random:.2f} by the ring model",
        ),
    ]
    return figures.table(rows)


def operator_image(lab: Lab) -> str:
    """What the operator's image is made of, as a name of its content."""
    return next(image.manifest for image in images.made(lab.cache) if image.name == images.OPERATOR_IMAGE)


def main() -> int:
    lab = Lab()
    began = time.monotonic()
    try:
        lab_commands.up(lab)
        plane = lab_commands.control_plane(lab)
        with step("install the chart with Helm"):
            install(plane, jobs.CHART, operator_image(lab))
            cluster.apply_fabric(lab, Api(plane))
        stage = Stage(lab, plane)
        with step(f"an empty namespace {NAMESPACE}"):
            stage.fresh()
        train(stage)
        preempt(stage)
        measured = measure(stage)
        wrong = judge(stage)
        say(f"\n{report(stage, measured)}")
    except (Unexpected, HelmFailed, ApiError, ProcessError) as error:
        say(f"demo: {error}")
        return 1
    for sentence in wrong:
        say(f"demo: {sentence}")
    say(
        f"the demonstration {'went as it should' if not wrong else 'did NOT go as it should'}; {time.monotonic() - began:.0f} s"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
