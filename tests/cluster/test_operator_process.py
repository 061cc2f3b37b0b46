"""The operator as a process: it becomes ready and leads, hands over, takes over, and outlives its API server."""

from __future__ import annotations

import signal

import pytest
from support.api import Api, wait_until
from support.nodes import Nodes
from support.operator import SHORT_LEASE, Operators
from trainyard.api import names
from trainyard_lab.controlplane import API_SERVER, ControlPlane


async def holder(api: Api, operators: Operators) -> str:
    lease = await api.find("Lease", operators.lease, operators.namespace)
    return (lease or {}).get("spec", {}).get("holderIdentity") or ""


async def test_it_becomes_ready_and_leads(api: Api, operators: Operators) -> None:
    operator = await operators.leader()
    assert await operator.page("/healthz") == (200, "ok\n")
    assert await operator.page("/readyz") == (200, "ok\n")
    assert await holder(api, operators) == operator.identity
    status, text = await operator.page("/metrics")
    assert status == 200
    assert 'trainyard_watch_relists_total{kind="trainingjobs"' in text
    assert not operator.said("Traceback")


async def test_kopf_wakes_the_loop_and_leaves_no_trace_on_what_it_watches(
    api: Api, operators: Operators, nodes: Nodes, namespace: str
) -> None:
    operator = await operators.start(log_level="debug")
    await operator.wait_until_leads()
    trainer = {"name": "trainer", "image": "pretended", "command": ["train"]}
    job = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND_JOB,
        "metadata": {"name": "lm", "namespace": namespace},
        "spec": {"nodes": 1, "template": {"spec": {"nodeSelector": nodes.selector, "containers": [trainer]}}},
    }

    async def woken() -> bool:
        return operator.said("Handler 'registry.<locals>.woken' succeeded")

    await api.create(job)
    await wait_until(woken, bool, what="kopf to see the job")
    made = await api.wait_for("TrainingJob", "lm", namespace, lambda seen: "pending" in seen.get("status", {}))
    assert "annotations" not in made["metadata"]
    assert set(made["metadata"].get("finalizers", ())) <= {names.FINALIZER_JOB}


async def test_sigterm_releases_the_lease_and_a_standby_takes_over_at_once(api: Api, operators: Operators) -> None:
    first = await operators.leader()
    second = await operators.start()
    assert not await second.leads()
    assert await first.stop() == 0
    await second.wait_until_leads()  # it would wait ten minutes for a Lease that nobody released
    assert await holder(api, operators) == second.identity


async def test_the_last_one_leaves_a_free_lease_behind(api: Api, operators: Operators) -> None:
    operator = await operators.leader()
    assert await operator.stop() == 0
    assert await holder(api, operators) == ""


async def test_a_standby_stops_when_asked_as_well(operators: Operators) -> None:
    await operators.leader()
    standby = await operators.start()
    assert await standby.end(signal.SIGINT) == 0


async def test_after_a_sigkill_the_standby_takes_over_when_the_lease_is_over(api: Api, operators: Operators) -> None:
    first = await operators.leader()
    second = await operators.start(**SHORT_LEASE)
    assert await first.kill() == -signal.SIGKILL
    await second.wait_until_leads()
    assert await holder(api, operators) == second.identity


async def test_a_leader_that_was_frozen_past_its_lease_ends_at_once(operators: Operators) -> None:
    frozen = await operators.leader(**SHORT_LEASE)
    second = await operators.start(**SHORT_LEASE)
    frozen.process.send_signal(signal.SIGSTOP)
    await second.wait_until_leads()
    frozen.process.send_signal(signal.SIGCONT)
    assert await frozen.wait() == 1
    assert frozen.said("the Lease is lost")


@pytest.mark.timeout(180)
async def test_it_leads_again_after_the_api_server_was_away(
    control_plane: ControlPlane, api: Api, operators: Operators
) -> None:
    operator = await operators.leader()
    operators.refusals_expected = True
    control_plane.stop_server(API_SERVER, grace_seconds=0)
    control_plane.start()
    seen = 'trainyard_world_objects{kind="PriorityClass"} '

    async def classes() -> float:
        _, text = await operator.page("/metrics")
        return float(text.split(seen)[1].split()[0])

    before = await classes()
    name = f"made-afterwards-{operators.namespace}"
    await api.create(
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 1}
    )
    try:
        await wait_until(
            classes, lambda count: count == before + 1, what="the operator to see a new object", seconds=60
        )
    finally:
        await api.delete("PriorityClass", name)
    assert await operator.leads()
    assert operator.process.poll() is None
