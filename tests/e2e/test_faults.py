"""What a bad night does to real jobs: each of them ends well, and no step is lost or done twice in what counts."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.api import Api, Object, wait_until
from support.pod_processes import PodProcess, processes_of, running_command, signal_all
from support.site import Site
from trainyard_lab import fabric
from trainyard_lab.controlplane import ControlPlane
from trainyard_lab.demo import history, jobs
from trainyard_lab.demo.install import uninstall
from trainyard_lab.labels import SPINE
from trainyard_lab.layout import Lab
from trainyard_lab.processes import find, send_signal

pytestmark = pytest.mark.timeout(600)


class Night(Site):
    """A site on which the sample trains, smaller."""

    async def submit(self, name: str, steps: int, nodes: int = 2, spine: str | None = None, **spec: Any) -> None:
        """The sample, smaller; spine: the only one whose nodes it may have."""
        job = jobs.like_the_sample(name, nodes=nodes, steps=steps, **spec)
        job["spec"]["checkpoint"]["every"] = 10
        if spine is not None:
            job["spec"]["template"]["spec"]["nodeSelector"] = {SPINE: spine}
        await self.apply(job)

    async def trains(self, name: str, attempt: int, step: int) -> Object:
        """Wait until an attempt trains and has done a step; before, the progress shown is of the one before it."""

        def there(status: Object) -> bool:
            running = status.get("attempt") == attempt and status.get("phase") == "Running"
            return running and status.get("progress", {}).get("step", 0) >= step

        return await self.until(name, there)

    async def history(self, name: str) -> tuple[history.Step, ...]:
        """What rank 0 wrote at every step, read from the volume."""
        claim = await self.api.get("PersistentVolumeClaim", "checkpoints", self.namespace)
        job = await self.api.get("TrainingJob", name, self.namespace)
        folder = (
            self.lab.volumes / claim["spec"]["volumeName"] / f"{self.namespace}.{name}.{job['metadata']['uid'][:8]}"
        )
        return history.read(folder / "history.jsonl")

    async def succeeded(self, name: str, steps: int) -> Object:
        """Wait for the good end, and check that what counts is every step once, in order."""
        status = await self.until(name, lambda s: s.get("phase") in ("Succeeded", "Failed"))
        assert status["phase"] == "Succeeded", status
        assert history.gapless(await self.history(name), steps)
        return status


@pytest.fixture
async def night(lab: Lab, control_plane: ControlPlane, api: Api, namespace: str) -> AsyncIterator[Night]:
    yield await Night.made(lab, control_plane, api, namespace)
    for node in lab.topology.nodes:
        fabric.restore(lab.topology, node.name)

    async def unready() -> list[str]:
        nodes = await api.list("Node")
        return [n["metadata"]["name"] for n in nodes if not _is_ready(n)]

    await wait_until(unready, lambda names: not names, what="all nodes to be ready again", seconds=120)


def _is_ready(node: Object) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"]["conditions"])


async def test_a_job_survives_a_deleted_pod_a_killed_worker_and_a_node_cut_off(night: Night) -> None:
    await night.submit("train", steps=80)
    await night.trains("train", attempt=1, step=12)
    await night.api.delete("Pod", "train-1", night.namespace)
    status = await night.until("train", lambda s: s.get("restarts", {}).get("preemptions") == 1)
    assert status["restarts"]["failures"] == 0
    saved = status["resume"]["step"]

    await night.trains("train", attempt=2, step=saved + 5)
    before = await night.members("train", 2)
    (pod, *_) = before
    signal_all([p for p in processes_of(pod["metadata"]["uid"]) if p.rank is not None], signal.SIGKILL)
    status = await night.until("train", lambda s: s.get("restarts", {}).get("failures") == 1)
    assert "SIGKILL" in status["lastFailure"]["message"]
    assert status["lastFailure"]["pod"] == pod["metadata"]["name"]

    await night.trains("train", attempt=3, step=saved + 5)
    after = await night.members("train", 3)
    assert [member["metadata"]["uid"] for member in after] == [member["metadata"]["uid"] for member in before]
    pod = after[1]
    node = pod["spec"]["nodeName"]
    fabric.cut(night.lab.topology, node)
    status = await night.until("train", lambda s: s.get("restarts", {}).get("nodesLost") == 1)
    assert status["lastFailure"]["node"] == node
    await night.trains("train", attempt=4, step=1)
    assert node not in [member["spec"]["nodeName"] for member in await night.members("train", 4)]
    await night.succeeded("train", 80)


async def test_an_old_gang_that_was_frozen_replaced_and_thawed_changes_nothing(night: Night) -> None:
    """Kubelets frozen with it, so that nobody ends it meanwhile: it wakes up beside the gang that took its place."""
    await night.submit("train", steps=60)
    await night.trains("train", attempt=1, step=12)
    old = await night.members("train", 1)
    workers: list[PodProcess] = [p for pod in old for p in processes_of(pod["metadata"]["uid"])]
    assert {p.rank for p in workers} >= {0, 1}
    running = find(night.lab.run)
    kubelets = [running[f"{pod['spec']['nodeName']}-kubelet"] for pod in old]
    try:
        for kubelet in kubelets:
            send_signal(kubelet, signal.SIGSTOP)
        signal_all(workers, signal.SIGSTOP)
        await night.trains("train", attempt=2, step=15)
        signal_all(workers, signal.SIGCONT)
        await night.succeeded("train", 60)
        status = await night.until("train", lambda _: True)
        assert status["attempt"] == 2
    finally:
        signal_all(workers, signal.SIGCONT)
        for kubelet in kubelets:
            send_signal(kubelet, signal.SIGCONT)


async def test_operators_killed_in_the_middle_of_a_preemption_lose_nothing(night: Night) -> None:
    names = [f"{night.namespace}-{name}" for name in ("low", "high")]
    for value, name in enumerate(names):
        kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
        await night.api.create({**kind, "metadata": {"name": name}, "value": 100 + value})
    try:
        await night.submit("v", steps=60, nodes=4, spine="spine-a", priorityClassName=names[0])
        await night.trains("v", attempt=1, step=12)
        await night.submit("u", steps=20, nodes=2, spine="spine-a", priorityClassName=names[1])
        await night.until("v", lambda s: s.get("stop") is not None)
        for pid in running_command("trainyard", "operator"):
            signal_all([PodProcess(pid, None)], signal.SIGKILL)
        status = await night.until("v", lambda s: s.get("resume") is not None)
        assert (status["restarts"]["preemptions"], status["restarts"]["failures"]) == (1, 0)
        await night.succeeded("u", 20)
        await night.succeeded("v", 60)
    finally:
        for name in names:
            await night.api.delete("PriorityClass", name)


async def test_a_namespace_and_the_chart_go_while_a_job_runs_and_nothing_is_stuck(night: Night) -> None:
    other = f"{night.namespace}-other"
    await night.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": other}})
    await night.api.wait_for("ServiceAccount", "default", other, lambda _: True)
    job = jobs.measurement(nodes=2, mebibytes=(1,), orders=(1000,))
    await night.api.create({**job, "metadata": {"name": "train", "namespace": other}})
    await night.api.wait_for("TrainingJob", "train", other, lambda j: j.get("status", {}).get("attempt") == 1)
    await night.api.delete("Namespace", other)
    await night.api.wait_gone("Namespace", other, None, seconds=120)

    await night.api.create({**job, "metadata": {"name": "left", "namespace": night.namespace}})
    await night.api.wait_for("TrainingJob", "left", night.namespace, lambda j: j.get("status", {}).get("attempt") == 1)
    uninstall(night.plane)
    left = await night.api.find("TrainingJob", "left", night.namespace)
    assert left is None or not left["metadata"].get("finalizers")

    async def held() -> list[str]:
        pods = await night.api.list("Pod", night.namespace)
        return [pod["metadata"]["name"] for pod in pods if pod["metadata"].get("finalizers")]

    await wait_until(held, lambda names: not names, what="nothing of it to be held", seconds=60)
