"""Why a gang waits, and what would let it start: whatever is offered does, when the thing itself is changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.clusters import FABRIC, GPU, MEMBER, a_cluster, a_node, a_pod, clusters, some_of
from trainyard.planner.advice import ways as module
from trainyard.planner.advice.ways import Case, Kind, Pace, Way
from trainyard.planner.explain import Best, explain, hints
from trainyard.planner.loss import loss
from trainyard.planner.place import Placement, place
from trainyard.planner.preempt import Candidate
from trainyard.planner.request import Request
from trainyard.world.inventory import Inventory
from trainyard.world.records import Node, Pod, Taint, World
from trainyard.world.room import Room

INFER = Taint("dedicated", "infer", "NoSchedule")
NOW = 1000.0


def gang(nodes: int, **also: object) -> Request:
    return Request("default/waits", nodes, MEMBER, **also)


@dataclass(frozen=True)
class Scene:
    """A cluster with jobs and pods of others on it, and a gang."""

    nodes: Mapping[str, Node]
    wanted: Request
    jobs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    priorities: Mapping[str, int] = field(default_factory=dict)
    at_least: Mapping[str, int] = field(default_factory=dict)
    without: Mapping[str, str] = field(default_factory=dict)
    ends: Mapping[str, float] = field(default_factory=dict)
    lent: Mapping[str, float] = field(default_factory=dict)

    @property
    def room(self) -> Room:
        pods = [self._pod(f"{job}-on-{node}", node) for job, held in self.jobs.items() for node in held]
        pods += [self._pod(f"other-on-{node}", node) for node in self.others]
        world = World(self.nodes, {pod.uid: pod for pod in pods}, fabrics={FABRIC.name: FABRIC})
        return Room(Inventory.of(world))

    @property
    def candidates(self) -> list[Candidate]:
        return [
            Candidate(
                uid=job,
                key=f"default/{job}",
                priority=self.priorities.get(job, 0),
                started=0.0,
                usage={node: {GPU: 8} for node in held},
                accelerators=8 * len(held),
                loss=loss(0.0, NOW, checkpointed=NOW - 100.0),
                at_least=self.at_least.get(job),
            )
            for job, held in self.jobs.items()
        ]

    @property
    def case(self) -> Case:
        ends = [(self.ends[job], {node: {GPU: 8} for node in self.jobs[job]}) for job in self.ends]
        return Case(self.room, self.wanted, 0, self.candidates, self.without, ends, NOW, lent=self.lent)

    @property
    def starts(self) -> bool:
        supply = self.room.supply(self.wanted.demand).without(self.without, "kept for others")
        return isinstance(place(supply, self.wanted), Placement)

    def after(self, way: Way) -> Scene:
        """The same, changed as a way says."""
        if way.within is not None:
            wanted = replace(self.wanted, level=way.within) if way.within else replace(self.wanted, required=False)
            return replace(self, wanted=wanted).after(replace(way, within=None))
        here = self.nodes
        match way.kind:
            case Kind.AVOID:
                return replace(self, wanted=replace(self.wanted, avoid=self.wanted.avoid - set(way.nodes)))
            case Kind.RELAX:
                return self
            case Kind.LIMIT:
                without = {node: job for node, job in self.without.items() if self.lent.get(node, 0.0) < way.time}
                return replace(self, without=without)
            case Kind.SHRINK:
                return replace(self, wanted=replace(self.wanted, nodes=way.members))
            case Kind.YIELD:
                jobs = {job: held for job, held in self.jobs.items() if job not in way.jobs}
                return replace(self, jobs={j: tuple(n for n in held if n not in way.nodes) for j, held in jobs.items()})
            case Kind.WAIT:
                ended = {job for job, time in self.ends.items() if time <= way.time}
                return replace(self, jobs={job: held for job, held in self.jobs.items() if job not in ended})
            case Kind.FREE:
                jobs = {job: tuple(n for n in held if n not in way.nodes) for job, held in self.jobs.items()}
                return replace(self, jobs=jobs, others=tuple(n for n in self.others if n not in way.nodes))
            case Kind.KEPT:
                return replace(self, without={n: job for n, job in self.without.items() if job not in way.jobs})
            case Kind.UNCORDON:
                changed = {name: replace(here[name], unschedulable=False) for name in way.nodes}
            case Kind.READY:
                changed = {name: replace(here[name], ready=True) for name in way.nodes}
            case Kind.TOLERATE:
                toleration = {"key": way.taint, "operator": "Exists"}
                return replace(self, wanted=replace(self.wanted, pod_spec={"tolerations": [toleration]}))
        return replace(self, nodes={**here, **changed})

    def _pod(self, name: str, node: str) -> Pod:
        return a_pod(name, node=node, requests=MEMBER)


def ways(scene: Scene) -> dict[Kind, Way]:
    assert not scene.starts
    return {way.kind: way for way in reversed(explain(scene.case).ways)}


SMALL = a_cluster()  # a1-0, a1-1 in a leaf; a2-0, a2-1 beside it; the same for b
ALL = tuple(SMALL)


def but(*free: str) -> tuple[str, ...]:
    return tuple(name for name in ALL if name not in free)


# The verdict -----------------------------------------------------------------------------------------------------------------


def test_the_verdict_counts_and_names_the_best_domain_of_each_level():
    nodes = {**SMALL, "b1-0": replace(SMALL["b1-0"], unschedulable=True), "b1-1": a_node("b1-1", taints=[INFER])}
    scene = Scene(nodes, gang(4, level="leaf", required=True), others=("a1-0", "a2-0"))
    found = explain(scene.case).verdict
    assert (found.needed, found.within, found.eligible, found.free) == (4, "leaf", 6, 4)
    assert found.best == (Best("leaf", "b/leaf-2", 2, 2), Best("spine", "a", 2, 4), Best("cluster", "cluster", 4, 6))
    assert found.excluded == {"cordoned": 1, "taint dedicated not tolerated": 1}
    assert not found.ever
    kept = explain(replace(scene, without={"a1-1": "default/older", "a1-0": "default/older"}).case)
    assert (kept.verdict.eligible, kept.verdict.free, kept.kept) == (6, 3, {"default/older": 1})


def test_it_says_what_there_is_too_little_of():
    asks = replace(gang(3), requests={GPU: 8, "memory": 1 << 40})
    pods = [a_pod("p", node="a", requests={GPU: 1}), a_pod("q", node="b", requests={"memory": 1 << 30})]
    nodes = {name: a_node(name) for name in "abc"}
    room = Room(Inventory.of(World(nodes, {pod.uid: pod for pod in pods})))
    assert explain(Case(room, asks)).lacking == {"memory": 1, GPU: 1}


# The ways --------------------------------------------------------------------------------------------------------------------


def test_one_more_free_node_in_the_leaf_that_has_all_others():
    scene = Scene(SMALL, gang(2, level="leaf", required=True), others=but("a1-0"))
    way = ways(scene)[Kind.FREE]
    assert way.nodes == ("a1-1",)
    assert way.text == "1 more free node in leaf a/leaf-1, where 1 of 2 are free now: for example a1-1"
    used = replace(scene, others=but("a1-0", "a1-1"), jobs={"p": ("a1-1",)})
    assert ways(used)[Kind.FREE].text.endswith("for example a1-1, which default/p uses")


def test_a_job_that_yields_is_named_with_what_it_loses_and_the_priority_that_it_takes():
    scene = Scene(SMALL, gang(2), {"small": ("a1-0",), "large": ("a2-0", "a2-1")}, priorities={"large": 5})
    scene = replace(scene, others=tuple(n for n in ALL if n[:2] in ("b1", "b2") or n == "a1-1"))
    way = ways(scene)[Kind.YIELD]
    assert way.jobs == ("large",)
    # 100 s since its checkpoint, 30 to save, 60 to restart and 60 in the queue, each times 16 accelerators
    assert way.cost == 250 * 16
    assert way.text.startswith("default/large yields, losing 4,000 GPU-seconds")
    assert way.text.endswith("; this job needs a priority above 5 for that, it has 0")


def test_a_job_that_may_run_with_fewer_nodes_gives_up_only_what_is_needed():
    scene = Scene(SMALL, gang(1), {"elastic": ("a1-0", "a1-1", "a2-0")}, at_least={"elastic": 1})
    scene = replace(scene, others=but("a1-0", "a1-1", "a2-0"))
    way = ways(scene)[Kind.YIELD]
    assert (way.jobs, len(way.nodes)) == ((), 1)
    assert way.text.startswith("default/elastic goes on with 2 of 3 nodes, losing 2,160 GPU-seconds")


def test_where_no_single_job_would_do_the_set_is_named():
    scene = Scene(SMALL, gang(3), {"p": ("a1-0",), "q": ("a1-1",), "r": ("a2-0",)}, others=but("a1-0", "a1-1", "a2-0"))
    assert set(ways(scene)[Kind.YIELD].jobs) == {"p", "q", "r"}


def test_a_broader_level_with_its_predicted_price():
    scene = Scene(SMALL, gang(2, level="leaf", required=True), others=but("a1-0", "a2-0"))
    case = replace(scene.case, pace=Pace(lambda nodes: 1.0 if nodes[0][:2] == nodes[1][:2] else 1.12))
    way = next(way for way in explain(case).ways if way.kind is Kind.RELAX)
    assert way.within == "spine"
    assert way.text == "spec.placement.within.level: spine: 1.12 times the step time, as predicted, over 2 leaf domains"
    assert way.cost == pytest.approx((1 - 1 / 1.12) * 3600 * 16)
    alone = explain(replace(case, pace=replace(case.pace, alone=True))).ways
    assert any("spine: at most 1.12 times the step time" in way.text for way in alone)


def test_no_level_at_all_where_no_single_domain_has_room():
    scene = Scene(SMALL, gang(2, level="leaf", required=True), others=but("a1-0", "b1-0"))
    way = ways(scene)[Kind.RELAX]
    assert (way.within, way.text) == ("", "spec.placement.within.required: false, over 2 leaf domains")


def test_a_level_that_does_not_exist_is_replaced_by_one_that_does():
    assert ways(Scene(SMALL, gang(2, level="rack", required=True)))[Kind.RELAX].within == "leaf"


def test_a_gang_that_no_domain_could_ever_hold_is_told_what_it_takes_besides():
    scene = Scene(
        SMALL, gang(4, level="leaf", required=True), {"p": ("a1-0", "a1-1")}, others=but("a1-0", "a1-1", "a2-0", "a2-1")
    )
    assert not explain(scene.case).verdict.ever
    texts = [way.text for way in explain(scene.case).ways if way.within == "spine"]
    assert texts[0].startswith("spec.placement.within.level: spine; then default/p yields, losing 4,000 GPU-seconds")
    assert texts[1].startswith("spec.placement.within.level: spine; then 2 more free nodes in spine a")


def test_the_most_nodes_that_fit():
    scene = Scene(SMALL, gang(6), others=("a1-0", "a1-1", "b2-0"))
    way = ways(scene)[Kind.SHRINK]
    assert (way.members, way.text) == (5, "run with 5 of 6 nodes: spec.minNodes: 5")


def test_nodes_that_are_kept_out_each_for_its_own_reason():
    nodes = {
        "a": a_node("a", cordoned=True),
        "b": a_node("b", ready=False),
        "c": a_node("c", taints=[INFER]),
        "d": a_node("d"),
        "e": a_node("e", gpus=4),
        "f": a_node("f", cordoned=True, taints=[INFER]),
    }
    found = ways(Scene(nodes, gang(1, avoid=frozenset({"d"}))))
    assert {kind: (way.nodes, way.text) for kind, way in found.items()} == {
        Kind.AVOID: (("d",), "take d of the cluster off spec.placement.avoidNodes"),
        Kind.READY: (("b",), "b of the cluster becomes ready"),
        Kind.UNCORDON: (("a",), "uncordon a of the cluster"),
        Kind.TOLERATE: ((), "a new job that tolerates the taint dedicated: 1 more node with room"),
    }


def test_nodes_of_two_kinds_do_not_add_up():
    old = {
        name: replace(SMALL[name], labels={**SMALL[name].labels, "nvidia.com/gpu.product": "old"})
        for name in ("a1-0", "a2-0")
    }
    scene = Scene({**SMALL, **old}, gang(3, level="spine", required=True), others=but("a1-0", "a2-0", "a1-1"))
    found = explain(scene.case)
    assert found.verdict.free == 3
    assert found.verdict.best[1] == Best("spine", "a", 2, 2)
    (way,) = [way for way in found.ways if way.kind is Kind.FREE]
    assert way.text.startswith("3 more free nodes in spine b, where 0 of 4 are free now")
    assert [way.members for way in found.ways if way.kind is Kind.SHRINK] == [2]


def test_the_control_planes_own_taints_go_with_what_they_say():
    cordoned = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
    gone = Taint("node.kubernetes.io/unreachable", "", "NoExecute")
    nodes = {"a": a_node("a", cordoned=True, taints=[cordoned]), "b": a_node("b", ready=False, taints=[gone])}
    assert ways(Scene(nodes, gang(1))).keys() == {Kind.UNCORDON, Kind.READY}


def test_nodes_that_are_kept_for_an_older_job_name_it():
    scene = Scene(
        SMALL, gang(2), others=but("a1-0", "a1-1"), without={"a1-0": "default/older", "a1-1": "default/older"}
    )
    way = ways(scene)[Kind.KEPT]
    assert way.text == "default/older starts or is deleted, for which 2 nodes are kept"


def test_nodes_that_are_kept_for_later_may_be_had_for_a_while():
    kept = {"a1-0": "default/older", "a1-1": "default/older", "a2-0": "default/other"}
    scene = Scene(SMALL, gang(2), others=but(*kept), without=kept, lent={"a1-0": 7200.0, "a1-1": 5400.0})
    way = ways(scene)[Kind.LIMIT]
    assert (way.time, way.cost) == (5400.0, 0.0)
    assert way.text == "spec.maxRuntime: 1h30m or less, to be gone when default/older needs the nodes kept for it"


def test_the_time_at_which_enough_jobs_have_ended():
    scene = Scene(
        SMALL, gang(2, level="leaf", required=True), {"p": ("a1-0",), "q": ("a1-1",)}, others=but("a1-0", "a1-1")
    )
    scene = replace(scene, ends={"p": NOW + 60, "q": NOW + 600})
    way = ways(scene)[Kind.WAIT]
    assert way.time == NOW + 600
    expected = "in 10m, at 1970-01-01T00:26:40Z, enough of the running jobs have reached their spec.maxRuntime"
    assert way.text == expected


def test_what_nothing_would_help_has_no_ways():
    found = explain(Scene({"a": a_node("a", gpus=4)}, gang(2)).case)
    assert found.ways == ()
    assert found.complete


def test_the_cheapest_comes_first():
    scene = Scene(SMALL, gang(3), {"p": ("a1-0", "a1-1")}, others=but("a1-0", "a1-1", "a2-0"))
    costs = [way.cost for way in explain(scene.case).ways]
    assert len(costs) >= 3
    assert costs == sorted(costs)


# Rules -----------------------------------------------------------------------------------------------------------------------


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """A gang that has no place in a cluster where nodes are taken, kept, cordoned, lost, tainted and avoided."""
    nodes = {
        name: replace(
            node,
            unschedulable=draw(st.integers(0, 5)) == 0,
            ready=draw(st.integers(0, 5)) != 0,
            taints=draw(st.sampled_from([(), (), (INFER,)])),
            labels={**node.labels, **draw(st.sampled_from([{}, {}, {"nvidia.com/gpu.product": "old"}]))},
        )
        for name, node in draw(clusters(most=8)).items()
    }
    owners = {name: draw(st.sampled_from(["", "", "other", "p", "q", "r", "kept"])) for name in nodes}
    jobs = {job: tuple(n for n, owner in owners.items() if owner == job) for job in "pqr"}
    level = draw(st.sampled_from([None, "spine", "leaf", "leaf", "rack"]))
    segment = draw(st.sampled_from([1, 1, 2]))
    wanted = gang(
        segment * draw(st.integers(1, 5 // segment)),
        segment=segment,
        segment_level="leaf" if segment > 1 else None,
        level=level,
        required=level is not None and draw(st.booleans()),
        avoid=frozenset(some_of(draw, nodes) if draw(st.integers(0, 3)) == 0 else ()),
    )
    scene = Scene(
        nodes,
        wanted,
        {job: held for job, held in jobs.items() if held},
        tuple(n for n, owner in owners.items() if owner == "other"),
        {job: draw(st.integers(-1, 1)) for job in "pqr"},
        {job: draw(st.integers(1, 3)) for job in "pq" if draw(st.booleans())},
        {n: "default/older" for n, owner in owners.items() if owner == "kept"},
        {job: NOW + draw(st.integers(0, 3)) for job in "pq" if jobs[job]},
        {
            n: draw(st.sampled_from([100.0, 200.0]))
            for n, owner in owners.items()
            if owner == "kept" and draw(st.booleans())
        },
    )
    assume(not scene.starts)
    return scene


@settings(max_examples=300)
@given(scenes())
def test_every_way_that_is_offered_starts_the_job(scene):
    found = explain(scene.case)
    assert found.complete
    for way in found.ways:
        assert scene.after(way).starts, way


@given(scenes())
def test_no_single_job_and_no_broader_level_and_no_smaller_gang_is_overlooked(scene):
    offered = explain(scene.case).ways
    alone = [job for job in scene.jobs if scene.after(Way(Kind.YIELD, 0.0, "", jobs=(job,))).starts]
    yields = [way for way in offered if way.kind is Kind.YIELD and way.within is None]
    single = [way for way in yields if (len(way.jobs) == 1 and not way.nodes) or not way.jobs]
    assert len(single) >= len(alone)
    assert {way.jobs[0] for way in single if way.jobs} <= set(alone)
    relaxed = scene.after(Way(Kind.RELAX, 0.0, "", within="")).starts
    assert any(way.kind is Kind.RELAX for way in offered) == relaxed
    fits = [n for n in range(1, scene.wanted.nodes) if scene.after(Way(Kind.SHRINK, 0.0, "", members=n)).starts]
    assert [way.members for way in offered if way.kind is Kind.SHRINK] == fits[-1:]


@settings(max_examples=50)
@given(scenes())
def test_hints_are_the_cheapest_of_the_ways_that_are_found_at_once(scene):
    later = {Kind.YIELD, Kind.WAIT}
    at_once = [way.text for way in explain(scene.case).ways if way.kind not in later and "; then " not in way.text]
    assert list(hints(scene.case)) == at_once[:3]


@settings(max_examples=50)
@given(scenes())
def test_no_way_touches_more_nodes_than_it_has_to(scene):
    for way in explain(scene.case).ways:
        if way.kind in (Kind.FREE, Kind.UNCORDON, Kind.READY, Kind.AVOID):
            for spared in way.nodes:
                fewer = replace(way, nodes=tuple(name for name in way.nodes if name != spared))
                assert not scene.after(fewer).starts


@settings(max_examples=50)
@given(scenes(), st.randoms())
def test_the_order_of_records_does_not_matter(scene, shuffle):
    def mixed(items):
        pairs = list(items)
        shuffle.shuffle(pairs)
        return pairs

    again = replace(
        scene,
        nodes=dict(mixed(scene.nodes.items())),
        jobs=dict(mixed(scene.jobs.items())),
        without=dict(mixed(scene.without.items())),
        ends=dict(mixed(scene.ends.items())),
        lent=dict(mixed(scene.lent.items())),
    )
    assert explain(again.case) == explain(scene.case)


@settings(max_examples=50)
@given(scenes(), st.integers(0, 3))
def test_a_spent_budget_is_said_and_still_nothing_is_offered_in_vain(scene, most):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_PLANS", most)
        found = explain(scene.case)
    assert found.plans <= most
    assert all(scene.after(way).starts for way in found.ways)
