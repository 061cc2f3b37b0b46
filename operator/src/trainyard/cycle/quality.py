"""How good a plan is, in the numbers that the status shows."""

from __future__ import annotations

from dataclasses import replace

from trainyard.api.training_job import PlanQuality
from trainyard.planner.place import Placement, Shortfall


def quality_of(placement: Placement) -> PlanQuality | None:
    """What is known of a placement; None where nobody weighed it."""
    members = placement.cost.members
    if not members:
        return None
    return PlanQuality(
        summary=placement.quality,
        cost=_per_gigabyte(placement.cost.total, members),
        lower_bound=_per_gigabyte(placement.bound, members),
        worked=placement.worked,
        spent=placement.spent,
    )


def bounded(placement: Placement, free: Placement | Shortfall) -> Placement:
    """A placement that was not searched for, with the bound of one that was: the same nodes were free to it.

    free: what a search finds for the gang with the room of its survivors; it bounds nothing where the gang has another size.
    """
    if not isinstance(free, Placement) or len(free.nodes) != len(placement.nodes):
        return placement
    return replace(placement, bound=min(placement.cost.total, max(placement.bound, free.bound)))


def _per_gigabyte(member_seconds_per_byte: float, members: int) -> float:
    """In seconds, to five digits: people read it."""
    return float(f"{member_seconds_per_byte * 1e9 / members:.5g}")
