"""What the timings stand on is what it says."""

import pytest
from trainyard.world.inventory import Inventory
from trainyard.world.records import World

from benchmarks import scenes
from benchmarks.clusters import GPU, fat_tree
from benchmarks.memory import world_bytes
from benchmarks.scenes import Scale

EVENTS = {
    scenes.pod_appears: "free",
    scenes.node_not_ready: "ready",
    scenes.node_relabelled: "labels",
    scenes.node_leaves: "nodes",
}


def seen(world: World) -> dict[str, object]:
    """Of a world, what an event may change."""
    inventory = Inventory.of(world)
    return {
        "free": {name: inventory.free(name)[GPU] for name in sorted(world.nodes)},
        "ready": {name: node.ready for name, node in world.nodes.items()},
        "labels": {name: node.labels for name, node in world.nodes.items()},
        "nodes": sorted(world.nodes),
    }


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
def test_an_event_changes_one_thing(event):
    before = scenes.half_taken(100, 1)
    after = seen(event(before, 3, 1))
    changed = {name for name, value in seen(before).items() if after[name] != value}
    assert changed == {EVENTS[event]} if event is not scenes.node_leaves else {"nodes"} <= changed
    assert event(before, 3, 1) == event(before, 3, 1)


@pytest.mark.parametrize("scattered", [False, True])
def test_jobs_fill_the_nodes_between_them(scattered: bool):
    nodes = fat_tree(200)
    held = scenes.holdings(nodes, 70, 1, scattered)
    assert len(held) == 70
    assert sorted(name for one in held for name in one.candidate.usage) == sorted(node.name for node in nodes)
    inventory = Inventory.of(scenes.tenanted(nodes, held))
    assert all(inventory.free(node.name)[GPU] == 0 for node in nodes)
    neighbours = [int(name.removeprefix("node-")) for name in max(held, key=lambda one: len(one.pods)).candidate.usage]
    assert (neighbours == list(range(min(neighbours), max(neighbours) + 1))) is not scattered


def test_flaws_are_the_shares_that_are_said():
    nodes = scenes.flawed(fat_tree(10_000), 1)
    assert sum(node.unschedulable for node in nodes) == pytest.approx(100, abs=40)
    assert sum(bool(node.taints) for node in nodes) == pytest.approx(100, abs=40)
    assert sum(not node.ready for node in nodes) == pytest.approx(50, abs=30)


def test_a_larger_world_takes_more_memory_in_proportion():
    small, large = world_bytes(100, 200), world_bytes(400, 800)
    assert 2 < large / small < 5
    assert small > 100 * 1000


def test_a_scale_never_makes_nothing():
    assert Scale(0.001).of(640, least=16) == 16
    assert Scale().of(640) == 640
