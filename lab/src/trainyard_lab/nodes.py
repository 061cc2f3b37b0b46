"""All nodes of a lab: bring them up, take them down, say how they are.

`up` may be called at any time: what runs stays, what is missing is made. `down` finds everything by name (run folder,
namespace prefix, containers' ids, socket path in a shim's command line), so it needs no memory of what `up` did and takes down
what a crash left half made.
"""

import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from trainyard_lab import cluster, containers, dns, keeper, mounts, node, processes, store
from trainyard_lab.api import Api, Object
from trainyard_lab.controlplane import START_ORDER, ControlPlane
from trainyard_lab.fabric import Node
from trainyard_lab.layout import Lab
from trainyard_lab.oci import Image
from trainyard_lab.progress import say, step

IMPORTS_AT_ONCE = 2
STARTS_AT_ONCE = 4
READY_SECONDS = 120
WATCHERS = Path("/proc/sys/fs/inotify/max_user_instances")
WATCHERS_NEEDED = 1024

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node as `status` shows it.

    programs: those of its three that run; ready: whether the API server calls the node Ready; None if it knows none.
    """

    name: str
    place: str
    address: str
    programs: tuple[str, ...]
    ready: bool | None
    images: tuple[str, ...]


def up(lab: Lab, plane: ControlPlane, programs: Mapping[str, Path], images: Sequence[Image]) -> None:
    """DNS, nodes, images, storage, labels: all there and Ready when this returns.

    plane: a running control plane that is advertised at `lab.host_address`, so the fabric is there already.
    programs: kubelet, kube-proxy and coredns. images: those that every node shall have.
    """
    everyone = lab.topology.nodes
    _allow_watches()
    for one in everyone:
        if not store.has_one(node.folders(lab, one)):
            store.begin(store.prepared(lab.cache, images), node.folders(lab, one))
    dns.start(lab, plane, programs)
    with step(f"{len(everyone)} nodes"):
        _for_each(everyone, lambda one: _start_containerd(lab, one, plane), at_once=STARTS_AT_ONCE)
        _for_each(everyone, lambda one: _import(lab, one, images), at_once=IMPORTS_AT_ONCE)
        for one in everyone:
            node.start_kubelet(lab, one, programs)
        _wait_until_ready(lab, Api(plane))
    cluster.furnish(lab, Api(plane))
    _start_keeper(lab)
    _wait_for_resources(lab, Api(plane))


def _allow_watches() -> None:
    """A node watches about ten trees of files; the kernel's default is 128 watchers for all of root's programs."""
    if int(WATCHERS.read_text()) < WATCHERS_NEEDED:
        WATCHERS.write_text(str(WATCHERS_NEEDED))


def _start_containerd(lab: Lab, one: Node, plane: ControlPlane) -> None:
    node.write_settings(lab, one, plane)
    node.start_containerd(lab, one)


def _import(lab: Lab, one: Node, images: Iterable[Image]) -> None:
    for image in store.import_missing(node.folders(lab, one), images):
        say(f"{one.name}: has {image.name} now")


def _wait_until_ready(lab: Lab, api: Api) -> None:
    running = processes.find(lab.run)
    for one in lab.topology.nodes:
        processes.wait_until(
            lambda one=one: is_ready(api.find(f"{cluster.NODES}/{one.name}")),  # type: ignore[misc]
            f"node {one.name}",
            deadline_seconds=READY_SECONDS,
            needs=[running[name] for name in node.program_names(one)],
        )


def _wait_for_resources(lab: Lab, api: Api) -> None:
    keeping = processes.find(lab.run)[keeper.NAME]
    for one in lab.topology.nodes:
        processes.wait_until(
            lambda one=one: not keeper.lost_resources(api.get(f"{cluster.NODES}/{one.name}")),  # type: ignore[misc]
            f"the extended resources of {one.name}",
            deadline_seconds=READY_SECONDS,
            needs=[keeping],
        )


def is_ready(found: Object | None) -> bool:
    """Whether a node exists and its kubelet says that it is ready."""
    conditions = (found or {}).get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _start_keeper(lab: Lab) -> None:
    if keeper.NAME not in processes.find(lab.run):
        processes.start(lab.run, keeper.NAME, [sys.executable, "-m", keeper.__name__, lab.run])


def down(lab: Lab) -> None:
    """Stop all that `up` started and remove what it left; what is not there is not missed.

    In this order: who would start things again (keeper, kubelets), pods' processes, containerd, its shims, which
    outlive it, then mounts, cgroups and files. The control plane and the fabric are not touched.
    """
    running = processes.find(lab.run)
    ours = [name for name in running if name not in START_ORDER]
    last = [name for name in ours if name.endswith("-containerd")]
    _for_each([name for name in ours if name not in last], lambda name: processes.stop(running[name], 2), at_once=8)
    tasks = containers.ids(lab, lab.topology.nodes)
    _kill_all(lambda: frozenset(pid for task in tasks for pid in containers.pids(task)), "processes of pods")
    _for_each(last, lambda name: processes.stop(running[name], 5), at_once=8)
    _kill_all(lambda: _shims(lab), "containerd's shims")
    if lab.run.exists():
        mounts.unmount_below(lab.run)
        if left := mounts.below(lab.run.resolve()):
            raise DownError(f"still mounted, so nothing below {lab.run} is removed: {', '.join(map(str, left))}")
        left_over = [*lab.nodes.glob("*"), lab.volumes, lab.run / dns.NAME]
        _for_each(left_over, lambda folder: shutil.rmtree(folder, ignore_errors=True), at_once=2)
    for task in tasks:
        containers.remove_cgroups(task)
    _remove_traces(lab)


class DownError(Exception):
    """Something of the lab could not be taken away."""


def _shims(lab: Lab) -> frozenset[int]:
    """The shims of this lab's nodes, known by the socket in their command line."""
    sockets = {str(node.folders(lab, one).socket).encode() for one in lab.topology.nodes}
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            words = _bytes(entry / "cmdline").split(b"\0")
            if words[0].endswith(b"containerd-shim-runc-v2") and sockets & set(words):
                found.add(int(entry.name))
    return frozenset(found)


def _kill_all(find: Callable[[], frozenset[int]], what: str) -> None:
    """SIGKILL until none is found: while they die they may still fork."""

    def gone() -> bool:
        for pid in (found := find()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not found

    processes.wait_until(gone, f"the end of {what}", deadline_seconds=30)


def _remove_traces(lab: Lab) -> None:
    """What is kept outside of the lab's own folders: only what nobody can use any more, and folders if empty."""
    for result in node.CNI_RESULTS.glob(f"{lab.topology.prefix}-*"):
        result.unlink(missing_ok=True)
    for place in (*node.SHIM_SOCKETS.glob("*"), node.DEVICE_SOCKET):
        if _is_dead_socket(place):
            place.unlink(missing_ok=True)
    for folder in (node.CNI_RESULTS, node.SHIM_SOCKETS, node.DEVICE_SOCKET.parent):
        for empty in (folder, folder.parent):
            with suppress(OSError):
                empty.rmdir()


def _is_dead_socket(path: Path) -> bool:
    """Whether a Unix socket has nobody behind it: whoever listened has ended."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return False


def status(lab: Lab, plane: ControlPlane | None) -> tuple[NodeStatus, ...]:
    """All nodes of the topology, also those that are not up. plane: None if it does not run."""
    running = processes.find(lab.run)
    api = Api(plane) if plane else None
    found = []
    for one in lab.topology.nodes:
        programs = [name.removeprefix(f"{one.name}-") for name in node.program_names(one) if name in running]
        place = node.folders(lab, one)
        found.append(
            NodeStatus(
                name=one.name,
                place=f"{one.spine}/{one.leaf}",
                address=one.address,
                programs=tuple(programs),
                ready=is_ready(api.find(f"{cluster.NODES}/{one.name}")) if api else None,
                images=store.names(place) if "containerd" in programs else (),
            )
        )
    return tuple(found)


def services(lab: Lab) -> dict[str, bool]:
    """What serves all nodes, and whether it runs."""
    running = processes.find(lab.run)
    return {name: name in running for name in (dns.NAME, keeper.NAME)}


def _for_each(items: Iterable[T], act: Callable[[T], object], *, at_once: int) -> None:
    """Act on all of them, a few at once; the first failure is raised when the others have ended."""
    with ThreadPoolExecutor(at_once) as pool:
        for done in [pool.submit(act, item) for item in items]:
            done.result()


def _bytes(path: Path) -> bytes:
    """Empty if it is gone: processes and cgroups end while one looks."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
