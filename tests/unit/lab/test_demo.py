"""The demonstration's own arithmetic and its telling: pure functions of what was seen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from trainyard_lab.demo import figures, history, jobs, story
from trainyard_lab.demo.history import Step
from trainyard_lab.demo.observe import Job, Pod, Snapshot
from trainyard_lab.fabric import Topology

TOPOLOGY = Topology()
NODES = tuple(node.name for node in TOPOLOGY.nodes)
PLANNED = tuple(range(8))
ALTERNATING = (0, 4, 1, 5, 2, 6, 3, 7)
UNDISTURBED = tuple(Step(1, n, f"s{n}", f"0x1.{n}p+1") for n in range(1, 6))


def test_a_history_that_went_on_where_it_was_saved_equals_the_undisturbed_one() -> None:
    resumed = (*UNDISTURBED[:2], *(replace(step, attempt=2) for step in UNDISTURBED[2:]))
    assert history.compare(resumed, UNDISTURBED).equal
    assert history.gapless(resumed, 5)


@pytest.mark.parametrize(
    ("steps", "lost", "repeated", "differing"),
    [
        (UNDISTURBED[:2] + UNDISTURBED[3:], (3,), (), ()),
        (UNDISTURBED[:3] + UNDISTURBED[2:], (), (3,), ()),
        ((*UNDISTURBED[:4], replace(UNDISTURBED[4], loss="0x1.6p+1")), (), (), (5,)),
        ((*UNDISTURBED[:4], replace(UNDISTURBED[4], samples="other")), (), (), (5,)),
    ],
)
def test_every_way_of_not_being_equal_is_named(
    steps: tuple[Step, ...], lost: tuple[int, ...], repeated: tuple[int, ...], differing: tuple[int, ...]
) -> None:
    found = history.compare(steps, UNDISTURBED)
    assert (found.lost, found.repeated, found.differing) == (lost, repeated, differing)
    assert not found.equal


def test_the_ring_model_gives_the_figures_of_the_links() -> None:
    # 16 MiB over 8 nodes: 1.75 of the message over one 200 Mbit/s spine uplink; alternating spines load it four times.
    message = 16 * 2**20
    planned = figures.ring_seconds(TOPOLOGY, NODES, PLANNED, message)
    assert planned == pytest.approx(1.75 * message * 8 / 200e6)
    assert figures.ring_seconds(TOPOLOGY, NODES, ALTERNATING, message) == pytest.approx(4 * planned)


def test_the_planned_ring_leaves_each_leaf_once() -> None:
    tree = figures.tree_of(TOPOLOGY)
    assert figures.ring_edges(tree, NODES, PLANNED) == 4
    assert figures.ring_edges(tree, NODES, ALTERNATING) == 8


def test_the_victim_trains_exactly_what_the_sample_trains() -> None:
    sample, victim = jobs.sample(), jobs.victim()
    assert victim["spec"].pop("priorityClassName") == "demo-low"
    assert victim["spec"] == sample["spec"]


def test_the_story_says_what_changed_and_draws_who_is_where() -> None:
    pods = tuple(Pod(f"v-{n}", "v", 1, n, f"node-{n}", "Running") for n in range(4))
    running = {"phase": "Running", "attempt": 1, "progress": {"step": 20, "loss": 3.25}}
    waiting = {"phase": "Pending", "pending": {"message": "needs 4 nodes; 8 are eligible, 2 of them are free"}}
    before = Snapshot(0.0, {"v": Job("v", "uid", {"phase": "Starting", "attempt": 1})}, ())
    after = Snapshot(1.0, {"v": Job("v", "uid", running), "u": Job("u", "uid-u", waiting)}, pods)
    assert list(story.tell(before, after, TOPOLOGY.nodes)) == [
        "v       trains, attempt 1",
        "v       step 20, loss 3.250",
        "u       applied",
        "u       waits: needs 4 nodes; 8 are eligible, 2 of them are free",
        "        spine-a [v0 v1 |v2 v3 ]  spine-b [ .  . | .  . ]",
    ]
    assert list(story.tell(after, after, TOPOLOGY.nodes)) == []


def test_times_are_read_off_the_first_look_that_knew_them() -> None:
    at = "2026-01-01T00:00:{:02d}Z"
    stopped = {
        "phase": "Yielding",
        "attempt": 1,
        "stop": {"requestedAt": at.format(10)},
        "checkpoint": {"time": at.format(5)},
    }
    saved = {"phase": "Pending", "attempt": 1, "checkpoint": {"time": at.format(13)}}
    looks = [
        Snapshot(1.0, {"v": Job("v", "v", stopped)}),
        Snapshot(2.0, {"v": Job("v", "v", saved), "u": Job("u", "u", {"startedAt": at.format(15)})}),
    ]
    times = figures.times(looks, "v", "u")
    assert times.to_durable == 3.0
    assert times.to_first_step is None
    assert figures.seconds(times.to_first_step) == "not seen"
