"""What the planner says to a job that wants nodes; equals are told the same."""

from __future__ import annotations

from trainyard.cycle.parties import Parties, Seeker
from trainyard.cycle.room import Room
from trainyard.planner.place import Placement, Shortfall, place
from trainyard.planner.preempt import Preemption, preempt


def find(
    seeker: Seeker, kept: frozenset[str], parties: Parties, room: Room, soon: bool = False
) -> Placement | Shortfall:
    """Ask the planner, unless an equal was told the same. kept: nodes that the seeker may not have."""
    view = room.soon if soon else room.now
    question = ("soon" if soon else "now", room.version, parties.memory.wish(seeker.request), kept)

    def ask() -> Placement | Shortfall:
        supply = view.supply(seeker.request.demand)
        return place(supply.without(kept, "kept for others") if kept else supply, seeker.request)

    return parties.memory.recall(question, ask)


def make_way(seeker: Seeker, kept: frozenset[str], parties: Parties, room: Room) -> Preemption | None:
    """Ask the planner who of lower priority must leave for the seeker."""
    staying = [candidate for candidate in parties.candidates if candidate.uid not in parties.claimed]
    wish = parties.memory.wish(seeker.request)
    return parties.memory.recall(
        ("preempt", room.version, wish, kept, seeker.priority),
        lambda: preempt(room.soon, seeker.request, seeker.priority, staying, kept),
    )
