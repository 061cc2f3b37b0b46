"""What is rendered is what the real API server takes and the real scheduler binds."""

from __future__ import annotations

import asyncio

import pytest
from support import api_cases
from support.api import Api, ApiError
from support.nodes import ACCELERATOR, Nodes
from support.pods import is_running
from support.rendering import a_plan
from trainyard.api.fabric import FabricSpec
from trainyard.api.training_job import TrainingJobSpec, TrainingJobStatus
from trainyard.network.choice import described
from trainyard.network.derive import derive
from trainyard.network.settings import Settings
from trainyard.render.objects import control, plan_map, service
from trainyard.render.pod import pods, trial_pod
from trainyard.world.records import Job

FABRIC = FabricSpec.model_validate(
    {
        "interface": "eth0",
        "podAdditions": {
            "volumes": [{"name": "torch", "hostPath": {"path": "/opt/torch", "type": "Directory"}}],
            "volumeMounts": [{"name": "torch", "mountPath": "/opt/torch", "readOnly": True}],
            "env": [{"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}],
        },
    }
)


async def a_job(api: Api, namespace: str, *, container=None, pod=None, **spec) -> Job:
    """A TrainingJob that the API server holds, as the operator would know it."""
    made = api_cases.a_job(**spec)
    made["metadata"]["namespace"] = namespace
    made["spec"]["template"]["spec"] |= pod or {}
    made["spec"]["template"]["spec"]["containers"][0] |= container or {}
    stored = await api.create(made)
    metadata = stored["metadata"]
    return Job(
        namespace=namespace,
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata["generation"],
        resource_version=metadata["resourceVersion"],
        created=0.0,
        spec=TrainingJobSpec.model_validate(stored["spec"]),
        status=TrainingJobStatus(),
    )


async def test_the_scheduler_binds_every_member_to_the_node_that_was_planned(api: Api, namespace: str, nodes: Nodes):
    names = await nodes.add_fabric(spines=2, leaves=2, nodes_per_leaf=1)
    spines = [{"key": "topology.trainyard.dev/spine", "operator": "In", "values": [spine]} for spine in ("s0", "s1")]
    terms = [{"matchExpressions": [spine]} for spine in spines]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    job = await a_job(
        api,
        namespace,
        container={"resources": {"limits": {ACCELERATOR: 8}}},
        pod={"affinity": {"nodeAffinity": required}, "nodeSelector": nodes.selector},
    )
    planned = [names[3], names[0], names[2], names[1]]
    plan, settings = a_plan(job, planned), derive(described(FABRIC), job.spec)
    for manifest in (control(job), service(job), plan_map(job, plan)):
        await api.create(dict(manifest))
    await asyncio.gather(*(api.create(dict(pod)) for pod in pods(job, plan, range(4), settings)))
    bound = [await api.wait_for("Pod", plan.pod(rank), namespace, is_running) for rank in range(4)]
    assert [pod["spec"]["nodeName"] for pod in bound] == planned


async def test_all_that_a_job_made_goes_with_it(api: Api, namespace: str):
    job = await a_job(api, namespace)
    plan = a_plan(job)
    made = [control(job), service(job), plan_map(job, plan)]
    for manifest in made:
        await api.create(dict(manifest))
    await api.delete("TrainingJob", job.name, namespace)
    for manifest in made:
        # The garbage collector learns of a new kind once in 30 s.
        await api.wait_gone(manifest["kind"], manifest["metadata"]["name"], namespace, seconds=90)


async def test_the_api_server_keeps_every_field_of_a_member(api: Api, namespace: str):
    job = await a_job(
        api,
        namespace,
        container={
            "command": ["python3", "mine.py"],
            "securityContext": {"runAsUser": 1000, "capabilities": {"add": ["IPC_LOCK"]}},
        },
        pod={"shareProcessNamespace": True, "topologySpreadConstraints": []},
    )
    (made,) = pods(job, a_plan(job), [1], derive(described(FABRIC), job.spec))
    stored = await api.create(dict(made), dry_run=True)
    assert missing(made["spec"], stored["spec"]) == ["topologySpreadConstraints"]  # an empty list is as good as none
    assert missing(made["metadata"], stored["metadata"]) == []


async def test_the_launcher_beside_a_foreign_image_is_taken_where_pods_have_no_rights(api: Api, namespace: str):
    level = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    await api.patch("Namespace", namespace, None, level)
    none = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    job = await a_job(
        api,
        namespace,
        container={"image": "pytorch/pytorch", "command": ["torchrun", "train.py"], "securityContext": none},
        pod={"securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}},
    )
    (made,) = pods(job, a_plan(job), [1], Settings(), "trainyard/operator:0.1.0")
    stored = await api.create(dict(made), dry_run=True)
    assert missing(made["spec"], stored["spec"]) == []
    assert [c["name"] for c in stored["spec"]["initContainers"]] == ["trainyard-launcher"]


async def test_a_trial_is_accepted_and_leaves_nothing(api: Api, namespace: str):
    job = await a_job(api, namespace)
    tried = trial_pod(job, Settings())
    await api.create(dict(tried), dry_run=True)
    assert await api.find("Pod", tried["metadata"]["name"], namespace) is None


@pytest.mark.parametrize(
    ("container", "field"),
    [
        ({"volumeMounts": [{"name": "nowhere", "mountPath": "/data"}]}, "spec.containers[0].volumeMounts[0].name"),
        ({"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}}, "spec.containers[0].resources.requests"),
        ({"env": [{"name": "A=B", "value": "x"}]}, "spec.containers[0].env["),
    ],
)
async def test_a_trial_shows_what_the_api_server_will_refuse(api: Api, namespace: str, container, field):
    job = await a_job(api, namespace, container=container)
    with pytest.raises(ApiError) as refused:
        await api.create(dict(trial_pod(job, Settings())), dry_run=True)
    assert refused.value.code == 422
    assert field in refused.value.message


def missing(sent: object, stored: object, path: str = "") -> list[str]:
    """Paths of what was sent and is not stored as it was sent."""
    if isinstance(sent, dict) and isinstance(stored, dict):
        below = (missing(value, stored.get(key), f"{path}.{key}" if path else key) for key, value in sent.items())
        return [found for some in below for found in some]
    if isinstance(sent, list) and isinstance(stored, list) and len(sent) <= len(stored):
        below = (missing(a, b, f"{path}[{n}]") for n, (a, b) in enumerate(zip(sent, stored, strict=False)))
        return [found for some in below for found in some]
    return [] if sent == stored else [path]
