"""One function for each figure of the planner's speed.

A plan is what the operator does for one: take in what changed, count what is free for the gang's kind of member, choose nodes
and ranks. `cold` starts from records and nothing else; `warm` from an inventory that holds the world before the event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import log
from statistics import fmean, median
from time import perf_counter
from typing import Final

from trainyard.contract.natural import natural
from trainyard.planner import explain, predict
from trainyard.planner.advice.ways import Case, Pace
from trainyard.planner.links import Links, links_of
from trainyard.planner.place import Placement, Shortfall, place
from trainyard.planner.preempt import Preemption, preempt
from trainyard.planner.repair import Kind, Repair, repair
from trainyard.planner.request import Request
from trainyard.topology import tree
from trainyard.world.inventory import Inventory
from trainyard.world.records import World
from trainyard.world.room import Room

from benchmarks import scenes
from benchmarks.clusters import NVL_MEMBER, NVL_NODES, fat_tree, nvl72, occupied, world
from benchmarks.figures import Figure
from benchmarks.memory import world_bytes
from benchmarks.scenes import Scale, gang
from benchmarks.timing import Timing, settled, timed

SEED: Final = 20260
GROWTH: Final = (1_000, 2_000, 5_000, 10_000, 20_000)


def plan(inventory: Inventory, request: Request) -> Placement | Shortfall:
    """Count and choose on what an inventory holds."""
    return place(Room(inventory).supply(request.demand), request)


def planned(found: Placement | Shortfall, request: Request) -> None:
    """Raise unless all of the gang has a place."""
    if not isinstance(found, Placement) or len(set(found.nodes)) != request.nodes:
        raise AssertionError(f"no plan for {request.nodes} nodes: {found}")


def cold(nodes: int, members: int, runs: int) -> Timing:
    """A gang on a fat tree of which half is taken, from records to ranks."""
    request = gang(members)

    def run(given: World) -> None:
        planned(plan(Inventory.of(given), request), request)

    def prepare(number: int) -> World:
        natural.cache_clear()  # as in a process that never saw these names
        return scenes.half_taken(nodes, SEED + number)

    return timed(prepare, run, runs)


def warm(before: World, request: Request, runs: int) -> dict[str, Timing]:
    """The same on an inventory that is kept, by kind of event. A node that joins or leaves changes the tree itself and is
    rarer than the others; it is told beside them."""
    inventory = Inventory.of(before)
    planned(plan(inventory, request), request)
    latest = [before]
    timings = {}

    def run(given: World) -> None:
        inventory.refresh(given)
        planned(plan(inventory, request), request)

    events = (scenes.pod_appears, scenes.node_not_ready, scenes.node_relabelled, scenes.node_leaves)
    with settled():
        for event in events:

            def prepare(number: int, event: Callable[[World, int, int], World] = event) -> World:
                latest[0] = event(latest[0], number, SEED)
                return latest[0]

            timings[event.__name__] = timed(prepare, run, runs)
    return timings


def plan_cold(scale: Scale) -> Figure:
    timing = cold(scale.of(10_000), scale.of(1024), scale.runs)
    against = "KAI: 48.7 s for 512 pods"
    return Figure("plan_cold_seconds", timing.median, "s", 1.0, against=against, details=timing.details)


def plan_event(scale: Scale) -> Figure:
    members = scale.of(1024)
    timings = warm(scenes.half_taken(scale.of(10_000), SEED), gang(members), scale.runs)
    figure = _slowest_event("plan_event_seconds", timings, 0.04, "")
    racks = occupied(nvl72(scale.of(10_000) // NVL_NODES), 0.5, SEED)
    beside = warm(racks, replace(gang(members), requests=NVL_MEMBER), scale.runs)
    figure.details["beside"]["nvl72 racks"] = beside[scenes.pod_appears.__name__].median
    return figure


def plan_512(scale: Scale) -> Figure:
    timings = warm(scenes.half_taken(scale.of(5_000), SEED), gang(scale.of(512)), scale.runs)
    against = "Kueue 0.19.2: 0.15 s from POST to admitted; native gangs: 6 to 18 s to all bound"
    return _slowest_event("plan_512_seconds", timings, 0.02, against)


def verdict(scale: Scale) -> Figure:
    """A gang that asks for more of one spine than any has free."""
    nodes = scenes.flawed(fat_tree(scale.of(10_000)), SEED)
    request = gang(min(len(nodes), 500) * 4 // 5, "spine", required=True)
    latest = [scenes.tenanted(nodes, scenes.holdings(nodes[::2], scale.of(1_600), SEED, scattered=True))]
    inventory = Inventory.of(latest[0])

    def prepare(number: int) -> World:
        latest[0] = scenes.pod_appears(latest[0], number, SEED)
        return latest[0]

    def run(given: World) -> None:
        inventory.refresh(given)
        supply = Room(inventory).supply(request.demand)
        found = place(supply, request)
        if not isinstance(found, Shortfall) or not explain.verdict(supply, request).excluded:
            raise AssertionError(f"the gang was not to fit: {found}")

    with settled():
        timing = timed(prepare, run, scale.runs)
    against = "Kueue: 0.16 s at 5,000 nodes, without domains; KAI: 249.5 s"
    return Figure("verdict_seconds", timing.median, "s", 0.1, against=against, details=timing.details)


def why(scale: Scale) -> Figure:
    """The same with everything that would let it start, each tried."""
    nodes = scenes.flawed(fat_tree(scale.of(10_000)), SEED)
    held = scenes.holdings(nodes[::2], scale.of(1_600), SEED, scattered=True)
    inventory = Inventory.of(scenes.tenanted(nodes, held))
    request = gang(min(len(nodes), 500) * 4 // 5, "spine", required=True)
    links = links_of(None, inventory.tree.levels)
    ways: list[int] = []

    def run(case: Case) -> None:
        found = explain.explain(case)
        ways.append(len(found.ways))
        if not found.ways:
            raise AssertionError("nothing would help, though the gang fits the empty cluster")

    def prepare(number: int) -> Case:
        return Case(
            room=Room(inventory),
            request=request,
            priority=5 + number,
            candidates=[holding.candidate for holding in held],
            ends=[(600.0 * n, holding.candidate.usage) for n, holding in enumerate(held) if n % 2],
            pace=_pace(links, inventory.tree),
        )

    with settled():
        timing = timed(prepare, run, scale.runs)
    return Figure("why_seconds", timing.median, "s", 1.0, details={**timing.details, "ways": ways[-1]})


def _pace(links: Links, of: tree.Tree) -> Pace:
    """Of a gang's all-reduce alone."""
    return Pace(lambda nodes: sum(predict.Predictor(links, of, nodes).step().seconds.values()), alone=True)


def preemption(scale: Scale) -> Figure:
    """A full cluster, whose jobs are neighbours or scattered, and a gang that takes what is freed anywhere or in one spine."""
    nodes = fat_tree(scale.of(2_000), leaves=25, spines=2)
    members = scale.of(250)
    timings, victims = {}, {}
    for scattered in (False, True):
        held = scenes.holdings(nodes, scale.of(700), SEED, scattered)
        candidates = [holding.candidate for holding in held]
        inventory = Inventory.of(scenes.tenanted(nodes, held))
        for level in (None, "spine"):
            request = gang(members, level, required=level is not None)
            case = f"{'scattered' if scattered else 'neighbours'}, {level or 'anywhere'}"

            def run(room: Room, request: Request = request, case: str = case) -> None:
                found = preempt(room, request, 100, candidates)  # noqa: B023  run before the next round
                if not isinstance(found, Preemption):
                    raise AssertionError("nobody to give way, though all are of lower priority")
                planned(found.placement, request)
                victims[case] = len(found.victims) + len(found.shrink)

            def prepare(_: int, inventory: Inventory = inventory) -> Room:
                return Room(inventory)

            with settled():
                timings[case] = timed(prepare, run, max(3, scale.runs // 2))
    figure = _slowest("preempt_seconds", timings, 1.0, "Kueue: 40 s cycles reported; KAI: 102 s")
    figure.details["victims"] = victims
    return figure


def repairing(scale: Scale) -> Figure:
    """A gang of a tenth of the cluster loses a node, in a leaf that has another one free; and, told beside, in one that has
    none."""
    request = gang(scale.of(1024))
    before = scenes.half_taken(scale.of(10_000), SEED)
    nodes = plan(Inventory.of(before), request)
    planned(nodes, request)
    assert isinstance(nodes, Placement)
    before = scenes.started(before, nodes.nodes)
    index = Inventory.of(before).tree.index
    leaf = {name: index.innermost[position] for name, position in index.position.items()}
    first = nodes.nodes[0]
    before = scenes.pod_ends(before, lambda node: leaf[node] == leaf[first])  # best fit took all that was free there
    inventory = Inventory.of(before)
    free_in = inventory.supply(request.demand).free_in
    lost = {
        "free node in the leaf": first,
        "leaf is full": next((node for node in nodes.nodes if not free_in[leaf[node]]), first),
    }
    timings = {}
    for case, node in lost.items():

        def prepare(_: int, node: str = node) -> World:
            inventory.refresh(before)
            return World(nodes={**before.nodes, node: replace(before.nodes[node], ready=False)}, pods=before.pods)

        def run(given: World, node: str = node, at_home: bool = node == first) -> None:
            inventory.refresh(given)
            found = repair(Room(inventory).supply(request.demand), request, nodes.nodes, [node])
            if not isinstance(found, Repair) or node in found.placement.nodes:
                raise AssertionError(f"no repair: {found}")
            if at_home and (found.kind is not Kind.REPLACE or len(found.moved) != 1):
                raise AssertionError(f"not one node for another in its leaf: {found.kind}")

        with settled():
            timings[case] = timed(prepare, run, scale.runs)
    replaced, full = timings.values()
    against = "Kueue: 1.1 s after the Node object is gone, 306 s after Ready=False by default"
    details = {**replaced.details, "leaf is full": full.median}
    return Figure("repair_seconds", replaced.median, "s", 0.02, against=against, details=details)


def stream(nodes: int, name: str, bar: float, against: str) -> Figure:
    """8-node gangs, one after another until the cluster is full; each is planned on what the informers say of those before."""
    inventory = Inventory()
    now = world(fat_tree(nodes))
    inventory.refresh(now)
    request = gang(8)
    seconds: list[float] = []
    with settled():
        while (len(seconds) + 1) * 8 <= nodes:
            begun = perf_counter()
            inventory.refresh(now)
            found = plan(inventory, request)
            seconds.append(perf_counter() - begun)
            planned(found, request)
            assert isinstance(found, Placement)
            now = scenes.started(now, found.nodes, f"gang-{len(seconds)}")
    details = {"plans": len(seconds), "median_ms": 1e3 * median(seconds), "most_ms": 1e3 * max(seconds)}
    return Figure(name, len(seconds) / sum(seconds), "1/s", bar, most=False, against=against, details=details)


def stream_640(scale: Scale) -> Figure:
    against = "Kueue: 25.7 ms a successful attempt, so 39/s at best; 11.3/s end to end on two cores"
    return stream(scale.of(640, least=16), "stream_plans_per_second", 200, against)


def stream_5000(scale: Scale) -> Figure:
    against = "Kueue: 129 ms an attempt, so 7.8/s"
    return stream(scale.of(5_000, least=16), "stream_5000_plans_per_second", 150, against)


def memory(scale: Scale) -> Figure:
    return Figure("world_bytes", world_bytes(scale.of(10_000), scale.of(20_000)), "byte", 250e6)


def growth(scale: Scale) -> Figure:
    """The slope of the cold plan's processor time over the nodes, both as logarithms, by least squares; gangs grow with the
    cluster."""
    timings = {
        nodes: cold(nodes, nodes * 1024 // 10_000, max(3, scale.runs // 2)).cpu for nodes in map(scale.of, GROWTH)
    }
    details = {"cpu_seconds": timings}
    return Figure("growth_exponent", slope(timings), "", 1.1, details=details)


def slope(values: Mapping[int, float]) -> float:
    """Of log(value) over log(size), by least squares."""
    x, y = [log(size) for size in values], [log(value) for value in values.values()]
    mean_x, mean_y = fmean(x), fmean(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)


def _slowest_event(name: str, timings: dict[str, Timing], bar: float, against: str) -> Figure:
    """Of the kinds of events that leave the tree as it is."""
    rarer = timings.pop(scenes.node_leaves.__name__)
    figure = _slowest(name, timings, bar, against)
    figure.details["beside"] = {scenes.node_leaves.__name__: rarer.median}
    return figure


def _slowest(name: str, timings: Mapping[str, Timing], bar: float, against: str) -> Figure:
    """The figure of the case that takes longest, with the medians of all."""
    slowest = max(timings.values(), key=lambda timing: timing.median)
    details = {**slowest.details, "cases": {case: timing.median for case, timing in timings.items()}}
    return Figure(name, slowest.median, "s", bar, against=against, details=details)


FIGURES: Final[Mapping[str, Callable[[Scale], Figure]]] = {
    "plan_cold_seconds": plan_cold,
    "plan_event_seconds": plan_event,
    "plan_512_seconds": plan_512,
    "verdict_seconds": verdict,
    "why_seconds": why,
    "preempt_seconds": preemption,
    "repair_seconds": repairing,
    "stream_plans_per_second": stream_640,
    "stream_5000_plans_per_second": stream_5000,
    "world_bytes": memory,
    "growth_exponent": growth,
}
