"""One node: containerd, kubelet and kube-proxy in a network namespace, with folders of their own.

The settings are those of any kubelet; each one that is not says why it has to be so on one machine.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trainyard_lab import pki, processes, shell
from trainyard_lab.controlplane import ControlPlane
from trainyard_lab.fabric import Node
from trainyard_lab.layout import Lab

SANDBOX_IMAGE = "docker.io/trainyard/pause:0.1.0"
CNI_PLUGINS = Path("/usr/lib/cni")
# What these programs keep outside of the folders that they are told to use, shared by all nodes.
CNI_RESULTS = Path("/var/lib/cni/results")
SHIM_SOCKETS = Path("/run/containerd/s")
DEVICE_SOCKET = Path("/var/lib/kubelet/device-plugins/kubelet.sock")
KUBELET_SECONDS = 60
PROGRAMS = ("containerd", "kubelet", "kube-proxy")


@dataclass(frozen=True, slots=True)
class Folders:
    """A node's own folders; everything it keeps is below `top`."""

    top: Path

    @property
    def containerd_root(self) -> Path:
        return self.top / "containerd" / "root"

    @property
    def containerd_state(self) -> Path:
        return self.top / "containerd" / "state"

    @property
    def socket(self) -> Path:
        return self.top / "containerd.sock"

    @property
    def runc(self) -> Path:
        return self.top / "runc"

    @property
    def cni(self) -> Path:
        return self.top / "cni"

    @property
    def kubelet(self) -> Path:
        return self.top / "kubelet"

    @property
    def pod_logs(self) -> Path:
        return self.top / "pod-logs"

    @property
    def settings(self) -> Path:
        return self.top / "settings"


def folders(lab: Lab, node: Node) -> Folders:
    return Folders(lab.nodes.resolve() / node.name)


def containerd_settings(place: Folders) -> str:
    """containerd's config.toml.

    restrict_oom_score_adj: where the machine may not lower oom_score_adj, runc ends with "can't get final child's
    PID from pipe: EOF" unless containerd leaves it alone.
    netns_mounts_under_state_dir: pods' namespaces lie below the node's folder, not among the machine's.
    """
    return f"""\
version = 2
root = "{place.containerd_root}"
state = "{place.containerd_state}"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.internal.v1.opt", "io.containerd.tracing.processor.v1.otlp",
]

[grpc]
  address = "{place.socket}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{SANDBOX_IMAGE}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  disable_apparmor = true

[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{CNI_PLUGINS}"
  conf_dir = "{place.cni}"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  Root = "{place.runc}"
"""


def cni_settings(lab: Lab, node: Node, place: Folders) -> str:
    """A bridge in the node's namespace for its pods; between nodes the routes of the fabric carry them unchanged."""
    return json.dumps(
        {
            "cniVersion": "0.4.0",
            "name": lab.topology.prefix,
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "cni0",
                    "isGateway": True,
                    "ipMasq": False,
                    "hairpinMode": True,
                    "ipam": {
                        "type": "host-local",
                        "ranges": [[{"subnet": node.pod_network}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                        "dataDir": str(place.top / "addresses"),
                    },
                },
                {"type": "portmap", "capabilities": {"portMappings": True}},
            ],
        },
        indent=1,
    )


def kubelet_settings(lab: Lab, node: Node, place: Folders, authority: Path) -> dict[str, Any]:
    """The KubeletConfiguration. authority: certificate of whoever signs the clients that may call the kubelet."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(authority)},
        },
        "authorization": {"mode": "Webhook"},
        "readOnlyPort": 0,
        # Renewed four times in this time: a node that is cut off is missed after seconds, a busy one is not.
        "nodeLeaseDurationSeconds": 20,
        "containerRuntimeEndpoint": f"unix://{place.socket}",
        "clusterDomain": lab.cluster_domain,
        "clusterDNS": [lab.host_address],
        "resolvConf": str(place.settings / "resolv.conf"),
        # Kubelets that share the default folder delete each other's logs as orphans.
        "podLogsDir": str(place.pod_logs),
        "volumePluginDir": str(place.kubelet / "volume-plugins"),
        # The machine's cgroups are v1, have no systemd behind them, and belong to all nodes: no node reserves a part.
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "localStorageCapacityIsolation": False,
        "failSwapOn": False,
        # Images come by import alone and could not be pulled again, and one disk stands for eight.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
    }


def kube_proxy_settings(lab: Lab, node: Node, place: Folders) -> dict[str, Any]:
    """The KubeProxyConfiguration. conntrack: the table's size is the machine's, and a namespace may not set it."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clusterCIDR": lab.topology.pods,
        "hostnameOverride": node.name,
        "clientConnection": {"kubeconfig": str(place.settings / "kube-proxy.kubeconfig")},
        "conntrack": {"maxPerCore": 0, "min": 0},
    }


def write_settings(lab: Lab, node: Node, plane: ControlPlane) -> None:
    """All files that the node's programs read; certificates are kept if there are some."""
    place = folders(lab, node)
    for folder in (place.settings, place.cni, place.pod_logs, place.kubelet):
        folder.mkdir(parents=True, exist_ok=True)
    (place.settings / "containerd.toml").write_text(containerd_settings(place))
    (place.cni / "10-pods.conflist").write_text(cni_settings(lab, node, place))
    (place.settings / "kubelet.yaml").write_text(
        yaml.safe_dump(kubelet_settings(lab, node, place, plane.authority.certificate_path))
    )
    (place.settings / "kube-proxy.yaml").write_text(yaml.safe_dump(kube_proxy_settings(lab, node, place)))
    (place.settings / "resolv.conf").write_text(f"nameserver {lab.host_address}\n")
    for name, identity in (("kubelet", pki.kubelet(node.name)), ("kube-proxy", pki.KUBE_PROXY)):
        path = place.settings / f"{name}.kubeconfig"
        if not path.exists():
            plane.write_kubeconfig(path, identity, server=plane.advertised_server)


def start_containerd(lab: Lab, node: Node) -> None:
    """Start it if it does not run; returns when it answers."""
    place = folders(lab, node)
    process = _started(lab, node, "containerd", ["containerd", "--config", place.settings / "containerd.toml"])
    processes.wait_until(
        lambda: answers(place), f"containerd of {node.name}", deadline_seconds=60, needs=[process]
    )  # fmt: skip


def start_kubelet(lab: Lab, node: Node, programs: Mapping[str, Path]) -> None:
    """Start kubelet and kube-proxy if they do not run; one node at a time.

    Every kubelet of a machine opens the same socket for device plugins, whatever its root folder: it empties the folder and
    listens, and if another did so in between, it ends. So this returns when the socket is a new one.
    """
    settings = folders(lab, node).settings
    _started(lab, node, "kube-proxy", [programs["kube-proxy"], f"--config={settings}/kube-proxy.yaml"])
    before = _identity(DEVICE_SOCKET)
    name = f"{node.name}-kubelet"
    if name in processes.find(lab.run):
        return
    kubelet: list[str | Path] = [
        programs["kubelet"],
        f"--config={settings}/kubelet.yaml",
        f"--kubeconfig={settings}/kubelet.kubeconfig",
        f"--root-dir={folders(lab, node).kubelet}",
        f"--cert-dir={folders(lab, node).kubelet}/pki",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
    ]
    process = _started(lab, node, "kubelet", kubelet)
    processes.wait_until(
        lambda: _identity(DEVICE_SOCKET) not in (None, before),
        f"the device plugin socket of {node.name}'s kubelet",
        deadline_seconds=KUBELET_SECONDS,
        needs=[process],
    )


def _identity(path: Path) -> tuple[int, int] | None:
    """What tells a file from an earlier one of its name; None if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_ctime_ns


def program_names(node: Node) -> tuple[str, ...]:
    """Names under which a node's programs run."""
    return tuple(f"{node.name}-{program}" for program in PROGRAMS)


def _started(lab: Lab, node: Node, program: str, command: list[str | Path]) -> processes.Process:
    name = f"{node.name}-{program}"
    running = processes.find(lab.run).get(name)
    # nsenter and not `ip netns exec`, which mounts a /sys of its own that hides the cgroups.
    inside = ["nsenter", f"--net=/var/run/netns/{node.namespace}", "--"]
    return running or processes.start(lab.run, name, [*inside, *command])


def answers(place: Folders) -> bool:
    """Whether the node's containerd answers."""
    try:
        ctr(place, "version")
    except shell.CommandFailed:
        return False
    return True


def ctr(place: Folders, *arguments: str) -> str:
    """containerd's own client, in the namespace that the kubelet uses."""
    return shell.run("ctr", "--address", str(place.socket), "--namespace", "k8s.io", *arguments)
