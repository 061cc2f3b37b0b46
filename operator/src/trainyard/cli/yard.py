"""What `kubectl trainyard topology` prints: the nodes as the planner sees them, by place in the network, with their room."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from trainyard.api.template import ACCELERATORS
from trainyard.topology.detection import detect
from trainyard.topology.tree import Tree, build, is_private
from trainyard.world.capacity import free, place_of
from trainyard.world.records import Node, World

_INDENT: Final = "  "
_ACCELERATOR: Final = re.compile("|".join(f"(?:{name})" for name in ACCELERATORS))


def topology_page(world: World) -> str:
    """The page: a line for each domain, and below it its nodes."""
    tree = build(world.nodes.values(), detect(world.nodes.values(), world.fabrics.values()).levels)
    room = free(world)
    tenants = _tenants(world)
    lines: list[str] = []
    before: tuple[str, ...] = ()
    width = max((len(name) for name in tree.paths), default=0)
    for name, path in tree.paths.items():
        lines += _headings(tree, before, path)
        before = path
        about = [_room(world.nodes[name], room[name]), *_blemishes(world.nodes[name]), *tenants.get(name, ())]
        lines.append(f"{_INDENT * len(path)}{name.ljust(width)}  {', '.join(about)}")
    levels = " > ".join(level.name for level in tree.levels) or "none is known: no label of the nodes tells of any"
    return "\n".join([f"{len(tree.paths)} nodes; levels: {levels}", *lines]) + "\n"


def _headings(tree: Tree, before: tuple[str, ...], path: tuple[str, ...]) -> Iterator[str]:
    """A line for each domain that begins between two neighbours of the tree's order."""
    for depth, level in enumerate(tree.levels):
        if path[: depth + 1] != before[: depth + 1]:
            name = "without a label" if is_private(path[depth]) else path[depth]
            yield f"{_INDENT * depth}{level.name} {name}"


def _room(node: Node, room: Mapping[str, int]) -> str:
    devices = [name for name, amount in node.allocatable.items() if amount and _ACCELERATOR.fullmatch(name)]
    if devices:
        return ", ".join(f"{room[name]} of {node.allocatable[name]} {name} free" for name in devices)
    return f"{room.get('cpu', 0) / 1000:g} of {node.allocatable.get('cpu', 0) / 1000:g} cpu free"


def _blemishes(node: Node) -> Iterator[str]:
    if not node.ready:
        yield "not ready"
    if node.unschedulable:
        yield "cordoned"


def _tenants(world: World) -> Mapping[str, list[str]]:
    """By node, the members of gangs that take room there."""
    found: dict[str, list[str]] = defaultdict(list)
    for pod in sorted(world.pods.values(), key=lambda pod: (pod.namespace, pod.name)):
        if pod.membership and pod.live:
            found[place_of(pod)].append(f"{pod.namespace}/{pod.name} (rank {pod.membership.rank})")
    return found
