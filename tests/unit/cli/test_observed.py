"""What was measured, as `kubectl trainyard fabric`, `measure` and `plan` show it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.clusters import a_cluster, a_tree
from support.networks import ALL_PROFILES, a_fabric, a_spec, equipped, fabrics
from trainyard.api.fabric import FabricSpec, Observed, ObservedBy, ObservedLink
from trainyard.api.training_job import TrainingJobSpec, TrainingJobStatus
from trainyard.cli.measure import Outcome
from trainyard.cli.observed import MOST_POINTS, addition, edges_lines, fabrics_page
from trainyard.cli.planned import planned_pages
from trainyard.contract.measured import Edge, Gang, Measured, Point
from trainyard.network.derive import settings_for
from trainyard.network.profiles.model import Profile
from trainyard.planner.links import links_of
from trainyard.world.observed import FRESH_SECONDS
from trainyard.world.records import Fabric, Job, World

T0 = 1_000_000.0
NODES = a_cluster()
TREE = a_tree(NODES)
FABRIC = Fabric(
    "lab",
    a_fabric(
        kind="tcp",
        levels=[
            {"name": "spine", "nodeLabel": "net/spine", "bandwidth": "200Mbps"},
            {"name": "leaf", "nodeLabel": "net/leaf", "bandwidth": "400Mbps"},
        ],
        node={"nics": 1, "nicBandwidth": "2Gbps"},
    ),
    "uid",
    "7",
)
EDGES = (Edge(0, 20e6, 1), Edge(1, 50e6, 2), Edge(2, 200e6, 4))


def an_outcome(points: tuple[Point, ...] = (), edges: tuple[Edge, ...] = EDGES) -> Outcome:
    job = Job("team", "measure-1", "uid-1", 1, "1", 0.0, None, TrainingJobStatus())
    return Outcome(job, tuple(NODES), Measured(Gang(8, 1, "gloo", 2), points, edges))


def a_world(observed: Observed) -> World:
    return World(nodes=NODES, fabrics={"lab": replace(FABRIC, observed=observed)})


def stored(points: tuple[Point, ...] = ()) -> Observed:
    write = addition(a_world(Observed()), TREE, FABRIC, an_outcome(points), T0)
    assert write is not None
    return write.observed


def test_a_measurement_becomes_a_row_for_each_level() -> None:
    write = addition(a_world(Observed()), TREE, FABRIC, an_outcome(), T0)
    assert write is not None
    assert (write.name, write.uid, write.resource_version) == ("lab", "uid", "7")
    assert [(row.level, row.bandwidth, row.by, row.nodes) for row in write.observed.links] == [
        ("leaf", 50e6, ObservedBy.MEASURE, 8),
        ("node", 200e6, ObservedBy.MEASURE, 8),
        ("spine", 20e6, ObservedBy.MEASURE, 8),
    ]
    assert write.observed.summary == "spine 0.85, leaf 1.06, node 0.85"


def test_of_a_long_measurement_the_largest_messages_are_kept() -> None:
    points = tuple(Point("all-reduce", "ring", n + 1, 0.1, 3) for n in range(MOST_POINTS + 5))
    measurement = stored(points).measurement
    assert measurement is not None
    assert [one.bytes for one in measurement.collectives] == list(range(6, MOST_POINTS + 6))


def test_the_page_has_what_is_declared_what_plans_use_and_what_was_observed() -> None:
    observed = stored((Point("all-reduce", "ring", 2**24, 1.4, 3),))
    late = ObservedLink(level="leaf", bandwidth=9e6, by=ObservedBy.PREFLIGHT, job="team/lm", nodes=2, time=T0)
    page = fabrics_page(a_world(observed.but(links=(*observed.links, late))), TREE, None, T0 + 3600)
    assert page.startswith("lab (tcp); links: declared by the Fabric\n")
    lines = [line.split() for line in page.splitlines()]
    assert [
        "spine",
        "23.5",
        "MB/s",
        "20",
        "MB/s",
        "0.85",
        "20",
        "MB/s",
        "measure",
        "team/measure-1",
        "8",
        "1h",
    ] in lines
    assert ["9", "MB/s", "preflight", "team/lm", "2", "1h"] in lines
    assert "Measured 1h ago by team/measure-1: 8 ranks on 8 nodes over gloo" in page
    assert ["all-reduce,", "ring", "16", "MiB", "1.4", "s", "21", "MB/s"] in lines


def test_what_is_too_old_is_shown_and_not_used() -> None:
    page = fabrics_page(a_world(stored()), TREE, "lab", T0 + FRESH_SECONDS + 60)
    spine = next(line for line in page.splitlines() if line.startswith("spine"))
    assert spine.split()[:6] == ["spine", "23.5", "MB/s", "23.5", "MB/s", "1.00"]
    assert spine.endswith("too old")


def test_without_a_fabric_there_is_no_table_and_one_that_is_not_there_is_named() -> None:
    assert fabrics_page(World(nodes=NODES), TREE, None, T0).startswith("There is no Fabric object: ")
    with pytest.raises(ValueError, match="there is no Fabric other that makes sense"):
        fabrics_page(a_world(Observed()), TREE, "other", T0)


def test_a_measurement_shows_each_level_beside_what_it_should_carry() -> None:
    links = links_of(FABRIC.spec, TREE.levels)
    rows = [line.split() for line in edges_lines(an_outcome().measured, links)]
    assert rows[1] == ["across", "spine", "domains", "1", "20", "MB/s", "23.5", "MB/s", "0.85"]
    assert rows[3] == ["of", "one", "leaf", "4", "200", "MB/s", "235", "MB/s", "0.85"]
    assert list(edges_lines(an_outcome(edges=()).measured, links)) == []


def test_a_plan_says_which_of_its_figures_were_observed() -> None:
    container = {
        "name": "trainer",
        "image": "own",
        "command": ["train"],
        "resources": {"limits": {"nvidia.com/gpu": 8}},
    }
    spec = TrainingJobSpec.model_validate({"nodes": 8, "template": {"spec": {"containers": [container]}}})
    job = Job("team", "lm", "uid-lm", 1, "1", T0, spec, TrainingJobStatus())
    slow, _ = planned_pages(a_world(stored()), [job], T0)
    usual, _ = planned_pages(a_world(stored()), [job], T0 + FRESH_SECONDS + 1)
    said = "as a share of what the links should carry: spine 0.85, leaf 1.06, node 0.85."
    assert said in " ".join(slow.split())
    assert "Predicted with" not in usual
    assert "all-reduce at 0.02 GB/s" in slow
    assert "all-reduce at 0.0235 GB/s" in usual


@pytest.mark.parametrize("profile", ALL_PROFILES, ids=lambda profile: profile.name)
def test_an_empty_fabric_is_a_place_for_a_table_and_changes_no_setting(profile: Profile) -> None:
    """So whoever has none and wants what is measured to be kept risks nothing."""
    nodes, _ = equipped(profile)
    without, empty = (settings_for(a_spec(), nodes, {}), settings_for(a_spec(), nodes, fabrics(site=FabricSpec())))
    assert replace(empty, network="") == replace(without, network="")
