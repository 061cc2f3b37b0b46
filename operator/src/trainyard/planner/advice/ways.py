"""What would let a waiting gang start, cheapest first; nothing is said that was not planned.

Each way is one change: of the job (a broader level, fewer nodes, nodes that it avoids), of others (a job yields, nodes become
free, time passes), of nodes (uncordoned, ready, a taint tolerated). It is tried on a supposition, and offered only if the gang
then has a place. Counts of domains come first and rule out most; plans are counted and bounded, so that the answer comes in time
and does not depend on how busy the machine is.

Costs are accelerator-seconds, so that unlike ways can be compared; what they are made of stands beside each constant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from trainyard.api.template import is_accelerator
from trainyard.planner.advice.suppose import Supposition
from trainyard.planner.forecast import End
from trainyard.planner.outlook import PLAIN, Outlook
from trainyard.planner.place import CLUSTER, Placement
from trainyard.planner.preempt import Candidate
from trainyard.planner.request import Request
from trainyard.world.records import Resources
from trainyard.world.room import Room
from trainyard.world.supply import Supply

MOST_PLANS: Final = 40
"""How many plans are tried for one explanation, all ways together; besides those by which preemption and forecast, with bounds
of their own, find what is then tried."""

MOST_OF_A_KIND: Final = 3
"""How many ways of one kind are offered."""

HOUR: Final = 3600.0
"""For how long a slower run, or nodes taken from others, count: a way to start is compared by what its first hour costs."""

PERSON: Final = 600.0
"""How long the gang waits where somebody has to look after nodes or make the job anew: ten minutes, an assumption."""


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
    LIMIT = "limit"
    """The job's maxRuntime is `time` seconds at most, so that it leaves nodes in time that are kept for others."""
    RELAX = "relax"
    """The job's required level is `within`, a broader one."""
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
    """One change that lets a gang start.

    cost: in accelerator-seconds; text: a sentence. within: the level that is required afterwards, "" for none, None for the same
    as before; with another kind than RELAX it has to be changed as well. The rest: see the kinds.
    """

    kind: Kind
    cost: float
    text: str
    nodes: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    within: str | None = None
    members: int = 0
    time: float = 0.0
    taint: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """A gang that has no place, and all that may bear on it.

    priority: of the gang. candidates: jobs that hold nodes, of any priority. without: nodes that are kept for older jobs, each
    with the key of its job. ends: when those who hold nodes leave at the latest. pace: how fast the gang would be, where that can
    be predicted. outlook: as `place` has it. lent: of the nodes that are kept those that a job with a limit may have, each with
    the longest maxRuntime for that, in seconds.
    """

    room: Room
    request: Request
    priority: int = 0
    candidates: Sequence[Candidate] = ()
    without: Mapping[str, str] = field(default_factory=dict)
    ends: Sequence[End] = ()
    now: float = 0.0
    pace: Pace | None = None
    outlook: Outlook = PLAIN
    lent: Mapping[str, float] = field(default_factory=dict)

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
        self.base = Supposition(case.room, case.request, case.without, case.outlook)

    def kinds(self) -> Sequence[Supply]:
        """What there is, apart for each kind of node that the gang would have to keep to."""
        return of_kinds(self.base.supply, self.case.request)

    def kind_of(self, position: int) -> str:
        """The kind of a node, eligible or not; "" where kinds do not matter."""
        kinds = self.base.supply.kinds
        return kinds[position] if kinds and not self.case.request.mixed else ""

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
    return max(1, sum(amount for name, amount in requests.items() if is_accelerator(name)))


def of_kinds(supply: Supply, request: Request) -> Sequence[Supply]:
    """A supply apart for each kind of node, none of which a gang mixes with another unless it says so."""
    return (supply,) if request.mixed else supply.by_kind()


def name_of(trials: Trials, number: int) -> str:
    """A domain as messages say it: `leaf a/leaf-1`, `the cluster`."""
    tree = trials.case.room.inventory.tree
    domain = tree.index.domains[number]
    return f"{tree.levels[domain.depth - 1].name} {'/'.join(domain.path)}" if domain.depth else f"the {CLUSTER}"


def short(names: Sequence[str]) -> str:
    """A few names, and how many more there are."""
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"
