"""What network devices tell of a node's place, where nobody labels the node: ResourceSlices of a DRA driver.

DRANET publishes, as attributes of every device of a node, what its cloud says of the node's place (kubernetes-sigs/dranet
pkg/cloudprovider). They become labels of the node's record under the attributes' own names, which no label of a node has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from typing_extensions import TypedDict

from trainyard.kube import resources
from trainyard.kube.client import KubeClient
from trainyard.kube.errors import ApiError
from trainyard.kube.informer import Kind
from trainyard.kube.shapes import MetaShape, Shape
from trainyard.topology.dialects import ATTRIBUTES
from trainyard.world.records import Node

DRIVER: Final = "dra.net"
"""DRANET's name for itself; slices of other drivers, such as those of GPUs, are many and say nothing of a network."""


class AttributeShape(TypedDict, total=False):
    """spec.devices[].attributes{}: one that is no string tells of no place"""

    string: str | None


class DeviceShape(TypedDict, total=False):
    """spec.devices[]"""

    attributes: dict[str, AttributeShape] | None


class SliceSpecShape(TypedDict, total=False):
    """spec of a ResourceSlice"""

    nodeName: str | None
    devices: list[DeviceShape] | None


class SliceShape(TypedDict, total=False):
    """A ResourceSlice"""

    metadata: MetaShape
    spec: SliceSpecShape | None


@dataclass(frozen=True, slots=True)
class Slice:
    """What a ResourceSlice tells of a node's place. attributes: by full name."""

    node: str
    attributes: Mapping[str, str]


def place_told(raw: SliceShape) -> Slice | None:
    """None for one that tells nothing. Of devices that disagree the first value in alphabetical order counts."""
    spec = raw.get("spec") or {}
    node = spec.get("nodeName")
    told = sorted(
        (name, value)
        for device in spec.get("devices") or ()
        for name, attribute in (device.get("attributes") or {}).items()
        if name in ATTRIBUTES and (value := (attribute.get("string") or "").strip())
    )
    return Slice(node, dict(reversed(told))) if node and told else None


SLICES: Final = Kind(
    "resourceslices",
    resources.RESOURCE_SLICES,
    Shape(SliceShape),
    place_told,
    fields=f"spec.driver={DRIVER}",
    optional=True,
)


class Places:
    """Nodes with what their devices tell of their place. A node that is as it was, with the same told, is the same record."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[Node, Mapping[str, str], Node]] = {}

    def on(self, nodes: Mapping[str, Node], slices: Iterable[Slice]) -> dict[str, Node]:
        """The nodes, each with its attributes. A label of the node itself wins over an attribute of its name."""
        told: dict[str, dict[str, str]] = {}
        for one in sorted(slices, key=lambda one: sorted(one.attributes.items()), reverse=True):
            told.setdefault(one.node, {}).update(one.attributes)
        made = dict(nodes)
        known, self._made = self._made, {}
        for name, attributes in told.items():
            node = nodes.get(name)
            if node is None:
                continue
            before, with_these, placed = known.get(name, (None, None, None))
            if placed is None or before is not node or with_these != attributes:
                placed = replace(node, labels={**attributes, **node.labels})
            self._made[name] = (node, attributes, placed)
            made[name] = placed
        return made


async def read_places(client: KubeClient, nodes: Mapping[str, Node]) -> Mapping[str, Node]:
    """The nodes with what their devices tell of their place, read once; as they are where the server does not know of
    ResourceSlices, or whoever asks may not read them."""
    try:
        text = await client.list_page(SLICES.resource, fields=SLICES.fields)
    except ApiError as error:
        if error.code in (403, 404):
            return nodes
        raise
    items = SLICES.shape.page.validate_json(text).get("items") or ()
    return Places().on(nodes, [told for item in items if (told := place_told(item)) is not None])
