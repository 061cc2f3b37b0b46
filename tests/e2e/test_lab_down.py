"""`down` leaves nothing behind, whatever it finds: tried on a lab of one node beside the other."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.api import Api, wait_until
from support.pods import is_running
from support.real_pods import FOREVER, a_script
from trainyard_lab import __main__ as commands
from trainyard_lab import containers, fabric, mounts, node, processes, shell
from trainyard_lab.controlplane import ControlPlane
from trainyard_lab.fabric import Topology
from trainyard_lab.layout import DEFAULT_RUN, Lab

SMALL = Topology(
    spines=1, leaves_per_spine=1, nodes_per_leaf=1, prefix="tysmall", network="10.98.0.0/24", pods="10.245.0.0/16"
)


@pytest.fixture
def small_lab() -> Iterator[Lab]:
    """A lab of one node, up; taken down in any case. It lies beside the other's folder, to share the images with it."""
    lab = Lab(run=DEFAULT_RUN.with_name("trainyard-small"), topology=SMALL)
    commands.down(lab)
    commands.up(lab)
    yield lab
    commands.down(lab)


def traces(lab: Lab) -> list[str]:
    """All that is on the machine and carries the lab's name."""
    prefix, folder = lab.topology.prefix, str(lab.run)
    links = shell.run("ip", "-o", "link", "show").splitlines()
    routes = shell.run("ip", "route", "show").splitlines()
    network = lab.topology.network.rpartition(".")[0]
    lines = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            try:
                lines.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue
    return [
        *(name for name in fabric.namespaces() if name.startswith(prefix)),
        *(line for line in [*links, *routes] if prefix in line or network in line),
        *map(str, mounts.below(lab.run)),
        *(line for line in lines if folder in line or prefix in line),
        *map(str, node.CNI_RESULTS.glob(f"{prefix}-*")),
        *(str(found) for found in [lab.run] if found.exists()),
    ]


async def run_a_pod(plane: ControlPlane) -> str:
    """A pod whose process is known by the lab's name in its command line; returns its container's id."""
    async with Api(plane.server, plane.ssl_context()) as api:
        await api.wait_for("ServiceAccount", "default", "default", lambda _: True)
        await api.create(a_script("left-behind", "default", "node-0", f"{FOREVER}  # {SMALL.prefix}"))
        pod = await api.wait_for("Pod", "left-behind", "default", is_running)
        return str(pod["status"]["containerStatuses"][0]["containerID"])


async def test_down_leaves_nothing_of_a_running_lab_and_of_one_that_crashed(small_lab: Lab):
    container = await run_a_pod(commands.control_plane(small_lab))
    assert any(FOREVER in trace for trace in traces(small_lab))
    commands.down(small_lab)
    assert traces(small_lab) == []
    assert containers.cgroups(container) == []

    # A crash: all that the lab started is dead, what containerd started lives on and holds mounts.
    commands.up(small_lab)
    container = await run_a_pod(commands.control_plane(small_lab))
    for process in processes.find(small_lab.run).values():
        processes.send_signal(process, signal.SIGKILL)

    async def alive() -> dict[str, processes.Process]:
        return processes.find(small_lab.run)

    await wait_until(alive, lambda found: not found, what="the end of all processes that the lab started")
    assert any("containerd-shim" in trace for trace in traces(small_lab))
    assert any(FOREVER in trace for trace in traces(small_lab))
    commands.down(small_lab)
    assert traces(small_lab) == []
    assert containers.cgroups(container) == []


def test_down_is_at_ease_where_there_is_nothing():
    nowhere = Lab(
        run=DEFAULT_RUN.with_name("trainyard-nowhere"), topology=Topology(prefix="tynone", network="10.97.0.0/24")
    )
    commands.down(nowhere)
    assert traces(nowhere) == []
