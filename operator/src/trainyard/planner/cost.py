"""What a placement costs the communication of its gang, as one number that a mixed-integer program can minimise too.

The collectives of a gang are rings over its members. All wait for the slowest edge of the ring, so a byte that goes around
costs each of n members the seconds per byte of that edge (`pace`): the edge that leaves the broadest domain. Every domain
whose uplink an edge uses is busy for as long as that uplink takes for a byte; depth first, the ring leaves each of the domains
that it touches once (see `rank`), and none of a level where one domain holds all of it. Therefore

    cost = n * pace + sum over levels of (domains touched, 0 where it is one) * (seconds per byte of such a domain's uplink)

in member-seconds per byte. The first term is the job's own time, the second its exposure to others and theirs to it. Where a
tier costs at least 2.62 times the one below, which the default does, no number of domains below outweighs the step to a broader
span: the narrowest span is then the cheapest, whatever the number of levels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from trainyard.planner.links import Links
from trainyard.topology.tree import Index

NIC_SECONDS_PER_BYTE: Final = 1 / 50e9
"""An edge between nodes of one narrowest domain where nothing is known of the links: a NIC of 400 Gb/s."""

NODE_SECONDS_PER_BYTE: Final = 1 / 450e9
"""An edge inside a node where nothing is known: NVLink 4, per direction."""

TIER: Final = 3.0
"""How much dearer each broader tier is where nothing is known: in the middle of the usual oversubscription of 2:1 to 4:1."""


@dataclass(frozen=True, slots=True)
class Edges:
    """What the edges of a ring cost. seconds_per_byte: by depth of the narrowest domain that holds both ends: 0 is the whole
    cluster, the last but one a narrowest domain, the last a node. The uplink of a domain of depth d is that of edge d - 1."""

    seconds_per_byte: tuple[float, ...]

    def pace(self, depth: int) -> float:
        """Of a ring that one domain of this depth holds, and no narrower one: its slowest edge."""
        return self.seconds_per_byte[depth]

    def uplink(self, depth: int) -> float:
        """Of a domain of this depth, 1 or more; one more than the levels: of a node."""
        return self.seconds_per_byte[depth - 1]


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a placement, or the least that any could have. pace: seconds per byte of the slowest edge; uplinks: seconds per byte
    of all uplinks that the ring uses, one after the other."""

    members: int
    pace: float
    uplinks: float

    @property
    def total(self) -> float:
        """Member-seconds per byte."""
        return self.members * self.pace + self.uplinks


NOTHING: Final = Cost(0, 0.0, 0.0)
"""Of a gang of which nothing is known."""


def default_edges(levels: int) -> Edges:
    """For a tree of so many levels of whose links nothing is known."""
    return Edges(
        (*(NIC_SECONDS_PER_BYTE * TIER ** (levels - depth) for depth in range(levels + 1)), NODE_SECONDS_PER_BYTE)
    )


def edges_of(links: Links, levels: int) -> Edges:
    """Of a cluster whose links are known, tier by tier from the nodes up.

    A tier of which the Fabric says neither bandwidth nor oversubscription, and that nobody measured, is `TIER` times dearer than
    the one below, since what is not known is no reason to spread a gang; one that is said to be faster than the one below is as
    dear as that.
    """
    if len(links.levels) != levels:
        return default_edges(levels)
    rising = [1 / links.edge(levels).bytes_per_second]
    for depth in range(levels - 1, -1, -1):
        known = links.uplinks[depth].declared or links.uplinks[depth].observed
        said = 1 / links.edge(depth).bytes_per_second if known else rising[-1] * TIER
        rising.append(max(rising[-1], said))
    return Edges((*reversed(rising), min(1 / links.inside.bytes_per_second, rising[0])))


def touched(index: Index, positions: Iterable[int]) -> tuple[int, ...]:
    """How many domains of each depth, the cluster's 0 first, and in the end how many nodes, hold at least one of these."""
    nodes = set(positions)
    counts = [len(nodes)]
    domains = {index.innermost[position] for position in nodes}
    for _ in index.at_depth:
        counts.append(len(domains))
        domains = {index.domains[number].parent for number in domains}
    return tuple(reversed(counts))


def cost(edges: Edges, members: int, spread: Sequence[int], several: bool = False) -> Cost:
    """Of members that touch so many domains by depth (see `touched`). several: whether a node may have more than one; if it
    has one at most, the NICs are as busy in every placement and not counted."""
    span = max(depth for depth, domains in enumerate(spread) if domains <= 1)
    counted = range(1, len(spread) if several else len(spread) - 1)
    uplinks = sum(spread[depth] * edges.uplink(depth) for depth in counted if spread[depth] > 1)
    return Cost(members, edges.pace(span) if members > 1 else 0.0, uplinks)
