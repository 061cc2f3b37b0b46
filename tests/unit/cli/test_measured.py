"""A measurement beside its prediction: figures, page and picture; and the job that makes one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clusters import GPU, LEVELS, a_cluster, a_node, a_tree, in_rank_order
from support.networks import a_fabric
from trainyard.api.validate import read_job
from trainyard.cli.manifests import ManifestError
from trainyard.cli.measure import Asked, chosen, lowest, manifest, with_devices
from trainyard.cli.measured import compared, measured_page, read_sizes, series, size
from trainyard.cli.plot import draw, plot
from trainyard.contract.measured import Gang, Measured, Point, Way
from trainyard.planner.links import links_of
from trainyard.planner.mesh import Site
from trainyard.world.records import PriorityClass

MIB = 2**20
NODES = a_cluster()
TREE = a_tree(NODES)
FABRIC = a_fabric(
    kind="tcp",
    levels=[
        {"name": "spine", "nodeLabel": "net/spine", "bandwidth": "200Mbps"},
        {"name": "leaf", "nodeLabel": "net/leaf", "bandwidth": "400Mbps"},
    ],
    node={"nics": 1, "nicBandwidth": "2Gbps"},
)


def a_site(nodes: tuple[str, ...] = in_rank_order(TREE, list(NODES))) -> Site:
    return Site(links_of(FABRIC, LEVELS), TREE, nodes, 1)


def a_measurement(
    seconds: float = 1.4, collective: str = "all-reduce", way: str = Way.RING, ranks: int = 8
) -> Measured:
    return Measured(Gang(ranks, 1, "gloo", 2), (Point(collective, way, 16 * MIB, seconds, 3),))


def test_the_ring_is_held_up_by_the_slowest_uplink_that_it_crosses() -> None:
    found = compared(a_measurement(), a_site())
    (row,) = found.rows
    assert found.bottleneck == "spine"
    usable = a_site().links.node.bytes_per_second / 250e6
    assert found.limit == pytest.approx(25e6 * usable)
    assert row.predicted_seconds == pytest.approx(2 * 7 / 8 * 16 * MIB / found.limit, rel=0.01)
    assert row.bus_bandwidth == pytest.approx(2 * 7 / 8 * 16 * MIB / 1.4)
    assert row.ratio == pytest.approx(row.predicted_seconds / 1.4)


def test_a_picture_that_cannot_be_written_costs_no_measurement(tmp_path: Path) -> None:
    found = compared(a_measurement(), a_site())
    file = tmp_path / "plot.svg"
    assert draw(file, found, "eight") == f"The plot is in {file}."
    assert draw(tmp_path / "no" / "plot.svg", found, "eight").startswith("There is no plot: ")
    assert draw(file, replace(found, limit=0.0), "eight").startswith("There is no plot: ")


def test_an_order_that_crosses_more_is_predicted_slower() -> None:
    apart = tuple(name for pair in zip(list(NODES)[:4], list(NODES)[4:], strict=True) for name in pair)
    near, far = (compared(a_measurement(), a_site(nodes)).rows[0] for nodes in (a_site().nodes, apart))
    assert far.predicted_seconds > 3 * near.predicted_seconds


@pytest.mark.parametrize(
    ("collective", "way"),
    [
        ("all-reduce", Way.LIBRARY),
        ("all-reduce", Way.TREE),
        ("all-reduce", Way.HIERARCHICAL),
        ("all-gather", Way.LIBRARY),
        ("reduce-scatter", Way.LIBRARY),
        ("broadcast", Way.LIBRARY),
        ("send-receive", Way.LIBRARY),
    ],
)
def test_every_way_has_a_prediction(collective: str, way: Way) -> None:
    (row,) = compared(a_measurement(collective=collective, way=way), a_site()).rows
    assert 0.01 < row.predicted_seconds < 10
    assert row.predicted_bus_bandwidth > 0


def test_parts_that_stay_within_a_leaf_cost_less_than_the_whole_ring() -> None:
    (row,) = compared(a_measurement(way=Way.HIERARCHICAL), a_site()).rows
    across = (
        2 * 3 / 4 * 8 * MIB / (compared(a_measurement(), a_site()).limit / 2)
    )  # two rings share the spines' uplinks
    assert row.predicted_seconds > across


def test_the_page_has_a_line_for_each_point_and_names_what_is_off() -> None:
    page = measured_page(compared(a_measurement(seconds=5.0), a_site()), a_site())
    assert page.startswith("8 ranks, over gloo\n")
    assert "all-reduce, ring  16 MiB" in page
    assert "The slowest edge of the ring over all ranks, the uplinks of a spine: " in page
    assert "Off the prediction by more than a quarter: all-reduce, ring of 16 MiB (0." in page
    assert "Off the prediction" not in measured_page(compared(a_measurement(), a_site()), a_site())


def test_the_picture_is_svg_with_a_line_for_each_way_and_the_limit() -> None:
    points = [Point("all-reduce", way, MIB * n, 0.1 * n, 3) for way in (Way.RING, Way.TREE) for n in (1, 4)]
    found = compared(Measured(Gang(8, 1, "gloo"), tuple(points)), a_site())
    picture = ElementTree.fromstring(plot(found, "eight & more"))
    texts = ["".join(text.itertext()) for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"eight & more", "all-reduce, ring", "all-reduce, tree", "1 MiB", "4 MiB"} <= set(texts)
    assert len(list(picture.iter("{http://www.w3.org/2000/svg}circle"))) == 4
    assert [name for name, _ in series(found)] == ["all-reduce, ring", "all-reduce, tree"]


def asked(**changes: object) -> Asked:
    return replace(Asked("measure-1", "team", 2, (), (1024, MIB)), **changes)  # type: ignore[arg-type]


def test_the_job_is_one_that_the_api_takes_on_all_accelerators_of_a_node() -> None:
    made = manifest(asked(priority_class="low"), NODES.values())
    read = read_job({**made, "status": {}})
    assert not read.errors
    assert read.spec is not None
    assert (read.spec.nodes, read.spec.processes, read.spec.priority_class_name) == (2, 8, "low")
    (container,) = made["spec"]["template"]["spec"]["containers"]
    assert container["resources"] == {"limits": {GPU: 8}, "requests": {"cpu": "8000m"}}
    assert container["args"] == ["collectives", "--sizes", f"1024,{MIB}"]


def test_nodes_without_accelerators_measure_with_one_process_each() -> None:
    made = manifest(asked(), [a_node("plain", gpus=0)])
    assert made["spec"]["processesPerNode"] == 1
    assert made["spec"]["template"]["spec"]["containers"][0]["resources"] == {
        "limits": {},
        "requests": {"cpu": "1000m"},
    }


def test_no_more_is_asked_for_than_half_of_a_small_nodes_processors() -> None:
    small = replace(a_node("small"), allocatable={"cpu": 6_000, GPU: 8})
    made = manifest(asked(), [*NODES.values(), small])
    assert made["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "3000m"}


def test_chosen_nodes_and_no_others_may_be_taken() -> None:
    on = chosen(("a1-0", "b1-1"), NODES)
    made = manifest(asked(on=on), NODES.values())
    terms = made["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = terms["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == ["a1-0", "b1-1"]
    with pytest.raises(ManifestError, match="there is no node z"):
        chosen(("z",), NODES)


def test_pods_like_those_of_a_job_keep_all_but_what_they_run() -> None:
    container = {"name": "trainer", "image": "own:1", "command": ["train"], "resources": {"limits": {GPU: 4}}}
    sidecar = {"name": "side", "image": "side:1"}
    like = {"spec": {"containers": [sidecar, container], "tolerations": [{"operator": "Exists"}]}}
    made = manifest(with_devices(asked(), like, 4), NODES.values())
    of_pod = made["spec"]["template"]["spec"]
    assert of_pod["tolerations"] == [{"operator": "Exists"}]
    assert of_pod["containers"][0] == sidecar
    assert of_pod["containers"][1]["image"] == "own:1"
    assert of_pod["containers"][1]["command"] == ["python3", "-m", "trainyard_trainer.measure"]
    assert made["spec"]["processesPerNode"] == 4


def test_it_gives_way_to_everybody_where_a_class_says_how() -> None:
    low, lower, high = PriorityClass("low", -10), PriorityClass("lower", -20), PriorityClass("high", 10)
    assert lowest([high, low, lower]) == "lower"
    assert lowest([high]) is None
    assert lowest([PriorityClass("usual", 5, default=True), PriorityClass("below", 1)]) == "below"


@given(st.lists(st.integers(1, 2**40), min_size=1))
def test_sizes_are_read_as_they_are_written(sizes: list[int]) -> None:
    assert read_sizes(",".join(map(str, sizes))) == tuple(sorted(set(sizes)))


def test_sizes_in_powers_of_two_and_what_is_none() -> None:
    assert read_sizes("64KiB, 1MiB,3B") == (3, 65536, MIB)
    assert [size(n) for n in (3, 65536, MIB, 3 * 2**29)] == ["3 B", "64 KiB", "1 MiB", "1.5 GiB"]
    for wrong in ("", "1MB", "-1", "0", "1.5MiB"):
        with pytest.raises(ValueError, match="is no size; write bytes"):
            read_sizes(wrong)
