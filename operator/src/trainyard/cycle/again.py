"""The next attempt in the place of the last one: who survived keeps node and rank, what was lost is replaced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from trainyard.api.training_job import Former
from trainyard.cycle.candidates import accelerators
from trainyard.cycle.outlook import site_of
from trainyard.cycle.parties import Parties, Seeker
from trainyard.cycle.plans import KEPT, find
from trainyard.cycle.quality import bounded
from trainyard.cycle.room import Room
from trainyard.planner.parallelism import estimate, model_of_job
from trainyard.planner.place import Placement
from trainyard.planner.repair import Kind, Repair, repair
from trainyard.planner.repair_cost import Terms
from trainyard.planner.traffic import Mesh
from trainyard.world.supply import Supply


@dataclass(frozen=True, slots=True)
class Again:
    """Where an attempt goes on. said: what became of the last one's nodes."""

    placement: Placement
    said: str


def again(seeker: Seeker, parties: Parties, room: Room) -> Again | None:
    """The last attempt's place, repaired; None where there is none to go on from, or it is no good any more.

    Whatever ended it, a node that would not take a member now, or has no room for one, is lost as well.
    """
    former = _former(seeker)
    if former is None:
        return None
    view = room.soon.fork()
    supply = view.supply(seeker.request.demand)
    gone = _gone(seeker, former, supply)
    left = [node for node in former.nodes if node not in gone]
    view.take(left, seeker.request.requests)
    usable = supply.without(seeker.kept, KEPT) if seeker.kept else supply.copy()
    # Where members share nodes, one that has some may have the fewer more.
    for node, members in Counter(left).items():
        position = usable.index.position[node]
        usable.put(position, max(0, min(usable.slots[position], seeker.request.per_node - members)))
    spares = [spare for spare in _spares(seeker) if spare not in gone and spare not in seeker.kept]
    # As it was, so that ranks can be kept; one that ran smaller than it wants asked for all before.
    request = replace(seeker.request, nodes=max(len(former.nodes), seeker.request.at_least))
    outlook = parties.view.outlook(seeker.doubtful)
    found = repair(usable, request, former.nodes, gone, spares, _terms(seeker, parties, former), outlook)
    if not isinstance(found, Repair) or not _within(seeker, found.placement):
        return None
    held = _held_ready(usable, found.placement.nodes, spares, seeker.request.spares)
    placed = replace(found.placement, spares=tuple(held))
    if found.kind is not Kind.MOVE:
        placed = bounded(placed, find(seeker, seeker.kept, parties, room, soon=True))
    return Again(placed, _said(former.nodes, found))


def _terms(seeker: Seeker, parties: Parties, former: Former) -> Terms:
    """What a repair is weighed with: predicted steps, where the model is known."""
    spec, plan, view = seeker.job.spec, seeker.job.status.plan, parties.view
    assert spec is not None
    held = len(former.nodes) * accelerators(spec)
    site = site_of(view.world, view.tree, seeker.job, former.nodes)
    before = Mesh(**plan.mesh) if plan is not None and plan.mesh else None

    def pace(nodes: Sequence[str]) -> float:
        there = replace(site, nodes=tuple(nodes))
        mesh = before if before is not None and before.world == there.world else None
        found = estimate(spec, there, mesh=mesh)
        return found.prediction.step(found.compute_seconds or 0.0).seconds

    model = model_of_job(spec)
    known = model is not None and site.accelerator is not None and len(former.nodes) > 1
    return Terms(accelerators=held, pace=pace if known else None)


def _former(seeker: Seeker) -> Former | None:
    status = seeker.job.status
    former = status.former
    if former is None or former.attempt != status.attempt:
        return None
    return former if seeker.fewest <= len(former.nodes) <= seeker.request.nodes else None


def _spares(seeker: Seeker) -> tuple[str, ...]:
    plan = seeker.job.status.plan
    return plan.spares if plan is not None else ()


def _gone(seeker: Seeker, former: Former, supply: Supply) -> set[str]:
    """The nodes of the last attempt, and its spares, that cannot be used any more; "" for one that nobody knows."""
    gone = {*former.lost, ""}
    members = Counter(former.nodes)
    for node in (*members, *_spares(seeker)):
        position = supply.index.position.get(node)
        wanted = members.get(node, 1)
        barred = node in seeker.kept or node in seeker.request.avoid
        if barred or position is None or supply.slots[position] < wanted:
            gone.add(node)
    return gone


def _within(seeker: Seeker, placement: Placement) -> bool:
    """Whether the place keeps what is required now; the labels, or the specification, may be others than they were."""
    request = seeker.request
    return not request.required or request.level is None or placement.spans.get(request.level) == 1


def _held_ready(supply: Supply, nodes: Sequence[str], spares: Collection[str], wanted: int) -> Iterator[str]:
    """So many spares: those that were not used, then free nodes of the domain that the gang shares, the nearest to it first."""
    taken = {*nodes}
    held = [spare for spare in spares if spare not in taken][:wanted]
    yield from held
    taken.update(held)
    index = supply.index
    positions = sorted({index.position[node] for node in nodes if node in index.position})
    if not positions or len(held) >= wanted:
        return
    ours = {index.innermost[position] for position in positions}
    around = next(index.domains[n] for n in index.around(positions[0]) if positions[-1] < index.domains[n].end)
    free = [p for p in range(around.first, around.end) if supply.slots[p] and index.names[p] not in taken]
    free.sort(key=lambda position: (index.innermost[position] not in ours, position))
    yield from (index.names[position] for position in free[: wanted - len(held)])


def _said(before: Sequence[str], found: Repair) -> str:
    nodes = found.placement.nodes
    match found.kind:
        case Kind.NONE:
            return "on the nodes of the last attempt"
        case Kind.SHRINK:
            return f"on what is left of the last attempt's nodes, without ranks {_some(map(str, found.dropped))}"
        case Kind.MOVE:
            return "on other nodes than the last attempt's"
        case _:
            swapped = _some(f"{before[rank] or 'a node that is gone'} by {nodes[rank]}" for rank in found.moved)
            return f"{len(nodes) - len(found.moved)} ranks keep their nodes; replaced: {swapped}"


def _some(words: Iterable[str]) -> str:
    every = list(words)
    return ", ".join(every) if len(every) <= 8 else f"{', '.join(every[:4])} and {len(every) - 4} more"
