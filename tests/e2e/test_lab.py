"""What the product relies on in a cluster, on real kubelets: if one of these fails, look at the lab first."""

import json
from collections.abc import Callable

import aiohttp
from support.api import Api, Object, wait_until
from support.pods import has_ended, is_running, terminated
from support.real_pods import a_headless_service, a_script
from trainyard_lab import __main__ as commands
from trainyard_lab import containers, fabric, keeper, nodes, processes
from trainyard_lab.labels import extended_resources
from trainyard_lab.layout import Lab
from trainyard_lab.storage import CLASS, folder_of

FINALIZER = "trainyard.dev/last-words"
NODE_PATIENCE_SECONDS = 90

SERVE = """
import http.server
http.server.HTTPServer(("", 9400), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
FETCH = """
import time, urllib.request
deadline = time.monotonic() + 25
while True:
    try:
        print(urllib.request.urlopen("http://{host}:9400/", timeout=2).status)
        break
    except OSError as error:
        assert time.monotonic() < deadline, error
        time.sleep(0.2)
"""


async def succeeded(api: Api, pod: Object) -> Object:
    """Wait for the pod's end, which must be a good one; returns its container's last state."""
    metadata = pod["metadata"]
    ended = await api.wait_for("Pod", metadata["name"], metadata["namespace"], has_ended)
    state = terminated(ended)
    assert state is not None
    assert state["exitCode"] == 0, state
    return state


async def test_pods_on_two_spines_find_each_other_by_name_before_they_are_ready(api: Api, namespace: str):
    await api.create(a_headless_service("gang", namespace))
    await api.create(a_script("gang-0", namespace, "node-0", SERVE, service="gang", never_ready=True))
    client = a_script("gang-1", namespace, "node-7", FETCH.format(host="gang-0.gang"), service="gang")
    await api.create(client)
    await succeeded(api, client)


async def test_a_pod_reaches_the_api_at_its_service_with_its_service_account(api: Api, namespace: str):
    pod = a_script(
        "caller",
        namespace,
        "node-5",
        """
import os, ssl, urllib.request
own = "/var/run/secrets/kubernetes.io/serviceaccount/"
context = ssl.create_default_context(cafile=own + "ca.crt")
headers = {"Authorization": "Bearer " + open(own + "token").read()}
for host in (os.environ["KUBERNETES_SERVICE_HOST"], "kubernetes.default.svc"):
    request = urllib.request.Request(f"https://{host}/version", headers=headers)
    assert urllib.request.urlopen(request, context=context, timeout=10).status == 200
""",
    )
    await api.create(pod)
    await succeeded(api, pod)


async def test_exit_code_and_last_words_are_readable_while_a_finalizer_holds_the_pod(api: Api, namespace: str):
    script = """
import os, signal
def leave(*_):
    open("/dev/termination-log", "w").write('{"step": 7}')
    os._exit(75)
signal.signal(signal.SIGTERM, leave)
signal.pause()
"""
    await api.create(a_script("member", namespace, "node-3", script, finalizers=[FINALIZER]))
    await api.wait_for("Pod", "member", namespace, is_running)
    await api.delete("Pod", "member", namespace)
    held = await api.wait_for("Pod", "member", namespace, has_ended)
    state = terminated(held)
    assert state is not None
    assert (state["exitCode"], state["message"]) == (75, '{"step": 7}')
    assert "deletionTimestamp" in held["metadata"]
    await api.patch("Pod", "member", namespace, {"metadata": {"finalizers": None}})
    await api.wait_gone("Pod", "member", namespace)


async def test_a_shared_volume_is_the_same_on_two_nodes_and_goes_with_its_claim(
    api: Api, namespace: str, lab: Lab, kubectl: Callable[..., str]
):
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "shared", "namespace": namespace},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    kubectl("apply", "-f", "-", stdin=json.dumps(claim))
    writer = a_script("writer", namespace, "node-1", "open('/shared/x', 'w').write('7')", claims={"/shared": "shared"})
    await api.create(writer)
    await succeeded(api, writer)
    reader = a_script(
        "reader", namespace, "node-6", "assert open('/shared/x').read() == '7'", claims={"/shared": "shared"}
    )
    await api.create(reader)
    await succeeded(api, reader)

    bound = json.loads(kubectl("get", "pvc", "shared", "-n", namespace, "-o", "json"))
    assert bound["spec"]["storageClassName"] == CLASS
    folder = folder_of(lab.run, bound["spec"]["volumeName"])
    assert (folder / "x").read_text() == "7"
    for name in ("writer", "reader"):
        await api.delete("Pod", name, namespace)
    kubectl("delete", "pvc", "shared", "-n", namespace, "--timeout=30s")
    kubectl("wait", "--for=delete", f"pv/{folder.name}", "--timeout=30s")
    assert not folder.exists()


async def test_a_link_carries_what_its_level_does_and_no_more(api: Api, namespace: str, lab: Lab):
    """One connection at a time from node-0 to a node of its leaf, of its spine, and of the other spine."""
    await api.create(a_headless_service("far", namespace))
    for name, place in (("leaf", "node-1"), ("spine", "node-2"), ("core", "node-4")):
        await api.create(a_script(name, namespace, place, RECEIVE, service="far"))
    sender = a_script("sender", namespace, "node-0", SEND, service="far")
    await api.create(sender)
    mbits = json.loads((await succeeded(api, sender))["message"])

    # A busy machine makes a transfer slower, never faster than the link, but for what its bucket holds.
    assert mbits["core"] < 1.15 * lab.topology.spine_bits_per_second / fabric.MBIT
    assert mbits["spine"] < 1.15 * lab.topology.leaf_bits_per_second / fabric.MBIT
    assert mbits["core"] < 0.8 * mbits["spine"]
    assert mbits["spine"] < 0.8 * mbits["leaf"]


RECEIVE = """
import socket
server = socket.create_server(("", 9400))
while True:
    connection, _ = server.accept()
    while connection.recv(1 << 18):
        pass
    connection.sendall(b".")
    connection.close()
"""
SEND = """
import json, socket, time
def mbits(host, megabytes):
    deadline = time.monotonic() + 20
    while True:
        try:
            connection = socket.create_connection((host + ".far", 9400), timeout=30)
            break
        except OSError:
            assert time.monotonic() < deadline, host
            time.sleep(0.2)
    began = time.monotonic()
    for _ in range(megabytes):
        connection.sendall(bytes(1_000_000))
    connection.shutdown(socket.SHUT_WR)
    assert connection.recv(1) == b"."
    return megabytes * 8 / (time.monotonic() - began)
rates = {"core": mbits("core", 15), "spine": mbits("spine", 30), "leaf": mbits("leaf", 60)}
open("/dev/termination-log", "w").write(json.dumps(rates))
"""


def shown(found: Object) -> dict[str, str]:
    """The extended resources that a node lets be scheduled."""
    return {name: found["status"]["allocatable"].get(name, "0") for name in extended_resources()}


async def test_extended_resources_survive_a_kubelet_that_is_started_again(api: Api, lab: Lab):
    running = processes.find(lab.run)
    programs = {keeper.NAME, "node-2-kubelet", "node-2-kube-proxy"}
    for name in programs:
        processes.stop(running[name])
    # What a kubelet does that finds no trace of its plugins; whether this one does depends on its timing.
    forgotten = dict.fromkeys(extended_resources(), "0")
    await api.patch("Node", "node-2", None, {"status": {"capacity": forgotten}}, subresource="status")
    commands.up(lab)
    assert programs <= set(processes.find(lab.run))
    found = await api.wait_for("Node", "node-2", None, lambda node: shown(node) == extended_resources())
    assert nodes.is_ready(found)


async def test_a_node_that_is_cut_off_is_missed_and_comes_back(api: Api, lab: Lab):
    await api.wait_for("Node", "node-6", None, nodes.is_ready)
    fabric.cut(lab.topology, "node-6")
    try:
        await api.wait_for(
            "Node", "node-6", None, lambda found: not nodes.is_ready(found), seconds=NODE_PATIENCE_SECONDS
        )
    finally:
        fabric.restore(lab.topology, "node-6")
    await api.wait_for("Node", "node-6", None, nodes.is_ready, seconds=NODE_PATIENCE_SECONDS)


async def test_a_frozen_pod_answers_nobody_until_it_is_thawed(api: Api, namespace: str):
    await api.create(a_script("server", namespace, "node-1", SERVE))
    pod = await api.wait_for("Pod", "server", namespace, is_running)
    container = pod["status"]["containerStatuses"][0]["containerID"]

    async def answer() -> str:
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=1)) as session,
                session.get(f"http://{pod['status']['podIP']}:9400/") as got,
            ):
                return str(got.status)
        except (aiohttp.ClientError, TimeoutError) as error:
            return type(error).__name__

    await wait_until(answer, lambda seen: seen == "200", what="the server's answer")
    containers.freeze(container)
    assert await answer() == "TimeoutError"
    containers.thaw(container)
    await wait_until(answer, lambda seen: seen == "200", what="the thawed server's answer")
