"""An inventory that followed the cluster knows what a new one knows; a room is what is left beside what was promised."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from support.clusters import GPU, a_cluster, a_node, a_pod
from trainyard.api.fabric import FabricSpec, Level
from trainyard.world.capacity import free
from trainyard.world.demand import demand
from trainyard.world.inventory import Inventory
from trainyard.world.records import Fabric, Taint, World
from trainyard.world.room import Room

FABRIC = Fabric(
    "net", FabricSpec(levels=(Level(name="spine", node_label="net/spine"), Level(name="leaf", node_label="net/leaf")))
)
WHOLE = demand({}, {GPU: 8})
PART = demand({}, {GPU: 3}, per_node=4)
PICKY = demand({"nodeSelector": {"kind": "fast"}}, {GPU: 1})
DEMANDS = (WHOLE, PART, PICKY)


def a_world(nodes, pods=()) -> World:
    return World(nodes=nodes, pods={pod.uid: pod for pod in pods}, fabrics={"net": FABRIC})


def told(inventory: Inventory) -> object:
    """All that an inventory says, by name."""
    index = inventory.tree.index
    supplies = [inventory.supply(one) for one in DEMANDS]
    return (
        inventory.tree.levels,
        inventory.detected,
        list(inventory.tree.paths.items()),
        {name: dict(inventory.free(name)) for name in index.names},
        [(s.slots, s.whole, s.reasons, s.free_in, s.whole_in) for s in supplies],
    )


@st.composite
def worlds(draw: st.DrawFn) -> World:
    names = draw(st.sets(st.sampled_from(["n1", "n2", "n10", "n3", "n4"])))
    nodes = {
        name: a_node(
            name,
            spine=draw(st.sampled_from(["a", "b", None])),
            leaf=draw(st.sampled_from(["1", "2", None])),
            labels=draw(st.sampled_from([{}, {"kind": "fast"}])),
            gpus=draw(st.sampled_from([0, 4, 8])),
            taints=draw(st.sampled_from([(), (Taint("no", "", "NoSchedule"),)])),
            ready=draw(st.booleans()),
        )
        for name in sorted(names)
    }
    pods = [
        a_pod(
            f"p{n}",
            node=draw(st.sampled_from(["", "n1", "n2", "n9"])),
            planned=draw(st.sampled_from([None, "n3"])),
            requests={GPU: draw(st.integers(1, 9))},
            phase=draw(st.sampled_from(["Running", "Succeeded"])),
        )
        for n in draw(st.sets(st.integers(0, 4)))
    ]
    return a_world(nodes, pods)


@given(st.lists(worlds(), min_size=1, max_size=5))
def test_an_inventory_that_followed_is_like_a_new_one(history):
    followed = Inventory()
    for world in history:
        followed.refresh(world)
        assert told(followed) == told(Inventory.of(world))


@given(worlds())
def test_its_room_is_what_capacity_counts(world):
    inventory = Inventory.of(world)
    counted = {name: {k: max(0, v) for k, v in inventory.free(name).items()} for name in world.nodes}
    assert counted == free(world)


@given(worlds())
def test_domains_sum_their_nodes(world):
    inventory = Inventory.of(world)
    for one in DEMANDS:
        counted = inventory.supply(one)
        for number, domain in enumerate(inventory.tree.index.domains):
            assert counted.free_in[number] == sum(counted.slots[domain.first : domain.end])
            assert counted.whole_in[number] == sum(counted.whole[domain.first : domain.end])


@given(worlds(), st.lists(st.tuples(st.sampled_from(["n1", "n2", "n3", "gone"]), st.integers(-5, 5)), max_size=6))
def test_a_room_follows_what_is_taken_and_given_and_its_inventory_does_not(world, changes):
    inventory = Inventory.of(world)
    before = told(inventory)
    room, early = Room(inventory), Room(inventory)
    for one in DEMANDS:
        early.supply(one)
    for node, amount in changes:
        for view in (room, early):
            if amount < 0:
                view.take([node], {GPU: -amount})
            else:
                view.give({node: {GPU: amount}})
    total = {name: sum(a for n, a in changes if n == name) for name in world.nodes}
    for one in DEMANDS:
        late = room.supply(one)
        assert (late.slots, late.free_in) == (early.supply(one).slots, early.supply(one).free_in)
        for name, position in inventory.tree.index.position.items():
            left = {k: v + (total[name] if k == GPU else 0) for k, v in inventory.free(name).items()}
            fits = one.fit(left) if one.why_not(world.nodes[name]) is None else 0
            assert late.slots[position] == fits
    assert told(inventory) == before


def test_a_fork_goes_its_own_way():
    inventory = Inventory.of(a_world(a_cluster()))
    room = Room(inventory)
    room.take(["a1-0"], {GPU: 8})
    fork = room.fork()
    fork.take(["a1-1"], {GPU: 8})
    assert [room.supply(WHOLE).free_in[0], fork.supply(WHOLE).free_in[0]] == [7, 6]
    assert room.holds(["a1-1"], WHOLE)
    assert not fork.holds(["a1-1"], WHOLE)


def test_a_node_that_is_named_twice_is_taken_twice():
    inventory = Inventory.of(a_world(a_cluster()))
    room = Room(inventory)
    assert room.holds(["a1-0", "a1-0"], PART)
    assert not room.holds(["a1-0", "a1-0", "a1-0"], PART)
    room.take(["a1-0", "a1-0"], PART.requests)
    assert room.free("a1-0")[GPU] == 2


def test_members_that_no_node_tells_apart_ask_the_same():
    pod = {"nodeSelector": {"a": "1", "b": "2"}, "containers": [{"name": "trainer"}]}
    same = {"nodeSelector": {"b": "2", "a": "1"}, "containers": [{"name": "other"}]}
    assert demand(pod, {GPU: 8, "cpu": 1}) == demand(same, {"cpu": 1, GPU: 8})
    assert demand(pod, {GPU: 8}) != demand(pod, {GPU: 4})
    assert demand(pod, {GPU: 8}) != demand(pod, {GPU: 8}, per_node=2)


def test_what_is_left_out_counts_under_its_reason():
    inventory = Inventory.of(a_world(a_cluster()))
    counted = inventory.supply(WHOLE)
    some = counted.without(["a1-0", "gone"], "avoided")
    assert (some.free_in[0], some.whole_in[0], some.excluded()) == (7, 7, {"avoided": 1})
    kept = counted.without(["a1-0"])
    assert (kept.free_in[0], kept.whole_in[0], kept.excluded()) == (7, 8, {})
    assert counted.free_in[0] == 8


def test_a_node_that_only_reports_again_is_no_other():
    nodes = a_cluster()
    inventory = Inventory.of(a_world(nodes))
    tree = inventory.tree
    again = {name: replace(node) for name, node in nodes.items()}
    inventory.refresh(a_world(again))
    assert inventory.tree is tree


def test_a_label_that_says_nothing_of_the_network_costs_no_new_tree(monkeypatch):
    nodes = a_cluster()
    inventory = Inventory.of(a_world(nodes))
    monkeypatch.setattr("trainyard.world.inventory.build", None)
    node = nodes["a1-0"]
    inventory.refresh(a_world({**nodes, "a1-0": replace(node, labels={**node.labels, "team": "x", "kind": "fast"})}))
    assert inventory.supply(PICKY).whole_in[0] == 1


def test_a_selector_of_a_fabric_is_heard():
    on = {"net": "on"}
    narrow = Fabric("narrow", FabricSpec(node_selector=on, levels=(Level(name="row", node_label="net/spine"),)))
    nodes = {name: a_node(name, spine="a", labels={"net": "off"}) for name in ("x", "y")}
    inventory = Inventory.of(World(nodes=nodes, fabrics={"narrow": narrow}))
    assert inventory.tree.levels == ()
    nodes = {name: replace(node, labels={**node.labels, **on}) for name, node in nodes.items()}
    inventory.refresh(World(nodes=nodes, fabrics={"narrow": narrow}))
    assert [level.name for level in inventory.tree.levels] == ["row"]
