"""Which nodes a gang could have, and which of them now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trainyard.planner.request import Request
from trainyard.topology.tree import Path, Tree
from trainyard.world.records import Node, Resources
from trainyard.world.resources import first_lacking, fits
from trainyard.world.selection import selection


@dataclass(frozen=True, slots=True)
class Survey:
    """The nodes of a cluster as one request sees them, in the order of the tree.

    eligible: would take a member if they were empty. free: of these, have room for one now.
    excluded: why the others are not eligible, with how many, most first.
    """

    eligible: tuple[str, ...]
    free: tuple[str, ...]
    excluded: Mapping[str, int]


def survey(tree: Tree, nodes: Mapping[str, Node], free: Mapping[str, Resources], request: Request) -> Survey:
    """Look at every node once. A node that is missing in `free` has no room."""
    wanted = selection(request.pod_spec, request.avoid)
    eligible: list[str] = []
    now: list[str] = []
    excluded: Counter[str] = Counter()
    for name in tree.paths:
        node = nodes.get(name)
        if node is None:
            continue
        reason = wanted.why_not(node) or _too_small(node, request.requests)
        if reason is not None:
            excluded[reason] += 1
            continue
        eligible.append(name)
        if fits(request.requests, free.get(name, {})):
            now.append(name)
    by_count = sorted(excluded.items(), key=lambda item: (-item[1], item[0]))
    return Survey(tuple(eligible), tuple(now), dict(by_count))


def by_domain(tree: Tree, nodes: Iterable[str], depth: int) -> dict[Path, list[str]]:
    """Nodes by their domain of a depth. Given in the order of the tree, nodes and domains stay in it."""
    found: dict[Path, list[str]] = {}
    for node in nodes:
        found.setdefault(tree.domain(node, depth), []).append(node)
    return found


def _too_small(node: Node, requests: Resources) -> str | None:
    """Which resource a member needs more of than the whole node offers."""
    lacking = first_lacking(requests, node.allocatable)
    return (
        None if lacking is None else f"offers less than the {requests[lacking]}{_unit(lacking)} {lacking} of a member"
    )


def _unit(resource: str) -> str:
    match resource:
        case "cpu":
            return "m"
        case "memory" | "ephemeral-storage":
            return " byte"
        case _:
            return ""
