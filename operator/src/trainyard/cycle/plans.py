"""What the planner says to a job that wants nodes; equals are told the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trainyard.cycle.parties import Parties, Seeker
from trainyard.cycle.room import Kept, Room
from trainyard.planner.advice.ways import Case
from trainyard.planner.explain import hints
from trainyard.planner.forecast import Start, earliest
from trainyard.planner.outlook import Outlook
from trainyard.planner.parallelism import traffic_of
from trainyard.planner.place import AVOIDED, Placement, Shortfall, place, required_depth
from trainyard.planner.preempt import Candidate, Preemption, preempt
from trainyard.world.room import Room as View
from trainyard.world.supply import Supply

KEPT: Final = "kept for others"
"""Why a node that somebody else is gathering is not eligible."""


def find(seeker: Seeker, kept: Kept, parties: Parties, room: Room, soon: bool = False) -> Placement | Shortfall:
    """All nodes that the seeker asks for. kept: nodes that it may not have."""
    question = (soon, room.version, parties.memory.wish(seeker.request), kept.number, seeker.doubtful)
    outlook = parties.view.outlook
    return parties.memory.recall(
        question, lambda: place(_supply(seeker, kept, room, soon), seeker.request, outlook(seeker.doubtful))
    )


def find_fewer(seeker: Seeker, kept: Kept, parties: Parties, room: Room, soon: bool = False) -> Placement | None:
    """As many nodes as there are for a job that may run smaller; None where that is fewer than it needs."""
    if seeker.fewest >= seeker.request.nodes:
        return None
    question = ("fewer", soon, room.version, parties.memory.wish(seeker.request), kept.number, seeker.fewest)
    outlook = parties.view.outlook
    return parties.memory.recall(question, lambda: _largest(_supply(seeker, kept, room, soon), seeker, outlook()))


def _supply(seeker: Seeker, kept: Kept, room: Room, soon: bool) -> Supply:
    supply = (room.soon if soon else room.now).supply(seeker.request.demand)
    return supply.without(kept) if kept else supply


def _largest(supply: Supply, seeker: Seeker, outlook: Outlook) -> Placement | None:
    """The largest gang between the fewest and one less than all that has a place.

    Of the room of a domain all can be had, so the roomiest domain says how many; where parts of the gang must stay together
    that may be too many, and the rest is halved.
    """
    request = seeker.request
    depth = required_depth(supply.tree, request)
    if depth is None:
        return None
    open_to_it = supply.without(request.avoid, AVOIDED) if request.avoid else supply
    most = max(open_to_it.free_in[number] for number in supply.index.at_depth[depth])
    assert seeker.job.spec is not None
    low, high = seeker.fewest, min(most, request.nodes - 1)
    found: Placement | None = None
    size = high
    while low <= high:
        tried = place(supply, replace(request, nodes=size, traffic=traffic_of(seeker.job.spec, size)), outlook)
        if isinstance(tried, Placement):
            found, low = tried, size + 1
        else:
            high = size - 1
        size = (low + high + 1) // 2
    return found


def make_way(seeker: Seeker, kept: Kept, parties: Parties, room: Room) -> Preemption | None:
    """Who of lower priority must leave for the seeker."""
    staying = [candidate for candidate in parties.candidates if candidate.uid not in parties.claimed]
    question = ("preempt", room.version, parties.memory.wish(seeker.request), kept.number, seeker.priority)
    outlook = parties.view.outlook
    return parties.memory.recall(
        question, lambda: preempt(room.soon, seeker.request, seeker.priority, staying, frozenset(kept), outlook())
    )


def gathered(seeker: Seeker, parties: Parties, room: Room) -> Placement | Shortfall:
    """What the seeker would have if all had left whom it may ask to leave.

    What they use of it is on loan: kept from its equals only once they are gone, it would be taken by one of them that makes
    them leave, lost again to the seeker that came first, and given back to them, for ever.
    """
    if not seeker.preempts:
        return find(seeker, seeker.kept, parties, room)

    def cleared() -> View:
        view = room.soon.fork()
        for candidate in _below(seeker, parties):
            view.give(candidate.usage)
        return view

    wish, kept = parties.memory.wish(seeker.request), seeker.kept
    question = ("gathered", room.version, wish, kept.number, seeker.priority, seeker.doubtful)

    def ask() -> Placement | Shortfall:
        view = parties.memory.recall(("cleared", room.version, seeker.priority), cleared)
        supply = view.supply(seeker.request.demand)
        outlook = parties.view.outlook(seeker.doubtful)
        return place(supply.without(kept) if kept else supply, seeker.request, outlook)

    return parties.memory.recall(question, ask)


def _below(seeker: Seeker, parties: Parties) -> list[Candidate]:
    """Whom the seeker may ask to leave, and nobody has in this cycle."""
    return [one for one in parties.candidates if one.priority < seeker.priority and one.uid not in parties.claimed]


def expect(seeker: Seeker, kept: Kept, parties: Parties, room: Room, now: float) -> Start | None:
    """When the seeker can start at the latest, and where; None where nobody can say, or enough was said in this cycle.

    Whoever holds nodes leaves when it has run as long as it may. Those of lower priority are in nobody's way: they can be asked
    to leave at any time.
    """
    lower = [(now, candidate.usage) for candidate in _below(seeker, parties)] if seeker.preempts else []
    wish = parties.memory.wish(seeker.request)
    barred = room.reserved_for_others(seeker.job.key)
    question = ("expect", room.version, wish, kept.number, seeker.priority, seeker.preempts, barred)

    def ask() -> Start | None:
        if not parties.forecasts.spend():
            return None
        return earliest(
            room.soon, seeker.request, [*lower, *parties.ends], now, barred.union(kept), parties.view.later()
        )

    return parties.memory.recall(question, ask)


def hint(seeker: Seeker, parties: Parties, room: Room, now: float) -> tuple[str, ...]:
    """What would let the seeker start, each a sentence and verified by planning; () where enough was said in this cycle."""
    kept = seeker.kept
    question = ("hint", room.version, parties.memory.wish(seeker.request), kept.number, seeker.priority, seeker.fewest)

    def ask() -> tuple[str, ...]:
        if not parties.hints.spend():
            return ()
        case = Case(
            room=room.soon,
            request=seeker.request,
            priority=seeker.priority,
            candidates=parties.candidates,
            without={node: keep.key for node, keep in kept.items()},
            ends=parties.ends,
            now=now,
            outlook=parties.view.outlook(seeker.doubtful),
        )
        return hints(case)

    return parties.memory.recall(question, ask)
