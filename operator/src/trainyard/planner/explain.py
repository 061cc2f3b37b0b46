"""Why a gang waits, in numbers, and what would let it start.

The verdict is counting: how many nodes would take a member, how many have room, which domain of each level comes closest, what
keeps the others out. It costs one look at each node that is known already. The ways cost a plan each and are bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from trainyard.planner.advice.concede import broader, ever, limit, relax, said, shrink, within
from trainyard.planner.advice.lifts import lifts
from trainyard.planner.advice.suppose import Supposition
from trainyard.planner.advice.vacate import free, give_way, kept, wait
from trainyard.planner.advice.ways import Case, Kind, Trials, Way, of_kinds
from trainyard.planner.place import CLUSTER
from trainyard.planner.request import Request
from trainyard.world.resources import first_lacking
from trainyard.world.supply import Supply


@dataclass(frozen=True, slots=True)
class Best:
    """The domain of a level that comes closest: most room; of equals the largest, then the first in natural order.

    free: members that fit there now; total: that would if it were empty.
    """

    level: str
    domain: str
    free: int
    total: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a gang has no place, in numbers of members, which are nodes as long as a node gets one.

    within: the level that it may not leave, "" for none. eligible: would fit if the eligible nodes were empty; free: fit now.
    ever: whether it would have a place if the eligible nodes were empty. best: for each level its best domain, the narrowest
    level first, the whole cluster last. excluded: why nodes are not eligible, with how many, most first.
    """

    needed: int
    within: str
    eligible: int
    free: int
    ever: bool
    best: tuple[Best, ...]
    excluded: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Explanation:
    """A verdict with what would help.

    lacking: of the eligible nodes without room, which resource they have too little of, with how many nodes, most first.
    kept: by the key of a job how many nodes with room are kept for it, most first.
    ways: each of them starts the gang, cheapest first. plans: how many plans were tried for that; complete: whether there was
    nothing more to try.
    """

    verdict: Verdict
    lacking: Mapping[str, int]
    kept: Mapping[str, int]
    ways: tuple[Way, ...]
    plans: int
    complete: bool


def explain(case: Case) -> Explanation:
    """Why the gang of a case waits, and what would let it start. It is not asked whether it has a place after all."""
    trials = Trials(case)
    supposed = trials.base
    found = [way for kind in _KINDS for way in kind(trials)]
    level = broader(supposed.supply, case.request)
    if level is not None:
        found += _besides(trials, level)
    found.sort(key=_cheapest)
    return Explanation(
        verdict=verdict(supposed.supply, case.request),
        lacking=_lacking(supposed),
        kept=_kept(case),
        ways=tuple(found),
        plans=trials.plans,
        complete=not trials.spent,
    )


def hints(case: Case, most: int = 3) -> tuple[str, ...]:
    """A few of the ways in sentences, cheapest first: those that are found by counting and a plan or two. For the many jobs of a
    queue; who has to yield, and until when one waits, is left to `explain`."""
    trials = Trials(case)
    found = sorted((way for kind in _QUICK for way in kind(trials)), key=_cheapest)
    return tuple(way.text for way in found[:most])


def _cheapest(way: Way) -> tuple[float, int, str]:
    return way.cost, list(Kind).index(way.kind), way.text


_QUICK = (limit, relax, shrink, kept, lifts, free)
_KINDS = (*_QUICK, give_way, wait)
"""Where plans are spent, in this order: what the job's owner can change alone comes first."""


def _besides(trials: Trials, level: str) -> Iterator[Way]:
    """What would start the gang together with the broader level that it needs in any case."""
    relaxed = Trials(replace(trials.case, request=within(trials.case.request, level)))
    relaxed.plans = trials.plans
    if relaxed.plan(relaxed.base) is None:
        for kind in (give_way, free, wait):
            for way in kind(relaxed):
                yield replace(way, within=level, text=f"{said(level)}; then {way.text}")
    trials.plans, trials.spent = relaxed.plans, trials.spent or relaxed.spent


def verdict(supply: Supply, request: Request) -> Verdict:
    """Why a gang has no place on a supply of its demand, from which avoided nodes are out already."""
    kinds = of_kinds(supply, request)
    return Verdict(
        needed=request.nodes,
        within=request.level if request.level is not None and request.required else "",
        eligible=supply.whole_in[0],
        free=supply.free_in[0],
        ever=ever(supply, request),
        best=tuple(_best(kinds, depth) for depth in range(len(supply.index.at_depth) - 1, -1, -1)),
        excluded=supply.excluded(),
    )


def _best(kinds: Sequence[Supply], depth: int) -> Best:
    """Of the nodes of one kind."""
    index = kinds[0].index
    kind, number = max(
        ((kind, number) for kind in kinds for number in index.at_depth[depth]),
        key=lambda one: (one[0].free_in[one[1]], one[0].whole_in[one[1]], -one[1]),
        default=(kinds[0], 0),
    )
    domain = index.domains[number]
    level = kind.tree.levels[depth - 1].name if depth else CLUSTER
    return Best(level, "/".join(domain.path) or CLUSTER, kind.free_in[number], kind.whole_in[number])


def _kept(case: Case) -> Mapping[str, int]:
    supply = case.room.supply(case.request.demand)
    position = supply.index.position
    found = Counter(key for node, key in case.without.items() if node in position and supply.slots[position[node]])
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def _lacking(supposed: Supposition) -> Mapping[str, int]:
    supply, requests = supposed.supply, supposed.request.requests
    found: Counter[str] = Counter()
    for position, name in enumerate(supply.index.names):
        if supply.whole[position] and not supply.slots[position]:
            lacks = first_lacking(requests, supposed.room.free(name))
            if lacks is not None:
                found[lacks] += 1
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))
