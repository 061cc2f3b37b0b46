"""What one member of a gang asks of a node, whoever asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from trainyard.world.records import Node, Resources
from trainyard.world.resources import first_lacking
from trainyard.world.selection import Selection, selection

UNFIT: Final = "failed this job's preflight lately"
"""Why a node that is fit for others is not eligible."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Equal for members that no node can tell apart, and hashable.

    selection: which nodes would take one, room aside. requests: what one takes. per_node: the most that one node gets. among:
    names of the nodes that may have one, those of one network; None: all. unfit: names of those on which the job's preflight
    failed lately.
    """

    selection: Selection = field(compare=False)
    requests: Resources = field(compare=False)
    per_node: int
    _key: str
    among: frozenset[str] | None = None
    unfit: frozenset[str] = frozenset()

    def fit(self, room: Resources) -> int:
        """How many members the room holds, at most `per_node`."""
        most = self.per_node
        for name, amount in self.requests.items():  # a plain loop: asked for every node
            if amount > 0:
                most = min(most, room.get(name, 0) // amount)
        return max(0, most)

    def why_not(self, node: Node) -> str | None:
        """Why a node would not take one even if it were empty, in a few words; None where it would."""
        if node.name in self.unfit:
            return self.selection.why_not(node) or UNFIT
        if self.among is not None and node.name not in self.among:
            return self.selection.why_not(node) or "on another network"
        return self.selection.why_not(node) or self._too_small(node)

    def _too_small(self, node: Node) -> str | None:
        lacking = first_lacking(self.requests, node.allocatable)
        if lacking is None:
            return None
        return f"offers less than the {self.requests[lacking]}{_unit(lacking)} {lacking} of a member"


def demand(
    pod_spec: Mapping[str, Any],
    requests: Resources,
    per_node: int = 1,
    among: frozenset[str] | None = None,
    unfit: frozenset[str] = frozenset(),
) -> Demand:
    """What a member with this pod asks. Nodes that one job avoids are that job's business and not part of it."""
    wanted = selection(pod_spec)
    key = repr(
        (sorted(requests.items()), wanted.node_name, sorted(wanted.labels.items()), wanted.tolerations, wanted.terms)
    )
    return Demand(wanted, requests, per_node, key, among, unfit)


def _unit(resource: str) -> str:
    match resource:
        case "cpu":
            return "m"
        case "memory" | "ephemeral-storage":
            return " byte"
        case _:
            return ""
