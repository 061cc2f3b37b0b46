"""What a real API server says of pods that it will not take, and whose turn it is then."""

import copy
from typing import Any

import pytest
from support import kube
from support.pods import a_pod
from trainyard.api.conditions import Reason
from trainyard.cycle.actions import TryPod
from trainyard.kube.trial import try_pod
from trainyard.world.records import Trial, Verdict

ACCEPTED, REFUSED, WAIT = Verdict.ACCEPTED, Verdict.REFUSED, Verdict.WAIT


async def tried(control_plane, pod: dict[str, Any]) -> Trial:
    async with kube.a_client(control_plane.kubeconfig) as client:
        return await try_pod(client, TryPod("uid", 1, pod), now=7.0)


def trainer(namespace: str, **fields: Any) -> dict[str, Any]:
    pod = copy.deepcopy(a_pod("trial", namespace))
    pod["spec"]["containers"][0] |= fields
    return pod


async def test_a_pod_that_is_taken_is_accepted_and_not_made(control_plane, api, namespace):
    assert await tried(control_plane, a_pod("trial", namespace)) == Trial(1, ACCEPTED, 7.0, Reason.VALID)
    assert await api.list("Pod", namespace) == []


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}},
            "spec.template.spec.containers[0].resources.requests: ",
        ),
        ({"image": 5}, "spec.template.spec.containers.image: "),
        ({"imagePullPolcy": "Always"}, "spec.template.spec.containers[0].imagePullPolcy: there is no such field"),
        ({"imagePullPolicy": "Sometimes"}, "spec.template.spec.containers[0].imagePullPolicy: "),
        ({"resources": {"limits": {"cpu": "much"}}}, "spec.template"),
        ({"env": [{"name": "A"}, {"name": "B", "valueFrom": {}}]}, "spec.template.spec.containers[0].env[B].valueFrom: "),
        ({"volumeMounts": [{"name": "none", "mountPath": "/x"}]}, "spec.template.spec.containers[0].volumeMounts[none].name: "),
    ],
    ids=["requests over limits", "wrong type", "misspelt", "bad enum", "bad quantity", "env by name", "mount by name"],
)  # fmt: skip
async def test_a_template_that_makes_no_pod_is_refused_with_the_field(control_plane, namespace, fields, said):
    trial = await tried(control_plane, trainer(namespace, **fields))
    assert (trial.verdict, trial.reason) == (REFUSED, Reason.TEMPLATE_REFUSED), trial.message
    assert trial.message.startswith(said), trial.message


async def test_a_namespace_with_a_stricter_level_of_pod_security_refuses(control_plane, api, namespace):
    level = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    await api.patch("Namespace", namespace, None, level)
    trial = await tried(control_plane, a_pod("trial", namespace))
    assert (trial.verdict, trial.reason) == (REFUSED, Reason.TEMPLATE_REFUSED)
    assert trial.message.startswith("spec.template.spec: the namespace does not allow it: violates PodSecurity")


async def test_a_priority_class_that_is_not_there_refuses(control_plane, namespace):
    pod = a_pod("trial", namespace)
    pod["spec"]["priorityClassName"] = "nobody-made-it"
    trial = await tried(control_plane, pod)
    assert (trial.verdict, trial.reason) == (REFUSED, Reason.PRIORITY_CLASS_NOT_FOUND)
    assert trial.message.startswith("spec.priorityClassName: there is no PriorityClass nobody-made-it")


async def test_a_quota_that_is_used_up_is_waited_for(control_plane, api, namespace):
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none", "namespace": namespace}}
    await api.create({**quota, "spec": {"hard": {"pods": "0"}}})
    await api.wait_for("ResourceQuota", "none", namespace, lambda q: "hard" in q.get("status", {}))
    trial = await tried(control_plane, a_pod("trial", namespace))
    assert (trial.verdict, trial.reason) == (WAIT, Reason.API_REFUSES)
    assert "exceeded quota: none, requested: pods=1, used: pods=0, limited: pods=0" in trial.message


async def test_a_service_account_that_is_not_there_is_waited_for(control_plane, namespace):
    pod = a_pod("trial", namespace)
    pod["spec"]["serviceAccountName"] = "later"
    trial = await tried(control_plane, pod)
    assert (trial.verdict, trial.reason) == (WAIT, Reason.API_REFUSES)
    assert "later" in trial.message


async def test_a_claim_that_is_not_there_is_waited_for_by_name(control_plane, api, namespace):
    pod = a_pod("trial", namespace)
    pod["spec"]["volumes"] = [{"name": "checkpoints", "persistentVolumeClaim": {"claimName": "shared"}}]
    trial = await tried(control_plane, pod)
    assert (trial.verdict, trial.reason) == (WAIT, Reason.VOLUME_NOT_FOUND)
    where = "spec.template.spec.volumes[checkpoints].persistentVolumeClaim.claimName"
    assert trial.message == f"{where}: there is no PersistentVolumeClaim shared in namespace {namespace}; create it"
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
    meta = {"name": "shared", "namespace": namespace}
    await api.request(
        "POST", path, {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": claim}
    )
    assert (await tried(control_plane, pod)).verdict == ACCEPTED


async def test_a_namespace_that_does_not_exist_is_no_verdict(control_plane):
    trial = await tried(control_plane, a_pod("trial", "no-such-namespace"))
    assert (trial.verdict, trial.reason) == (WAIT, Reason.NAMESPACE_TERMINATING)


async def test_a_name_that_is_taken_does_not_matter(control_plane, api, namespace):
    await api.create(a_pod("trial", namespace))
    assert (await tried(control_plane, a_pod("trial", namespace))).verdict == ACCEPTED


async def test_an_api_server_that_is_away_is_waited_for(control_plane, namespace, tmp_path):
    away = tmp_path / "kubeconfig"
    away.write_text(control_plane.kubeconfig.read_text().replace(control_plane.server, "https://127.0.0.1:9"))
    async with kube.a_client(away) as client:
        trial = await try_pod(client, TryPod("uid", 1, a_pod("trial", namespace)), now=7.0)
    assert (trial.verdict, trial.reason) == (WAIT, Reason.API_REFUSES)
