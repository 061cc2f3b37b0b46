"""From what the API server sends to records: every way in which a pod can end, and nothing that makes a decoder fail unseen."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from trainyard.api import names
from trainyard.kube import decode
from trainyard.kube.mirror import JOBS, MEMBERS, NODES
from trainyard.kube.shapes import PodShape, Shape
from trainyard.world.records import Degraded, Membership, Node, Pod, Running, Taint, Terminated, Waiting

PODS = Shape(PodShape)
BEGAN, THEN, END = "2026-01-31T12:00:00Z", "2026-01-31T12:00:10Z", "2026-01-31T12:01:00Z"
T0 = 1769860800.0
OWNER = {"kind": names.KIND_JOB, "uid": "job-uid", "controller": True}


def a_member(
    *, meta: dict[str, Any] | None = None, spec: dict[str, Any] | None = None, **status: Any
) -> dict[str, Any]:
    labels = {
        names.LABEL_JOB_UID: "job-uid",
        names.LABEL_ATTEMPT: "2",
        names.LABEL_MEMBER: "5",
        names.LABEL_RANK: "1",
    }
    own = {
        "namespace": "team",
        "name": "train-5",
        "uid": "u",
        "resourceVersion": "1",
        "creationTimestamp": BEGAN,
        "labels": labels,
        "annotations": {names.ANNOTATION_NODE: "node-1", names.ANNOTATION_PLAN: "abc"},
        "ownerReferences": [OWNER],
    }
    containers = [{"name": "trainer", "resources": {"requests": {"cpu": "500m"}}}, {"name": "logs"}]
    return {"metadata": {**own, **(meta or {})}, "spec": {"containers": containers, **(spec or {})}, "status": status}


def decoded(raw: dict[str, Any]) -> Pod:
    """Through the JSON, as a watch brings it."""
    pod = decode.pod(PODS.one.validate_json(json.dumps(raw)))
    assert pod is not None
    return pod


def state(**states: Any) -> list[dict[str, Any]]:
    return [{"name": "logs", "state": {"running": {"startedAt": BEGAN}}}, {"name": "trainer", "state": states}]


def test_every_field_of_a_member():
    pod = decoded(
        a_member(
            meta={
                "deletionTimestamp": "2026-01-31T12:00:40Z",
                "deletionGracePeriodSeconds": 30,
                "finalizers": ["other/one", names.FINALIZER_POD],
            },
            spec={"nodeName": "node-1", "priority": 7, "terminationGracePeriodSeconds": 120},
            phase="Running",
            podIP="10.0.0.7",
            conditions=[{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}],
            containerStatuses=state(running={"startedAt": THEN}),
        )
    )
    assert pod == Pod(
        namespace="team",
        name="train-5",
        uid="u",
        created=T0,
        node="node-1",
        phase="Running",
        requests={"cpu": 500, "pods": 1},
        priority=7,
        ip="10.0.0.7",
        deleted=T0 + 10,
        grace_seconds=30.0,
        disrupted=True,
        unscheduled="",
        held=True,
        trainer=Running(T0 + 10),
        membership=Membership("job-uid", 2, 5, 1, "node-1", "abc"),
    )


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({}, Waiting()),
        ({"phase": "Pending", "containerStatuses": None}, Waiting()),
        (
            {"phase": "Pending", "containerStatuses": state(waiting={"reason": "ImagePullBackOff", "message": "no"})},
            Waiting("ImagePullBackOff", "no"),
        ),
        (
            {
                "phase": "Pending",
                "containerStatuses": state(waiting={"reason": "PodInitializing"}),
                "initContainerStatuses": [
                    {"name": "fetch", "state": {"waiting": {"reason": "ErrImagePull", "message": "gone"}}}
                ],
            },
            Waiting("ErrImagePull", "init container fetch: gone"),
        ),
        (
            {
                "phase": "Running",
                "containerStatuses": state(
                    terminated={"exitCode": 75, "reason": "Error", "message": "{}", "finishedAt": END}
                ),
            },
            Terminated(75, "Error", "{}", T0 + 60),
        ),
        (
            {
                "phase": "Failed",
                "reason": "Evicted",
                "message": "The node was low on memory",
                "conditions": [
                    {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "lastTransitionTime": END}
                ],
            },
            Terminated(137, "Evicted", "The node was low on memory", T0 + 60),
        ),
        (
            {
                "phase": "Failed",
                "conditions": [
                    {
                        "type": "DisruptionTarget",
                        "status": "True",
                        "reason": "DeletionByPodGC",
                        "message": "node not found",
                        "lastTransitionTime": END,
                    }
                ],
                "containerStatuses": state(running={"startedAt": THEN}),
            },
            Terminated(137, "DeletionByPodGC", "node not found", T0 + 60),
        ),
        ({"phase": "Failed"}, Terminated(137, "PodFailed", "", T0)),
        (
            {
                "phase": "Failed",
                "containerStatuses": state(waiting={"reason": "PodInitializing"}),
                "initContainerStatuses": [{"name": "fetch", "state": {"terminated": {"exitCode": 3, "reason": "Error"}}}],
            },
            Terminated(3, "Error", "init container fetch: Error", T0),
        ),
        ({"phase": "Succeeded"}, Terminated(0, "Completed", "", T0)),
    ],
    ids=[
        "new", "null statuses", "image", "init waits", "ended beside a sidecar", "evicted", "node gone", "never began",
        "init failed", "succeeded unseen",
    ],
)  # fmt: skip
def test_what_became_of_the_trainer(status, expected):
    assert decoded(a_member(**status)).trainer == expected


def test_the_only_container_trains_whatever_its_name():
    raw = a_member(
        spec={"containers": [{"name": "main"}]},
        phase="Running",
        containerStatuses=[{"name": "main", "state": {"running": {"startedAt": THEN}}}],
    )
    assert decoded(raw).trainer == Running(T0 + 10)


def test_a_pod_that_cannot_be_scheduled_says_why():
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/8 nodes"}
    assert decoded(a_member(phase="Pending", conditions=[condition])).unscheduled == "0/8 nodes"
    gated = {**condition, "reason": "SchedulingGated"}
    assert decoded(a_member(phase="Pending", conditions=[gated])).unscheduled == ""


@pytest.mark.parametrize(
    "meta",
    [
        {"ownerReferences": None},
        {"ownerReferences": [{**OWNER, "uid": "another"}]},
        {"ownerReferences": [{**OWNER, "controller": None}]},
        {"labels": {names.LABEL_JOB_UID: "job-uid", names.LABEL_ATTEMPT: "two"}},
        {"labels": None},
    ],
    ids=["no owner", "another owner", "no controller", "labels of nonsense", "no labels"],
)
def test_a_pod_that_is_not_ours_takes_room_until_it_ends(meta):
    running = decoded(a_member(meta=meta, spec={"nodeName": "node-1"}, phase="Running"))
    assert (running.membership, running.node, running.requests["cpu"]) == (None, "node-1", 500)
    assert decode.pod(PODS.one.validate_python(a_member(meta=meta, phase="Succeeded"))) is None


def test_a_node():
    raw = {
        "metadata": {
            "name": "n",
            "uid": "u",
            "labels": {"rack": "7"},
            "annotations": {names.ANNOTATION_HCAS: "mlx5_0,mlx5_1", "kubeadm.alpha.kubernetes.io/cri-socket": "/run/c"},
        },
        "spec": {"unschedulable": True, "taints": [{"key": "gpu", "effect": "NoSchedule"}]},
        "status": {
            "allocatable": {"cpu": "63500m", "memory": "1Gi", "nvidia.com/gpu": "8"},
            "conditions": [{"type": "Ready", "status": "Unknown", "lastTransitionTime": THEN}],
        },
    }
    assert decode.node(NODES.shape.one.validate_json(json.dumps(raw))) == Node(
        name="n",
        uid="u",
        labels={"rack": "7"},
        allocatable={"cpu": 63500, "memory": 2**30, "nvidia.com/gpu": 8},
        taints=(Taint("gpu", "", "NoSchedule"),),
        unschedulable=True,
        ready=False,
        ready_since=T0 + 10,
        missed=True,
        annotations={names.ANNOTATION_HCAS: "mlx5_0,mlx5_1"},
    )
    assert not decode.node({"metadata": {"name": "n", "uid": "u"}}).ready


def test_what_a_health_check_says_of_a_nodes_rdma():
    said = {
        "RdmaLinkFlapping": "True",
        "RdmaWpaAuth": "False",
        "RdmaLink": "Unknown",
        "GpuEcc": "True",
        "Ready": "True",
    }
    conditions = [{"type": type, "status": status, "lastTransitionTime": THEN} for type, status in said.items()]
    raw = {"metadata": {"name": "n", "uid": "u"}, "status": {"conditions": conditions}}
    assert decode.node(NODES.shape.one.validate_json(json.dumps(raw))).rdma_faults == ("RdmaLinkFlapping",)


@pytest.mark.parametrize(
    ("status", "degraded"), [("True", Degraded(T0 + 10, "PreflightFailed", "slow")), ("False", None)]
)
def test_a_nodes_mark(status: str, degraded: Degraded | None):
    mark = {"type": names.CONDITION_DEGRADED, "status": status, "reason": "PreflightFailed", "message": "slow"}
    raw = {"metadata": {"name": "n", "uid": "u"}, "status": {"conditions": [{**mark, "lastTransitionTime": THEN}]}}
    assert decode.node(NODES.shape.one.validate_json(json.dumps(raw))).degraded == degraded


def test_a_job_that_makes_no_sense_is_a_record_that_says_so():
    raw = {
        "metadata": {
            "namespace": "team", "name": "train", "uid": "u", "resourceVersion": "9", "generation": 2,
            "creationTimestamp": BEGAN, "finalizers": [names.FINALIZER_JOB], "deletionTimestamp": END,
            "deletionGracePeriodSeconds": 0,
        },
        "spec": {"nodes": 0},
    }  # fmt: skip
    job = decode.job(JOBS.shape.one.validate_json(json.dumps(raw)))
    assert (job.key, job.generation, job.resource_version, job.created) == ("team/train", 2, "9", T0)
    assert (job.held, job.deleted, job.spec) == (True, T0 + 60, None)
    assert any(error.path == "spec.nodes" for error in job.errors)


def test_a_priority_class_that_never_preempts():
    raw = {"metadata": {"name": "p"}, "value": 5, "preemptionPolicy": "Never", "globalDefault": None}
    made = decode.priority_class(raw)
    assert (made.name, made.value, made.preempts, made.default) == ("p", 5, False, False)


def test_a_fabric_that_makes_no_sense_is_refused_with_its_fields():
    with pytest.raises(ValueError, match=r"spec\.kind"):
        decode.fabric({"metadata": {"name": "f"}, "spec": {"kind": "carrier-pigeon"}})


@pytest.mark.parametrize(
    ("raw", "leaving"),
    [
        ({"metadata": {"name": "n"}}, None),
        ({"metadata": {"name": "n", "deletionTimestamp": END}}, "n"),
        ({"metadata": {"name": "n"}, "status": {"phase": "Terminating"}}, "n"),
        ({"metadata": {"name": "n"}, "status": {"phase": "Active"}}, None),
    ],
)
def test_a_namespace_is_leaving_from_the_moment_of_its_deletion(raw, leaving):
    assert decode.leaving_namespace(raw) == leaving


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300)
@given(st.data())
def test_a_pod_with_any_part_replaced_by_anything_decodes_or_says_why_not(data):
    """Nothing but a record, ValidationError, KeyError or ValueError: what the informer is ready for."""
    raw = a_member(
        meta={"finalizers": [names.FINALIZER_POD]},
        spec={"nodeName": "n", "priority": 1},
        phase="Failed",
        conditions=[{"type": "Ready", "status": "False", "lastTransitionTime": END}],
        containerStatuses=state(terminated={"exitCode": 1, "finishedAt": END}),
    )
    raw = copy.deepcopy(raw)  # parts of it are shared with other tests
    at: Any = raw
    path = []
    while isinstance(at, dict | list) and at:
        key = data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
        path.append(key)
        if not isinstance(at[key], dict | list) or data.draw(st.booleans()):
            break
        at = at[key]
    parent: Any = raw
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = data.draw(json_values)
    try:
        pod = decode.pod(MEMBERS.shape.one.validate_json(json.dumps(raw)))
    except (ValidationError, KeyError, ValueError, TypeError):
        return
    assert pod is None or isinstance(pod, Pod)
