"""Kinds of nodes: what makes one, and that a supply told apart by them follows the whole."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from support.clusters import GPU, a_node
from trainyard.topology.tree import build
from trainyard.world.demand import demand
from trainyard.world.inventory import Inventory
from trainyard.world.kinds import kind, takes_accelerators
from trainyard.world.records import World
from trainyard.world.supply import Supply, supply

PRODUCT = "nvidia.com/gpu.product"


def test_a_kind_is_the_accelerators_and_their_product():
    assert kind(a_node("n", labels={PRODUCT: "H100"})) == "8 nvidia.com/gpu, H100"
    assert kind(a_node("n", gpus=4)) == "4 nvidia.com/gpu"
    assert kind(a_node("n", gpus=0, labels={PRODUCT: "H100"})) == ""


def test_only_who_takes_accelerators_cares():
    assert takes_accelerators({GPU: 1, "cpu": 1000})
    assert not takes_accelerators({GPU: 0, "cpu": 1000})
    nodes = {name: a_node(name, labels={PRODUCT: name}) for name in ("a", "b")}
    inventory = Inventory.of(World(nodes=nodes))
    assert len(inventory.supply(demand({}, {GPU: 1})).by_kind()) == 2
    assert len(inventory.supply(demand({}, {"cpu": 1000})).by_kind()) == 1


def test_a_node_that_changes_its_product_changes_its_kind():
    nodes = {name: a_node(name, labels={PRODUCT: "H100"}) for name in ("a", "b")}
    inventory, whole = Inventory.of(World(nodes=nodes)), demand({}, {GPU: 8})
    assert len(inventory.supply(whole).by_kind()) == 1
    nodes = {**nodes, "b": replace(nodes["b"], labels={PRODUCT: "H200"})}
    inventory.refresh(World(nodes=nodes))
    assert [part.free_in[0] for part in inventory.supply(whole).by_kind()] == [1, 1]


@st.composite
def supplies(draw: st.DrawFn) -> Supply:
    number = draw(st.integers(1, 6))
    kinds = [draw(st.sampled_from(["a", "b", "c"])) for _ in range(number)]
    whole = [draw(st.integers(0, 2)) for _ in range(number)]
    slots = [draw(st.integers(0, most)) for most in whole]
    tree = build([a_node(f"n{n}") for n in range(number)], ())
    return supply(tree, slots, whole, [None if most else "no" for most in whole], kinds)


@given(supplies(), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.booleans()), max_size=6))
def test_the_parts_of_a_supply_follow_it(whole, changes):
    whole.by_kind()
    for position, slots, eligible in changes:
        if position < len(whole.slots):
            whole.declare(position, 2 if eligible else 0, None if eligible else "no")
            whole.put(position, slots if eligible else 0)
    parts = whole.by_kind()
    anew = whole.copy().by_kind()
    assert [(part.slots, part.whole, part.free_in) for part in parts] == [(p.slots, p.whole, p.free_in) for p in anew]
    assert sum(part.free_in[0] for part in parts) == whole.free_in[0]
    assert len(parts) == max(1, len({kind for kind, most in zip(whole.kinds, whole.whole, strict=True) if most}))
