"""What others could leave to a waiting gang: they yield, they end, their nodes become free or are kept for older jobs no more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from trainyard.api.model import rfc3339
from trainyard.api.prose import count, length
from trainyard.contract.natural import natural
from trainyard.planner.advice.suppose import Supposition
from trainyard.planner.advice.ways import HOUR, MOST_OF_A_KIND, Case, Kind, Trials, Way, accelerators, name_of, short
from trainyard.planner.forecast import earliest
from trainyard.planner.place import required_depth
from trainyard.planner.preempt import Candidate, Preemption, preempt


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
        if at is None or base.reasons[at] is not None or at in trials.base.barred:
            continue
        more = trials.case.room.slots_with(trials.base.demand, node, amounts) - base.slots[at]
        around = next(n for n in base.index.around(at) if domains[n].depth == depth)
        gained[around] = gained.get(around, 0) + more
    return any(base.free_in[number] + more >= trials.case.request.nodes for number, more in gained.items() if more)


def _giving_way(trials: Trials, some: Sequence[Candidate]) -> Way | None:
    """Those of some jobs that would have to give way, whatever their priorities."""
    case = trials.case
    above = max((c.priority for c in some), default=0) + 1
    found = preempt(case.room, case.request, above, some, case.without.keys(), case.outlook)
    if found is None:
        return None
    supposed = trials.base.fork()
    supposed.give(found.freed)
    return _said(case, found) if trials.plan(supposed) is not None else None


def _said(case: Case, found: Preemption) -> Way:
    ordered = sorted(case.candidates, key=lambda c: natural(c.key))
    whole = [c for c in ordered if c.uid in found.victims]
    part = [c for c in ordered if c.uid in found.shrink]
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
    found = earliest(case.room, case.request, case.ends, case.now, case.without.keys(), case.outlook)
    if found is not None:
        when = f"in {length(found.time - case.now)}, at {rfc3339(round(found.time))}"
        text = f"{when}, enough of the running jobs have reached their spec.maxRuntime"
        yield Way(Kind.WAIT, (found.time - case.now) * case.size, text, time=found.time)


def free(trials: Trials) -> Iterator[Way]:
    """The fewest nodes of one domain that somebody would have to leave, those with least on them."""
    case, supply = trials.case, trials.base.supply
    depth = required_depth(case.room.inventory.tree, case.request)
    if depth is None:
        return
    needed = case.request.nodes
    could = [
        (needed - kind.free_in[n], n, kind)
        for kind in trials.kinds()
        for n in supply.index.at_depth[depth]
        if kind.whole_in[n] >= needed
    ]
    for short_of, number, kind in sorted(could, key=lambda one: one[:2])[:MOST_OF_A_KIND]:
        domain = supply.index.domains[number]
        inside = (p for p in range(domain.first, domain.end) if p not in trials.base.barred)
        taken = {p: _in_use(case, p) for p in inside if kind.whole[p] > kind.slots[p]}
        chosen, lacking = list[int](), short_of
        for position in sorted(taken, key=lambda p: (kind.slots[p] - kind.whole[p], taken[p], p)):
            if lacking <= 0:
                break
            chosen.append(position)
            lacking -= kind.whole[position] - kind.slots[position]
        supposed = trials.base.fork()
        supposed.empty(chosen)
        if lacking > 0 or trials.plan(supposed) is None:
            continue
        names = tuple(supply.index.names[position] for position in sorted(chosen))
        where = name_of(trials, number)
        has = f"{kind.free_in[number]} of {kind.whole_in[number]} are free now"
        text = f"{count(len(chosen), 'more free node')} in {where}, where {has}: for example {short(names)}{_users(case, names)}"
        yield Way(Kind.FREE, sum(taken[p] for p in chosen) * HOUR, text, nodes=names)
        return


def _users(case: Case, nodes: Sequence[str]) -> str:
    """Who is on these nodes, to end a sentence with; "" where it is nobody that could be asked."""
    jobs = sorted({c.key for c in case.candidates if any(node in c.usage for node in nodes)}, key=natural)
    return f", which {short(jobs)} {'uses' if len(jobs) == 1 else 'use'}" if jobs else ""


def _in_use(case: Case, position: int) -> int:
    """Accelerators that others use on a node; 1 where they use none, but something else."""
    name = case.room.inventory.tree.index.names[position]
    has, left = case.room.inventory.nodes[name].allocatable, case.room.free(name)
    return accelerators({resource: amount - left.get(resource, 0) for resource, amount in has.items()})


def kept(trials: Trials) -> Iterator[Way]:
    """The older jobs for which nodes are kept start elsewhere, or are no more."""
    case = trials.case
    if case.without and trials.plan(Supposition(case.room, case.request, (), case.outlook)) is not None:
        jobs = tuple(sorted(set(case.without.values())))
        verb = "starts or is deleted" if len(jobs) == 1 else "start or are deleted"
        are = "is" if len(case.without) == 1 else "are"
        text = f"{short(jobs)} {verb}, for which {count(len(case.without), 'node')} {are} kept"
        yield Way(Kind.KEPT, HOUR * case.size, text, jobs=jobs)
