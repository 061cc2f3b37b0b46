"""The mirror beside a real API server: what it shows is what is there."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from kubernetes.aio.config import incluster_config
from support import kube
from support.api import Api, Object, wait_until
from support.nodes import a_node
from support.pods import a_pod, is_running
from trainyard.cli.reading import read_yard
from trainyard.kube import resources
from trainyard.kube.client import KubeClient
from trainyard.kube.errors import ApiError
from trainyard.kube.informer import Informer, Pace
from trainyard.kube.mirror import PRIORITY_CLASSES, Mirror
from trainyard.kube.slices import read_places
from trainyard.world.records import World
from trainyard_lab.controlplane import ControlPlane


@pytest.fixture
async def mirror(control_plane) -> AsyncIterator[Mirror]:
    async with kube.a_client(control_plane.kubeconfig) as client, kube.a_mirror(client) as made:
        yield made


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


async def test_what_network_devices_tell_of_a_nodes_place_is_a_label_of_its_record(control_plane, api, mirror, nodes):
    (node,) = await nodes.add(a_node("told"))
    place = {"gce.dra.net/block": {"string": "b1"}, "dra.net/mtu": {"int": 1500}}
    for driver in ("dra.net", "gpu.example.com"):
        devices = [
            {"name": "nic", "attributes": place if driver == "dra.net" else {"gce.dra.net/host": {"string": "h"}}}
        ]
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        made = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"{node}-{driver}"},
            "spec": {"driver": driver, "nodeName": node, "pool": pool, "devices": devices},
        }
        await api.create(made)
    world = await shown(mirror, lambda w: "gce.dra.net/block" in w.nodes[node].labels, "the place")
    async with kube.a_client(control_plane.kubeconfig) as client:
        bare = replace(world.nodes[node], labels={})
        assert (await read_places(client, {node: bare}))[node].labels == {"gce.dra.net/block": "b1"}
        assert (await read_yard(client)).nodes[node].labels == world.nodes[node].labels, (
            "kubectl sees what the operator does"
        )
    assert {k: v for k, v in world.nodes[node].labels.items() if "dra.net" in k} == {"gce.dra.net/block": "b1"}
    await api.delete("ResourceSlice", f"{node}-dra.net")
    await shown(mirror, lambda w: "gce.dra.net/block" not in w.nodes[node].labels, "the place's end")
    await api.delete("ResourceSlice", f"{node}-gpu.example.com")


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
    first, second = mirror.freeze(), mirror.freeze()
    assert first is second


async def test_members_stay_known_after_their_end(api, mirror, namespace):
    job = await kube.a_job(api, namespace)
    world = await shown(mirror, lambda w: job["metadata"]["uid"] in w.jobs, "the job")
    assert world.jobs[job["metadata"]["uid"]].spec.nodes == 1
    made = await api.create(kube.as_member(a_pod("train-0", namespace), job))
    mirror.observe(made)
    assert mirror.freeze().pods[made["metadata"]["uid"]].membership.job_uid == job["metadata"]["uid"]
    await api.patch(
        "Pod", "train-0", namespace, {"status": {"phase": "Failed", "reason": "Evicted"}}, subresource="status"
    )
    world = await shown(mirror, lambda w: not w.pods[made["metadata"]["uid"]].live, "the member's end")
    assert world.pods[made["metadata"]["uid"]].trainer.reason == "Evicted"


async def test_in_a_cluster_the_operator_is_its_service_account(control_plane, api, namespace, tmp_path, monkeypatch):
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token"
    (tmp_path / "token").write_text((await api.request("POST", path, request))["status"]["token"])
    roots = (await api.get("ConfigMap", "kube-root-ca.crt", namespace))["data"]["ca.crt"]
    (tmp_path / "ca.crt").write_text(roots)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    host, port = control_plane.server.removeprefix("https://").split(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    async with await KubeClient.from_environment() as client:
        with pytest.raises(ApiError, match=f'User "system:serviceaccount:{namespace}:default" cannot get'):
            await client.get(resources.PODS, namespace, "any")


async def test_a_mirror_outlives_its_api_server_and_even_its_data(tmp_path):
    """As after a disaster: the same address and certificates, and an etcd that begins at version 1."""
    plane = ControlPlane(tmp_path, dies_with_parent=True)
    try:
        await asyncio.to_thread(plane.start)
        async with Api(plane.server, plane.ssl_context()) as admin, kube.a_client(plane.kubeconfig) as client:
            classes = Informer(client, PRIORITY_CLASSES, pace=Pace(longest_pause_seconds=0.5))
            task = asyncio.create_task(classes.run())

            async def known() -> set[str]:
                return {name for name in classes.records if name.startswith("t-")}

            for name in ("t-lost", "t-made-again"):
                await admin.create(a_priority_class(name))
            await wait_until(known, lambda names: names == {"t-lost", "t-made-again"}, what="both classes")
            await asyncio.to_thread(plane.stop, grace_seconds=0)
            shutil.rmtree(tmp_path / "etcd")
            await asyncio.to_thread(plane.start)
            await wait_until(known, lambda names: not names, what="the loss to be noticed")
            await admin.create(a_priority_class("t-made-again"))
            await wait_until(known, lambda names: names == {"t-made-again"}, what="the class that was made again")
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    finally:
        await asyncio.to_thread(plane.stop, grace_seconds=0)


def a_priority_class(name: str) -> Object:
    return {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 7}
