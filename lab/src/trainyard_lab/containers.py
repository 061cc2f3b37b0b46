"""The processes of pods, as the machine sees them: found by container, also when no containerd runs any more.

containerd keeps a folder for each task in the node's own state, named by the container's id, and the task's processes are in a
cgroup of that name: so whose a process is follows from two names, and needs nobody's answer.
"""

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from trainyard_lab import node
from trainyard_lab.fabric import Node
from trainyard_lab.layout import Lab

CGROUPS = Path("/sys/fs/cgroup")
NAMESPACE = "k8s.io"
"""Of containerd's: the one that kubelets use; it names the folder of tasks and the cgroup above them."""

ID_PREFIX = "containerd://"


def ids(lab: Lab, nodes: Iterable[Node]) -> frozenset[str]:
    """The containers, sandboxes included, that these nodes' containerds have or had running."""
    tasks = Path("io.containerd.runtime.v2.task", NAMESPACE)
    return frozenset(
        entry.name for one in nodes for entry in (node.folders(lab, one).containerd_state / tasks).glob("*")
    )


def cgroups(container: str) -> list[Path]:
    """A container's cgroup in every hierarchy there is (v1: one per controller). container: as in a pod's status, or bare."""
    name = f"{NAMESPACE}/{container.removeprefix(ID_PREFIX)}"
    return [found for pattern in (name, f"*/{name}") for found in CGROUPS.glob(pattern)]


def pids(container: str) -> frozenset[int]:
    """The container's processes, by the machine's numbers."""
    found: set[int] = set()
    for folder in cgroups(container):
        for below, _, _ in os.walk(folder):  # which takes a folder that goes meanwhile for an empty one
            with suppress(OSError):  # it ended meanwhile
                found.update(map(int, Path(below, "cgroup.procs").read_text().split()))
    return frozenset(found)


def freeze(container: str) -> None:
    """Stop all its processes where they are, as a node that hangs does; they keep their connections and say nothing."""
    send(container, signal.SIGSTOP)


def thaw(container: str) -> None:
    """Let frozen processes go on, as if no time had passed."""
    send(container, signal.SIGCONT)


def send(container: str, number: signal.Signals) -> None:
    """Send a signal to all its processes."""
    for pid in pids(container):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def remove_cgroups(container: str) -> None:
    """Remove what is left of the cgroups of a container that has ended."""
    for top in cgroups(container):
        for folder, _, _ in os.walk(top, topdown=False):
            with suppress(FileNotFoundError):  # its kubelet was faster
                os.rmdir(folder)
        with suppress(OSError):  # another container is below it
            top.parent.rmdir()
