"""Which ranks of an axis share a domain, level by level: the groups of a hierarchical all-reduce."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

Path = tuple[str, ...]
"""Of a rank: the domains around it from the broadest, and its node at the end."""


def nested(paths: Sequence[Path], size: int, stride: int) -> tuple[int, ...]:
    """Sizes of the groups in which an axis sums, the narrowest first: their product is the axis.

    paths: by rank. A level counts where its domains hold equally many consecutive members in every group of the axis, and where
    they are put together from whole groups of the level below. (size,) where there is no such level: all at once.
    """
    depth = max(map(len, paths), default=0)
    padded = [(*path[:-1], *[""] * (depth - len(path)), *path[-1:]) for path in paths]
    groups = [
        [padded[first + inner + n * stride] for n in range(size)]
        for first in range(0, len(padded), size * stride)
        for inner in range(stride)
    ]
    runs = [1]
    for level in range(depth, 0, -1):
        lengths = {len(list(run)) for group in groups for _, run in groupby(group, key=lambda path: path[:level])}
        length = min(lengths)
        if len(lengths) == 1 and runs[-1] < length < size and size % length == 0 and length % runs[-1] == 0:
            runs.append(length)
    return tuple(upper // lower for lower, upper in pairwise([*runs, size]))


def level_crossed(paths: Sequence[Path], levels: Sequence[str]) -> str:
    """The broadest level of which a group has members in different domains: the first of `levels` that tells them apart, `node`
    where they share all of them, `inside the node` where they share the node.

    paths: of the group's members. A member without topology shares no domain with any other.
    """
    for level, name in enumerate(levels):
        if len({path[: level + 1] if len(path) > level + 1 else path for path in paths}) > 1:
            return name
    return "node" if len(set(paths)) > 1 else "inside the node"
