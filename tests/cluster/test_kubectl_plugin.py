"""`kubectl trainyard`, by the real kubectl, on a real API server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import yaml
from support import chart
from support.api import Api, wait_until
from support.nodes import Nodes, a_node
from support.operator import Operators, kubeconfig_of
from support.plugin import a_job, run
from trainyard_lab.controlplane import ControlPlane

SPINE, LEAF = "fabric.topograph.run/tier-1", "fabric.topograph.run/tier-0"


async def test_status_says_who_runs_where_and_why_another_waits(
    api: Api, operators: Operators, nodes: Nodes, namespace: str
) -> None:
    await nodes.add(a_node("a"), a_node("b"))
    await operators.leader()
    for name in ("first", "second"):
        await api.create(a_job(name, namespace, nodes, 2))
        await api.wait_for("TrainingJob", name, namespace, lambda job: "phase" in job.get("status", {}))
    await api.wait_for("TrainingJob", "first", namespace, lambda job: job["status"].get("attempt") == 1)
    waiting = lambda job: job["status"].get("pending", {}).get("reason") == "InsufficientNodes"  # noqa: E731
    await api.wait_for("TrainingJob", "second", namespace, waiting)
    first, second = (trainyard(operators.plane, "status", name, "-n", namespace) for name in ("first", "second"))
    assert first.startswith(f"{namespace}/first: Starting, attempt 1, 0 of 2 nodes train")
    assert f"0     first-0  {namespace}-a" in first
    assert f"1     first-1  {namespace}-b" in first
    assert second.startswith(f"{namespace}/second: Pending, attempt 0")
    assert "InsufficientNodes\n  needs 2 nodes" in second


async def test_topology_shows_the_nodes_by_place_with_their_room(
    api: Api, control_plane: ControlPlane, nodes: Nodes, namespace: str
) -> None:
    (a, b) = await nodes.add(
        a_node("a", labels={SPINE: "s", LEAF: "l1"}),
        a_node("b", labels={SPINE: "s", LEAF: "l2"}, accelerators=4, unschedulable=True),
    )
    page = trainyard(control_plane, "topology").splitlines()
    assert page[:2] == [
        "2 nodes; levels: spine > leaf",
        "Told by the labels of topograph; complete on 2 accelerator nodes",
    ]
    first = next(n for n, line in enumerate(page) if line.startswith("DOMAIN"))
    assert [line.split() for line in page[first : first + 7]] == [
        ["DOMAIN", "NODES", "READY", "EMPTY", "FREE", "nvidia.com/gpu", "GANGS"],
        ["cluster", "2", "1", "1", "8", "of", "12"],
        ["spine", "s", "2", "1", "1", "8", "of", "12"],
        ["leaf", "l1", "1", "1", "1", "8", "of", "8"],
        [a, "ready", "8", "of", "8"],
        ["leaf", "l2", "1", "0", "0", "0", "of", "4"],
        [b, "cordoned", "4", "of", "4"],
    ]
    alone = trainyard(control_plane, "topology", "--no-nodes")
    assert "spine s" in alone
    assert not any(name in alone for name in (a, b))


async def test_a_role_of_the_chart_is_enough_to_ask_about_the_whole_cluster_and_is_named_to_who_lacks_it(
    api: Api, control_plane: ControlPlane, nodes: Nodes, namespace: str, tmp_path: Path
) -> None:
    await nodes.add(a_node("a"))
    job = tmp_path / "job.yaml"
    job.write_text(yaml.safe_dump(a_job("lm", namespace, nodes, 1)))
    config = tmp_path / "user.kubeconfig"
    config.write_text(await kubeconfig_of(api, control_plane, "default", namespace))
    plan = ("trainyard", "--kubeconfig", str(config), "plan", "-o", "json", "-f", str(job))
    refused = run(control_plane, *plan)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "ClusterRole of the chart that ends in -planner" in refused.stderr

    rendered = chart.render(name=f"op-{namespace}", namespace=namespace)
    role = chart.one(rendered, "ClusterRole", f"op-{namespace}-trainyard-planner")
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"{namespace}-planner"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role["metadata"]["name"]},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
    }
    for right in (role, binding):
        await api.apply(right)
    try:
        # The API server learns of a binding a moment later.
        allowed = await wait_until(
            lambda: asyncio.to_thread(run, control_plane, *plan),
            lambda done: done.returncode == 0,
            what="the right to plan",
        )
        (planned,) = json.loads(allowed.stdout)
        assert (planned["starts"], planned["nodes"]) == (True, [f"{namespace}-a"])
    finally:
        for right in (binding, role):
            await api.delete(right["kind"], right["metadata"]["name"])


def trainyard(plane: ControlPlane, *arguments: str) -> str:
    """What the plugin prints when kubectl finds it on the path."""
    done = run(plane, "trainyard", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout
