"""What gangs find of the network goes into the Fabric's table, and from there into plans; never into what is demanded."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from support.pretend import Pretend
from trainyard.api.fabric import FabricSpec, Observed, ObservedBy, ObservedLink
from trainyard.contract.preflight import Finding, PreflightResult
from trainyard.cycle import actions as act
from trainyard.cycle import cycle
from trainyard.cycle.observe import TAKEN_IN_SECONDS
from trainyard.planner.cost import edges_of
from trainyard.planner.links import links_of
from trainyard.topology.tree import Level
from trainyard.world.observed import FRESH_SECONDS, speeds
from trainyard.world.records import Fabric

RATE = 10e9 / 8 * 0.94
"""What one interface of the Fabric sends, less what TCP takes."""


def described(cluster: Pretend) -> None:
    keys = {"spine": "network.topology.nvidia.com/spine", "leaf": "network.topology.nvidia.com/leaf"}
    tiers = [{"name": name, "nodeLabel": key, "bandwidth": "10Gbps"} for name, key in keys.items()]
    raw = {"kind": "tcp", "levels": tiers, "node": {"nics": 1, "nicBandwidth": "10Gbps"}}
    cluster.fabrics["ours"] = Fabric("ours", FabricSpec.model_validate(raw), "uid-ours", "1")


@pytest.fixture
def cluster() -> Pretend:
    found = Pretend().with_nodes()
    described(found)
    return found


def preflighted(cluster: Pretend, name: str, nodes: int, result: PreflightResult, **spec: object) -> None:
    """A job that proves its network before it trains, with this result."""
    cluster.finds = result
    cluster.submit(name, nodes, **spec)
    cluster.until(lambda: (n := cluster.status(name).network) is not None and n.preflight is not None).tick(2)


def passed(bus: float, expected: float, edges: tuple[float, ...] = ()) -> PreflightResult:
    return PreflightResult(Finding.PASSED, "fine", 1.0, bus, expected, (), edges)


def table(cluster: Pretend) -> dict[str, float]:
    return speeds(cluster.fabrics["ours"].observed)


def test_an_all_reduce_that_passed_speaks_for_the_level_that_holds_it_up(cluster: Pretend) -> None:
    preflighted(cluster, "train", 8, passed(0.9e9, 1.0e9))
    planned = cluster.status("train").plan
    assert planned is not None
    assert planned.preflight is not None
    level = planned.preflight.bottleneck
    assert table(cluster) == {level: pytest.approx(0.9 * RATE, rel=0.01)}
    observed = cluster.fabrics["ours"].observed
    assert observed is not None
    (row,) = observed.links
    assert (row.by, row.job, row.nodes) == (ObservedBy.PREFLIGHT, "team/train", 8)
    assert observed.summary == f"{level} 0.90"


def test_pairs_of_nodes_speak_for_what_they_cross(cluster: Pretend) -> None:
    preflighted(cluster, "train", 8, PreflightResult(Finding.WARNED, "slow", 1.0, 0.6e9, 1e9, (), (0.0, 8e8, 1.1e9)))
    assert table(cluster) == {"leaf": 8e8, "node": 1.1e9}


@pytest.mark.parametrize(
    "result",
    [
        PreflightResult(Finding.FAILED, "a1 is slow", 1.0, 1e8, 1e9, ("a1",), (1e8, 1e8, 1e8)),
        PreflightResult(Finding.FAILED, "all are slow", 1.0, 1e8, 1e9, (), (1e8, 1e8, 1e8)),
        PreflightResult(Finding.WARNED, "slow, nobody knows why", 1.0, 6e8, 1e9),
        PreflightResult(Finding.SKIPPED, "all have passed lately"),
    ],
)
def test_what_may_be_a_nodes_fault_is_not_the_levels(cluster: Pretend, result: PreflightResult) -> None:
    preflighted(cluster, "train", 4, result)
    assert table(cluster) == {}


def test_it_is_written_once_and_whoever_writes_second_does_no_harm(cluster: Pretend) -> None:
    written: list[act.Action] = []

    def watch(action: act.Action) -> bool:
        written.extend([action] if isinstance(action, act.WriteObserved) else [])
        return False

    cluster.interrupt = watch
    preflighted(cluster, "train", 8, passed(0.9e9, 1.0e9))
    cluster.tick(60)
    (once,) = written
    before = cluster.fabrics["ours"]
    cluster.perform([once])  # of another leader, that saw the table as it was
    assert cluster.fabrics["ours"] == before


def test_a_table_that_was_emptied_is_filled_only_with_what_is_recent(cluster: Pretend) -> None:
    preflighted(cluster, "train", 8, passed(0.9e9, 1.0e9))
    cluster.fabrics["ours"] = replace(cluster.fabrics["ours"], observed=Observed())
    cluster.tick(2)
    assert table(cluster)
    cluster.fabrics["ours"] = replace(cluster.fabrics["ours"], observed=Observed())
    cluster.now += TAKEN_IN_SECONDS
    cluster.tick(2)
    assert not table(cluster)


def test_the_words_of_a_newer_operator_are_left_alone(cluster: Pretend) -> None:
    cluster.fabrics["ours"] = replace(cluster.fabrics["ours"], observed=None)
    preflighted(cluster, "train", 8, passed(0.9e9, 1.0e9))
    assert cluster.fabrics["ours"].observed is None


def test_without_a_fabric_object_nothing_is_kept(cluster: Pretend) -> None:
    cluster.fabrics.clear()
    preflighted(cluster, "train", 8, passed(0.9e9, 1.0e9))
    assert not any(isinstance(action, act.WriteObserved) for action in cycle(cluster.world(), cluster.now).actions)


def test_what_was_observed_changes_the_prediction_and_not_what_is_demanded(cluster: Pretend) -> None:
    """Else a link that becomes slower and slower would pass every time."""
    cluster.submit("before", 8)
    cluster.until(cluster.phase_is("before", "Running"))
    first = cluster.status("before").plan
    cluster.delete_job("before")
    cluster.until(lambda: not cluster.pods)
    seen(cluster, "spine", 0.5 * RATE)
    cluster.submit("after", 8)
    cluster.until(cluster.phase_is("after", "Running"))
    second = cluster.status("after").plan
    assert first is not None
    assert second is not None
    assert second.predicted_bus_bandwidth == pytest.approx(0.5 * first.predicted_bus_bandwidth, rel=0.02)
    assert second.bottleneck == "spine"
    assert second.preflight == first.preflight


def test_a_link_that_gets_slower_by_little_each_time_is_found_out(cluster: Pretend) -> None:
    expected = []
    for n, share in enumerate((0.95, 0.85, 0.8)):
        preflighted(cluster, f"train-{n}", 8, passed(share * 1e9, 1e9))
        plan = cluster.status(f"train-{n}").plan
        assert plan is not None
        assert plan.preflight is not None
        expected.append(plan.preflight.expected_seconds)
        cluster.delete_job(f"train-{n}")
        cluster.until(lambda: not cluster.pods)
        cluster.now += 3700
    assert len(set(expected)) == 1


def test_observations_are_forgotten_after_a_day(cluster: Pretend) -> None:
    seen(cluster, "spine", 0.5 * RATE)
    early = predicted(cluster, "early")
    cluster.now += FRESH_SECONDS + 1
    late = predicted(cluster, "late")
    assert late == pytest.approx(2 * early, rel=0.02)


def test_the_same_world_and_time_give_the_same_plan_whatever_the_order_of_the_table(cluster: Pretend) -> None:
    rows = [row("spine", 0.3 * RATE, "a"), row("spine", 0.5 * RATE, "b"), row("node", 0.9 * RATE, "c")]
    cluster.submit("train", 5)
    world = cluster.world()
    plans = set()
    for order in permutations(rows):
        fabric = replace(world.fabrics["ours"], observed=Observed(links=order))
        plans.add(repr(cycle(replace(world, fabrics={"ours": fabric}), cluster.now)))
    assert len(plans) == 1


@pytest.mark.parametrize(("kind", "kept"), [("tcp", True), ("roce", False), ("generic", False)])
def test_what_goes_over_sockets_says_nothing_of_a_network_of_adapters(cluster: Pretend, kind: str, kept: bool) -> None:
    spec = FabricSpec.model_validate({**cluster.fabrics["ours"].spec.to_manifest(), "kind": kind})
    cluster.fabrics["ours"] = replace(cluster.fabrics["ours"], spec=spec)
    container = {"name": "trainer", "image": "own", "command": ["train"], "resources": {"limits": {"cpu": "60"}}}
    preflighted(
        cluster, "train", 8, passed(0.9e9, 1.0e9, (1e9, 1e9, 1e9)), template={"spec": {"containers": [container]}}
    )
    assert bool(table(cluster)) is kept


def test_what_is_on_one_fabric_says_nothing_of_another(cluster: Pretend) -> None:
    spec = cluster.fabrics["ours"].spec.but(node_selector={"network.topology.nvidia.com/spine": "spine-b"})
    cluster.fabrics["theirs"] = Fabric("theirs", spec, "uid-theirs", "1")
    preflighted(cluster, "train", 4, passed(0.9e9, 1.0e9))
    of_train = {node[0] for node in cluster.nodes_of("train")}
    other = "theirs" if of_train == {"a"} else "ours"
    assert speeds(cluster.fabrics[other].observed) == {}
    assert speeds(cluster.fabrics[{"ours": "theirs", "theirs": "ours"}[other]].observed)


def seen(cluster: Pretend, level: str, bandwidth: float) -> None:
    fabric = cluster.fabrics["ours"]
    cluster.fabrics["ours"] = replace(fabric, observed=Observed(links=(row(level, bandwidth, time=cluster.now),)))


def row(level: str, bandwidth: float, job: str = "team/m", time: float = 1_000_000.0) -> ObservedLink:
    return ObservedLink(level=level, bandwidth=bandwidth, by=ObservedBy.PREFLIGHT, job=job, nodes=8, time=time)


def predicted(cluster: Pretend, name: str) -> float:
    cluster.submit(name, 8)
    cluster.until(cluster.phase_is(name, "Running"))
    plan = cluster.status(name).plan
    assert plan is not None
    cluster.delete_job(name)
    cluster.until(lambda: not cluster.pods)
    return plan.predicted_bus_bandwidth


def test_a_level_that_was_seen_slow_makes_a_gang_prefer_to_stay_below_it() -> None:
    """The ranking uses what was seen: the tier's price rises with it."""
    spec = FabricSpec.model_validate({"kind": "tcp", "node": {"nicBandwidth": "10Gbps"}})
    levels = (Level("spine", "s"), Level("leaf", "l"))
    unknown, slow = edges_of(links_of(spec, levels), 2), edges_of(links_of(spec, levels, observed={"leaf": 1e7}), 2)
    assert slow.pace(1) > 10 * unknown.pace(1)
