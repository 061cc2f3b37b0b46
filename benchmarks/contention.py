"""How long a gang's ring takes on a network that it shares: the model under which the replay judges every policy.

Each node sends to the next at the rate of its NICs as long as the uplinks on the way carry it. A domain's uplink carries the
NICs of all its nodes divided by the oversubscription up to its level, and is shared equally by the ring edges that leave the
domain, those of the gang itself and those of all other gangs that run: as if all communicated at once. The ring is as slow as
its slowest edge (bandwidth term of the alpha-beta model; Thakur, Rabenseifner, Gropp 2005), so that

    time / time of the best placement = max(1, edges leaving D / nodes of D * oversubscription up to D)  over all D it leaves.

The model is the benchmark's own and knows nothing of the planner's.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from trainyard.topology.tree import Index


class Network:
    """The uplinks of a cluster and the ring edges on them.

    oversubscription: by level, broadest first, how many times the bandwidth below a domain is that of its uplink. Those of the
    levels below multiply with it.
    """

    def __init__(self, index: Index, oversubscription: Sequence[float]) -> None:
        if len(oversubscription) != len(index.at_depth) - 1:
            raise ValueError(f"{len(oversubscription)} oversubscriptions for {len(index.at_depth) - 1} levels")
        self._index = index
        self._edges = [0] * len(index.domains)
        self._per_edge = [
            prod(oversubscription[domain.depth - 1 :]) / (domain.end - domain.first) if domain.depth else 0.0
            for domain in index.domains
        ]

    def leaving(self, ranks: Sequence[int]) -> dict[int, int]:
        """By domain, how many edges of the closed ring over these positions leave it; as many come in."""
        domains, innermost = self._index.domains, self._index.innermost
        found: dict[int, int] = {}
        for here, there in zip(ranks, [*ranks[1:], *ranks[:1]], strict=True):
            a, b = innermost[here], innermost[there]
            while a != b:
                found[a] = found.get(a, 0) + 1
                a, b = domains[a].parent, domains[b].parent
        return found

    def add(self, ranks: Sequence[int], sign: int = 1) -> None:
        """Put a ring on the network; with -1 take it off."""
        for domain, edges in self.leaving(ranks).items():
            self._edges[domain] += sign * edges

    def slowdown(self, ranks: Sequence[int]) -> float:
        """The time of this ring over that of the best placement, beside the rings that are on the network without it."""
        shares = (
            (self._edges[domain] + edges) * self._per_edge[domain] for domain, edges in self.leaving(ranks).items()
        )
        return max(1.0, max(shares, default=1.0))
