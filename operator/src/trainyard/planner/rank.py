"""Order the ranks of a gang so that neighbours share the smallest possible domain.

NCCL (2.30.7, its graph search) links nodes in the order in which their ranks first appear, and gloo's ring does the same: the
order written here is the ring. A domain that holds some of a gang, not all of it, is left by at least one edge of the closed
ring. A depth-first walk, in which the members of every domain are consecutive, leaves each exactly once: the fewest possible,
at all levels at once. What is left to choose is the order of the parts of a domain. It begins with the one with most members, and
where consecutive ranks form groups (the inner axes of a mesh, segments), it goes on so that as few groups as possible lie across
the border of two parts: parts whose members make up whole groups while no group is begun, and else one that ends the group.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from trainyard.topology.tree import Index, Tree


def walk(index: Index, positions: Iterable[int], group: int = 1) -> list[int]:
    """The nodes in rank order, by position; one that has several members is named, and stands, several times.

    Depth-first, the domain with most members first; equal ones in natural order (rack-2 before rack-10). group: so many
    consecutive ranks talk most to each other.
    """
    at = sorted(positions)
    ranked: list[int] = []
    _walk(index, at, _Part(0, len(at)), 0, group, ranked)
    return ranked


def crossings(tree: Tree, ranked: Sequence[str]) -> dict[str, int]:
    """For each level, broadest first, how many edges of the closed ring leave a domain of it."""
    index = tree.index
    at = [index.innermost[index.position[node]] for node in ranked]
    counts: list[int] = []
    for _ in tree.levels:
        counts.append(sum(a != b for a, b in zip(at, (*at[1:], *at[:1]), strict=True)))
        at = [index.domains[number].parent for number in at]
    return {level.name: edges for level, edges in zip(tree.levels, reversed(counts), strict=True)}


def spans(tree: Tree, nodes: Collection[str]) -> dict[str, int]:
    """For each level, broadest first, over how many of its domains the nodes extend."""
    index = tree.index
    at = {index.innermost[index.position[node]] for node in nodes}
    counts: list[int] = []
    for _ in tree.levels:
        counts.append(len(at))
        at = {index.domains[number].parent for number in at}
    return {level.name: domains for level, domains in zip(tree.levels, reversed(counts), strict=True)}


@dataclass(frozen=True, slots=True)
class _Part:
    """Members that share a domain, or a node: those at first to end - 1 of the sorted positions."""

    first: int
    end: int

    @property
    def members(self) -> int:
        return self.end - self.first


def _walk(index: Index, at: Sequence[int], part: _Part, depth: int, group: int, ranked: list[int]) -> None:
    if depth >= len(index.at_depth) or part.members == 1:
        ranked.extend(at[part.first : part.end])
        return
    for inner in _in_turn(_parts(index, at, part, depth + 1), group, len(ranked)):
        _walk(index, at, inner, depth + 1, group, ranked)


def _parts(index: Index, at: Sequence[int], whole: _Part, depth: int) -> list[_Part]:
    """The parts of a domain, one level down; below the narrowest domains they are nodes."""
    levels = len(index.at_depth) - 1
    parts: list[_Part] = []
    first = whole.first
    while first < whole.end:
        position = at[first]
        if depth > levels:
            end = bisect_left(at, position + 1, first, whole.end)
        else:
            number = index.innermost[position]
            for _ in range(levels - depth):
                number = index.domains[number].parent
            end = bisect_left(at, index.domains[number].end, first, whole.end)
        parts.append(_Part(first, end))
        first = end
    return parts


def _in_turn(parts: list[_Part], group: int, begun: int) -> list[_Part]:
    """The fullest first, as far as groups allow. begun: how many ranks are given already."""
    parts.sort(key=lambda part: (-part.members, part.first))
    if group == 1 or len(parts) == 1 or not any(part.members % group for part in parts):
        return parts
    total = sum(part.members for part in parts)
    turn: list[_Part] = []
    left = dict.fromkeys(parts)
    while left:
        offset = begun % group
        ending = (part for part in left if (begun + part.members) % group == 0)
        broken = (part for part in left if part.members % group)
        if not turn and not offset and total % group == 0:
            chosen = next(iter(left))  # rank 0 is where most members are: what it begins is ended by others
        else:
            chosen = next(ending, None) or (next(broken, None) if offset else None) or next(iter(left))
        turn.append(chosen)
        del left[chosen]
        begun += chosen.members
    return turn
