"""What takes the place of failed nodes of a gang."""

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clusters import EMPTY, GPU, MEMBER, a_cluster, a_node, a_room, a_tree, clusters, only_free
from trainyard.contract.natural import natural
from trainyard.planner import rank
from trainyard.planner.cost import TIER
from trainyard.planner.outlook import Outlook
from trainyard.planner.place import Placement, Shortfall
from trainyard.planner.repair import Kind, Repair, repair
from trainyard.planner.repair_cost import COMMUNICATION_SHARE, Terms
from trainyard.planner.request import Request

CLUSTER = a_cluster("ab", leaves=3, nodes_per_leaf=3)
"""a1-0 is the first node of leaf 1 of spine a."""


def gang(nodes, **also):
    return Request("default/train", nodes, MEMBER, **also)


def repaired(current, lost, *free, cluster=CLUSTER, request=None, **also):
    """With so many nodes free besides those that the gang holds."""
    wanted = request or gang(len(current))
    return repair(a_room(cluster, only_free(cluster, *free)).supply(wanted.demand), wanted, current, lost, **also)


def nodes(found):
    assert isinstance(found, Repair)
    return found.placement.nodes


def test_a_failed_node_is_replaced_in_its_leaf_and_nobody_else_moves():
    found = repaired(["a1-0", "a1-1", "a2-0"], ["a1-1"], "a1-2", "a2-1", "b1-0")
    assert nodes(found) == ("a1-0", "a1-2", "a2-0")
    assert (found.kind, found.moved) == (Kind.REPLACE, (1,))


def test_several_that_fail_at_once_are_each_replaced_in_their_own_leaf():
    found = repaired(["a1-0", "a1-1", "a2-0", "a2-1"], ["a1-1", "a2-0"], "a2-2", "a1-2")
    assert nodes(found) == ("a1-0", "a1-2", "a2-2", "a2-1")
    assert (found.kind, found.moved) == (Kind.REPLACE, (1, 2))


def test_spares_come_first_and_are_the_gangs_own():
    found = repaired(["a1-0", "b1-0"], ["b1-0"], "b1-1", spares=["b1-2"])
    assert nodes(found) == ("a1-0", "b1-2")


def test_a_spare_that_is_lost_too_is_no_help():
    found = repaired(["a1-0", "b1-0"], ["b1-0", "b1-2"], "b1-1", spares=["b1-2"])
    assert nodes(found) == ("a1-0", "b1-1")


def test_a_spare_that_is_cordoned_is_no_help():
    cluster = {**CLUSTER, "b1-2": a_node("b1-2", spine="b", leaf="leaf-1", cordoned=True)}
    found = repaired(["a1-0", "b1-0"], ["b1-0"], "b1-1", cluster=cluster, spares=["b1-2"])
    assert nodes(found) == ("a1-0", "b1-1")


def test_a_node_that_is_avoided_replaces_nobody():
    found = repaired(["a1-0", "a1-1"], ["a1-1"], "a1-2", "a2-0", request=gang(2, avoid=frozenset({"a1-2"})))
    assert "a1-2" not in nodes(found)


def test_nothing_lost_is_nothing_done():
    found = repaired(["a1-0", "a1-1"], ["b1-0"], "a1-2")
    assert isinstance(found, Repair)
    assert (found.kind, found.moved, nodes(found)) == (Kind.NONE, (), ("a1-0", "a1-1"))


def test_a_second_failure_does_not_move_the_gang():
    current = ["a1-0", "a1-1", "a1-2", "a2-0"]
    found = repaired(current, ["a1-0", "a1-1"], "a2-1", "a2-2", *(f"b{leaf}-{n}" for leaf in (1, 2) for n in range(3)))
    assert isinstance(found, Repair)
    assert found.kind is Kind.RELAX
    assert nodes(found)[2:] == ("a1-2", "a2-0")
    assert set(nodes(found)[:2]) == {"a2-1", "a2-2"}


def test_where_the_leaf_is_full_the_rank_goes_to_the_leaf_of_its_neighbour():
    found = repaired(["a1-0", "a1-1", "a2-0", "a2-1"], ["a1-1"], "a3-0", "a2-2", "b1-0")
    assert nodes(found) == ("a1-0", "a2-2", "a2-0", "a2-1")
    assert found.placement.crossings == {"spine": 0, "leaf": 2}


def test_a_required_level_is_not_left():
    wanted = gang(2, level="leaf", required=True)
    found = repaired(["a1-0", "a1-1"], ["a1-1"], "a2-0", request=wanted)
    assert isinstance(found, Shortfall)


def test_where_the_required_leaf_is_full_the_gang_moves_as_a_whole():
    wanted = gang(2, level="leaf", required=True)
    found = repaired(["a1-0", "a1-1"], ["a1-1"], "b2-0", "b2-1", "a3-0", request=wanted)
    assert isinstance(found, Repair)
    assert found.kind is Kind.MOVE
    assert set(nodes(found)) == {"b2-0", "b2-1"}
    assert found.moved == (0, 1)


def test_an_elastic_gang_shrinks_where_that_is_cheapest_and_keeps_its_order():
    wanted = gang(4, minimum=3)
    terms = Terms(horizon_seconds=1000.0, pace=lambda nodes: 1.0 if all(n[0] == "a" for n in nodes) else 2.0)
    found = repaired(["a1-0", "a1-1", "a1-2", "a2-0"], ["a1-1"], "b1-0", request=wanted, terms=terms)
    assert isinstance(found, Repair)
    assert found.kind is Kind.SHRINK
    assert nodes(found) == ("a1-0", "a1-2", "a2-0")
    assert (found.moved, found.dropped) == ((), (1,))
    assert [option.kind for option in found.options] == [Kind.SHRINK, Kind.RELAX, Kind.MOVE]


def test_a_gang_that_shrinks_still_replaces_whom_it_can():
    wanted = gang(4, minimum=3)
    terms = Terms(pace=lambda nodes: 1.0 if all(n[0] == "a" for n in nodes) else 9.0)
    found = repaired(["a1-0", "a1-1", "a2-0", "a2-1"], ["a1-1", "a2-1"], "a2-2", "b1-0", request=wanted, terms=terms)
    assert isinstance(found, Repair)
    assert found.kind is Kind.SHRINK
    assert nodes(found) == ("a1-0", "a2-0", "a2-2")
    assert (found.moved, found.dropped) == ((2,), (1,))


def test_a_gang_that_is_too_small_already_does_not_shrink():
    assert isinstance(repaired(["a1-0", "a1-1"], ["a1-1"], request=gang(2, minimum=2)), Shortfall)


def test_each_way_says_what_it_costs():
    terms = Terms(accelerators=16, unsaved_seconds=100.0, stop_seconds=50.0, move_seconds=200.0, horizon_seconds=1000.0)
    wanted = gang(2, minimum=1)
    found = repaired(["a1-0", "a1-1"], ["a1-1"], "a2-0", "b1-0", "b1-1", request=wanted, terms=terms)
    assert isinstance(found, Repair)
    costs = {option.kind: option.cost_gpu_seconds for option in found.options}
    slower = 1 - COMMUNICATION_SHARE + COMMUNICATION_SHARE * TIER
    assert costs[Kind.RELAX] == pytest.approx(16 * (100 + 50 + 1000 * (1 - 1 / slower)))
    assert costs[Kind.SHRINK] == pytest.approx(16 * (100 + 50 + 1000 * (1 - 1 / 2)))
    assert costs[Kind.MOVE] == pytest.approx(16 * (100 + 200))
    assert found.kind is Kind.RELAX or costs[found.kind] == min(costs.values())


def test_a_move_that_brings_the_gang_together_again_is_worth_a_longer_stop():
    terms = Terms(stop_seconds=60.0, move_seconds=120.0, horizon_seconds=3600.0)
    found = repaired(["a1-0", "a1-1"], ["a1-1"], "a2-0", "b1-0", "b1-1", terms=terms)
    assert isinstance(found, Repair)
    assert found.kind is Kind.MOVE
    short = Terms(stop_seconds=60.0, move_seconds=120.0, horizon_seconds=60.0)
    found = repaired(["a1-0", "a1-1"], ["a1-1"], "a2-0", "b1-0", "b1-1", terms=short)
    assert isinstance(found, Repair)
    assert found.kind is Kind.RELAX


def test_a_node_that_is_not_in_the_cluster_any_more_is_replaced_beside_its_neighbours():
    found = repaired(["a2-0", "gone", "a2-1", "b1-0"], [], "a1-0", "a2-2", "b1-1")
    assert nodes(found) == ("a2-0", "a2-2", "a2-1", "b1-0")


def test_members_that_shared_a_node_share_one_again():
    cluster = {name: a_node(name, spine="a", leaf="l") for name in ("n0", "n1", "n2", "n3")}
    wanted = Request("default/train", 4, {GPU: 4}, per_node=2)
    free = {"n0": {GPU: 0}, "n1": {GPU: 0}, "n2": {GPU: 4}, "n3": EMPTY}
    supply = a_room(cluster, free).supply(wanted.demand)
    found = repair(supply, wanted, ["n0", "n0", "n1", "n1"], ["n1"])
    assert nodes(found) == ("n0", "n0", "n3", "n3")


def test_a_segment_stays_together():
    wanted = gang(4, segment=2, segment_level="leaf")
    terms = Terms(horizon_seconds=0.0)
    found = repaired(["a1-0", "a1-1", "a2-0", "a2-1"], ["a1-0"], "a3-0", request=wanted, terms=terms)
    assert isinstance(found, Shortfall)
    found = repaired(["a1-0", "a1-1", "a2-0", "a2-1"], ["a1-0", "a1-1"], "a3-0", "a3-1", request=wanted, terms=terms)
    assert nodes(found) == ("a3-0", "a3-1", "a2-0", "a2-1")


KINDS = {
    **{f"h{n}": a_node(f"h{n}", spine="a", leaf="1", labels={"nvidia.com/gpu.product": "H100"}) for n in range(3)},
    **{f"a{n}": a_node(f"a{n}", spine="a", leaf="1", labels={"nvidia.com/gpu.product": "A100"}) for n in range(3)},
}


def test_a_node_of_another_kind_replaces_nobody():
    assert isinstance(repaired(["h0", "h1"], ["h1"], "a0", cluster=KINDS), Shortfall)
    assert nodes(repaired(["h0", "h1"], ["h1"], "a0", "h2", cluster=KINDS)) == ("h0", "h2")
    assert nodes(repaired(["h0", "h1"], ["h1"], "a0", cluster=KINDS, request=gang(2, mixed=True))) == ("h0", "a0")


def test_a_gang_may_move_to_nodes_of_another_kind_as_a_whole():
    found = repaired(["h0", "h1"], ["h1"], "a0", "a1", cluster=KINDS)
    assert isinstance(found, Repair)
    assert (found.kind, nodes(found)) == (Kind.MOVE, ("a0", "a1"))


def test_a_doubtful_node_replaces_one_only_where_there_is_no_other():
    outlook = Outlook(doubtful=frozenset({"a1-1"}))
    assert nodes(repaired(["a1-0", "a2-0"], ["a1-0"], "a1-1", "a1-2", outlook=outlook)) == ("a1-2", "a2-0")
    assert nodes(repaired(["a1-0", "a2-0"], ["a1-0"], "a1-1", outlook=outlook)) == ("a1-1", "a2-0")


@st.composite
def failures(draw):
    """A gang of which some nodes have failed, with others free."""
    cluster = draw(clusters(most=8))
    names = draw(st.permutations(list(cluster)))
    size = draw(st.integers(1, min(4, len(names))))
    current, others = names[:size], names[size:]
    lost = draw(st.lists(st.sampled_from(current), min_size=1, unique=True))
    free = [name for name in others if draw(st.booleans())]
    spares = [name for name in others if draw(st.booleans()) and draw(st.booleans())]
    level = draw(st.sampled_from([None, "spine", "leaf"]))
    wanted = gang(
        size,
        level=level,
        required=level is not None and draw(st.booleans()),
        minimum=draw(st.integers(0, size)),
    )
    return cluster, current, lost, free, spares, wanted


def together(tree, wanted, chosen):
    return not wanted.required or len({tree.domain(name, tree.depth(wanted.level)) for name in chosen}) == 1


def fillings(situation):
    """Every way to give the lost ranks other nodes."""
    _, current, lost, free, spares, _ = situation
    broken = [n for n, name in enumerate(current) if name in lost]
    for chosen in permutations({*free, *spares} - {*lost}, len(broken)):
        filled = list(current)
        for n, name in zip(broken, chosen, strict=True):
            filled[n] = name
        yield tuple(filled)


@settings(max_examples=200)
@given(failures())
def test_survivors_stay_and_no_other_repair_is_better(situation):
    cluster, current, lost, free, spares, wanted = situation
    tree = a_tree(cluster)
    found = repaired(
        current, lost, *free, cluster=cluster, request=wanted, spares=spares, terms=Terms(horizon_seconds=0)
    )
    fits = [way for way in fillings(situation) if together(tree, wanted, way)]
    at_home = [way for way in fillings(situation) if [tree.paths[n] for n in way] == [tree.paths[n] for n in current]]
    if isinstance(found, Shortfall):
        assert not at_home
        assert not fits or len(lost) == len(current) or not together(tree, wanted, current)
        return
    chosen = found.placement.nodes
    assert len(set(chosen)) == len(chosen)
    assert not set(chosen) & set(lost)
    assert set(chosen) <= {*current, *free, *spares}
    if found.kind in (Kind.REPLACE, Kind.RELAX):
        assert chosen in set(fillings(situation))
        assert found.moved == tuple(n for n, name in enumerate(current) if name in lost)
    if found.kind is not Kind.REPLACE:
        assert not at_home
        assert together(tree, wanted, chosen) or not together(tree, wanted, current)
    if found.kind is Kind.RELAX:
        edges = min(tuple(rank.crossings(tree, way).values()) for way in fits)
        assert tuple(found.placement.crossings.values()) == edges
    if found.kind is Kind.SHRINK:
        kept = [name for name in chosen if name in current]
        assert kept == [name for name in current if name not in lost]
        assert len(chosen) >= wanted.at_least
    costs = [option.cost_gpu_seconds for option in found.options]
    assert costs == sorted(costs)
    assert all(isinstance(option.placement, Placement) for option in found.options)


@settings(max_examples=50)
@given(failures(), st.randoms())
def test_the_repair_does_not_depend_on_the_order_of_events(situation, shuffle):
    cluster, current, lost, free, spares, wanted = situation
    first = repaired(current, lost, *free, cluster=cluster, request=wanted, spares=spares)
    for some in (lost, spares):
        shuffle.shuffle(some)
    mixed = dict(sorted(cluster.items(), key=lambda item: natural(item[0]), reverse=True))
    assert repaired(current, lost, *free, cluster=mixed, request=wanted, spares=spares) == first
