"""What would let a waiting gang start, cheapest first; nothing is said that was not planned.

Each way is one change: of the job (a broader level, fewer nodes, nodes that it avoids), of others (a job yields, nodes become
free, time passes), of nodes (uncordoned, ready, a taint tolerated). It is tried on a supposition, and offered only if the gang
then has a place. Counts of domains come first and rule out most; plans are counted and bounded, so that the answer comes in time
and does not depend on how busy the machine is.

Costs are accelerator-seconds, so that unlike ways can be compared; what they are made of stands beside each constant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice
from typing import Final

from trainyard.api.model import rfc3339
from trainyard.api.prose import count
from trainyard.api.template import ACCELERATORS
from trainyard.planner.forecast import End, earliest
from trainyard.planner.place import CLUSTER, Placement, place, required_depth
from trainyard.planner.preempt import Candidate, Preemption, preempt
from trainyard.planner.request import Request
from trainyard.planner.suppose import Supposition
from trainyard.world.records import Resources
from trainyard.world.room import Room
from trainyard.world.supply import supply as a_supply

MOST_PLANS: Final = 40
"""How many plans are tried for one explanation, all ways together."""

MOST_OF_A_KIND: Final = 3
"""How many ways of one kind are offered."""

HOUR: Final = 3600.0
"""For how long a slower run, or nodes taken from others, count: a way to start is compared by what its first hour costs."""

PERSON: Final = 600.0
"""How long the gang waits where somebody has to look after nodes or make the job anew: ten minutes, an assumption."""

UNKNOWN_SLOWDOWN: Final = 1.25
"""How many times the step time a broader level is taken to cost where it cannot be predicted; it orders the ways, and is not
said."""

_ACCELERATOR: Final = re.compile("|".join(f"(?:{name})" for name in ACCELERATORS))


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a gang would be. seconds: predicted, of a step on these nodes in rank order, or of its communication alone where
    nothing is known of what it computes; alone: whether that is so."""

    seconds: Callable[[Sequence[str]], float]
    alone: bool = False


class Kind(StrEnum):
    """What has to change."""

    AVOID = "avoid"
    """The job takes nodes that it avoids: `nodes`."""
    RELAX = "relax"
    """The job's required level is `level`, a broader one; "" for none at all."""
    SHRINK = "shrink"
    """The job runs with `members` members."""
    YIELD = "yield"
    """The jobs of these uids leave: `jobs`; others go on with fewer members, and leave `nodes`."""
    WAIT = "wait"
    """It is `time`, and who was to end until then has."""
    FREE = "free"
    """Nobody is on `nodes` any more."""
    KEPT = "kept"
    """Nodes are no longer kept for older jobs, whose keys are `jobs`."""
    UNCORDON = "uncordon"
    """`nodes` are not cordoned any more."""
    READY = "ready"
    """`nodes` are ready again."""
    TOLERATE = "tolerate"
    """The job tolerates every taint of the key `taint`."""


@dataclass(frozen=True, slots=True)
class Way:
    """One change that lets a gang start. cost: in accelerator-seconds; text: a sentence; the rest: see the kinds."""

    kind: Kind
    cost: float
    text: str
    nodes: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    level: str = ""
    members: int = 0
    time: float = 0.0
    taint: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """A gang that has no place, and all that may bear on it.

    priority: of the gang. candidates: jobs that hold nodes, of any priority. without: nodes that are kept for older jobs, each
    with the key of its job. ends: when those who hold nodes leave at the latest. pace: how fast the gang would be, where that can
    be predicted.
    """

    room: Room
    request: Request
    priority: int = 0
    candidates: Sequence[Candidate] = ()
    without: Mapping[str, str] = field(default_factory=dict)
    ends: Sequence[End] = ()
    now: float = 0.0
    pace: Pace | None = None

    @property
    def accelerators(self) -> int:
        """Of one member; 1 where it asks for none, so that costs still order."""
        return accelerators(self.request.requests)

    @property
    def size(self) -> int:
        """Accelerators of the whole gang."""
        return self.request.nodes * self.accelerators


class Trials:
    """Plans that were tried for one case. plans: how many; spent: whether there would have been more to try."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.plans = 0
        self.spent = False
        self.base = Supposition(case.room, case.request, case.without)

    def plan(self, supposed: Supposition) -> Placement | None:
        """The gang's place on a supposition; None as well where no more is to be tried."""
        if not supposed.roomy():
            return None
        if self.plans >= MOST_PLANS:
            self.spent = True
            return None
        self.plans += 1
        return supposed.plan()

    def otherwise(self, request: Request) -> Supposition:
        """As it is, for a gang that asks for something else of the same nodes."""
        supposed = self.base.fork()
        supposed.request = request
        return supposed


def accelerators(requests: Resources) -> int:
    """How many accelerators a member asks for, at least 1."""
    return max(1, sum(amount for name, amount in requests.items() if _ACCELERATOR.fullmatch(name)))


def relax(trials: Trials) -> Iterator[Way]:
    """The narrowest broader level that has a place; where the level does not exist, the narrowest of those that do."""
    case, tree = trials.case, trials.case.room.inventory.tree
    request = case.request
    if request.level is None or not request.required:
        return
    asked = tree.depth(request.level)
    for depth in range((asked if asked is not None else len(tree.levels) + 1) - 1, -1, -1):
        level = tree.levels[depth - 1].name if depth else ""
        wanted = replace(request, level=level) if depth else replace(request, required=False)
        found = trials.plan(trials.otherwise(wanted))
        if found is None:
            continue
        slower = _slowdown(case, found) if asked is not None else None
        over = (
            f", over {count(found.spans[request.level], f'{request.level} domain')}"
            if request.level in found.spans
            else ""
        )
        most = "at most " if case.pace is not None and case.pace.alone else ""
        predicted = f": {most}{slower:.2f} times the step time, as predicted{over}" if slower is not None else over
        change = f"spec.placement.within.level: {level}" if depth else "spec.placement.within.required: false"
        cost = max(0.0, 1 - 1 / (slower or UNKNOWN_SLOWDOWN)) * HOUR * case.size
        yield Way(Kind.RELAX, cost, change + predicted, level=level)
        return


def shrink(trials: Trials) -> Iterator[Way]:
    """The most members that have a place now."""
    case = trials.case
    depth = required_depth(case.room.inventory.tree, case.request)
    if depth is None:
        return
    supply = trials.base.supply
    most = max((supply.free_in[number] for number in supply.index.at_depth[depth]), default=0)
    for members in range(min(most, case.request.nodes - 1), max(0, most - MOST_OF_A_KIND), -1):
        if trials.plan(trials.otherwise(replace(case.request, nodes=members))) is not None:
            of = case.request.nodes
            text = f"run with {members} of {count(of, 'node')}: spec.minNodes: {members}"
            yield Way(Kind.SHRINK, (1 - members / of) * HOUR * case.size, text, members=members)
            return


def give_way(trials: Trials) -> Iterator[Way]:
    """Single jobs that would make room, those that lose least; where no single one would, the set that costs least.

    Whoever can run with fewer nodes gives up only some, if that costs less.
    """
    case = trials.case
    depth = required_depth(case.room.inventory.tree, case.request)
    if depth is None:
        return
    alone = sorted((c for c in case.candidates if _might(trials, c, depth)), key=lambda c: (_loss(c), c.key))
    singles = (_giving_way(trials, [candidate]) for candidate in alone[: 2 * MOST_OF_A_KIND])
    offered = list(islice(filter(None, singles), MOST_OF_A_KIND))
    together = _giving_way(trials, case.candidates) if not offered else None
    yield from offered or filter(None, [together])


def _might(trials: Trials, candidate: Candidate, depth: int) -> bool:
    """Whether a domain has room for the gang by the counts when this one has left."""
    base, domains = trials.base.supply, trials.base.supply.index.domains
    gained: dict[int, int] = {}
    for node, amounts in candidate.usage.items():
        at = base.index.position.get(node)
        if at is None or base.reasons[at] is not None:
            continue
        more = trials.case.room.slots_with(trials.base.demand, node, amounts) - base.slots[at]
        around = next(n for n in base.index.around(at) if domains[n].depth == depth)
        gained[around] = gained.get(around, 0) + more
    return any(base.free_in[number] + more >= trials.case.request.nodes for number, more in gained.items() if more)


def _giving_way(trials: Trials, some: Sequence[Candidate]) -> Way | None:
    """Those of some jobs that would have to give way, whatever their priorities."""
    case = trials.case
    above = max((c.priority for c in some), default=0) + 1
    found = preempt(case.room, case.request, above, some, case.without.keys())
    if found is None:
        return None
    supposed = trials.base.fork()
    supposed.give(found.freed)
    return _said(case, found) if trials.plan(supposed) is not None else None


def _said(case: Case, found: Preemption) -> Way:
    whole = [c for c in case.candidates if c.uid in found.victims]
    part = [c for c in case.candidates if c.uid in found.shrink]
    says = []
    if whole:
        says.append(f"{short([c.key for c in whole])} {'yields' if len(whole) == 1 else 'yield'}")
    says += [f"{c.key} goes on with {found.shrink[c.uid]} of {count(c.size, 'node')}" for c in part]
    highest = max(c.priority for c in (*whole, *part))
    needs = f"; this job needs a priority above {highest} for that, it has {case.priority}"
    text = f"{' and '.join(says)}, losing {found.cost_gpu_seconds:,.0f} GPU-seconds"
    return Way(
        Kind.YIELD,
        found.cost_gpu_seconds,
        text + (needs if highest >= case.priority else ""),
        nodes=tuple(node for c in part for node in found.vacated[c.uid]),
        jobs=found.victims,
    )


def _loss(candidate: Candidate) -> float:
    """Accelerator-seconds that are lost when it yields."""
    return candidate.loss.leaving(max(candidate.accelerators, candidate.size))


def wait(trials: Trials) -> Iterator[Way]:
    """The first time at which there is a place if those who hold nodes leave at their stated times."""
    case = trials.case
    if not case.ends:
        return
    found = earliest(case.room, case.request, case.ends, case.now, case.without.keys())
    if found is not None:
        text = f"wait until {rfc3339(round(found.time))}: enough of the running jobs have ended by then, as they are limited"
        yield Way(Kind.WAIT, (found.time - case.now) * case.size, text, time=found.time)


def free(trials: Trials) -> Iterator[Way]:
    """The fewest nodes of one domain that somebody would have to leave, those with least on them."""
    case, supply = trials.case, trials.base.supply
    depth = required_depth(case.room.inventory.tree, case.request)
    if depth is None:
        return
    needed = case.request.nodes
    could = [n for n in supply.index.at_depth[depth] if supply.whole_in[n] >= needed]
    for number in sorted(could, key=lambda n: (needed - supply.free_in[n], n))[:MOST_OF_A_KIND]:
        domain = supply.index.domains[number]
        taken = {p: _in_use(case, p) for p in range(domain.first, domain.end) if supply.whole[p] > supply.slots[p]}
        chosen, lacking = list[int](), needed - supply.free_in[number]
        for position in sorted(taken, key=lambda p: (supply.slots[p] - supply.whole[p], taken[p], p)):
            if lacking <= 0:
                break
            chosen.append(position)
            lacking -= supply.whole[position] - supply.slots[position]
        supposed = trials.base.fork()
        supposed.empty(chosen)
        if trials.plan(supposed) is None:
            continue
        names = tuple(supply.index.names[position] for position in sorted(chosen))
        where = name_of(trials, number)
        has = f"{supply.free_in[number]} of {supply.whole_in[number]} are free now"
        text = f"{count(len(chosen), 'more free node')} in {where}, where {has}: for example {short(names)}"
        yield Way(Kind.FREE, sum(taken[p] for p in chosen) * HOUR, text, nodes=names)
        return


def _in_use(case: Case, position: int) -> int:
    """Accelerators that others use on a node; 1 where they use none, but something else."""
    name = case.room.inventory.tree.index.names[position]
    has, left = case.room.inventory.nodes[name].allocatable, case.room.free(name)
    return accelerators({resource: amount - left.get(resource, 0) for resource, amount in has.items()})


def kept(trials: Trials) -> Iterator[Way]:
    """The older jobs for which nodes are kept start elsewhere, or are no more."""
    case = trials.case
    if case.without and trials.plan(Supposition(case.room, case.request)) is not None:
        jobs = tuple(sorted(set(case.without.values())))
        verb = "starts or is deleted" if len(jobs) == 1 else "start or are deleted"
        text = f"{short(jobs)} {verb}, for which {count(len(case.without), 'free node')} are kept"
        yield Way(Kind.KEPT, HOUR * case.size, text, jobs=jobs)


def name_of(trials: Trials, number: int) -> str:
    """A domain as messages say it: `leaf a/leaf-1`, `the cluster`."""
    tree = trials.case.room.inventory.tree
    domain = tree.index.domains[number]
    return f"{tree.levels[domain.depth - 1].name} {'/'.join(domain.path)}" if domain.depth else f"the {CLUSTER}"


def short(names: Sequence[str]) -> str:
    """A few names, and how many more there are."""
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"


def _slowdown(case: Case, found: Placement) -> float | None:
    """The predicted step time of a placement over that of the gang where it wants to be, if all of that were empty."""
    if case.pace is None:
        return None
    seen = case.room.supply(case.request.demand)
    vacant = a_supply(seen.tree, list(seen.whole), list(seen.whole), list(seen.reasons))
    wanted = place(vacant, case.request)
    if not isinstance(wanted, Placement):
        return None
    usual = case.pace.seconds(wanted.nodes)
    return case.pace.seconds(found.nodes) / usual if usual > 0.0 else None
