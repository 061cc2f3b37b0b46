"""Which Fabric object speaks for a set of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from trainyard.api.fabric import FabricSpec
from trainyard.topology.tree import Labelled


class Fabricated(Protocol):
    """A Fabric object."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def spec(self) -> FabricSpec:
        """What it says."""


F = TypeVar("F", bound=Fabricated)


def choose(nodes: Iterable[Labelled], fabrics: Iterable[F]) -> F | None:
    """The Fabric that most of the nodes are on; None where no node is on any.

    Among equals the one with the narrower selector (more labels), then the first by name: a Fabric for all nodes is a default
    beside those that name some. A cluster without nodes has the Fabric it would have with any.
    """
    labels = [node.labels for node in nodes]
    ranked = sorted(
        ((-_selected(fabric.spec, labels), -len(fabric.spec.node_selector), fabric.name, fabric) for fabric in fabrics),
        key=lambda entry: entry[:3],
    )
    if not ranked or (labels and ranked[0][0] == 0):
        return None
    return ranked[0][3]


def _selected(spec: FabricSpec, labels: Sequence[Mapping[str, str]]) -> int:
    """On how many of the nodes it is."""
    return sum(selects(spec, of) for of in labels) if spec.node_selector else len(labels)


def selects(spec: FabricSpec, labels: Mapping[str, str]) -> bool:
    """Whether a node with these labels is on the fabric."""
    return all(labels.get(name) == value for name, value in spec.node_selector.items())
