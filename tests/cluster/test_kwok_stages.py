"""Pods on pretended nodes end as they are told, and what they said stays readable while a finalizer holds them."""

import pytest
from support.api import Api
from support.nodes import ACCELERATOR, Nodes, a_node
from support.pods import a_pod, has_ended, is_running, terminated
from trainyard_lab import kwok

FINALIZER = "trainyard.dev/last-words"


@pytest.fixture
async def node(nodes: Nodes) -> str:
    (name,) = await nodes.add(a_node("only"))
    return name


async def test_a_pod_is_scheduled_by_the_real_scheduler_and_runs_with_an_address(
    api: Api, namespace: str, nodes: Nodes, node: str
):
    await api.create(a_pod("p", namespace, selector=nodes.selector, requests={ACCELERATOR: "8"}))
    pod = await api.wait_for("Pod", "p", namespace, is_running)
    assert pod["spec"]["nodeName"] == node
    assert pod["status"]["podIP"]
    assert pod["status"]["containerStatuses"][0]["ready"]


async def test_a_node_keeps_the_resources_it_was_created_with(api: Api, nodes: Nodes):
    (name,) = await nodes.add(a_node("odd", accelerators=4, resources={"rdma/hca": "2"}))
    allocatable = (await api.get("Node", name))["status"]["allocatable"]
    assert allocatable[ACCELERATOR] == "4"
    assert allocatable["rdma/hca"] == "2"


async def test_a_pod_that_asks_for_more_accelerators_than_there_are_stays_pending(
    api: Api, namespace: str, nodes: Nodes, node: str
):
    await api.create(a_pod("p", namespace, selector=nodes.selector, requests={ACCELERATOR: "9"}))

    def is_refused(pod):
        conditions = pod["status"].get("conditions", [])
        return any(c["type"] == "PodScheduled" and c["status"] == "False" for c in conditions)

    pod = await api.wait_for("Pod", "p", namespace, is_refused)
    assert pod["status"]["phase"] == "Pending"


async def test_a_pod_starts_only_after_its_delay(api: Api, namespace: str, nodes: Nodes, node: str):
    held = a_pod("held", namespace, selector=nodes.selector, annotations={kwok.START_AFTER: "1h"})
    await api.create(held)
    await api.create(a_pod("free", namespace, selector=nodes.selector))
    await api.wait_for("Pod", "free", namespace, is_running)
    pod = await api.wait_for("Pod", "held", namespace, lambda pod: pod["spec"].get("nodeName") == node)
    assert pod["status"]["phase"] == "Pending"
    await api.annotate("Pod", "held", namespace, {kwok.START_AFTER: None})
    await api.wait_for("Pod", "held", namespace, is_running)


@pytest.mark.parametrize(("code", "phase"), [("0", "Succeeded"), ("75", "Failed")])
async def test_a_running_pod_ends_when_a_test_says_so(
    api: Api, namespace: str, nodes: Nodes, node: str, code: str, phase: str
):
    await api.create(a_pod("p", namespace, selector=nodes.selector))
    await api.wait_for("Pod", "p", namespace, is_running)
    words = '{"step": 120, "cause": "asked to stop: \\"drain\\""}'
    await api.annotate("Pod", "p", namespace, {kwok.EXIT_CODE: code, kwok.EXIT_MESSAGE: words})
    pod = await api.wait_for("Pod", "p", namespace, has_ended)
    assert pod["status"]["phase"] == phase
    ending = terminated(pod)
    assert (ending["exitCode"], ending["message"]) == (int(code), words)


async def test_a_pod_ends_by_itself_after_its_delay(api: Api, namespace: str, nodes: Nodes, node: str):
    orders = {kwok.EXIT_CODE: "1", kwok.EXIT_AFTER: "300ms"}
    await api.create(a_pod("p", namespace, selector=nodes.selector, annotations=orders))
    pod = await api.wait_for("Pod", "p", namespace, has_ended)
    assert terminated(pod)["exitCode"] == 1


async def test_when_the_trainer_ends_its_companions_run_on(api: Api, namespace: str, nodes: Nodes, node: str):
    await api.create(a_pod("p", namespace, selector=nodes.selector, containers=("trainer", "logs")))
    await api.wait_for("Pod", "p", namespace, is_running)
    await api.annotate("Pod", "p", namespace, {kwok.EXIT_CODE: "78"})
    pod = await api.wait_for("Pod", "p", namespace, terminated)
    assert terminated(pod)["exitCode"] == 78
    assert terminated(pod, "logs") is None
    assert pod["status"]["phase"] == "Running"
    await api.annotate("Pod", "p", namespace, {kwok.STOP_AFTER: "0s"})
    await api.delete("Pod", "p", namespace)
    await api.wait_gone("Pod", "p", namespace)


async def test_the_last_words_of_a_deleted_pod_stay_readable_until_its_finalizer_is_taken_off(
    api: Api, namespace: str, nodes: Nodes, node: str
):
    orders = {kwok.STOP_CODE: "75", kwok.STOP_MESSAGE: '{"step": 7}'}
    await api.create(a_pod("p", namespace, selector=nodes.selector, annotations=orders, finalizers=[FINALIZER]))
    await api.wait_for("Pod", "p", namespace, is_running)
    await api.delete("Pod", "p", namespace)

    def is_left_to_the_finalizer(pod):
        return has_ended(pod) and pod["metadata"]["deletionGracePeriodSeconds"] == 0

    pod = await api.wait_for("Pod", "p", namespace, is_left_to_the_finalizer)
    assert pod["metadata"]["finalizers"] == [FINALIZER]
    assert terminated(pod)["exitCode"] == 75
    assert terminated(pod)["message"] == '{"step": 7}'

    await api.patch("Pod", "p", namespace, {"metadata": {"finalizers": None}})
    await api.wait_gone("Pod", "p", namespace)


async def test_a_deleted_pod_runs_on_for_its_delay(api: Api, namespace: str, nodes: Nodes, node: str):
    await api.create(a_pod("p", namespace, selector=nodes.selector, annotations={kwok.STOP_AFTER: "1h"}))
    await api.create(a_pod("q", namespace, selector=nodes.selector))
    for name in ("p", "q"):
        await api.wait_for("Pod", name, namespace, is_running)
        await api.delete("Pod", name, namespace)
    await api.wait_gone("Pod", "q", namespace)
    assert is_running(await api.get("Pod", "p", namespace))
    await api.annotate("Pod", "p", namespace, {kwok.STOP_AFTER: "0s"})
    await api.wait_gone("Pod", "p", namespace)


async def test_a_pod_with_a_finalizer_that_ended_before_its_deletion_keeps_its_words(
    api: Api, namespace: str, nodes: Nodes, node: str
):
    orders = {kwok.EXIT_CODE: "1", kwok.EXIT_MESSAGE: "first", kwok.STOP_CODE: "75", kwok.STOP_MESSAGE: "second"}
    await api.create(a_pod("p", namespace, selector=nodes.selector, annotations=orders, finalizers=[FINALIZER]))
    await api.wait_for("Pod", "p", namespace, has_ended)
    await api.delete("Pod", "p", namespace)
    pod = await api.wait_for("Pod", "p", namespace, lambda pod: "deletionTimestamp" in pod["metadata"])
    assert (terminated(pod)["exitCode"], terminated(pod)["message"]) == (1, "first")


@pytest.mark.parametrize(("status", "taint"), [("False", "not-ready"), ("Unknown", "unreachable")])
async def test_a_node_is_not_ready_on_demand_and_ready_again(
    api: Api, nodes: Nodes, node: str, status: str, taint: str
):
    def taints(seen):
        return {each["key"].removeprefix("node.kubernetes.io/") for each in seen["spec"].get("taints", [])}

    await nodes.set_ready(node, status)
    await api.wait_for("Node", node, None, lambda seen: taint in taints(seen))
    await nodes.set_ready(node, None)
    await api.wait_for("Node", node, None, lambda seen: not taints(seen))
