"""The control plane is a real one: version, authorisation, and servers that come back."""

import signal
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from support.api import Api, ApiError
from support.nodes import Nodes, a_node
from trainyard_lab import build, kubectl, pki, processes
from trainyard_lab.controlplane import API_SERVER, CONTROLLER_MANAGER, ETCD, SCHEDULER, ControlPlane


async def test_the_api_server_is_stamped_with_the_version_that_was_built(api: Api):
    version = await api.request("GET", "/version")
    assert version["gitVersion"] == build.KUBERNETES_VERSION
    assert (version["major"], version["minor"]) == ("1", "36")
    assert version["gitTreeState"] == "clean"


async def test_an_unbound_service_account_may_not_read_pods(api: Api, namespace: str):
    async with await api.as_service_account("default", namespace) as bystander:
        with pytest.raises(ApiError) as refused:
            await bystander.list("Pod", namespace)
    assert refused.value.code == 403
    assert f"system:serviceaccount:{namespace}:default" in refused.value.message


async def test_a_bound_service_account_may_do_what_its_role_says_and_no_more(api: Api, namespace: str):
    about = {"name": "reader", "namespace": namespace}
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    await api.create({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": about, "rules": rules})
    await api.create(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": about,
            "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
        }
    )
    async with await api.as_service_account("default", namespace) as reader:
        assert await reader.list("Pod", namespace) == []
        with pytest.raises(ApiError, match='cannot list resource "secrets"'):
            await reader.list("Secret", namespace)


async def test_an_anonymous_caller_may_not_read_nodes(control_plane: ControlPlane):
    context = ssl.create_default_context(cafile=str(control_plane.authority.certificate_path))
    async with Api(control_plane.server, context) as anonymous:
        with pytest.raises(ApiError) as refused:
            await anonymous.list("Node")
    assert refused.value.code == 403


async def test_the_projects_kinds_are_served(api: Api):
    assert await api.list("TrainingJob") == []
    assert await api.list("Fabric") == []


def test_kubectl_speaks_to_this_control_plane(kubectl, namespace: str):
    assert kubectl("get", "namespace", namespace, "-o", "name").strip() == f"namespace/{namespace}"


async def test_an_api_server_that_was_killed_comes_back_on_its_port_with_its_objects(
    api: Api, namespace: str, control_plane: ControlPlane
):
    before = control_plane.running()
    control_plane.stop_server(API_SERVER, grace_seconds=0)
    assert API_SERVER not in control_plane.running()
    control_plane.start()
    after = control_plane.running()
    assert after[API_SERVER].pid != before[API_SERVER].pid
    assert {name: process.pid for name, process in after.items() if name != API_SERVER} == {
        name: process.pid for name, process in before.items() if name != API_SERVER
    }
    assert (await api.get("Namespace", namespace))["status"]["phase"] == "Active"


async def test_a_kubelet_may_write_its_own_node_and_no_other(
    api: Api, nodes: Nodes, control_plane: ControlPlane, tmp_path: Path
):
    own, other = await nodes.add(a_node("own"), a_node("other"))
    kubeconfig = control_plane.write_kubeconfig(tmp_path / "kubelet", pki.kubelet(own))

    def label(node: str) -> subprocess.CompletedProcess[str]:
        command = [kubectl.program(), f"--kubeconfig={kubeconfig}", "label", "node", node, "example.com/by=kubelet"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert label(own).returncode == 0
    refused = label(other)
    assert refused.returncode != 0
    assert "is not allowed" in refused.stderr or "cannot" in refused.stderr
    assert (await api.get("Node", own))["metadata"]["labels"]["example.com/by"] == "kubelet"
    assert "example.com/by" not in (await api.get("Node", other))["metadata"]["labels"]


def test_a_control_plane_outlives_its_starter_and_the_next_one_finds_and_stops_it(tmp_path: Path):
    """As with `up` in one terminal, killed before it could say good-bye, and `down` in another."""
    script = (
        "import os, pathlib, signal, sys\n"
        "from trainyard_lab.controlplane import ControlPlane\n"
        "ControlPlane(pathlib.Path(sys.argv[1])).start()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    starter = subprocess.run([sys.executable, "-c", script, tmp_path], check=False)
    assert starter.returncode == -signal.SIGKILL
    plane = ControlPlane(tmp_path)
    try:
        assert plane.is_ready()
        assert set(plane.running()) == {ETCD, API_SERVER, CONTROLLER_MANAGER, SCHEDULER}
        before = plane.running()
        plane.start()
        assert plane.running() == before
    finally:
        plane.remove()
    assert processes.find(tmp_path) == {}
    assert not tmp_path.exists()
