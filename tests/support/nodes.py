"""Pretended nodes as a GPU cluster has them: topology labels, accelerators, RDMA devices."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from support.api import Api, Object
from trainyard_lab import kwok

# On every node of a test, with its namespace as the value: what keeps tests apart.
TEST_LABEL = "trainyard.dev/test"
SPINE_LABEL = "topology.trainyard.dev/spine"
LEAF_LABEL = "topology.trainyard.dev/leaf"
ACCELERATOR = "nvidia.com/gpu"


def a_node(
    name: str,
    *,
    labels: Mapping[str, str] | None = None,
    accelerators: int = 8,
    resources: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (),
    unschedulable: bool = False,
) -> Object:
    """The manifest of a node that kwok plays. `resources` adds to or replaces its allocatable."""
    allocatable = {"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "1Ti"}
    if accelerators:
        allocatable[ACCELERATOR] = str(accelerators)
    allocatable |= dict(resources or {})
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **(labels or {})},
            "annotations": {**kwok.PRETENDED, **(annotations or {})},
        },
        "spec": {"taints": [dict(taint) for taint in taints], "unschedulable": unschedulable},
        "status": {"allocatable": allocatable, "capacity": allocatable},
    }


@dataclass(slots=True)
class Nodes:
    """The nodes of one test. Their names begin with its namespace, and its selector finds no others."""

    api: Api
    namespace: str
    names: list[str]

    @property
    def selector(self) -> dict[str, str]:
        """For a pod template's nodeSelector: this test's nodes and no others."""
        return {TEST_LABEL: self.namespace}

    async def add(self, *nodes: Object) -> list[str]:
        """Create these nodes, prefixed and labelled for this test; returns their full names once all are ready.

        A node that is annotated not to be ready is waited for until it says so.
        """
        added = [self._own(node) for node in nodes]
        self.names += [node["metadata"]["name"] for node in added]
        await asyncio.gather(*(self.api.create(node) for node in added))
        await asyncio.gather(*(self._settled(node) for node in added))
        return [node["metadata"]["name"] for node in added]

    async def add_fabric(
        self, *, spines: int = 1, leaves: int = 2, nodes_per_leaf: int = 2, accelerators: int = 8
    ) -> list[str]:
        """A regular tree; node names say the place: ``<namespace>-s0-l1-n0``. Returned in topology order."""
        return await self.add(
            *(
                a_node(
                    f"s{spine}-l{leaf}-n{node}",
                    labels={SPINE_LABEL: f"s{spine}", LEAF_LABEL: f"s{spine}-l{leaf}"},
                    accelerators=accelerators,
                )
                for spine in range(spines)
                for leaf in range(leaves)
                for node in range(nodes_per_leaf)
            )
        )

    async def set_ready(self, name: str, status: str | None) -> None:
        """Make a node's Ready condition "False" or "Unknown", or with None let it be Ready again; waits for it."""
        await self.api.annotate("Node", name, None, {kwok.READY: status})
        await self.api.wait_for("Node", name, None, lambda node: ready_status(node) == (status or "True"))

    async def remove(self, *names: str) -> None:
        """Take nodes out of the cluster, as a cloud does: their pods are left to the controllers."""
        await asyncio.gather(*(self.api.delete("Node", name) for name in names))
        self.names = [name for name in self.names if name not in names]

    def _own(self, node: Object) -> Object:
        metadata = node["metadata"]
        name = f"{self.namespace}-{metadata['name']}"
        labels = {**metadata["labels"], "kubernetes.io/hostname": name, **self.selector}
        return {**node, "metadata": {**metadata, "name": name, "labels": labels}}

    async def _settled(self, node: Object) -> None:
        wanted = node["metadata"]["annotations"].get(kwok.READY, "True")
        await self.api.wait_for(
            "Node",
            node["metadata"]["name"],
            None,
            # The controller manager takes its taint off a moment after the node is ready; until then nothing is scheduled.
            lambda seen: ready_status(seen) == wanted and (wanted != "True" or not _is_held_back(seen)),
        )


def ready_status(node: Object) -> str | None:
    """ "True", "False", "Unknown", or None before the first report."""
    for condition in node.get("status", {}).get("conditions", []):
        if condition["type"] == "Ready":
            return str(condition["status"])
    return None


def _is_held_back(node: Object) -> bool:
    taints = node["spec"].get("taints", [])
    return any(taint["key"] == "node.kubernetes.io/not-ready" for taint in taints)
