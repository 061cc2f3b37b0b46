"""`kubectl trainyard why`, `plan` and `simulate`, by the real kubectl, on a real API server with a real operator."""

from __future__ import annotations

from pathlib import Path

import yaml
from support.api import Api
from support.nodes import TEST_LABEL, Nodes, a_node
from support.operator import Operators
from support.plugin import a_job, run
from trainyard_lab.controlplane import ControlPlane

SPINE, LEAF = "fabric.topograph.run/tier-1", "fabric.topograph.run/tier-0"


async def test_a_job_that_waits_and_one_that_would_are_told_why_and_what_would_help(
    api: Api, operators: Operators, nodes: Nodes, namespace: str, tmp_path: Path
) -> None:
    await nodes.add(*(a_node(f"n{n}", labels={SPINE: "s", LEAF: f"l{n // 2}"}) for n in range(4)))
    await operators.leader()
    await api.create(a_job("first", namespace, nodes, 3))
    await api.wait_for("TrainingJob", "first", namespace, lambda job: job.get("status", {}).get("attempt") == 1)
    third = tmp_path / "third.yaml"
    third.write_text(yaml.safe_dump(a_job("third", namespace, nodes, 1)))
    assert f"{namespace}/third would start now on 1 node." in said(operators.plane, 0, "plan", "-f", str(third))
    leaf = {"within": {"level": "leaf", "required": True}}
    await api.create(a_job("second", namespace, nodes, 2, placement=leaf))
    waits = lambda job: job.get("status", {}).get("pending", {}).get("reason") == "NoDomainFits"  # noqa: E731
    await api.wait_for("TrainingJob", "second", namespace, waits)

    why = said(operators.plane, 0, "why", "second", "-n", namespace)
    assert why.startswith(f"{namespace}/second waits since ")
    assert f"  1. {namespace}/first yields, losing " in why
    assert "Nobody is ahead of it in the queue." in why

    first = said(operators.plane, 0, "why", "first", "-n", namespace)
    assert first.startswith(f"{namespace}/first: Starting, attempt 1 for ")
    assert "RANKS  LEAF  NODES" in first
    assert "0-1    s/l" in first

    third.write_text(yaml.safe_dump(a_job("third", namespace, nodes, 4)))
    plan = said(operators.plane, 3, "plan", "-f", str(third))
    assert plan.startswith(f"{namespace}/third would wait: ")
    assert f"Ahead of it in the queue: {namespace}/second (2 nodes)" in plan
    assert [job["metadata"]["name"] for job in await api.list("TrainingJob", namespace)] == ["first", "second"]


async def test_a_queue_is_run_ahead_of_time_on_the_nodes_of_the_cluster_or_of_a_file(
    control_plane: ControlPlane, nodes: Nodes, namespace: str, tmp_path: Path
) -> None:
    await nodes.add(*(a_node(f"n{n}", labels={SPINE: "s", LEAF: f"l{n // 2}"}) for n in range(4)))
    queue = tmp_path / "queue.yaml"
    jobs = [a_job(name, namespace, nodes, 3, maxRuntime="2h") for name in ("first", "second")]
    queue.write_text(yaml.safe_dump_all(jobs))
    page = said(control_plane, 0, "simulate", "-f", str(queue))
    rows = [line.split() for line in page.splitlines()]
    assert rows[1][:7] == [f"{namespace}/first", "3", "0s", "0s", "0s", "2h", "0"]
    assert rows[2][3:6] == ["2h", "2h", "4h"]
    saved = tmp_path / "nodes.yaml"
    saved.write_text(run(control_plane, "get", "nodes", "-o", "yaml", "-l", f"{TEST_LABEL}={namespace}").stdout)
    assert said(control_plane, 0, "simulate", "-f", str(queue), "--nodes-from", str(saved)) == page


def said(plane: ControlPlane, code: int, *arguments: str) -> str:
    """What the plugin prints when kubectl finds it on the path, with the exit code that it promises."""
    done = run(plane, "trainyard", *arguments)
    assert done.returncode == code, done.stderr or done.stdout
    return done.stdout
