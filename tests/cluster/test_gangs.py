"""Gangs on pretended nodes, run by the real operator against the real API server, scheduler and controllers."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import channels, operator_main, plugin
from support.api import Api, Object, wait_until
from support.launchers import Launchers, serving
from support.nodes import ACCELERATOR, LEAF_LABEL, SPINE_LABEL, Nodes, a_node
from support.operator import SHORT_LEASE, Operator, Operators
from trainyard.contract.preflight import PreflightResult
from trainyard_lab import kwok

pytestmark = pytest.mark.timeout(180)

ONE_SPINE = {"within": {"level": "spine", "required": True}}


@dataclass(slots=True)
class Yard:
    """A test's own cluster: pretended nodes, an operator, launchers that answer, and words for what a test says and asks."""

    api: Api
    namespace: str
    nodes: Nodes
    operators: Operators
    launchers: Launchers
    operator: Operator

    async def submit(self, name: str, nodes: int, **spec: Any) -> Object:
        """Apply a job whose members take whole nodes of this test."""
        container = {
            "name": "trainer",
            "image": "example/own:1",
            "command": ["python3", "train.py"],
            "resources": {"limits": {ACCELERATOR: 8}},
        }
        template = {"spec": {"containers": [container], "nodeSelector": self.nodes.selector}}
        body = {
            "apiVersion": "trainyard.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {"nodes": nodes, "processesPerNode": 1, "template": template, **spec},
        }
        return await self.api.create(body)

    async def until(self, name: str, holds: Callable[[Object], bool], seconds: float = 60) -> Object:
        """Wait until something holds of a job's status."""
        job = await self.api.wait_for(
            "TrainingJob", name, self.namespace, lambda job: holds(job.get("status", {})), seconds=seconds
        )
        status: Object = job["status"]
        return status

    async def phase(self, name: str, phase: str, seconds: float = 60) -> Object:
        """Wait for a phase."""
        return await self.until(name, lambda status: status.get("phase") == phase, seconds)

    async def members(self, name: str) -> list[Object]:
        """The pods of a job that are not being deleted, in the order of their ranks."""
        pods = await self.api.list("Pod", self.namespace, labels=f"trainyard.dev/job={name}")
        alive = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        return sorted(alive, key=lambda pod: int(pod["metadata"]["labels"]["trainyard.dev/node-rank"]))

    async def places(self, name: str) -> list[str]:
        """Where the members are bound, in the order of their ranks, without the test's prefix."""
        return [pod["spec"].get("nodeName", "").removeprefix(f"{self.namespace}-") for pod in await self.members(name)]

    async def finish(self, name: str, code: int = 0) -> None:
        """Let all members of a job end."""
        for pod in await self.members(name):
            await self.launchers.end(pod, code)

    async def priority(self, name: str, value: int) -> str:
        """A PriorityClass of the test's own; returns its name."""
        full = f"{self.namespace}-{name}"
        kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
        await self.api.create({**kind, "metadata": {"name": full}, "value": value})
        return full


@pytest.fixture
async def yard(api: Api, namespace: str, nodes: Nodes, operators: Operators, tmp_path: Path) -> AsyncIterator[Yard]:
    await nodes.add_fabric(spines=2, leaves=2, nodes_per_leaf=2)
    fabric = {
        "apiVersion": "trainyard.dev/v1alpha1",
        "kind": "Fabric",
        "metadata": {"name": namespace},
        "spec": {
            "nodeSelector": nodes.selector,
            "levels": [{"name": "spine", "nodeLabel": SPINE_LABEL}, {"name": "leaf", "nodeLabel": LEAF_LABEL}],
        },
    }
    await api.create(fabric)
    async with serving(api, namespace, Path(operators.environment["TRAINYARD_KEY_FILE"])) as launchers:
        operators.command = (sys.executable, operator_main.__file__)
        operators.environment["TEST_LAUNCHERS"] = launchers.address
        operators.environment["PYTHONPATH"] = str(Path(operator_main.__file__).parents[1])
        yield Yard(api, namespace, nodes, operators, launchers, await operators.leader())
    for item in await api.list("PriorityClass"):
        if item["metadata"]["name"].startswith(f"{namespace}-"):
            await api.delete("PriorityClass", item["metadata"]["name"])
    await api.delete("Fabric", namespace)


async def test_a_gang_starts_whole_in_topology_order_trains_and_succeeds(yard: Yard) -> None:
    """On the way the operator, with the rights of the chart, notes in the Fabric what pairs of its nodes reached."""
    pairs = PreflightResult("passed", "3 pairs, none slow", 1.0, edge_bytes_per_second=(0.0, 2e10, 4e10))
    yard.launchers.preflight = pairs
    await yard.submit("train", 4)
    status = await yard.phase("train", "Running")
    assert await yard.places("train") == ["s0-l0-n0", "s0-l0-n1", "s0-l1-n0", "s0-l1-n1"]
    assert status["plan"]["spans"] == {"spine": 1, "leaf": 2}
    assert status["plan"]["ringEdges"] == {"spine": 0, "leaf": 2}
    await yard.until("train", lambda s: s.get("progress", {}).get("step") == 40 and s.get("readyNodes") == 4)
    fabric = await yard.api.wait_for("Fabric", yard.namespace, None, lambda fabric: "status" in fabric)
    assert fabric["metadata"]["generation"] == 1
    seen = [(row["level"], row["bandwidth"], row["by"], row["job"]) for row in fabric["status"]["observed"]["links"]]
    assert seen == [(level, b, "preflight", f"{yard.namespace}/train") for level, b in (("leaf", 2e10), ("node", 4e10))]
    await yard.finish("train")
    await yard.phase("train", "Succeeded")

    async def held() -> list[str]:
        pods = await yard.members("train")
        return [pod["metadata"]["name"] for pod in pods if pod["metadata"].get("finalizers")]

    await wait_until(held, lambda names: not names, what="the finalizers to go")
    assert len(await yard.members("train")) == 4, "the pods stay for their logs"


async def test_a_member_that_fails_costs_the_attempt_and_the_budget_ends_the_job(yard: Yard) -> None:
    await yard.submit("train", 2, restart={"failures": 1, "per": "1h"})
    await yard.phase("train", "Running")
    survivor, failing = await yard.members("train")
    await yard.launchers.end(failing, 1, "rank 1 exited 1: ValueError: no such thing")
    status = await yard.until("train", lambda s: s.get("attempt") == 2 and s.get("phase") == "Running")
    assert status["restarts"]["failures"] == 1
    assert status["lastFailure"]["message"].endswith("rank 1 exited 1: ValueError: no such thing")
    kept = (await yard.members("train"))[0]["metadata"]
    assert kept["uid"] == survivor["metadata"]["uid"], "the attempt that follows begins in the pod that lives"
    assert kept["labels"]["trainyard.dev/attempt"] == "2"
    assert yard.launchers.plans[0] == (kept["name"], 2)
    assert status["lineage"] == [{"attempt": 1, "step": 40}] or status["lineage"] == [{"attempt": 1, "step": -1}]
    await yard.launchers.end((await yard.members("train"))[0], 1)
    status = await yard.phase("train", "Failed")
    failed = next(c for c in status["conditions"] if c["type"] == "Failed")
    assert failed["reason"] == "FailureBudgetSpent"


async def test_a_configuration_that_cannot_work_is_not_tried_again(yard: Yard) -> None:
    await yard.submit("train", 2)
    await yard.phase("train", "Running")
    await yard.finish("train", 78)
    status = await yard.phase("train", "Failed")
    assert (status["attempt"], status["lastFailure"]["reason"]) == (1, "InvalidConfiguration")


async def test_suspension_saves_and_resumption_starts_a_new_attempt_from_there(yard: Yard, kubectl: Any) -> None:
    await yard.submit("train", 4)
    await yard.phase("train", "Running")
    kubectl("-n", yard.namespace, "patch", "tj", "train", "--type=merge", "-p", '{"spec": {"suspend": true}}')
    status = await yard.phase("train", "Suspended")
    assert (status["resume"]["attempt"], status["resume"]["step"]) == (1, 40)
    assert {stop.reason for _, stop in yard.launchers.stops} == {"SuspendedByUser"}
    assert yard.launchers.refused == []
    await wait_until(lambda: yard.members("train"), lambda pods: not pods, what="the members to go")
    kubectl("-n", yard.namespace, "patch", "tj", "train", "--type=merge", "-p", '{"spec": {"suspend": false}}')
    status = await yard.phase("train", "Running")
    assert (status["attempt"], status["restarts"]["failures"]) == (2, 0)
    plan = await yard.api.get("ConfigMap", "train-plan-2", yard.namespace)
    assert (
        '"lineage":{"history":[{"attempt":1,"step":40}],"resume":{"attempt":1,"step":40}}' in plan["data"]["plan.json"]
    )


async def contested(yard: Yard) -> None:
    """V on one spine, F on half of the other, W and then U for a whole spine."""
    await yard.submit("v", 4, priorityClassName=await yard.priority("low", 100))
    await yard.phase("v", "Running")
    await yard.submit("f", 2, priorityClassName=await yard.priority("middle", 200))
    await yard.phase("f", "Running")
    await yard.submit("w", 4, placement=ONE_SPINE)
    await yard.phase("w", "Pending")
    await yard.submit("u", 4, priorityClassName=await yard.priority("high", 300), placement=ONE_SPINE)


async def test_the_nodes_of_a_victim_pass_to_the_one_they_were_reserved_for(yard: Yard) -> None:
    await contested(yard)
    await yard.phase("u", "Running")
    assert [place[:2] for place in await yard.places("u")] == ["s0"] * 4
    waiting = await yard.until("v", lambda s: s.get("pending", {}).get("reason") == "InsufficientNodes")
    assert waiting["pending"]["message"] == "needs 4 nodes; 8 are eligible, 2 of them are free"
    assert (waiting["restarts"]["preemptions"], waiting["restarts"]["failures"]) == (1, 0)
    assert (await yard.until("w", lambda s: s.get("phase") == "Pending"))["attempt"] == 0
    await yard.finish("f")
    resumed = await yard.phase("v", "Running")
    assert [place[:2] for place in await yard.places("v")] == ["s1"] * 4
    assert resumed["attempt"] == 2
    assert (await yard.until("u", lambda _: True))["phase"] == "Running"


async def test_an_operator_killed_in_the_middle_of_a_preemption_is_succeeded_without_loss(yard: Yard) -> None:
    yard.launchers.deaf.add("v")
    await contested(yard)
    await yard.until("v", lambda s: s.get("stop") is not None)
    await yard.operator.kill()
    yard.launchers.deaf.clear()
    yard.operator = await yard.operators.leader(**SHORT_LEASE)
    await yard.phase("u", "Running")
    status = await yard.until("v", lambda s: s.get("phase") == "Pending")
    assert (status["restarts"]["preemptions"], status["restarts"]["failures"]) == (1, 0)
    assert (status["resume"]["attempt"], status["resume"]["step"]) == (1, 40)


async def test_a_pod_deleted_by_hand_makes_all_leave_and_the_job_goes_on(yard: Yard, kubectl: Any) -> None:
    await yard.submit("train", 4)
    await yard.phase("train", "Running")
    await yard.api.annotate("Pod", "train-2", yard.namespace, {kwok.STOP_AFTER: "2s"})
    kubectl("-n", yard.namespace, "delete", "pod", "train-2", "--wait=false")
    status = await yard.until("train", lambda s: s.get("attempt") == 2 and s.get("phase") == "Running")
    assert (status["restarts"]["preemptions"], status["restarts"]["failures"]) == (1, 0)
    asked = {name for name, _ in yard.launchers.stops}
    assert asked >= {"train-0", "train-1", "train-3"}


async def test_a_node_that_goes_away_is_replaced(yard: Yard) -> None:
    await yard.submit("train", 4)
    await yard.phase("train", "Running")
    await yard.nodes.remove(f"{yard.namespace}-s0-l1-n0")
    status = await yard.until("train", lambda s: s.get("attempt") == 2 and s.get("phase") == "Running", 90)
    assert status["restarts"]["nodesLost"] == 1
    assert [place[:2] for place in await yard.places("train")] == ["s1"] * 4


async def test_a_second_failed_node_does_not_evict_the_gang(yard: Yard) -> None:
    leaf = {SPINE_LABEL: "s0", LEAF_LABEL: "s0-l0"}
    await yard.nodes.add(*(a_node(f"s0-l0-n{n}", labels=leaf) for n in (2, 3, 4)))
    await yard.submit("train", 3, placement={"spares": 1})
    status = await yard.phase("train", "Running")
    before, spares = await yard.places("train"), status["plan"]["spares"]
    await yard.nodes.remove(f"{yard.namespace}-{before[1]}")
    status = await yard.until("train", lambda s: s.get("attempt") == 2 and s.get("phase") == "Running", 90)
    middle = await yard.places("train")
    assert [f"{yard.namespace}-{middle[1]}"] == spares
    assert (middle[0], middle[2]) == (before[0], before[2])
    await yard.nodes.remove(f"{yard.namespace}-{middle[2]}")
    status = await yard.until("train", lambda s: s.get("attempt") == 3 and s.get("phase") == "Running", 90)
    after = await yard.places("train")
    assert after[:2] == middle[:2]
    assert after[2] not in (before[2], *after[:2])
    assert (status["restarts"]["nodesLost"], status["restarts"]["failures"]) == (2, 0)
    assert status["plan"]["quality"]["summary"] == "optimal"


async def test_a_foreign_pod_that_takes_a_node_is_noticed_and_the_gang_planned_again(yard: Yard) -> None:
    node = f"{yard.namespace}-s0-l0-n0"
    await yard.operator.stop()
    container = {"name": "c", "image": "example/other:1", "resources": {"limits": {ACCELERATOR: "8"}}}
    taken = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "taker", "namespace": yard.namespace},
        "spec": {"nodeName": node, "containers": [container]},
    }
    await yard.api.create(taken)
    yard.operator = await yard.operators.leader()
    await yard.submit("train", 4)
    await yard.phase("train", "Running")
    assert "s0-l0-n0" not in await yard.places("train")


async def test_what_is_wrong_is_answered_in_a_condition_within_a_moment(yard: Yard) -> None:
    wrong = {
        "containers": [
            {"name": "trainer", "image": "example/own:1", "command": ["x"], "ports": [{"containerPort": 99999}]}
        ]
    }
    await yard.submit("wrong", 2, template={"spec": wrong})
    status = await yard.phase("wrong", "Failed", seconds=15)
    accepted = next(c for c in status["conditions"] if c["type"] == "Accepted")
    assert accepted["reason"] == "TemplateRefused"
    assert "spec.template.spec.containers[0].ports[0].containerPort" in accepted["message"]
    assert await yard.api.list("Pod", yard.namespace) == []

    await yard.submit("classless", 2, priorityClassName="no-such-class")
    status = await yard.until("classless", lambda s: s.get("pending") is not None, seconds=15)
    assert status["pending"]["message"].startswith("spec.priorityClassName: there is no PriorityClass no-such-class")


async def test_a_job_that_does_not_fit_says_so_in_numbers_and_starts_when_nodes_come(yard: Yard) -> None:
    await yard.submit("large", 9)
    status = await yard.until("large", lambda s: s.get("pending", {}).get("reason") == "InsufficientNodes")
    assert "needs 9 nodes; 8 are eligible, 8 of them are free" in status["pending"]["message"]
    await yard.nodes.add(a_node("extra", labels={SPINE_LABEL: "s2", LEAF_LABEL: "s2-l0"}))
    await yard.phase("large", "Running")


async def test_a_deleted_job_leaves_nothing(yard: Yard, kubectl: Any) -> None:
    await yard.submit("train", 2)
    await yard.phase("train", "Running")
    kubectl("-n", yard.namespace, "delete", "tj", "train", "--wait=false")
    await yard.api.wait_gone("TrainingJob", "train", yard.namespace)

    async def left() -> list[Object]:
        return await yard.api.list("Pod", yard.namespace)

    await wait_until(left, lambda pods: not pods, what="the pods to go", seconds=60)


async def test_the_namespace_of_a_running_job_can_be_deleted(yard: Yard, kubectl: Any) -> None:
    other = f"{yard.namespace}-other"
    await yard.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": other}})
    await yard.api.wait_for("ServiceAccount", "default", other, lambda _: True)
    # The longer its pods' grace, the later the namespace controller looks again.
    body = await yard.submit("train", 2, checkpoint={"grace": "2s"})
    await yard.api.delete("TrainingJob", "train", yard.namespace)
    meta = {"name": "train", "namespace": other}
    await yard.api.create({**{k: body[k] for k in ("apiVersion", "kind", "spec")}, "metadata": meta})
    await yard.api.wait_for("TrainingJob", "train", other, lambda job: job.get("status", {}).get("attempt") == 1)

    async def pods() -> list[Object]:
        return await yard.api.list("Pod", other)

    await wait_until(pods, lambda found: len(found) == 2, what="the pods to be made")
    kubectl("delete", "namespace", other, "--wait=false")
    await yard.api.wait_gone("Namespace", other, None, seconds=60)


async def test_a_gang_on_an_nvlink_rack_gets_channels_of_a_domain_of_its_own(yard: Yard) -> None:
    """The API server, the controllers and the scheduler are real, and allocate them; the driver's controller is played."""
    labels = {"node.kubernetes.io/instance-type": "gb300-4x", "nvidia.com/gpu.clique": "c.1"}
    rack = await yard.nodes.add(*(a_node(f"rack-{n}", labels=labels, resources={"rdma/ib": "1"}) for n in range(2)))
    made = [channels.a_device_class(yard.namespace), *(channels.a_slice(node) for node in rack)]
    for manifest in made:
        await yard.api.create(manifest)
    await yard.api.apply(channels.DEFINITION)
    try:
        await yard.submit("wide", 2, placement={"avoidNodes": [n for n in yard.nodes.names if n not in rack]})
        domain = await yard.api.wait_for("ComputeDomain", "wide-nvlink", yard.namespace, bool, seconds=60)
        await channels.template_of(yard.api, domain, yard.namespace)
        status = await yard.phase("wide", "Running")
        assert await yard.places("wide") == ["rack-0", "rack-1"]
        variables = {one["name"]: one for one in status["network"]["variables"]}
        assert (variables["NCCL_MNNVL_ENABLE"]["value"], variables["NCCL_MNNVL_ENABLE"]["source"]) == ("1", "derived")
        page = " ".join(
            plugin.run(yard.operators.plane, "trainyard", "env", "wide", "-n", yard.namespace).stdout.split()
        )
        assert f"NCCL_MNNVL_ENABLE=1 derived: {variables['NCCL_MNNVL_ENABLE']['reason']}" in page
        assert "a channel of the ComputeDomain wide-nvlink" in page
        claims = await yard.api.list("ResourceClaim", yard.namespace)
        given = [claim["status"]["allocation"]["devices"]["results"][0] for claim in claims]
        assert sorted((one["driver"], one["pool"], one["device"]) for one in given) == [
            (channels.DRIVER, node, "channel-0") for node in sorted(rack)
        ]
        (owner,) = domain["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["blockOwnerDeletion"]) == ("TrainingJob", "wide", True)
        env = {v["name"]: v.get("value") for v in (await yard.members("wide"))[0]["spec"]["containers"][0]["env"]}
        assert env["NCCL_MNNVL_ENABLE"] == "1"
    finally:
        await yard.api.delete("CustomResourceDefinition", channels.DEFINITION["metadata"]["name"])
        for manifest in made:
            await yard.api.delete(manifest["kind"], manifest["metadata"]["name"])
