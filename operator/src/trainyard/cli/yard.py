"""What `kubectl trainyard topology` prints: the network as the planner sees it, and the room in its domains or on its nodes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trainyard.api.template import is_accelerator
from trainyard.cli.gangs import gangs_lines
from trainyard.cli.labels import labels_heading, labels_notes, labels_table
from trainyard.contract.natural import natural
from trainyard.planner.fragmentation import kinds
from trainyard.topology.coverage import Coverage, coverage
from trainyard.topology.detection import detect
from trainyard.topology.tree import Path, Tree, build
from trainyard.world.capacity import free, place_of
from trainyard.world.inventory import Inventory
from trainyard.world.records import Node, Pod, World

MOST_NODES: Final = 64
"""Up to so many nodes stand on the page by themselves unless somebody asks."""

_GANGS: Final = 3
"""Up to so many gangs of a domain are named."""

_INDENT: Final = "  "
_GAP: Final = "  "
_LEGEND: Final = "READY: and not cordoned; FREE{empty} count these nodes alone."


def topology_page(world: World, nodes: bool | None = None) -> str:
    """The page. nodes: a line for each node as well as for each domain; None: where there are at most `MOST_NODES`."""
    detected = detect(world.nodes.values(), world.fabrics.values())
    tree = build(world.nodes.values(), detected.levels)
    covered = coverage(tree, world.nodes.values(), detected)
    each = nodes if nodes is not None else len(world.nodes) <= MOST_NODES
    yard = _Yard(world, tree, len(tree.levels) if each else _depth(covered))
    parts = (
        labels_heading(covered, len(world.nodes)),
        _table(labels_table(covered)),
        labels_notes(covered),
        yard.lines(each),
        gangs_lines(kinds(Inventory.of(world))),
    )
    return "\n".join("\n".join(lines) + "\n" for part in parts if (lines := list(part)))


def _depth(covered: Coverage) -> int:
    """How many levels have domains of more than one node: those of one say what its own line would."""
    return max((depth for depth, level in enumerate(covered.levels, start=1) if level.most > 1), default=0)


@dataclass(frozen=True, slots=True)
class _Domain:
    """A domain on the page. path: "" stands for all that lack a label, who are together on the page alone."""

    path: Path
    nodes: list[str]


class _Yard:
    """The table of domains and nodes."""

    def __init__(self, world: World, tree: Tree, depth: int) -> None:
        self._world = world
        self._tree = tree
        self._depth = depth
        self._room = free(world)
        self._tenants = _tenants(world)
        everything = [name for node in world.nodes.values() for name in node.allocatable if node.allocatable[name]]
        self._devices = sorted({name for name in everything if is_accelerator(name)})
        self._counted = self._devices or ["cpu"]

    def lines(self, each: bool) -> Iterator[str]:
        """each: every node has a line."""
        if not self._tree.paths:
            return
        empty = ("EMPTY",) if self._devices else ()
        free = f"FREE {self._counted[0]}" if len(self._counted) == 1 else "FREE"
        rows = [("DOMAIN", "NODES", "READY", *empty, free, "GANGS")]
        for domain in self._domains():
            rows.append(self._domain_row(domain))
            if each and self._narrowest(domain):
                rows += [self._node_row(name, len(domain.path)) for name in domain.nodes]
        yield from _table(rows)
        yield _LEGEND.format(empty=" and EMPTY (all accelerators free)" if empty else "")

    def _domains(self) -> list[_Domain]:
        """The whole cluster, then every domain after the one around it, in the tree's order; who lacks a label last."""
        nodes: dict[Path, list[str]] = {}
        for name in self._tree.paths:
            path = self._tree.known(name)
            path = (path if len(path) == len(self._tree.levels) else (*path, ""))[: self._depth]
            for depth in range(len(path) + 1):
                nodes.setdefault(path[:depth], []).append(name)
        place = {path: number for number, path in enumerate(nodes)}
        order = {
            path: tuple((path[depth - 1] == "", place[path[:depth]]) for depth in range(1, len(path) + 1))
            for path in nodes
        }
        return [_Domain(path, nodes[path]) for path in sorted(nodes, key=lambda path: order[path])]

    def _narrowest(self, domain: _Domain) -> bool:
        return len(domain.path) == self._depth or domain.path[-1:] == ("",)

    def _domain_row(self, domain: _Domain) -> tuple[str, ...]:
        usable = [self._world.nodes[name] for name in domain.nodes if self._world.nodes[name].is_open]
        gangs = Counter(_gang(pod) for name in domain.nodes for pod in self._tenants.get(name, ()))
        return (
            self._title(domain.path),
            str(len(domain.nodes)),
            str(len(usable)),
            *((str(sum(map(self._empty, usable))),) if self._devices else ()),
            self._free(domain.nodes, usable),
            _names(gangs),
        )

    def _node_row(self, name: str, depth: int) -> tuple[str, ...]:
        node = self._world.nodes[name]
        members = [f"{pod.namespace}/{pod.name}{_rank(pod)}" for pod in self._tenants.get(name, ())]
        return (
            _INDENT * depth + name,
            "",
            _state(node),
            *(("",) if self._devices else ()),
            self._free([name], [node]),
            ", ".join(members),
        )

    def _title(self, path: Path) -> str:
        if not path:
            return "cluster"
        return f"{_INDENT * (len(path) - 1)}{self._tree.levels[len(path) - 1].name} {path[-1] or 'without a label'}"

    def _empty(self, node: Node) -> bool:
        room = self._room[node.name]
        own = [name for name in self._devices if node.allocatable.get(name)]
        return bool(own) and all(room[name] == node.allocatable[name] for name in own)

    def _free(self, nodes: Iterable[str], usable: Collection[Node]) -> str:
        """Of the usable nodes, of what all have."""
        told = []
        for device in self._counted:
            whole = sum(self._world.nodes[name].allocatable.get(device, 0) for name in nodes)
            left = sum(self._room[node.name].get(device, 0) for node in usable)
            if whole:
                unit = "" if len(self._counted) == 1 else f" {device}"
                told.append(f"{_amount(left, device)} of {_amount(whole, device)}{unit}")
        return ", ".join(told) or "-"


def _state(node: Node) -> str:
    closed = [
        *(["cordoned"] if node.unschedulable else []),
        *(["network degraded"] if node.degraded is not None else []),
    ]
    return ", ".join([*([] if node.ready and closed else ["ready" if node.ready else "not ready"]), *closed])


def _amount(amount: int, device: str) -> str:
    return f"{amount / 1000:g}" if device == "cpu" else str(amount)


def _tenants(world: World) -> Mapping[str, Sequence[Pod]]:
    """By node, the members of gangs that take room there."""
    found: dict[str, list[Pod]] = defaultdict(list)
    for pod in sorted(world.pods.values(), key=lambda pod: (pod.namespace, pod.name)):
        if pod.membership and pod.live:
            found[place_of(pod)].append(pod)
    return found


def _gang(pod: Pod) -> str:
    """A member is named after its job and its number."""
    number = f"-{pod.membership.member}" if pod.membership else ""
    return f"{pod.namespace}/{pod.name.removesuffix(number)}"


def _names(gangs: Mapping[str, int]) -> str:
    """Each with its members here, or how many there are."""
    if len(gangs) > _GANGS:
        return f"{len(gangs)} gangs"
    return ", ".join(f"{gang} x{gangs[gang]}" for gang in sorted(gangs, key=natural))


def _rank(pod: Pod) -> str:
    return f" (rank {pod.membership.rank})" if pod.membership else ""


def _table(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    table = list(rows)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        yield _GAP.join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
