"""What of a job's template works against its network, beside the variables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from trainyard.api.names import LAUNCHER_PORT, RENDEZVOUS_PORT
from trainyard.network.additions import Additions
from trainyard.network.choice import Network
from trainyard.network.container import INFINIBAND, NCCL_CONF, SHM, Backend, Pod
from trainyard.network.profiles.model import Transport

GIB: Final = 2**30
_C10D: Final = re.compile(r"(--?rdzv[-_]backend[= ]|PET_RDZV_BACKEND=)['\"]?(c10d|etcd)")
_ALONE: Final = re.compile(r"\|\|\s*echo\s+['\"]?(localhost|127\.0\.0\.1)")


def doubts(network: Network, pod: Pod, added: Additions) -> Iterator[str]:
    """Each a sentence that names what it speaks of."""
    yield from _mounts(network, pod)
    yield from _words(network, pod)
    if pod.backend is not Backend.NCCL:
        return
    if pod.per_node > 1 and pod.many:
        yield (
            f"spec.placement.podsPerNode: {pod.per_node} pods of a node do not reach each other's accelerators over NVLink and "
            "talk over the network instead; one pod with all of them does"
        )
    if (pod.host_network or added.host_network) and pod.many:
        yield (
            f"hostNetwork: the ports {LAUNCHER_PORT} and {RENDEZVOUS_PORT} and NCCL's 28028 are the node's, so a second such job "
            "on it collides; use the pod's own network where the fabric has one"
        )
    profile = network.profile
    if profile is None or not pod.many:
        return
    memory = pod.amount("memory")
    if profile.memory_gib_per_accelerator is not None and memory is not None:
        least = profile.memory_gib_per_accelerator * pod.accelerators * GIB
        if memory < least:
            yield (
                f"resources.limits.memory: {pod.limits['memory']} is little for {pod.accelerators} accelerators on "
                f"{profile.name}, whose huge pages and /dev/shm count in it; give {least // GIB}Gi or more"
            )


def obstacle(network: Network, pod: Pod) -> str:
    """What of the template would break the network for all of the node, "" where nothing does."""
    efa = network.profile is not None and network.profile.transport is Transport.EFA
    if not efa or not pod.many or pod.backend is not Backend.NCCL or pod.hosts.get(INFINIBAND) is None:
        return ""
    return (
        f"template: {INFINIBAND} is mounted from the host, which breaks EFA; leave the mount out, and ask for "
        "vpc.amazonaws.com/efa, which brings its devices"
    )


def _mounts(network: Network, pod: Pod) -> Iterator[str]:
    if pod.hosts.get(SHM) is not None:
        yield (
            f"{SHM}: the host's is shared by all pods of the node, and files that a killed job leaves there fill it; leave the "
            "mount out, and the pod has its own"
        )
    if pod.hosts.get(INFINIBAND) is not None and network.profile is not None and not obstacle(network, pod):
        yield (
            f"{INFINIBAND}: mounted from the host it gives the pod the devices of others; ask for the network's devices as "
            "resources instead"
        )
    if NCCL_CONF in pod.hosts:
        yield f"{NCCL_CONF}: the mount hides the image's own file; variables in env win over either"


def _words(network: Network, pod: Pod) -> Iterator[str]:
    text = " ".join(pod.words)
    scripts = network.profile.env_scripts if network.profile is not None else ()
    for script in scripts:
        if script in text:
            yield f"command: {script} sets variables anew and undoes those of the pod; what it sets is set already, leave it out"
    if _C10D.search(text):
        yield (
            "command: the rendezvous c10d orders ranks by host name and loses the order of the plan; leave torchrun out, since "
            "the launcher starts the processes, or give it no --rdzv-backend"
        )
    if _ALONE.search(text):
        yield "command: a node that finds no master takes itself for it and trains alone; MASTER_ADDR is always set"
