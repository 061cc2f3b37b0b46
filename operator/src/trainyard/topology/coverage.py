"""How far the labels of a cluster can be trusted to tell its network: gaps, repeated names, sizes of domains.

Labels are written by others, at other times than nodes come and go. A node without a level's label shares nothing with anybody
there, so every gap costs placements; a name below several parents is several domains, which is right where a vendor counts leaves
anew in each block, and a mistake where an NVLink domain seems to lie in two racks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median_low

from trainyard.contract.natural import natural
from trainyard.topology.detection import Detected, Equipped, accelerated
from trainyard.topology.tree import Level, Path, Tree, is_private


@dataclass(frozen=True, slots=True)
class LevelCoverage:
    """One level, over the nodes that had a say in what is detected.

    labelled: how many carry its label; lacking: the names of the others; empty: how many of these have the label without a value.
    domains: how many there are of which the whole path is known, with the fewest, the median (the lower of two) and the most
    nodes in one; 0 where there is none. conflicts: the names that are those of several domains, below different parents.
    """

    level: Level
    labelled: int
    lacking: tuple[str, ...]
    empty: int
    domains: int
    fewest: int
    median: int
    most: int
    conflicts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Coverage:
    """All levels, broadest first. nodes: how many had a say; incomplete: how many of these lack the label of any level."""

    detected: Detected
    nodes: int
    incomplete: int
    levels: tuple[LevelCoverage, ...]


def coverage(tree: Tree, nodes: Iterable[Equipped], detected: Detected) -> Coverage:
    """How complete the labels are that the tree was built from. The nodes must be those of the tree.

    Only nodes with accelerators count, where there are any: nobody labels the others, and no gang is placed there.
    """
    everyone = list(nodes)
    counted = {node.name: node for node in accelerated(everyone) or everyone}
    paths = {name: path for name, path in tree.paths.items() if name in counted}
    levels = []
    for depth, level in enumerate(tree.levels, start=1):
        lacking = tuple(sorted((name for name, path in paths.items() if is_private(path[depth - 1])), key=natural))
        sizes = Counter(path[:depth] for path in paths.values() if not any(map(is_private, path[:depth])))
        levels.append(
            LevelCoverage(
                level=level,
                labelled=len(paths) - len(lacking),
                lacking=lacking,
                empty=sum(level.label in counted[name].labels for name in lacking),
                domains=len(sizes),
                fewest=min(sizes.values(), default=0),
                median=median_low(sizes.values()) if sizes else 0,
                most=max(sizes.values(), default=0),
                conflicts=_conflicts(sizes),
            )
        )
    incomplete = set[str]().union(*(covered.lacking for covered in levels))
    return Coverage(detected, len(paths), len(incomplete), tuple(levels))


def _conflicts(domains: Iterable[Path]) -> tuple[str, ...]:
    """Names of more than one of these domains, which are all of one depth."""
    times = Counter(path[-1] for path in domains)
    return tuple(sorted((name for name, parents in times.items() if parents > 1), key=natural))
