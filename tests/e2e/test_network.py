"""What real pods make of their network: a link that is slow, an interface that leads nowhere, a name that does not exist."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.api import Api, Object, wait_until
from support.pod_processes import running_command
from support.site import PATIENCE, Site
from trainyard_lab import cluster, fabric, shell
from trainyard_lab.api import Api as LabApi
from trainyard_lab.controlplane import ControlPlane
from trainyard_lab.demo import jobs
from trainyard_lab.layout import Lab

pytestmark = pytest.mark.timeout(600)

NOWHERE = "aaa0"
"""An interface before eth0 in every list, with an address that leads to no other node."""

WAITS_FOR_IT = f"""
import os, time
deadline = time.monotonic() + 120
while not os.path.exists("/sys/class/net/{NOWHERE}/carrier") or open("/sys/class/net/{NOWHERE}/operstate").read() != "up\\n":
    assert time.monotonic() < deadline
    time.sleep(0.1)
"""
SAYS_AND_MEASURES = """
import os, sys
print("by", os.environ["GLOO_SOCKET_IFNAME"], flush=True)
from trainyard_trainer.measure.__main__ import main
sys.exit(main(["collectives", "--sizes", "1024"]))
"""


@pytest.fixture
async def site(lab: Lab, control_plane: ControlPlane, api: Api, namespace: str) -> AsyncIterator[Site]:
    yield await Site.made(lab, control_plane, api, namespace)
    cluster.apply_fabric(lab, LabApi(control_plane))
    for node in lab.topology.nodes:
        fabric.reshape(lab.topology, node.name, lab.topology.node_bits_per_second)


def a_script(name: str, script: str, **spec: Any) -> Object:
    """Two nodes that run a Python script, one process each."""
    job = jobs.measurement(nodes=2, mebibytes=(1,), orders=(1,))
    job["metadata"]["name"] = name
    container = job["spec"]["template"]["spec"]["containers"][0]
    container["command"], container["args"] = ["python3", "-c", script], []
    job["spec"].update(spec)
    return job


async def test_a_node_whose_link_is_slow_is_named_and_the_job_starts_elsewhere(
    site: Site, capfd: pytest.CaptureFixture[str]
) -> None:
    """Four nodes on two leaves run at the rate of a leaf's uplink; the link of one is cut to a tenth of that. How long it takes
    is told and decides nothing: most of it is what the machine needs to import torch in eight processes."""
    topology = site.lab.topology
    slow = next(node.name for node in topology.nodes if node.spine == "spine-a")
    fabric.reshape(topology, slow, topology.leaf_bits_per_second // 10)
    began = time.monotonic()
    await site.apply(jobs.like_the_sample("train", nodes=4, steps=400, placement=jobs.ONE_SPINE))
    await site.until("train", lambda s: s.get("attempt") == 1)

    async def members() -> list[Object]:
        return await site.members("train", 1)

    first = await wait_until(members, lambda pods: len(pods) == 4, what="four members")

    def trains_again(status: Object) -> bool:
        there = status.get("attempt", 0) > 1 and status.get("phase") == "Running"
        return there and status.get("progress", {}).get("step", 0) >= 1

    status = await site.until("train", trains_again)
    with capfd.disabled():
        print(f"\nfrom submission to the first step elsewhere: {time.monotonic() - began:.0f} s")
    assert slow in {pod["metadata"]["annotations"]["trainyard.dev/node"] for pod in first}
    assert status["lastFailure"]["reason"] == "PreflightFailed"
    assert slow in status["lastFailure"]["message"]
    members = await site.members("train", status["attempt"])
    assert slow not in {pod["spec"]["nodeName"] for pod in members}


async def test_of_two_interfaces_the_one_that_leads_to_the_others_is_taken(site: Site) -> None:
    """The Fabric names none. The other has a link-local address, comes first by name, and is up before the launcher looks."""
    lab_api = LabApi(site.plane)
    lab_api.merge(f"{cluster.FABRICS}/{cluster.FABRIC}", {"spec": {"interface": None}})
    job = a_script("two", SAYS_AND_MEASURES)
    marked = f"{WAITS_FOR_IT}\n# {site.namespace}"
    pod = job["spec"]["template"]["spec"]
    image = pod["containers"][0]["image"]
    pod["initContainers"] = [{"name": "second", "image": image, "command": ["python3", "-c", marked]}]
    await site.apply(job)

    async def waiting() -> tuple[int, ...]:
        return running_command("-c", marked)

    for pid in await wait_until(waiting, lambda pids: len(pids) == 2, what="both pods to wait", seconds=PATIENCE):
        _add_interface(pid)
    status = await site.until("two", lambda s: s.get("phase") in ("Succeeded", "Failed"))
    assert status["phase"] == "Succeeded", status
    for pod in await site.members("two", status["attempt"]):
        assert "by eth0\n" in site.log(pod["metadata"]["name"])


def _add_interface(pid: int) -> None:
    """In the network namespace of a process: a pair of interfaces that ends in itself."""
    for command in (
        f"link add {NOWHERE} type veth peer name zzz0",
        f"address add 169.254.7.7/16 dev {NOWHERE}",
        "link set zzz0 up",
        f"link set {NOWHERE} up",
    ):
        shell.run("nsenter", f"--net=/proc/{pid}/ns/net", "ip", *command.split())


@pytest.mark.parametrize("name", ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"])
async def test_an_interface_that_does_not_exist_is_answered_with_those_that_do(site: Site, name: str) -> None:
    """NCCL's is read in pods with a CUDA device: these have the file of one, which is all that the launcher looks at."""
    job = a_script(
        "wrong", "raise SystemExit('a worker was started')", network={"env": [{"name": name, "value": "ib0"}]}
    )
    pod = job["spec"]["template"]["spec"]
    pod["volumes"] = [{"name": "device", "hostPath": {"path": "/dev/null", "type": "CharDevice"}}]
    pod["containers"][0]["volumeMounts"] = [{"name": "device", "mountPath": "/dev/nvidia0"}]
    if name == "GLOO_SOCKET_IFNAME":
        del pod["volumes"], pod["containers"][0]["volumeMounts"]
    await site.apply(job)
    status = await site.until("wrong", lambda s: s.get("phase") == "Failed")
    assert status["attempt"] == 1
    message = status["lastFailure"]["message"]
    assert f"{name}: 'ib0'" in message
    assert "eth0 (10.244." in message
    # Of another one the container may not even have been made when the first one's answer ended the job.
    assert "a worker was started" not in site.log(status["lastFailure"]["pod"])
