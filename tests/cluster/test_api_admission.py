"""What the real API server answers when a user applies something."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.api import RESOURCES, Api, ApiError
from support.api_cases import CLAIM, FINE, WRONG, Manifest, Wrong, a_job, with_spec, with_volume
from trainyard.api.conditions import Phase
from trainyard.api.training_job import (
    Condition,
    PlanSummary,
    Progress,
    Reservation,
    Restarts,
    SavedCheckpoint,
    TrainingJobSpec,
    TrainingJobStatus,
    Victim,
)

SAMPLES = Path(__file__).resolve().parents[2] / "manifests" / "samples"
Kubectl = Callable[..., str]


async def tried(api: Api, job: Manifest) -> dict[str, Any]:
    """What the API server would make of a job, asked as strictly as kubectl asks."""
    query = {"fieldValidation": "Strict", "dryRun": "All"}
    return await api.request("POST", RESOURCES["TrainingJob"].path("default"), job, query=query)


async def made(api: Api, namespace: str, job: Manifest) -> dict[str, Any]:
    """A job that is there."""
    return await api.create({**job, "metadata": {**job["metadata"], "namespace": namespace}})


async def test_the_schemas_are_structural_and_all_rules_compile(api: Api) -> None:
    for name in ("trainingjobs.trainyard.dev", "fabrics.trainyard.dev"):
        conditions = (await api.get("CustomResourceDefinition", name))["status"]["conditions"]
        assert {c["type"]: c["status"] for c in conditions} == {"NamesAccepted": "True", "Established": "True"}


@pytest.mark.parametrize(
    "wrong",
    [w for w in WRONG.values() if w.at_apply is not None],
    ids=[k for k, w in WRONG.items() if w.at_apply is not None],
)
async def test_what_is_wrong_is_answered_at_apply(api: Api, wrong: Wrong) -> None:
    with pytest.raises(ApiError) as refused:
        await tried(api, wrong.job)
    assert refused.value.code == 422
    assert wrong.at_apply in refused.value.message
    assert wrong.path in [cause["field"] for cause in refused.value.body["details"]["causes"]]


@pytest.mark.parametrize("job", FINE.values(), ids=FINE.keys())
async def test_what_is_right_is_taken_and_its_template_kept(api: Api, job: Manifest) -> None:
    taken = await tried(api, job)
    assert taken["spec"]["template"] == job["spec"]["template"]


async def test_a_field_that_does_not_exist_is_answered(api: Api) -> None:
    with pytest.raises(ApiError, match=r'unknown field "spec.trainer.learningRat"'):
        await tried(api, a_job(trainer={"learningRat": 0.1}))


async def test_the_defaults_of_the_api_server_are_those_of_the_models(api: Api) -> None:
    job = a_job(trainer={}, placement={"within": {"level": "leaf"}})
    taken = await tried(api, job)
    assert TrainingJobSpec.model_validate(taken["spec"]) == TrainingJobSpec.model_validate(job["spec"])


BEFORE = with_spec(with_volume(**CLAIM), trainer={}, processesPerNode=2)

FIXED: dict[str, tuple[str, Any]] = {
    "nodes": ("spec.nodes", {"nodes": 5}),
    "processesPerNode": ("spec.processesPerNode", {"processesPerNode": 4}),
    "processesPerNode, taken away": ("spec.processesPerNode", {"processesPerNode": None}),
    "trainer": ("spec.trainer", {"trainer": {"steps": 7}}),
    "trainer, taken away": ("spec.trainer", {"trainer": None}),
    "template, in a field that no schema here knows": ("spec.template", {"template": {"spec": {"hostPID": True}}}),
    "checkpoint.volume, taken away": ("spec.checkpoint.volume", {"checkpoint": {"volume": None}}),
    "checkpoint.url, instead of the volume": (
        "spec.checkpoint.url",
        {"checkpoint": {"volume": None, "url": "s3://b/r"}},
    ),
}


@pytest.mark.parametrize(("path", "change"), FIXED.values(), ids=FIXED.keys())
async def test_what_is_trained_is_fixed(api: Api, namespace: str, path: str, change: dict[str, Any]) -> None:
    await made(api, namespace, BEFORE)
    with pytest.raises(ApiError, match="is fixed for the life of the job; delete the job") as refused:
        await api.patch("TrainingJob", "small-lm", namespace, {"spec": change})
    assert path in [cause["field"] for cause in refused.value.body["details"]["causes"]]


async def test_how_it_is_run_may_change(api: Api, namespace: str) -> None:
    await made(api, namespace, BEFORE)
    changes = {
        "suspend": True,
        "priorityClassName": "urgent",
        "maxRuntime": "2h",
        "placement": {"within": {"level": "spine"}, "avoidNodes": ["n1"]},
        "checkpoint": {"every": 10, "keep": 5, "grace": "5m"},
        "restart": {"failures": 1},
        "network": {"env": [{"name": "NCCL_DEBUG", "value": "INFO"}]},
    }
    changed = await api.patch("TrainingJob", "small-lm", namespace, {"spec": changes})
    assert changed["spec"]["checkpoint"] == {"volume": "state", "every": 10, "keep": 5, "grace": "5m"}
    assert changed["metadata"]["generation"] == 2


STATUS = TrainingJobStatus(
    phase=Phase.RUNNING,
    observed_generation=1,
    attempt=2,
    ready_nodes=4,
    conditions=(
        Condition(type="Running", status="True", reason="AllRunning", message="4 of 4", last_transition_time=1.5),
    ),
    plan=PlanSummary(
        nodes=4, span="spine", spans={"leaf": 2, "spine": 1}, ring_edges={"leaf": 2, "spine": 0}, digest="ab"
    ),
    progress=Progress(step=120, loss=2.5, tokens_per_second=1e4, time=3.25),
    checkpoint=SavedCheckpoint(step=100, attempt=1, path="/checkpoints/x", bytes=2**33, seconds=0.5, time=2.0),
    restarts=Restarts(failures=1, preemptions=3, failure_times=(1.0,)),
    reservation=Reservation(
        attempt=3,
        nodes=("n2", "n1"),
        victims=(Victim(namespace="other", name="low", uid="u", attempt=1),),
        deadline=100.123456,
        reason="Preempted",
    ),
    next_member=8,
    queued_at=0.0,
)


async def test_the_status_keeps_the_operators_memory(api: Api, namespace: str) -> None:
    await made(api, namespace, a_job())
    await api.patch("TrainingJob", "small-lm", namespace, {"status": STATUS.to_manifest()}, subresource="status")
    kept = await api.get("TrainingJob", "small-lm", namespace)
    assert TrainingJobStatus.model_validate(kept["status"]) == STATUS


async def test_kubectl_get_shows_how_the_job_is(api: Api, namespace: str, kubectl: Kubectl) -> None:
    await made(api, namespace, a_job())
    await api.patch("TrainingJob", "small-lm", namespace, {"status": STATUS.to_manifest()}, subresource="status")
    head, row = kubectl("get", "tj", "-n", namespace).splitlines()
    assert head.split() == ["NAME", "PHASE", "NODES", "READY", "STEP", "SPAN", "RESTARTS", "AGE"]
    assert row.split()[:-1] == ["small-lm", "Running", "4", "4", "120", "spine", "1"]
    assert kubectl("get", "tj", "-n", namespace, "--field-selector", "status.phase=Failed", "-o", "name") == ""


def test_kubectl_explain_reads_well(kubectl: Kubectl) -> None:
    text = " ".join(kubectl("explain", "tj.spec").split())
    assert "nodes <integer> -required- How many nodes train, all or none of them." in text


@pytest.mark.parametrize("sample", sorted(SAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
async def test_the_samples_are_taken(namespace: str, kubectl: Kubectl, sample: Path) -> None:
    assert "created (server dry run)" in kubectl("apply", "-n", namespace, "--dry-run=server", "-f", sample)


async def test_a_fabric_names_tiers_settings_and_additions(api: Api) -> None:
    fabric = {
        "apiVersion": "trainyard.dev/v1alpha1",
        "kind": "Fabric",
        "metadata": {"name": "two-tiers"},
        "spec": {
            "kind": "tcp",
            "nodeSelector": {"pool": "a"},
            "levels": [{"name": "leaf", "nodeLabel": "example.com/leaf"}],
            "interface": "eth0",
            "env": [{"name": "NCCL_DEBUG", "value": "WARN"}],
            "podAdditions": {
                "volumes": [{"name": "libs", "hostPath": {"path": "/opt/libs"}}],
                "volumeMounts": [{"name": "libs", "mountPath": "/opt/libs", "readOnly": True}],
                "env": [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
            },
        },
    }
    assert (await api.create(fabric, dry_run=True))["spec"] == fabric["spec"]


async def test_a_fabric_may_not_say_who_a_process_is(api: Api) -> None:
    spec = {"podAdditions": {"env": [{"name": "RANK", "value": "0"}]}}
    fabric = {"apiVersion": "trainyard.dev/v1alpha1", "kind": "Fabric", "metadata": {"name": "f"}, "spec": spec}
    with pytest.raises(ApiError, match="RANK says who a process is"):
        await api.create(fabric, dry_run=True)
