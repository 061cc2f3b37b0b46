"""The chart on a real API server, by the real Helm: installed, upgraded, and uninstalled with a job still there."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import helm_python
import pytest
from support import chart
from support.api import Api, wait_until
from support.nodes import Nodes, a_node
from support.operator import kubeconfig_of
from support.pods import a_pod, is_running
from trainyard.api import names
from trainyard_lab import kwok
from trainyard_lab.controlplane import ControlPlane

HELM_SECONDS = 120


@dataclass(frozen=True)
class Helm:
    """The real Helm in one namespace. Its calls block, so each has a thread of its own."""

    config: helm_python.Config
    release: str
    values: dict[str, Any]

    @property
    def prefix(self) -> str:
        return f"{self.release}-trainyard"

    async def install(self, **values: Any) -> None:
        await asyncio.to_thread(
            self.config.install, chart.CHART, self.release, {**self.values, **values}, timeout=HELM_SECONDS
        )

    async def upgrade(self, **values: Any) -> None:
        await asyncio.to_thread(
            self.config.upgrade, chart.CHART, self.release, {**self.values, **values}, timeout=HELM_SECONDS
        )

    async def uninstall(self) -> None:
        await asyncio.to_thread(self.config.uninstall, self.release, timeout=HELM_SECONDS, ignore_not_found=True)


@pytest.fixture
async def helm(api: Api, control_plane: ControlPlane, namespace: str, nodes: Nodes) -> AsyncIterator[Helm]:
    """Helm in a namespace that takes restricted pods alone; the CRDs are the session's, which no release may take over."""
    await nodes.add(a_node("a", accelerators=0))
    enforced = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    await api.patch("Namespace", namespace, None, enforced)
    values = {"crds": {"install": False}, "nodeSelector": nodes.selector}
    with helm_python.Config(kubeconfig_path=control_plane.kubeconfig, namespace=namespace) as config:
        helm = Helm(config, namespace, values)
        yield helm
        await asyncio.to_thread(kill_release, config, namespace)


def kill_release(config: helm_python.Config, release: str) -> None:
    """Whatever a failed test left of a release, without hooks, for which there is nobody."""
    if config.list():
        config.upgrade(chart.CHART, release, {"uninstall": {"hook": False}, "crds": {"install": False}})
        config.uninstall(release)


async def test_the_api_server_takes_everything_that_is_rendered(api: Api, namespace: str) -> None:
    for rendered in chart.render({"dashboards": {"enabled": True}}, name=f"r-{namespace}", namespace=namespace):
        if rendered["kind"] == "CustomResourceDefinition":
            continue  # they are the session's already
        assert await api.create(rendered, dry_run=True)


async def test_installed_pods_run_in_a_restricted_namespace(api: Api, namespace: str, helm: Helm) -> None:
    await helm.install()
    selector = "app.kubernetes.io/component=operator"

    async def running() -> int:
        return sum(map(is_running, await api.list("Pod", namespace, labels=selector)))

    await wait_until(running, lambda count: count == 2, what="two operators")


async def test_an_upgrade_keeps_the_key(api: Api, namespace: str, helm: Helm) -> None:
    await helm.install()
    first = (await api.get("Secret", f"{helm.prefix}-key", namespace))["data"]
    await helm.upgrade(logLevel="debug")
    assert (await api.get("Secret", f"{helm.prefix}-key", namespace))["data"] == first


@pytest.mark.parametrize("keep_pods", [False, True])
async def test_uninstalling_with_a_running_job_leaves_nothing_stuck(
    api: Api, control_plane: ControlPlane, namespace: str, nodes: Nodes, helm: Helm, tmp_path: Path, keep_pods: bool
) -> None:
    await helm.install(uninstall={"keepPods": keep_pods})
    await wait_until(lambda: api.list("Pod", namespace), lambda pods: len(pods) == 2, what="two operators")
    await a_held_gang(api, namespace, nodes)

    uninstalled = asyncio.create_task(helm.uninstall())
    hook = await play_the_hook(api, control_plane, namespace, helm, tmp_path)
    await uninstalled

    assert "released 2\n" in hook
    assert await api.find("Deployment", helm.prefix, namespace) is None
    assert await api.find("ClusterRole", f"{helm.prefix}-uninstall") is None
    assert await api.find("Secret", f"{helm.prefix}-key", namespace), "a later installation needs the key of the jobs"
    job = await api.get("TrainingJob", "lm", namespace)
    assert "finalizers" not in job["metadata"]
    if keep_pods:
        pod = await api.get("Pod", "lm-0", namespace)
        assert "finalizers" not in pod["metadata"]
        assert is_running(pod)
    else:
        await api.wait_gone("Pod", "lm-0", namespace)
    await api.delete("TrainingJob", "lm", namespace)
    await api.wait_gone("TrainingJob", "lm", namespace)


async def a_held_gang(api: Api, namespace: str, nodes: Nodes) -> None:
    """A TrainingJob with a running member, both under the operator's finalizers."""
    template = {"spec": {"containers": [{"name": "trainer", "image": "pretended", "command": ["train"]}]}}
    job = await api.create(
        {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND_JOB,
            "metadata": {"name": "lm", "namespace": namespace, "finalizers": [names.FINALIZER_JOB]},
            "spec": {"nodes": 1, "template": template},
        }
    )
    pod = a_pod("lm-0", namespace, selector=nodes.selector, finalizers=[names.FINALIZER_POD])
    pod["metadata"]["labels"] = {names.LABEL_JOB_UID: job["metadata"]["uid"]}
    pod["spec"]["securityContext"] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    dropped = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    pod["spec"]["containers"][0]["securityContext"] = dropped
    await api.create(pod)
    await api.wait_for("Pod", "lm-0", namespace, is_running)


async def play_the_hook(api: Api, control_plane: ControlPlane, namespace: str, helm: Helm, folder: Path) -> str:
    """Be the kubelet of the hook's pod: run its very command with its service account's rights; returns what it printed."""
    selector = "app.kubernetes.io/component=uninstall"
    pods = await wait_until(lambda: api.list("Pod", namespace, labels=selector), bool, what="the hook's pod")
    name, spec = pods[0]["metadata"]["name"], pods[0]["spec"]
    kubeconfig = folder / "hook.kubeconfig"
    kubeconfig.write_text(await kubeconfig_of(api, control_plane, spec["serviceAccountName"], namespace))
    (container,) = spec["containers"]
    assert container["command"] == ["trainyard"]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "trainyard.cli.main",
        *container["args"],
        env={"KUBECONFIG": str(kubeconfig)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    await api.annotate("Pod", name, namespace, {kwok.EXIT_CODE: str(process.returncode)})
    assert process.returncode == 0, f"{shlex.join(container['args'])}:\n{output.decode()}"
    return output.decode()
