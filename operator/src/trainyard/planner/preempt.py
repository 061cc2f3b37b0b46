"""Whom to ask to leave, so that a gang of higher priority fits.

Only jobs of lower priority, and none unless it helps. Where jobs of low priority are enough no higher one is touched; then the
fewest jobs; then those of lowest priority; then the youngest, which lose least, and of these the smallest. A job
yields as a whole, so all of its room counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from trainyard.planner.place import Placement, place, required_depth
from trainyard.planner.request import Request
from trainyard.planner.survey import survey
from trainyard.topology.tree import Path, Tree
from trainyard.world.records import Node, Resources
from trainyard.world.resources import fits

MAX_SETS = 5_000
"""How many sets of victims are tried in search of the smallest; beyond that a set from which none can be left out must do.
Counted work, not time: the answer does not depend on how busy the machine is."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A job that holds nodes. key: namespace and name; started: of its attempt; usage: what it takes, by node."""

    uid: str
    key: str
    priority: int
    started: float
    usage: Mapping[str, Resources]


@dataclass(frozen=True, slots=True)
class Preemption:
    """victims: uids of the jobs that must leave, all of them; placement: the nodes that the gang then gets."""

    victims: tuple[str, ...]
    placement: Placement


@dataclass(frozen=True, slots=True)
class _Field:
    """What eviction can change: by node that is eligible but has no room, its room and domain; by domain, the nodes with room."""

    needed: int
    requests: Resources
    room: Mapping[str, Resources]
    domains: Mapping[str, Path]
    free: Mapping[Path, int]

    def helps(self, victims: Sequence[Candidate]) -> bool:
        """Whether a domain has room for the gang once these have left, which it has not now."""
        left: dict[str, dict[str, int]] = {}
        for victim in victims:
            for node, amounts in victim.usage.items():
                if node in self.room:
                    at = left.setdefault(node, dict(self.room[node]))
                    for name, amount in amounts.items():
                        at[name] = at.get(name, 0) + amount
        gained: dict[Path, int] = {}
        for node, amounts in left.items():
            if fits(self.requests, amounts):
                gained[self.domains[node]] = gained.get(self.domains[node], 0) + 1
        return any(self.free.get(domain, 0) + n >= self.needed for domain, n in gained.items())

    def touched(self, victim: Candidate) -> int:
        """How many nodes that lack room would have more."""
        return sum(node in self.room for node in victim.usage)


def preempt(
    tree: Tree,
    nodes: Mapping[str, Node],
    free: Mapping[str, Resources],
    request: Request,
    priority: int,
    candidates: Sequence[Candidate],
) -> Preemption | None:
    """The jobs that must leave for a gang that has no place now; None where it has one, or no set of lower priority would help.

    priority: of the gang. No victim can be left out: with any one of them staying, the gang would not fit.
    """
    depth = required_depth(tree, request)
    if depth is None:
        return None
    field = _field(tree, nodes, free, request, depth)
    if any(n >= request.nodes for n in field.free.values()):
        return None
    lower = [c for c in candidates if c.priority < priority and field.touched(c)]
    preferred = sorted(lower, key=lambda c: (c.priority, -c.started, len(c.usage), c.key, c.uid))
    for highest in sorted({c.priority for c in preferred}):
        allowed = [c for c in preferred if c.priority <= highest]
        if field.helps(allowed):
            victims = _smallest(field, allowed)
            placement = place(tree, nodes, _with_room(free, victims), request)
            return Preemption(tuple(c.uid for c in victims), placement) if isinstance(placement, Placement) else None
    return None


def _field(
    tree: Tree, nodes: Mapping[str, Node], free: Mapping[str, Resources], request: Request, depth: int
) -> _Field:
    seen = survey(tree, nodes, free, request)
    now = frozenset(seen.free)
    count: dict[Path, int] = {}
    for node in seen.free:
        domain = tree.domain(node, depth)
        count[domain] = count.get(domain, 0) + 1
    full = [node for node in seen.eligible if node not in now]
    return _Field(
        needed=request.nodes,
        requests=request.requests,
        room={node: free.get(node, {}) for node in full},
        domains={node: tree.domain(node, depth) for node in full},
        free=count,
    )


def _smallest(field: _Field, allowed: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """The first of the smallest sets that help, in the order of preference; `allowed` together do."""
    tried = 0
    gains = sorted((field.touched(c) for c in allowed), reverse=True)
    most_free = max(field.free.values(), default=0)
    for size in range(1, len(allowed) + 1):
        if most_free + sum(gains[:size]) < field.needed:
            continue  # even the largest would not free enough
        for some in combinations(allowed, size):
            if tried == MAX_SETS:
                return _pruned(field, allowed)
            tried += 1
            if field.helps(some):
                return some
    return tuple(allowed)


def _pruned(field: _Field, allowed: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """What is left when every job that is not needed stays, asked in the order in which it should: those of highest priority
    and the oldest first, but small ones before large, so that few large victims are left rather than many small."""
    victims = list(allowed)
    preference = {c.uid: n for n, c in enumerate(allowed)}
    for candidate in sorted(allowed, key=lambda c: (-c.priority, field.touched(c), -preference[c.uid])):
        others = [c for c in victims if c is not candidate]
        if field.helps(others):
            victims = others
    return tuple(victims)


def _with_room(free: Mapping[str, Resources], victims: Sequence[Candidate]) -> dict[str, Resources]:
    after: dict[str, Resources] = dict(free)
    for victim in victims:
        for node, amounts in victim.usage.items():
            at = after.get(node, {})
            after[node] = {**at, **{name: at.get(name, 0) + amount for name, amount in amounts.items()}}
    return after
