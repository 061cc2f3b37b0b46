"""Order the ranks of a gang so that neighbours share the smallest possible domain.

NCCL (2.30.7, its graph search) links nodes in the order in which their ranks first appear, and gloo's ring does the same: the
order written here is the ring. A domain that holds some of a gang, not all of it, is left by at least one edge of the closed
ring. A depth-first walk, in which the members of every domain are consecutive, leaves each exactly once: the fewest possible,
at all levels at once. What is left to choose is where the walk starts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from trainyard.topology.tree import Path, Tree


def order(tree: Tree, nodes: Collection[str]) -> tuple[str, ...]:
    """Depth-first, at every level the domain with most members first; equal ones in natural order (rack-2 before rack-10)."""
    members = frozenset(nodes)
    held: dict[Path, int] = {}
    for node in members:
        for depth in range(1, len(tree.levels) + 1):
            domain = tree.domain(node, depth)
            held[domain] = held.get(domain, 0) + 1
    places = {node: n for n, node in enumerate(tree.paths)}
    first = {domain: len(places) for domain in held}
    for node in members:
        for depth in range(1, len(tree.levels) + 1):
            domain = tree.domain(node, depth)
            first[domain] = min(first[domain], places[node])

    def key(node: str) -> tuple[tuple[int, int], ...]:
        domains = (tree.domain(node, depth) for depth in range(1, len(tree.levels) + 1))
        return (*((-held[domain], first[domain]) for domain in domains), (0, places[node]))

    return tuple(sorted(members, key=key))


def crossings(tree: Tree, ranked: Sequence[str]) -> dict[str, int]:
    """For each level, broadest first, how many edges of the closed ring leave a domain of it."""
    following = (*ranked[1:], *ranked[:1])
    return {
        level.name: sum(tree.domain(a, depth) != tree.domain(b, depth) for a, b in zip(ranked, following, strict=True))
        for depth, level in enumerate(tree.levels, start=1)
    }


def spans(tree: Tree, nodes: Collection[str]) -> dict[str, int]:
    """For each level, broadest first, over how many of its domains the nodes extend."""
    return {
        level.name: len({tree.domain(node, depth) for node in nodes})
        for depth, level in enumerate(tree.levels, start=1)
    }
