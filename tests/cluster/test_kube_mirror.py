"""The mirror beside a real API server: what it shows is what is there."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from support.api import wait_until
from support.nodes import a_node
from support.pods import a_pod, is_running
from trainyard.api import names
from trainyard.kube.client import KubeClient
from trainyard.kube.mirror import Mirror
from trainyard.world.records import World


@pytest.fixture
async def client(control_plane) -> AsyncIterator[KubeClient]:
    async with await KubeClient.from_kubeconfig(control_plane.kubeconfig) as made:
        yield made


@pytest.fixture
async def mirror(client) -> AsyncIterator[Mirror]:
    made = Mirror(client)
    task = asyncio.create_task(made.run())
    await asyncio.wait_for(made.wait_synced(), 30)
    yield made
    assert not task.done(), task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def shown(mirror: Mirror, predicate, what: str) -> World:
    async def look() -> World:
        return mirror.freeze()

    return await wait_until(look, predicate, what=what)


async def test_a_world_holds_what_is_there(api, mirror, namespace, nodes):
    (node,) = await nodes.add(a_node("mirrored", labels={"rack": "7"}))
    await api.create(a_pod("stranger", namespace, selector=nodes.selector, requests={"nvidia.com/gpu": "3"}))
    await api.wait_for("Pod", "stranger", namespace, is_running)
    world = await shown(mirror, lambda w: any(p.name == "stranger" and p.node for p in w.pods.values()), "the pod")
    assert world.nodes[node].labels["rack"] == "7"
    assert world.nodes[node].allocatable["nvidia.com/gpu"] == 8
    (pod,) = [p for p in world.pods.values() if p.namespace == namespace]
    assert (pod.node, pod.requests["nvidia.com/gpu"], pod.membership) == (node, 3, None)
    assert "system-cluster-critical" in world.priority_classes
    await api.delete("Pod", "stranger", namespace, grace_seconds=0)
    await shown(mirror, lambda w: pod.uid not in w.pods, "the pod's end")


async def test_a_namespace_that_is_going_away_is_leaving(api, mirror):
    held = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "held", "finalizers": ["test/held"]}}
    name = "t-leaving"
    await api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    held["metadata"]["namespace"] = name
    await api.create(held)
    assert not mirror.freeze().namespace_leaving(name)
    await api.delete("Namespace", name)
    await shown(mirror, lambda w: w.namespace_leaving(name), "the namespace to be leaving")
    await api.patch("ConfigMap", "held", name, {"metadata": {"finalizers": None}})
    await shown(mirror, lambda w: not w.namespace_leaving(name), "the namespace's end")


async def test_nothing_changed_is_the_same_world(mirror):
    world = mirror.freeze()
    assert mirror.freeze() is world or mirror.freeze() is mirror.freeze()


async def test_members_stay_known_after_their_end(api, mirror, namespace):
    job = {"apiVersion": names.API_VERSION, "kind": names.KIND_JOB, "metadata": {"name": "j", "namespace": namespace}}
    job["spec"] = {
        "nodes": 1,
        "template": {"spec": {"containers": [{"name": "trainer", "image": "x", "command": ["train"]}]}},
    }
    job = await api.create(job)
    world = await shown(mirror, lambda w: job["metadata"]["uid"] in w.jobs, "the job")
    assert world.jobs[job["metadata"]["uid"]].spec.nodes == 1
    member = a_pod("j-0", namespace)
    member["metadata"]["labels"] = {
        names.LABEL_JOB_UID: job["metadata"]["uid"],
        names.LABEL_ATTEMPT: "1",
        names.LABEL_MEMBER: "0",
        names.LABEL_RANK: "0",
    }
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND_JOB, "name": "j", "uid": job["metadata"]["uid"]}
    member["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    made = await api.create(member)
    mirror.observe(made)
    assert mirror.freeze().pods[made["metadata"]["uid"]].membership.job_uid == job["metadata"]["uid"]
    await api.patch("Pod", "j-0", namespace, {"status": {"phase": "Failed", "reason": "Evicted"}}, subresource="status")
    world = await shown(mirror, lambda w: not w.pods[made["metadata"]["uid"]].live, "the member's end")
    assert world.pods[made["metadata"]["uid"]].trainer.reason == "Evicted"
