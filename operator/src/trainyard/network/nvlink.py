"""NVLink beyond the node: who claims a channel for it, and what NCCL is told.

Memory of another node is reached through a channel of IMEX. NVIDIA's DRA driver gives one to the pods that claim it from a
ComputeDomain, and runs the daemons behind it on their nodes (NVIDIA/k8s-dra-driver-gpu v25.8, api/nvidia.com/resource/v1beta1).
A node has one channel to give, so a gang claims it only for pods that have the node for themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainyard.network.adapters import all_accelerators
from trainyard.network.choice import Network
from trainyard.network.container import Backend, Pod
from trainyard.network.profiles.model import Profile
from trainyard.network.settings import Setting, Source
from trainyard.world.records import Node

CLIQUE = "nvidia.com/gpu.clique"
"""Label of GPU feature discovery: the nodes that reach each other over NVLink have the same value."""

CHANNELS = "NVIDIA_IMEX_CHANNELS"
"""By which the container runtime gives channels of daemons that the host runs itself. Beside the driver's there are none."""


def beyond_the_node(profile: Profile, node: Node | None) -> bool:
    """Whether NVLink of this machine goes beyond it."""
    machine = profile.machine(node.labels) if node is not None else None
    return profile.nvlink_domains or (machine is not None and machine.nvlink_domains)


def seen_to(network: Network, pod: Pod) -> bool:
    """Whether somebody sees to the channel already: the pod claims devices, or the job or the Fabric object names channels."""
    of_fabric = {v.name for v in network.fabric.env} if network.fabric is not None else set()
    return pod.claims or CHANNELS in {*pod.named, *pod.wishes, *of_fabric}


def claims_channel(network: Network, profile: Profile | None, pod: Pod, nodes: Sequence[Node]) -> bool:
    """Whether the pods of a gang on these nodes are to claim channels of a ComputeDomain of its own. profile: whose adapters are
    in use; None where none are."""
    if profile is None or not pod.many or pod.per_node > 1 or pod.backend is not Backend.NCCL or not nodes:
        return False
    return not seen_to(network, pod) and all(
        node.nvlink_channels
        and CLIQUE in node.labels
        and pod.accelerators >= all_accelerators(node)
        and beyond_the_node(profile, node)
        for node in nodes
    )


def nvlink(network: Network, profile: Profile, pod: Pod, nodes: Sequence[Node], claimed: bool) -> Iterator[Setting]:
    """What NCCL is told of it. claimed: by Trainyard."""
    if not claimed and CHANNELS not in profile.env and not seen_to(network, pod):
        why = "the pod claims no channel of a ComputeDomain, and without one NCCL fails at the first memory of another node"
        yield Setting("NCCL_MNNVL_ENABLE", "0", Source.DERIVED, why)
        return
    cliques = {node.labels.get(CLIQUE, "") for node in nodes}
    if len(cliques) == 1 and cliques != {""}:
        how = ", and each pod claims a channel of the job's ComputeDomain" if claimed else ""
        why = (
            f"all nodes are of the NVLink clique {next(iter(cliques))}{how}; without NVLink the job should fail at once"
        )
        yield Setting("NCCL_MNNVL_ENABLE", "1", Source.DERIVED, why)
