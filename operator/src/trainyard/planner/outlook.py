"""What else than room decides between places that cost the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from trainyard.planner.cost import Edges, default_edges, edges_of
from trainyard.planner.links import Links
from trainyard.planner.search.fragments import SIZES


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is known of the cluster beside what is free.

    links: of its network; None where nothing is known. uplinks: by number of the domain, how many jobs that extend over several
    domains of its level use its uplink now. doubtful: nodes that failed or ran slow lately. gang_sizes: in members, with weights,
    how many gangs of the size are expected.
    """

    links: Links | None = None
    uplinks: Mapping[int, int] = field(default_factory=dict)
    doubtful: frozenset[str] = frozenset()
    gang_sizes: Mapping[int, float] = field(default_factory=lambda: SIZES)

    def edges(self, levels: int) -> Edges:
        """What the edges of a ring cost in a tree of so many levels."""
        return edges_of(self.links, levels) if self.links is not None else default_edges(levels)


PLAIN: Final = Outlook()
"""Nothing is known beside what is free."""
