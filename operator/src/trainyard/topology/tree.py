"""Node labels to a tree of network domains.

A domain is the path of label values from the top, never one value: in a real cluster 42 of 48 leaf ids occur below more than one
aggregation switch. A node that lacks a level's label gets a domain of its own there, since nothing is known of what it shares:
thrown together, such nodes would look like neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

from trainyard.contract.natural import natural
from trainyard.topology.values import PRIVATE, name_of

Path = tuple[str, ...]
"""A domain: its names from the top. The empty path is the whole cluster."""


class Labelled(Protocol):
    """What a tree is built from."""

    @property
    def name(self) -> str:
        """Name of the node."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Its labels."""


@dataclass(frozen=True, slots=True)
class Level:
    """A tier of the network.

    name: as users say it (spine, leaf); label: whose value on a node names the node's domain. before: only what stands before
    the last of these counts, in a value that has it: two levels may be told by one label.
    """

    name: str
    label: str
    before: str = ""

    def domain(self, labels: Mapping[str, str]) -> str:
        """The domain that labels tell of; "" where they tell of none."""
        value = labels.get(self.label, "")
        if self.before and self.before in value:
            value = value.rpartition(self.before)[0]
        return name_of(value)


@dataclass(frozen=True, slots=True)
class Domain:
    """A domain by number. The members of it are the nodes at positions first to end - 1; those one level down are `children`.

    parent: number of the domain around it; -1 for the whole cluster.
    """

    path: Path
    depth: int
    parent: int
    first: int
    end: int
    children: range


@dataclass(frozen=True, slots=True)
class Index:
    """A tree by number: what a search over thousands of nodes counts with, where names would cost a look-up each.

    names: the nodes by position, in the order of the tree; position: the reverse. domains: by number; 0 is the whole cluster,
    the numbers grow with the depth, and at one depth in natural order. at_depth: by depth, the numbers of its domains.
    innermost: by position, the number of the narrowest domain around the node.
    """

    names: tuple[str, ...]
    position: Mapping[str, int]
    domains: tuple[Domain, ...]
    at_depth: tuple[range, ...]
    innermost: tuple[int, ...]

    def around(self, position: int) -> Iterator[int]:
        """The numbers of the domains around a node, the narrowest first, the whole cluster last."""
        at = self.innermost[position]
        while at >= 0:
            yield at
            at = self.domains[at].parent


@dataclass(frozen=True)
class Tree:
    """The nodes of a cluster by place in its network.

    levels: broadest first. paths: for each node one domain name per level; the nodes stand in depth-first natural order, so
    the members of any domain are consecutive. A domain of the n-th level is the first n names of a path (its depth is n).
    """

    levels: tuple[Level, ...] = ()
    paths: Mapping[str, Path] = field(default_factory=dict)

    @cached_property
    def index(self) -> Index:
        """The same tree by number."""
        return _indexed(self)

    def depth(self, level: str) -> int | None:
        """How many names a domain of this level has; None where the tree has no such level."""
        return next((n for n, known in enumerate(self.levels, start=1) if known.name == level), None)

    def domain(self, node: str, depth: int) -> Path:
        """The domain of a depth that a node lies in; 0 is the whole cluster."""
        return self.paths[node][:depth]

    def known(self, node: str) -> Path:
        """The path of a node as far as labels tell it from the top; () for one that is not there (any more)."""
        path = self.paths.get(node, ())
        return path[: next((n for n, name in enumerate(path) if is_private(name)), len(path))]


def build(nodes: Iterable[Labelled], levels: Sequence[Level]) -> Tree:
    """The tree of nodes over levels, broadest first. Equal nodes give equal trees, whatever their order."""
    paths = {node.name: _path(node, levels) for node in nodes}
    ordered = sorted(paths, key=lambda name: (tuple(natural(part) for part in paths[name]), natural(name)))
    return Tree(levels=tuple(levels), paths={name: paths[name] for name in ordered})


def is_private(name: str) -> bool:
    """Whether a domain's name is that of a node without the label: nobody else is in it."""
    return name.startswith(PRIVATE)


def _path(node: Labelled, levels: Sequence[Level]) -> Path:
    return tuple(level.domain(node.labels) or f"{PRIVATE}{node.name}" for level in levels)


def _indexed(tree: Tree) -> Index:
    names, paths = tuple(tree.paths), tuple(tree.paths.values())
    domains = [Domain((), 0, -1, 0, len(names), range(0))]
    at_depth = [range(0, 1)]
    innermost = [0] * len(names)
    for depth in range(1, len(tree.levels) + 1):
        begin = len(domains)
        for parent in at_depth[-1]:
            around = domains[parent]
            children = len(domains)
            first = around.first
            for position in range(around.first, around.end):
                if position + 1 == around.end or paths[position + 1][depth - 1] != paths[position][depth - 1]:
                    domains.append(Domain(paths[position][:depth], depth, parent, first, position + 1, range(0)))
                    first = position + 1
            domains[parent] = replace(around, children=range(children, len(domains)))
        at_depth.append(range(begin, len(domains)))
    for number in at_depth[-1]:
        for position in range(domains[number].first, domains[number].end):
            innermost[position] = number
    return Index(
        names=names,
        position={name: position for position, name in enumerate(names)},
        domains=tuple(domains),
        at_depth=tuple(at_depth),
        innermost=tuple(innermost),
    )
