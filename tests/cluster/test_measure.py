"""`kubectl trainyard measure` beside a real API server: what it leaves behind, what it stores, and with which rights."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support import chart, kube
from support.api import Api, Object, wait_until
from support.nodes import LEAF_LABEL, SPINE_LABEL, Nodes
from support.operator import kubeconfig_of
from support.plugin import run
from trainyard.api import names
from trainyard.api.training_job import TrainingJobStatus
from trainyard.cli.measure import Outcome
from trainyard.cli.observed import store
from trainyard.cli.reading import read_yard
from trainyard.contract.measured import Edge, Gang, Measured, Point
from trainyard.kube.errors import ApiError
from trainyard.world.inventory import Inventory
from trainyard.world.records import Job
from trainyard_lab.controlplane import ControlPlane

GBPS = 1e9 / 8


@pytest.fixture
async def fabric(api: Api, nodes: Nodes, namespace: str) -> AsyncIterator[str]:
    """Eight nodes of 10 Gb/s, in leaves of two, two of which share a spine."""
    await nodes.add_fabric(spines=2, leaves=2, nodes_per_leaf=2)
    labels = {"spine": SPINE_LABEL, "leaf": LEAF_LABEL}
    levels = [{"name": name, "nodeLabel": label, "bandwidth": "5Gbps"} for name, label in labels.items()]
    spec = {
        "kind": "tcp",
        "nodeSelector": nodes.selector,
        "levels": levels,
        "node": {"nics": 1, "nicBandwidth": "10Gbps"},
    }
    body = {"apiVersion": names.API_VERSION, "kind": names.KIND_FABRIC, "metadata": {"name": namespace}, "spec": spec}
    await api.create(body)
    yield namespace
    await api.delete("Fabric", namespace)


def an_outcome(nodes: Nodes, name: str = "measure-1", spine: float = 4 * GBPS) -> Outcome:
    job = Job(nodes.namespace, name, "uid", 1, "1", 0.0, None, TrainingJobStatus())
    edges = (Edge(0, spine, 1), Edge(1, 4.5 * GBPS, 2), Edge(2, 9 * GBPS, 4))
    points = (Point("all-reduce", "ring", 2**24, 0.5, 3), Point("broadcast", "library", 2**20, 0.1, 3))
    return Outcome(job, tuple(nodes.names), Measured(Gang(8, 1, "gloo", 2), points, edges))


async def stored(plane_config: Path, outcome: Outcome) -> str:
    """What a user with this kubeconfig is told who stores a measurement."""
    async with kube.a_client(plane_config) as client:
        world = await read_yard(client)
        return await store(client, world, Inventory.of(world).tree, outcome, time.time())


async def observed(api: Api, fabric: str) -> Object:
    found = await api.get("Fabric", fabric)
    status: Object = found.get("status", {}).get("observed", {})
    return status


async def test_a_measurement_stands_beside_what_is_declared(
    api: Api, control_plane: ControlPlane, nodes: Nodes, fabric: str
) -> None:
    before = await api.get("Fabric", fabric)
    said = await stored(control_plane.kubeconfig, an_outcome(nodes))
    assert said.startswith(f"Stored in the Fabric {fabric}, where plans use it for a day")
    after = await api.get("Fabric", fabric)
    assert (after["spec"], after["metadata"]["generation"]) == (before["spec"], before["metadata"]["generation"])
    table = after["status"]["observed"]
    assert {row["level"]: row["bandwidth"] for row in table["links"]} == {
        "spine": 4 * GBPS,
        "leaf": pytest.approx(4.5 * GBPS, rel=1e-3),
        "node": pytest.approx(9 * GBPS, rel=1e-3),
    }
    assert table["summary"] == "spine 0.85, leaf 0.96, node 0.96"
    assert [one["collective"] for one in table["measurement"]["collectives"]] == ["all-reduce", "broadcast"]
    page = run(control_plane, "trainyard", "fabric", fabric).stdout
    rows = [line.split() for line in page.splitlines()]
    assert rows[0][:2] == [fabric, "(tcp);"]
    spine = next(row for row in rows if row[:1] == ["spine"])
    assert " ".join(spine[1:-1]) == f"588 MB/s 500 MB/s 0.85 500 MB/s measure {fabric}/measure-1 8"
    assert any(row[:2] == ["all-reduce,", "ring"] for row in rows)
    wide = run(control_plane, "get", "fabric", fabric, "-o", "wide").stdout
    assert "spine 0.85, leaf 0.96, node 0.96" in wide
    missing = run(control_plane, "trainyard", "fabric", "none")
    assert (missing.returncode, missing.stderr) == (
        1,
        "kubectl trainyard: there is no Fabric none that makes sense; kubectl get fabrics lists them\n",
    )


async def test_measurements_at_the_same_time_lose_nothing_but_the_older(
    api: Api, control_plane: ControlPlane, nodes: Nodes, fabric: str
) -> None:
    outcomes = [an_outcome(nodes, f"measure-{n}", spine=n * GBPS) for n in (1, 2, 3)]
    said = await asyncio.gather(*(stored(control_plane.kubeconfig, outcome) for outcome in outcomes))
    assert all(one.startswith("Stored") for one in said), said
    links = (await observed(api, fabric))["links"]
    assert sorted(row["level"] for row in links) == ["leaf", "node", "spine"]


async def test_it_takes_a_right_that_a_role_of_the_chart_gives(
    api: Api, control_plane: ControlPlane, nodes: Nodes, namespace: str, fabric: str, tmp_path: Path
) -> None:
    config = tmp_path / "user.kubeconfig"
    config.write_text(await kubeconfig_of(api, control_plane, "default", namespace))
    rendered = chart.render(name=f"op-{namespace}", namespace=namespace)
    roles = {
        role: chart.one(rendered, "ClusterRole", f"op-{namespace}-trainyard-{role}") for role in ("viewer", "measurer")
    }
    reads = {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get", "list"]}
    roles["viewer"]["rules"].append(reads)
    bound = []

    async def tried() -> str:
        """The API server learns of a binding a moment later."""
        try:
            return await stored(config, an_outcome(nodes))
        except ApiError as error:
            return str(error)

    try:
        for role, may in (("viewer", False), ("measurer", True)):
            binding = {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": f"{namespace}-{role}"},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": roles[role]["metadata"]["name"],
                },
                "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
            }
            for right in (roles[role], binding):
                await api.apply(right)
                bound.append(right)
            wanted = "Stored" if may else "Not stored"
            said = await wait_until(tried, lambda said, wanted=wanted: said.startswith(wanted), what=wanted)
            if not may:
                assert 'cannot patch resource "fabrics/status"' in said
                assert "ClusterRole that ends in -measurer" in said
                assert await observed(api, fabric) == {}
        assert (await observed(api, fabric))["links"]
    finally:
        for right in bound:
            await api.delete(right["kind"], right["metadata"]["name"])


async def test_without_a_fabric_object_it_says_that_nothing_is_kept(
    api: Api, control_plane: ControlPlane, nodes: Nodes
) -> None:
    await nodes.add_fabric(leaves=1)
    said = await stored(control_plane.kubeconfig, an_outcome(nodes))
    assert said.startswith("Nothing is stored: no Fabric object is for these nodes")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_who_is_interrupted_takes_the_job_away(
    api: Api, control_plane: ControlPlane, namespace: str, fabric: str, tmp_path: Path, number: signal.Signals
) -> None:
    """No operator is there: the job would wait for ever, and only the command can delete it."""
    command = [sys.executable, "-m", "trainyard.cli.kubectl", "measure", "--gang", "2", "-n", namespace]
    process = await asyncio.create_subprocess_exec(
        *command,
        *("--kubeconfig", str(control_plane.kubeconfig), "--plot", str(tmp_path / "plot.svg")),
        stderr=asyncio.subprocess.PIPE,
    )

    async def jobs() -> list[Object]:
        assert process.returncode is None
        return await api.list("TrainingJob", namespace)

    try:
        await wait_until(jobs, bool, what="the job")
        process.send_signal(number)
        _, error = await asyncio.wait_for(process.communicate(), timeout=30)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 130
    assert error.endswith(b"kubectl trainyard: interrupted\n")
    assert b"Traceback" not in error
    assert await api.list("TrainingJob", namespace) == []
    assert not (tmp_path / "plot.svg").exists()
