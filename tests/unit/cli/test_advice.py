"""What `why` advises helps: a pretended cluster in which it was done starts the job."""

from __future__ import annotations

import copy
from dataclasses import replace

from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from support.pretend import Pretend
from trainyard.api.training_job import Within
from trainyard.cli.question import Answer, ask
from trainyard.cli.turns import waits
from trainyard.planner.advice.ways import Kind, Way
from trainyard.world.records import Trial, Verdict

TRIED = (Kind.RELAX, Kind.SHRINK, Kind.LIMIT, Kind.UNCORDON, Kind.YIELD)


@st.composite
def queues(draw: st.DrawFn) -> Pretend:
    """Twelve nodes with jobs on them and jobs that wait, all of one priority; some are cordoned, or taken by somebody else."""
    cluster = Pretend().with_nodes(spines=2, leaves=2, per_leaf=3)
    for name in draw(st.lists(st.sampled_from(sorted(cluster.nodes)), max_size=3, unique=True)):
        if draw(st.booleans()):
            cluster.foreign(name)
        else:
            cluster.nodes[name] = replace(cluster.nodes[name], unschedulable=True)
    for n in range(draw(st.integers(2, 5))):
        spec: dict[str, object] = {}
        level = draw(st.sampled_from([None, None, "spine", "leaf"]))
        if level is not None:
            spec["placement"] = {"within": {"level": level, "required": True}}
        if draw(st.booleans()):
            spec["maxRuntime"] = draw(st.sampled_from(["2h", "4h"]))
        cluster.submit(f"j{n}", draw(st.integers(1, 8)), **spec)
        cluster.tick(draw(st.sampled_from([1, 8])))
    return cluster.tick(10)


def done(cluster: Pretend, answer: Answer, way: Way) -> Pretend:
    """The cluster some time after somebody did as a way says."""
    after = copy.deepcopy(cluster)
    name = answer.job.name
    if way.within is not None:
        spec = after.job(name).spec
        assert spec is not None
        assert spec.placement.within is not None
        level = way.within or spec.placement.within.level
        within = Within(level=level, required=bool(way.within))
        after.edit(name, placement=spec.placement.but(within=within))
    match way.kind:
        case Kind.SHRINK:
            after.edit(name, min_nodes=way.members)
        case Kind.LIMIT:
            after.edit(name, max_runtime=f"{int(way.time)}s")
        case Kind.UNCORDON:
            for node in way.nodes:
                after.nodes[node] = replace(after.nodes[node], unschedulable=False)
        case Kind.YIELD:
            for uid in way.jobs:
                after.delete_job(after.jobs[uid].name)
    job = after.job(name)  # the API server is asked again after a change; here it has answered already
    after.trials[job.uid] = Trial(job.generation, Verdict.ACCEPTED, after.now)
    for _ in range(20):
        if after.tick().job(name).status.attempt > job.status.attempt:
            break
    return after


@settings(max_examples=8, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(queues(), st.integers(0, 9))
def test_whatever_is_advised_starts_the_job(cluster: Pretend, which: int) -> None:
    checked = 0
    for job in list(cluster.jobs.values()):
        if not waits(job) or job.status.reservation is not None:
            continue
        answer = ask(cluster.world(), job, cluster.now)
        assert answer.explanation is not None
        ways = [way for way in answer.explanation.ways if way.kind in TRIED]
        if ways:
            way = ways[which % len(ways)]
            after = done(cluster, answer, way)
            assert after.job(job.name).status.attempt == job.status.attempt + 1, (job.name, way)
            checked += 1
    assume(checked)


def test_whom_another_would_take_nodes_from_comes_back_first() -> None:
    """With peer gone, older takes the nodes of low as well, who then waits for the two that are left: before behind."""
    cluster = Pretend().with_nodes(spines=1, leaves=1, per_leaf=7).with_class("high", 10)
    cluster.submit("low", 3)
    cluster.submit("peer", 3, priorityClassName="high")
    cluster.tick(10)
    cluster.submit("older", 5, priorityClassName="high")
    cluster.tick(5)
    cluster.submit("behind", 2)
    cluster.tick(5)
    answer = ask(cluster.world(), cluster.job("behind"), cluster.now)
    assert answer.explanation is not None
    texts = [way.text for way in answer.explanation.ways]
    assert any(text.startswith("team/low yields") for text in texts)
    assert not any("team/peer" in text for text in texts)
    assert [way.text.split(",")[0] for way in answer.passed if way.kind is Kind.YIELD] == ["team/peer yields"]
