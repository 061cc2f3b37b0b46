"""Whether the labels of a gang's nodes still say what they said when it was placed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainyard.api.prose import count
from trainyard.topology.tree import Tree


def moved(
    tree: Tree, nodes: Sequence[str], spans: Mapping[str, int], ring_edges: Mapping[str, int] | None = None
) -> str | None:
    """What the tree says otherwise of these nodes than the plan's summary; None where nothing.

    nodes: in rank order. spans: by level, over how many domains the nodes extended; ring_edges: by level, how many edges of the
    closed ring of these ranks left a domain, which tells of nodes that changed places where the spans cannot. Where a node is
    gone, which is told elsewhere, only what its absence does not explain counts. The sentence is for a condition of the job.
    """
    there = [node for node in nodes if node in tree.paths]
    whole = len(there) == len(nodes)
    names = [level.name for level in tree.levels]
    changes = [f"the level {name} is gone" for name in spans if name not in names]
    for depth, name in enumerate(names, start=1):
        if name not in spans:
            changes.append(f"the level {name} is new")
            continue
        domains = [tree.domain(node, depth) for node in there]
        extent, edges = len(set(domains)), _crossings(domains)
        if extent > spans[name] or (whole and extent != spans[name]):
            changes.append(f"{name}: the nodes lie in {count(extent, 'domain')} instead of {spans[name]}")
        elif whole and ring_edges is not None and name in ring_edges and edges != ring_edges[name]:
            changes.append(f"{name}: {count(edges, 'edge')} of the ring leave a domain instead of {ring_edges[name]}")
    if not changes:
        return None
    return f"Since the plan was made the network's labels changed ({'; '.join(changes)}). The plan stays; the next follows them."


def _crossings(domains: Sequence[tuple[str, ...]]) -> int:
    return sum(a != b for a, b in zip(domains, (*domains[1:], *domains[:1]), strict=True))
