"""The cluster's DNS: one CoreDNS on the host, at the address that every kubelet writes into its pods.

It answers for Services and for the host names of pods behind headless ones, also before they are ready where the
Service says `publishNotReadyAddresses`. A name outside the cluster gets a refusal at once: nodes reach nothing else.
"""

import socket
from collections.abc import Mapping
from pathlib import Path

from trainyard_lab import pki, processes
from trainyard_lab.api import Api
from trainyard_lab.controlplane import ControlPlane
from trainyard_lab.layout import Lab

NAME = "coredns"
IDENTITY = pki.Identity("system:coredns")
PORT = 53
CACHE_SECONDS = 5
READY_SECONDS = 30


def settings(lab: Lab, kubeconfig: Path) -> str:
    """The Corefile. `cache`: short, so that the address of a pod that was made again is soon the new one."""
    return f"""\
{lab.cluster_domain}:{PORT} in-addr.arpa:{PORT} {{
    bind {lab.host_address}
    errors
    cache {CACHE_SECONDS}
    kubernetes {lab.cluster_domain} in-addr.arpa {{
        kubeconfig {kubeconfig}
        pods insecure
        ttl {CACHE_SECONDS}
    }}
}}
"""


def start(lab: Lab, plane: ControlPlane, programs: Mapping[str, Path]) -> None:
    """Allow CoreDNS to read what it answers from, and start it if it does not run."""
    if NAME in processes.find(lab.run):
        return
    _grant(Api(plane))
    folder = lab.run / NAME
    kubeconfig = plane.write_kubeconfig(folder / "kubeconfig", IDENTITY)
    (folder / "Corefile").write_text(settings(lab, kubeconfig))
    server = processes.start(lab.run, NAME, [programs[NAME], "-conf", folder / "Corefile"])
    processes.wait_until(lambda: _listens(lab), "the cluster's DNS", deadline_seconds=READY_SECONDS, needs=[server])


def _listens(lab: Lab) -> bool:
    # CoreDNS opens its sockets when it has read the Services, or given up waiting for them.
    try:
        socket.create_connection((lab.host_address, PORT), timeout=1).close()
    except OSError:
        return False
    return True


def _grant(api: Api) -> None:
    roles = "/apis/rbac.authorization.k8s.io/v1"
    reads = [
        {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    group = "rbac.authorization.k8s.io"
    api.apply(
        f"{roles}/clusterroles/{IDENTITY.user}",
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": IDENTITY.user},
            "rules": reads,
        },
    )
    api.apply(
        f"{roles}/clusterrolebindings/{IDENTITY.user}",
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": IDENTITY.user},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": IDENTITY.user},
            "subjects": [{"apiGroup": group, "kind": "User", "name": IDENTITY.user}],
        },
    )
