"""Whom to ask to leave, so that a gang of higher priority fits.

Only jobs of lower priority, and none unless it helps. Where jobs of low priority are enough no higher one is touched; then the
fewest jobs; then those of lowest priority; then the youngest, which lose least, and of these the smallest. A job
yields as a whole, so all of its room counts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from trainyard.planner.place import AVOIDED, Placement, place, required_depth
from trainyard.planner.request import Request
from trainyard.topology.tree import Path
from trainyard.world.demand import Demand
from trainyard.world.records import Resources
from trainyard.world.room import Room

MAX_EXACT = 12
"""Up to how many victims the fewest are searched for; of more, a set from which none can be left out must do."""

MAX_WORK = 50_000
"""How many times the search may look at a node, about a tenth of a second; after that the same. Counted work, not time: the
answer does not depend on how busy the machine is."""


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


@dataclass(slots=True)
class _Tally:
    """What a set of victims would free, as it grows and shrinks.

    domains: of the nodes that are eligible and have no room, by node; room: theirs, with what the victims leave.
    free: by domain, how many nodes have room; with what the victims leave. work: how many times a node was looked at.
    """

    needed: int
    demand: Demand
    domains: Mapping[str, Path]
    room: dict[str, dict[str, int]]
    free: dict[Path, int]
    work: int = 0

    def add(self, victim: Candidate) -> None:
        """Let one leave."""
        self._count(victim, 1)

    def remove(self, victim: Candidate) -> None:
        """Let one stay after all."""
        self._count(victim, -1)

    def lacks(self, domain: Path) -> int:
        """How many more nodes the gang needs in a domain."""
        return self.needed - self.free.get(domain, 0)

    def suffices(self) -> bool:
        """Whether any domain has room for the gang."""
        return any(n >= self.needed for n in self.free.values())

    def touched(self, victim: Candidate, domain: Path | None = None) -> int:
        """How many nodes without room would have more: the most that one victim can free. In one domain, or in all."""
        at = (self.domains.get(node) for node in victim.usage)
        return sum(found is not None and domain in (None, found) for found in at)

    def _count(self, victim: Candidate, sign: int) -> None:
        for node, amounts in victim.usage.items():
            left = self.room.get(node)
            if left is None:
                continue
            self.work += 1
            before = self.demand.fit(left)
            for name, amount in amounts.items():
                left[name] = left.get(name, 0) + sign * amount
            domain = self.domains[node]
            self.free[domain] = self.free.get(domain, 0) + self.demand.fit(left) - before


def preempt(
    room: Room,
    request: Request,
    priority: int,
    candidates: Sequence[Candidate],
    without: Collection[str] = frozenset(),
) -> Preemption | None:
    """The jobs that must leave for a gang that has no place now; None where it has one, or no set of lower priority would help.

    priority: of the gang. without: nodes that it may not have. No victim can be left out: with any one of them staying, the
    gang would not fit.
    """
    depth = required_depth(room.inventory.tree, request)
    if depth is None:
        return None
    tally = _tally(room, request, without, depth)
    if tally.suffices():
        return None
    lower = [c for c in candidates if c.priority < priority and tally.touched(c)]
    allowed: list[Candidate] = []
    for candidate in sorted(lower, key=lambda c: (c.priority, -c.started, len(c.usage), c.key, c.uid)):
        if tally.suffices() and candidate.priority > allowed[-1].priority:
            break
        allowed.append(candidate)
        tally.add(candidate)
    if not tally.suffices():
        return None
    victims = _fewest(tally, allowed)
    after = room.fork()
    for victim in victims:
        after.give(victim.usage)
    placement = place(after.supply(request.demand).without(without), request)
    return Preemption(tuple(c.uid for c in victims), placement) if isinstance(placement, Placement) else None


def _tally(room: Room, request: Request, without: Collection[str], depth: int) -> _Tally:
    demand, tree = request.demand, room.inventory.tree
    supply = room.supply(demand).without(request.avoid, AVOIDED).without(without, "kept for others")
    full = [
        name for position, name in enumerate(tree.index.names) if supply.whole[position] and not supply.slots[position]
    ]
    return _Tally(
        needed=request.nodes,
        demand=demand,
        domains={node: tree.domain(node, depth) for node in full},
        room={node: dict(room.free(node)) for node in full},
        free={tree.index.domains[n].path: supply.free_in[n] for n in tree.index.at_depth[depth] if supply.free_in[n]},
    )


def _fewest(tally: _Tally, allowed: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """The first of the smallest sets that help, in the order of preference. `allowed` together do, and have been added.

    What helps, helps some domain, and for that nobody counts who holds nothing there: so each domain is searched by itself.
    """
    preference = {c.uid: n for n, c in enumerate(allowed)}
    holders = {
        domain: [c for c in allowed if tally.touched(c, domain)] for domain in tally.free if tally.lacks(domain) <= 0
    }
    for candidate in allowed:
        tally.remove(candidate)
    tally.work = 0
    found: list[tuple[Candidate, ...]] = []
    for size in range(1, min(MAX_EXACT, len(allowed)) + 1):
        for domain, among in holders.items():
            some = _first(tally, domain, among, size)
            if some is not None:
                found.append(some)
        if tally.work > MAX_WORK:
            break
        if found:
            return min(found, key=lambda some: [preference[c.uid] for c in some])
    found += [_pruned(tally, among) for among in holders.values()]
    return min(found, key=lambda some: (len(some), [preference[c.uid] for c in some]))


def _first(tally: _Tally, domain: Path, among: Sequence[Candidate], size: int) -> tuple[Candidate, ...] | None:
    """The first set of so many, in the order given, that makes room in a domain; None where there is none, or the work is
    spent. A branch is left where even the largest of those that follow would not be enough."""
    most = [tally.touched(c, domain) for c in among]
    for n in range(len(most) - 2, -1, -1):
        most[n] = max(most[n], most[n + 1])

    def search(start: int, size: int) -> tuple[Candidate, ...] | None:
        lacking = tally.lacks(domain)
        if lacking <= 0:
            return ()
        for n in range(start, len(among) - size + 1):
            if size == 0 or lacking > size * most[n] or tally.work > MAX_WORK:
                return None
            tally.add(among[n])
            rest = search(n + 1, size - 1)
            tally.remove(among[n])
            if rest is not None:
                return (among[n], *rest)
        return None

    return search(0, size)


def _pruned(tally: _Tally, holders: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Who is left when all stay who can. Asked first: the highest priority; the small, so that few large ones are left rather
    than many small; the least preferred."""
    preference = {c.uid: n for n, c in enumerate(holders)}
    for candidate in holders:
        tally.add(candidate)
    leaving = list(holders)
    for candidate in sorted(holders, key=lambda c: (-c.priority, tally.touched(c), -preference[c.uid])):
        tally.remove(candidate)
        if tally.suffices():
            leaving.remove(candidate)
        else:
            tally.add(candidate)
    for candidate in leaving:
        tally.remove(candidate)
    return tuple(leaving)
