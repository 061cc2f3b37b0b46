"""What device drivers tell of a node in ResourceSlices: its place, where nobody labels the node, and its devices.

DRANET publishes, as attributes of every network device, what its cloud says of the node's place (kubernetes-sigs/dranet
pkg/cloudprovider), and what the device is (pkg/apis/attributes.go). The place becomes labels of the node's record under the
attributes' own names, which no label of a node has. NVIDIA's drivers say by which PCIe root an accelerator is reached, and that
NVLink between nodes can be prepared (NVIDIA/k8s-dra-driver-gpu, cmd/gpu-kubelet-plugin and cmd/compute-domain-kubelet-plugin).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from typing_extensions import TypedDict

from trainyard.contract.natural import natural
from trainyard.kube import resources
from trainyard.kube.client import KubeClient
from trainyard.kube.errors import ApiError
from trainyard.kube.informer import Kind
from trainyard.kube.shapes import MetaShape, Shape
from trainyard.topology.dialects import ATTRIBUTES
from trainyard.world.records import Adapter, Node

DRANET: Final = "dra.net"
GPUS: Final = "gpu.nvidia.com"
CHANNELS: Final = "compute-domain.nvidia.com"
DRIVERS: Final = (DRANET, GPUS, CHANNELS)
"""Slices of other drivers say nothing of a network."""

PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
RDMA_DEVICE: Final = f"{DRANET}/rdmaDevice"
STATE: Final = f"{DRANET}/state"
MTU: Final = f"{DRANET}/mtu"
FUNCTIONS: Final = f"{DRANET}/sriovVfs"


class AttributeShape(TypedDict, total=False):
    """spec.devices[].attributes{}: of whatever type"""

    string: str | None
    int: int | None


class DeviceShape(TypedDict, total=False):
    """spec.devices[]"""

    attributes: dict[str, AttributeShape] | None


class SliceSpecShape(TypedDict, total=False):
    """spec of a ResourceSlice"""

    driver: str | None
    nodeName: str | None
    devices: list[DeviceShape] | None


class SliceShape(TypedDict, total=False):
    """A ResourceSlice"""

    metadata: MetaShape
    spec: SliceSpecShape | None


@dataclass(frozen=True, slots=True)
class Hung:
    """An RDMA adapter with a link. root: the PCIe root that it hangs under, "" where that is not told."""

    name: str
    root: str
    mtu: int | None


@dataclass(frozen=True, slots=True)
class Slice:
    """What a ResourceSlice tells of a node. attributes: of its place, by full name. adapters: that pods on it may see as they
    are. roots: the PCIe roots of its accelerators. channels: it has some of a ComputeDomain to give."""

    node: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    adapters: tuple[Hung, ...] = ()
    roots: frozenset[str] = frozenset()
    channels: bool = False


def told(raw: SliceShape) -> Slice | None:
    """None for one that tells nothing. Of devices that disagree the first value in alphabetical order counts."""
    spec = raw.get("spec") or {}
    node, driver = spec.get("nodeName"), spec.get("driver")
    devices = [device.get("attributes") or {} for device in spec.get("devices") or ()]
    if not node:
        return None
    if driver == CHANNELS:
        return Slice(node, channels=True) if devices else None
    if driver == GPUS:
        roots = frozenset(filter(None, (_text(device, PCIE_ROOT) for device in devices)))
        return Slice(node, roots=roots) if roots else None
    place = sorted((name, _text(device, name)) for device in devices for name in device if name in ATTRIBUTES)
    attributes = dict(reversed([(name, value) for name, value in place if value]))
    adapters = tuple(filter(None, map(_adapter, devices)))
    return Slice(node, attributes, adapters) if attributes or adapters else None


def _adapter(device: Mapping[str, AttributeShape]) -> Hung | None:
    """None for a device without RDMA or link, and for one that was cut into functions: a pod is given one of those, whose name
    is another."""
    name = _text(device, RDMA_DEVICE)
    if not name or _text(device, STATE) == "down" or _number(device, FUNCTIONS):
        return None
    return Hung(name, _text(device, PCIE_ROOT), _number(device, MTU))


def _text(device: Mapping[str, AttributeShape], name: str) -> str:
    return (device.get(name, {}).get("string") or "").strip()


def _number(device: Mapping[str, AttributeShape], name: str) -> int | None:
    return device.get(name, {}).get("int")


_SHAPE: Final = Shape(SliceShape)


def _kind(driver: str) -> Kind[SliceShape, Slice]:
    name = f"resourceslices-{driver}"
    return Kind(name, resources.RESOURCE_SLICES, _SHAPE, told, fields=f"spec.driver={driver}", optional=True)


SLICES: Final = tuple(_kind(driver) for driver in DRIVERS)
"""One watch for each driver that says something: those of all others may be many."""


def together(slices: Iterable[Slice]) -> dict[str, Slice]:
    """By node, what all of its slices tell."""
    found: dict[str, Slice] = {}
    for one in sorted(slices, key=lambda one: sorted(one.attributes.items()), reverse=True):
        known = found.get(one.node)
        found[one.node] = one if known is None else _both(known, one)
    return found


class Places:
    """Nodes with what drivers tell of them. A node that is as it was, with the same told, is the same record."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[Node, Slice, Node]] = {}

    def on(self, nodes: Mapping[str, Node], by_node: Mapping[str, Slice]) -> dict[str, Node]:
        """The nodes, each with what is told of it. A label of the node itself wins over an attribute of its name."""
        made = dict(nodes)
        known_before, self._made = self._made, {}
        for name, one in by_node.items():
            node = nodes.get(name)
            if node is None:
                continue
            before, with_this, placed = known_before.get(name, (None, None, None))
            if placed is None or before is not node or with_this != one:
                placed = replace(
                    node,
                    labels={**one.attributes, **node.labels} if one.attributes else node.labels,
                    adapters=_near(one),
                    nvlink_channels=one.channels,
                )
            self._made[name] = (node, one, placed)
            made[name] = placed
        return made


def _both(one: Slice, other: Slice) -> Slice:
    adapters = tuple(sorted({*one.adapters, *other.adapters}, key=lambda hung: (natural(hung.name), hung.root)))
    return Slice(
        one.node,
        {**one.attributes, **other.attributes},
        adapters,
        one.roots | other.roots,
        one.channels or other.channels,
    )


def _near(one: Slice) -> tuple[Adapter, ...]:
    ordered = sorted(one.adapters, key=lambda hung: natural(hung.name))
    return tuple(Adapter(hung.name, hung.root in one.roots, hung.mtu) for hung in ordered)


async def read_places(client: KubeClient, nodes: Mapping[str, Node]) -> Mapping[str, Node]:
    """The nodes with what their drivers tell, read once; as they are where the server does not know of ResourceSlices, or whoever
    asks may not read them."""
    found: list[Slice] = []
    for kind in SLICES:
        try:
            text = await client.list_page(kind.resource, fields=kind.fields)
        except ApiError as error:
            if error.code in (403, 404):
                return nodes
            raise
        found += [one for item in kind.shape.page.validate_json(text).get("items") or () if (one := told(item))]
    return Places().on(nodes, together(found))
