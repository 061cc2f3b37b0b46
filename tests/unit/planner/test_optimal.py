"""On clusters that are small enough to try every choice, a placement is the best of them, and says so."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st
from support.clusters import MEMBER, a_node
from trainyard.planner.cost import Edges, cost, default_edges, touched
from trainyard.planner.links import Link, Links, Uplink
from trainyard.planner.outlook import Outlook
from trainyard.planner.place import Placement, Shortfall, place
from trainyard.planner.request import Request
from trainyard.topology.tree import Level, build
from trainyard.world.supply import Supply, supply

NAMES = ("core", "spine", "leaf")


@st.composite
def rooms(draw: st.DrawFn, per_node: int = 1, most: int = 11) -> Supply:
    """What is free on up to eleven nodes in a tree of up to three levels."""
    levels = [Level(name, f"net/{name}") for name in NAMES[3 - draw(st.integers(0, 3)) :]]
    domains = st.sampled_from(["1", "2", "3", "10"])
    number = draw(st.integers(1, most))
    nodes = [a_node(f"n{n}", labels={level.label: draw(domains) for level in levels}) for n in range(number)]
    whole = [draw(st.integers(0, per_node)) for _ in nodes]
    slots = [draw(st.integers(0, most_here)) for most_here in whole]
    return supply(build(nodes, levels), slots, whole, [None] * number)


@st.composite
def links(draw: st.DrawFn, levels: tuple[str, ...]) -> Links:
    """Tiers that are oversubscribed more or less, or not at all, or of which nobody has said anything."""
    tiers = [Uplink(None, draw(st.sampled_from([1.0, 1.3, 2.0, 4.0])), 0.0, draw(st.booleans())) for _ in levels]
    return Links(levels, tuple(tiers), Link(50e9, 0.0), Link(450e9, 0.0))


@st.composite
def questions(draw: st.DrawFn, segments: bool = False) -> tuple[Supply, Request, Outlook]:
    """A gang that wants some of it, with links that are known or not."""
    per_node = 1 if segments else draw(st.sampled_from([1, 1, 2, 3]))
    room = draw(rooms(per_node))
    levels = tuple(level.name for level in room.tree.levels)
    outlook = Outlook(links=draw(st.none() | links(levels)))
    required = draw(st.sampled_from([None, *levels]))
    segment = draw(st.sampled_from([2, 3])) if segments and levels else 1
    wanted = Request(
        "default/train",
        draw(st.integers(1, 4)) * segment if segments else draw(st.integers(1, 7)),
        MEMBER,
        level=required,
        required=required is not None,
        per_node=per_node,
        segment=segment,
        segment_level=draw(st.sampled_from(levels)) if segment > 1 else None,
    )
    return room, wanted, outlook


def best_of_all(room: Supply, wanted: Request, outlook: Outlook) -> float | None:
    """The least cost of any choice; None where there is none."""
    places = [position for position, slots in enumerate(room.slots) for _ in range(slots)]
    edges = outlook.edges(len(room.tree.levels))
    floor = room.tree.depth(wanted.level) if wanted.level else 0
    depth = room.tree.depth(wanted.segment_level) if wanted.segment_level else None
    costs = []
    for some in set(combinations(places, wanted.nodes)):
        spread = touched(room.index, some)
        if spread[floor] == 1 and (depth is None or in_whole(room, some, depth, wanted.segment)):
            costs.append(cost(edges, wanted.nodes, spread, wanted.per_node > 1).total)
    return min(costs, default=None)


def in_whole(room: Supply, positions: tuple[int, ...], depth: int, segment: int) -> bool:
    """Whether every domain of a depth has whole segments."""
    held = Counter(room.tree.domain(room.index.names[position], depth) for position in positions)
    return all(count % segment == 0 for count in held.values())


def check(room: Supply, wanted: Request, found: Placement) -> None:
    """No node has more than it has room for, and what is required holds."""
    positions = [room.index.position[node] for node in found.nodes]
    assert len(positions) == wanted.nodes
    assert all(count <= room.slots[position] for position, count in Counter(positions).items())
    if wanted.level is not None:
        assert found.spans[wanted.level] == 1


@settings(max_examples=300)
@given(questions())
def test_no_choice_costs_less(question):
    room, wanted, outlook = question
    best, found = best_of_all(room, wanted, outlook), place(room, wanted, outlook)
    if best is None:
        assert isinstance(found, Shortfall)
    else:
        assert isinstance(found, Placement)
        check(room, wanted, found)
        assert abs(found.cost.total - best) <= 1e-9 * best
        assert abs(found.bound - best) <= 1e-9 * best
        assert (found.quality, found.spent) == ("optimal", False)


@settings(max_examples=300)
@given(questions(segments=True))
def test_segments_are_whole_and_no_choice_of_whole_segments_costs_less_than_the_bound(question):
    room, wanted, outlook = question
    best, found = best_of_all(room, wanted, outlook), place(room, wanted, outlook)
    if best is None:
        assert isinstance(found, Shortfall)
        return
    assert isinstance(found, Placement)
    check(room, wanted, found)
    assert found.bound <= best * (1 + 1e-9) <= found.cost.total * (1 + 2e-9)
    if wanted.segment_level is not None:
        depth = room.tree.depth(wanted.segment_level)
        domains = [room.tree.domain(node, depth) for node in found.nodes]
        pieces = [domains[n : n + wanted.segment] for n in range(0, wanted.nodes, wanted.segment)]
        assert all(len(set(piece)) == 1 for piece in pieces)
    if wanted.segment_level is None or wanted.segment_level == "leaf":
        assert abs(found.cost.total - best) <= 1e-9 * best


@settings(max_examples=150)
@given(questions(), st.integers(0, 10))
def test_more_free_nodes_never_make_it_dearer(question, which):
    room, wanted, outlook = question
    before = place(room, wanted, outlook)
    position = which % len(room.slots)
    room.put(position, room.whole[position])
    after = place(room, wanted, outlook)
    if isinstance(before, Placement):
        assert isinstance(after, Placement)
        assert after.cost.total <= before.cost.total * (1 + 1e-9)


@settings(max_examples=150)
@given(questions())
def test_a_ring_leaves_every_domain_that_is_touched_once(question):
    room, wanted, outlook = question
    found = place(room, wanted, outlook)
    if isinstance(found, Placement):
        assert found.crossings == {name: domains if domains > 1 else 0 for name, domains in found.spans.items()}


def test_where_nothing_is_known_each_tier_is_three_times_dearer():
    assert default_edges(2) == Edges((9 / 50e9, 3 / 50e9, 1 / 50e9, 1 / 450e9))


def test_a_tier_counts_as_it_is_declared_and_never_less_than_the_one_below():
    said = Links(
        ("core", "spine", "leaf"),
        (Uplink(), Uplink(100e9, declared=True), Uplink(None, 2.0, declared=True)),
        Link(50e9, 0.0),
        Link(450e9, 0.0),
    )
    assert Outlook(links=said).edges(3) == Edges((3 * 2 / 50e9, 2 / 50e9, 2 / 50e9, 1 / 50e9, 1 / 450e9))
