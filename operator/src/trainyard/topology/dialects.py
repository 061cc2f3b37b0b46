"""Which labels tell the network: a Fabric object's, or those of the dialect that most nodes speak.

There is no standard: each vendor has keys of its own, and they disagree about the direction of counting (AWS's layer 1 is the
top, Topograph's tier 0 is the bottom). So the dialects are a table, broadest level first, and the same few names stand for
levels everywhere: island, core, spine, leaf, block, rack, nvlink, host.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from trainyard.api.fabric import FabricSpec
from trainyard.api.template import ACCELERATORS
from trainyard.topology.fabrics import Fabricated, choose
from trainyard.topology.tree import Labelled, Level


class Equipped(Labelled, Protocol):
    """A node of which it is known what it offers."""

    @property
    def allocatable(self) -> Mapping[str, int]:
        """Amount by resource name."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One vendor's way to label nodes. levels: all that it may write, broadest first; a cluster may use some of them."""

    name: str
    levels: tuple[Level, ...]


def _dialect(name: str, prefix: str, **labels: str) -> Dialect:
    """labels: by level name, without the prefix; one with a slash has a prefix of its own."""
    return Dialect(name, tuple(Level(level, key if "/" in key else prefix + key) for level, key in labels.items()))


DIALECTS: Final = (
    _dialect(
        "topograph",
        "fabric.topograph.run/",
        top="tier-3",
        core="tier-2",
        spine="tier-1",
        leaf="tier-0",
        nvlink="accelerator.topograph.run/domain",
    ),
    _dialect(
        "topograph-0.3",
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
    _dialect(
        "aws",
        "topology.k8s.aws/",
        core="network-node-layer-1",
        spine="network-node-layer-2",
        leaf="network-node-layer-3",
        rack="network-node-layer-4",
        nvlink="ultraserver-id",
    ),
    _dialect("gke", "cloud.google.com/gce-topology-", block="block", subblock="subblock", host="host"),
    _dialect(
        "oci",
        "oci.oraclecloud.com/",
        island="rdma.hpc_island_id",
        spine="rdma.network_block_id",
        leaf="rdma.local_block_id",
        nvlink="host.gpu_memory_fabric_id",
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
    ),
    _dialect("azure", "ib/", leaf="torset"),
    _dialect("crusoe", "crusoe.ai/", fabric="ib.partition.id", leaf="pod.id"),
    _dialect("volcano", "volcano.sh/", core="hypercluster", spine="hypernode", leaf="tor"),
)
"""What Trainyard understands without a Fabric object. Equally spoken ones: the earlier wins."""

ZONES: Final = _dialect("kubernetes", "topology.kubernetes.io/", region="region", zone="zone")
"""What every cloud writes; it says little of a network, so it counts only where nothing else does."""

_ACCELERATOR: Final = re.compile("|".join(f"(?:{name})" for name in ACCELERATORS))


def detect(nodes: Iterable[Equipped], fabrics: Iterable[Fabricated] = ()) -> tuple[Level, ...]:
    """The levels of a cluster, broadest first; () where its labels say nothing.

    The levels of the Fabric that most nodes are on, where one has any. Else of the dialect that most of the nodes with
    accelerators carry (of all nodes where none has one), and of its levels those that most of these nodes carry: a level that
    a few nodes have left over from another time would tear all others apart. Zones where less than half speak a dialect.
    """
    everyone = list(nodes)
    described = choose(everyone, (fabric for fabric in fabrics if fabric.spec.levels))
    if described is not None:
        return _levels(described.spec)
    equipped = [node for node in everyone if any(_ACCELERATOR.fullmatch(name) for name in node.allocatable)]
    asked = equipped or everyone
    best, _ = max(((d, _spoken(d, asked)) for d in DIALECTS), key=lambda pair: pair[1])
    return _carried(best, asked) or _carried(ZONES, asked)


def _levels(spec: FabricSpec) -> tuple[Level, ...]:
    return tuple(Level(level.name, level.node_label) for level in spec.levels)


def _spoken(dialect: Dialect, nodes: Collection[Labelled]) -> tuple[int, int]:
    """How many of its levels most nodes carry matters only among dialects that as many nodes speak."""
    speakers = sum(any(level.label in node.labels for level in dialect.levels) for node in nodes)
    return speakers, len(_carried(dialect, nodes))


def _carried(dialect: Dialect, nodes: Collection[Labelled]) -> tuple[Level, ...]:
    """The levels that more than half of the nodes carry."""
    return tuple(
        level for level in dialect.levels if 2 * sum(bool(node.labels.get(level.label)) for node in nodes) > len(nodes)
    )
