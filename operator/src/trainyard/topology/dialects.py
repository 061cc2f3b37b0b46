"""The ways in which vendors tell a node's place in the network: labels of nodes, and attributes of their network devices.

There is no standard (KEP-4962, which would have been one, was closed): each vendor has keys of its own, and they disagree about
the direction of counting (AWS's layer 1 is the top, Topograph's tier 0 is the bottom). So the dialects are a table, broadest
level first, and the same few names stand for levels everywhere: island, fabric, core, spine, leaf, block, subblock, rack, nvlink,
host. What is below `nvlink` lies within it: a rack of a memory fabric of two racks, a host.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from trainyard.topology.tree import Level

NVLINK: Final = "nvlink"
"""The level whose domains are the nodes that reach each other's accelerators over NVLink."""

HOST: Final = "host"
"""The level of machines, where several nodes may be on one; nothing is within it."""

_TIER: Final = re.compile(r"0|[1-9][0-9]{0,2}")
_TIER_NAMES: Final = ("leaf", "spine", "core")


@dataclass(frozen=True)
class Dialect:
    """One vendor's way to tell a node's place.

    levels: all that it may write, broadest first; a cluster may use some of them. tiers: prefix of labels that end in a number,
    0 for the tier next to the nodes; there may be any number, and all are broader than `levels`.
    """

    name: str
    levels: tuple[Level, ...] = ()
    tiers: str = ""

    @cached_property
    def labels(self) -> frozenset[str]:
        """Of its levels; those of its tiers are without number."""
        return frozenset(level.label for level in self.levels)

    def speaks(self, label: str) -> bool:
        """Whether a label is one of this dialect."""
        return label in self.labels or self._tier(label) is not None

    def spoken(self, labels: Mapping[str, int]) -> Iterator[Level]:
        """The levels whose labels are among these, broadest first."""
        found = sorted((tier for label in labels if (tier := self._tier(label)) is not None), reverse=True)
        for tier in found:
            yield Level(_TIER_NAMES[tier] if tier < len(_TIER_NAMES) else f"tier-{tier}", f"{self.tiers}{tier}")
        yield from (level for level in self.levels if level.label in labels)

    def _tier(self, label: str) -> int | None:
        if not self.tiers or not label.startswith(self.tiers):
            return None
        number = label[len(self.tiers) :]
        return int(number) if _TIER.fullmatch(number) else None


def _dialect(name: str, prefix: str, tiers: str = "", **labels: str) -> Dialect:
    """labels: by level name, without the prefix; one with a slash has a prefix of its own."""
    levels = (Level(level, key if "/" in key else prefix + key) for level, key in labels.items())
    return Dialect(name, tuple(levels), tiers)


DIALECTS: Final = (
    # NVIDIA/topograph docs/reference/node-labels.md; OCI's sub-domain is a rack within the memory fabric.
    _dialect(
        "topograph",
        "accelerator.topograph.run/",
        tiers="fabric.topograph.run/tier-",
        nvlink="domain",
        subdomain="sub-domain",
    ),
    _dialect(
        "topograph-0.3",  # to 0.5
        "network.topology.nvidia.com/",
        core="core",
        spine="spine",
        leaf="leaf",
        nvlink="accelerator",
    ),
    _dialect(
        "topograph-0.1",
        "network.topology.nvidia.com/",
        core="datacenter",
        spine="spine",
        leaf="block",
        nvlink="accelerator",
    ),
    # kubernetes/cloud-provider-aws well_known_labels.go; layer 4 on four-layer types alone; ultraserver-id on HyperPod alone.
    _dialect(
        "aws",
        "topology.k8s.aws/",
        core="network-node-layer-1",
        spine="network-node-layer-2",
        leaf="network-node-layer-3",
        rack="network-node-layer-4",
        nvlink="ultraserver-id",
    ),
    # GoogleCloudPlatform/container-engine-accelerators gke-topology-scheduler; the older labels say the same three.
    _dialect("gke", "cloud.google.com/gce-topology-", block="block", subblock="subblock", host="host"),
    _dialect("gke-1.30", "topology.gke.io/", block="cluster", subblock="rack", host="host"),
    # oracle-quickstart/oci-hpc-oke.
    _dialect(
        "oci",
        "oci.oraclecloud.com/",
        island="rdma.hpc_island_id",
        spine="rdma.network_block_id",
        leaf="rdma.local_block_id",
        nvlink="host.gpu_memory_fabric_id",
    ),
    _dialect(
        "oci-host",
        "oci.oraclecloud.com/host.",
        spine="network_block_id",
        nvlink="gpu_memory_fabric_id",
        rack="rack_id",
    ),
    _dialect(
        "coreweave",
        "backend.coreweave.cloud/",
        fabric="fabric",
        spine="superpod",
        leaf="leafgroup",
        rack="node.coreweave.cloud/rack",
        nvlink="ds.coreweave.com/nvlink.domain",
    ),
    _dialect(
        "coreweave-ib",
        "ib.coreweave.cloud/",
        fabric="fabric",
        spine="superpod",
        leaf="leafgroup",
        rack="node.coreweave.cloud/rack",
        nvlink="ds.coreweave.com/nvlink.domain",
    ),
    # Azure/ai-infrastructure-on-azure utilities/aks: nodes of two partition keys do not reach each other over InfiniBand.
    _dialect("azure", "ib/", fabric="pkey", leaf="torset"),
    _dialect("crusoe", "crusoe.ai/", fabric="ib.partition.id", leaf="pod.id"),
    _dialect("volcano", "volcano.sh/", core="hypercluster", spine="hypernode", leaf="tor"),
    # Attributes of network devices, as DRANET publishes them (kubernetes-sigs/dranet pkg/cloudprovider).
    _dialect(
        "azure-dranet",
        "azure.dra.net/",
        fabric="placementGroupId",
        spine="interconnectGroupId",
        leaf="interconnectSubgroupId",
    ),
    _dialect("gke-dranet", "gce.dra.net/", block="block", subblock="subBlock", host="host"),
    _dialect(
        "oci-dranet",
        "oke.dra.net/",
        island="hpcIslandId",
        spine="networkBlockId",
        leaf="localBlockId",
        nvlink="gpuMemoryFabricId",
        rack="rackId",
    ),
)
"""What Trainyard understands of a network without a Fabric object. Of those that tell as much, the earlier counts."""

ZONES: Final = _dialect("kubernetes", "topology.kubernetes.io/", region="region", zone="zone")
"""What every cloud writes; it says little of a network, so it counts only where nothing else does."""

_CLIQUE: Final = "nvidia.com/gpu.clique"
_COMPUTE_DOMAIN: Final = "resource.nvidia.com/computeDomain"


def _clique(name: str, label: str) -> Dialect:
    """`<ClusterUUID>.<CliqueID>`: the NVLink domain, and the partition of it, which is as far as NVLink reaches."""
    return Dialect(name, (Level("nvlink-domain", label, before="."), Level(NVLINK, label)))


CLIQUE: Final = _clique("gpu-clique", _CLIQUE)
"""Written by NVIDIA's GPU feature discovery and DRA driver where NVLink goes beyond a node (NVIDIA/k8s-device-plugin
docs/gpu-feature-discovery)."""

COMPUTE_DOMAINS: Final = (
    _clique("compute-domain-clique", f"{_COMPUTE_DOMAIN}.cliqueID"),
    Dialect("compute-domain", (Level(NVLINK, _COMPUTE_DOMAIN),)),
)
"""Of NVIDIA's DRA driver. A ComputeDomain's own label comes and goes with who uses the nodes together, so it counts last."""

ATTRIBUTES: Final = frozenset(
    level.label for dialect in DIALECTS for level in dialect.levels if ".dra.net/" in level.label
)
"""The attributes of devices that tell of a network; all other keys are labels of nodes."""
