"""Why a job waits, or has its nodes: the pages on a pretended cluster that the operator's own judgement has run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.pretend import Pretend
from trainyard.cli.question import ask
from trainyard.cli.turns import waits
from trainyard.cli.why import other_page, recorded_page, running_page, waiting_page
from trainyard.contract.status import At
from trainyard.topology.tree import Level, Tree, build

LEAF = {"placement": {"within": {"level": "leaf", "required": True}}}


def a_queue() -> Pretend:
    """Two leaves of four in each of two spines; one job holds six nodes, somebody else holds one, one node is cordoned."""
    cluster = Pretend().with_nodes(spines=2, leaves=2, per_leaf=4).with_class("research", 10)
    cluster.foreign("b0")
    cluster.nodes["b7"] = replace(cluster.nodes["b7"], unschedulable=True)
    cluster.submit("runs", 6, placement={"avoidNodes": [name for name in cluster.nodes if name.startswith("b")]})
    cluster.tick(30)
    return cluster


def tree_of(cluster: Pretend) -> Tree:
    prefix = "network.topology.nvidia.com/"
    return build(cluster.nodes.values(), [Level("spine", f"{prefix}spine"), Level("leaf", f"{prefix}leaf")])


def page(cluster: Pretend, name: str) -> list[str]:
    return waiting_page(ask(cluster.world(), cluster.job(name), cluster.now), cluster.now).splitlines()


def test_the_page_says_since_when_why_and_what_would_help() -> None:
    cluster = a_queue()
    cluster.submit("waits", 4, **LEAF)
    cluster.tick(90)
    assert page(cluster, "waits") == [
        "team/waits waits since 1970-01-12T13:47:10Z (1m30s): NoDomainFits",
        "  needs 4 nodes within one leaf; 15 are eligible, 8 of them are free; the best leaf, spine-b/leaf-0,",
        "  has 3 free of 4",
        "",
        "LEVEL    BEST DOMAIN     FREE  OF",
        "leaf     spine-b/leaf-0     3   4",
        "spine    spine-b            6   7",
        "cluster  cluster            8  15",
        "",
        "Nodes left out: 1 cordoned",
        "Of the others that are not free: 7 have too little nvidia.com/gpu",
        "",
        "Each of these would start it, cheapest first:",
        "  1. spec.placement.within.level: spine: at most 1.00 times the step time, as predicted, over 2 leaf",
        "     domains",
        "  2. team/runs yields, losing 4,800 GPU-seconds; this job needs a priority above 0 for that, it has",
        "     0",
        "  3. uncordon b7 of leaf spine-b/leaf-1",
        "  4. run with 3 of 4 nodes: spec.minNodes: 3",
        "  5. 1 more free node in leaf spine-b/leaf-0, where 3 of 4 are free now: for example b0",
        "",
        "Nobody is ahead of it in the queue.",
    ]


def test_who_comes_first_is_named_with_what_it_asks_for() -> None:
    cluster = a_queue()
    cluster.submit("first", 12)
    cluster.submit("high", 99, priorityClassName="research")
    cluster.tick(5)
    cluster.submit("last", 11)
    cluster.tick(5)
    assert page(cluster, "last")[-1] == (
        "Ahead of it in the queue: team/high (99 nodes, priority 10), team/first (12 nodes)"
    )
    assert any(line == "Free, but kept: 8 for team/first" for line in page(cluster, "last"))


def test_a_job_that_would_be_gone_in_time_is_told_with_which_limit() -> None:
    cluster = Pretend().with_nodes()
    cluster.submit("holds", 4, maxRuntime="4h")
    cluster.tick(10)
    cluster.submit("head", 8)
    cluster.tick(5)
    cluster.submit("behind", 2)
    cluster.tick(5)
    assert any(line.startswith("  1. spec.maxRuntime: 3h") for line in page(cluster, "behind"))
    cluster.edit("behind", max_runtime="3h")
    cluster.tick(5)
    assert cluster.nodes_of("behind")


def test_a_gang_that_could_never_be_held_is_told_so() -> None:
    cluster = a_queue()
    cluster.submit("wide", 5, **LEAF)
    cluster.tick(5)
    lines = page(cluster, "wide")
    assert "No leaf could hold it even if all 15 eligible nodes were empty." in lines
    assert "  1. spec.placement.within.level: spine, over 2 leaf domains" in lines


def test_a_job_whose_nodes_are_being_left_shows_them() -> None:
    cluster = a_queue()
    cluster.save_seconds = 60.0
    cluster.submit("urgent", 14, priorityClassName="research")
    cluster.tick(10)
    lines = page(cluster, "urgent")
    assert lines[0].endswith(": WaitingForVictims")
    assert lines[1] == "  14 nodes are reserved; team/runs must leave them first"
    assert "0-3    spine-a/leaf-0  a[0-3]" in lines


def test_a_job_whose_turn_has_come_is_told_so() -> None:
    cluster = a_queue()
    job = cluster.submit("new", 2)
    lines = waiting_page(ask(cluster.world(), job, cluster.now), cluster.now).splitlines()
    assert "Its turn has come: the operator would start it now." in lines


def test_a_running_job_shows_its_nodes_in_the_order_of_ranks() -> None:
    cluster = a_queue()
    members = [pod for pod in cluster.pods.values() if pod.membership]
    lines = running_page(cluster.job("runs"), members, tree_of(cluster), cluster.now).splitlines()
    assert lines[0] == "team/runs: Running, attempt 1 for 29s, 6 nodes"
    assert "Nodes       6, all within one spine" in lines
    assert "Ring edges  0 leave a spine, 2 leave a leaf" in lines
    assert any(line.startswith("Choice      of the nodes that were free: optimal (") for line in lines)
    assert any(
        line.startswith("Predicted   all-reduce at ") and line.endswith("interfaces of a node") for line in lines
    )
    assert lines[-3:] == [
        "RANKS  LEAF            NODES",
        "0-3    spine-a/leaf-1  a[4-7]",
        "4-5    spine-a/leaf-0  a[0-1]",
    ]


def test_a_running_job_says_how_it_trains_who_is_slow_and_where_its_time_went() -> None:
    cluster = Pretend().with_nodes()
    cluster.places = lambda launcher, rank: (At(rank, launcher.step, own_seconds=0.51 if rank == 2 else 0.3),)
    cluster.submit("runs", 4)
    cluster.tick(90)
    lines = running_page(cluster.job("runs"), list(cluster.pods.values()), tree_of(cluster), cluster.now).splitlines()
    assert lines[2].startswith("Progress  step 8")
    slow = next(line for line in lines if line.startswith("Straggler: "))
    assert slow.startswith(f"Straggler: rank 2 on {cluster.nodes_of('runs')[2]} takes 1.7 times as long as the others")
    assert any(line.startswith("Of its 1m30s: new steps 1m2") and "starting" in line for line in lines)


@pytest.mark.parametrize("width", [80, 120])
def test_no_line_of_prose_is_wider_than_the_page(width: int) -> None:
    cluster = a_queue()
    cluster.submit("waits", 4, **LEAF)
    cluster.tick(30)
    answer = ask(cluster.world(), cluster.job("waits"), cluster.now)
    assert all(len(line) <= width for line in waiting_page(answer, cluster.now, width).splitlines())


def test_whoever_may_not_see_the_cluster_is_told_what_the_operator_wrote() -> None:
    cluster = a_queue()
    cluster.submit("waits", 4, **LEAF)
    cluster.tick(30)
    lines = recorded_page(cluster.job("waits"), cluster.now).splitlines()
    assert lines[0] == "team/waits waits since 1970-01-12T13:47:10Z (30s): NoDomainFits"
    assert lines[1].startswith("  needs 4 nodes within one leaf; ")
    assert any(line.startswith("  - ") for line in lines)
    assert lines[-2].startswith("This is what the operator last said; more takes the right to list ")


def test_jobs_that_neither_wait_nor_run_say_what_they_are() -> None:
    cluster = a_queue()
    done = cluster.submit("done", 2, steps=3)
    cluster.submit("off", 2, suspend=True)
    cluster.until(cluster.phase_is("done", "Succeeded"))
    assert waits(done)
    for name, says in (("done", "team/done: Succeeded"), ("off", "team/off: Suspended")):
        job = cluster.job(name)
        assert not waits(job)
        lines = other_page(job, cluster.now).splitlines()
        assert lines[0] == says
        assert lines[1].startswith("  ")
    assert (
        other_page(cluster.job("done"), cluster.now).splitlines()[-1]
        == "Of its 5s: starting 2s (40%), new steps 2s (40%), waiting 1s (20%)"
    )
    assert len(other_page(cluster.job("off"), cluster.now).splitlines()) == 2, "it never had nodes"
