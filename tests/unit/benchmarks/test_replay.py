"""A replay holds the rules of its queue under every policy, and counts what it says."""

from itertools import pairwise
from random import Random

import pytest
from trainyard.topology.tree import Level, build
from trainyard.world.records import Node
from trainyard.world.supply import Supply, supply

from benchmarks.contention import Network
from benchmarks.lingjun import Arrival
from benchmarks.policies import policies
from benchmarks.queueing import Run, Work, Yard
from benchmarks.replay import fewest_leaves, outcome, workload
from benchmarks.rivals.best_fit import BestFit
from benchmarks.rivals.rival import Rival

LEVELS = (Level("spine", "spine"), Level("leaf", "leaf"))
EVERYONE = policies(1)
FLAT = (1.0, 1.0)
COSTLY = (1.0, 2.0)


def empty(spines: int = 2, leaves: int = 3, hosts: int = 4) -> Supply:
    nodes = [
        Node(f"n{s}{leaf}{h}", "", {"spine": f"s{s}", "leaf": f"l{leaf}"}, {})
        for s in range(spines)
        for leaf in range(leaves)
        for h in range(hosts)
    ]
    return supply(build(nodes, LEVELS), [1] * len(nodes), [1] * len(nodes), [None] * len(nodes))


def a_trace(seed: int, jobs: int = 60) -> list[Work]:
    random = Random(seed)
    return [
        Work(n, random.uniform(0, 3000), random.choice([10, 100, 400]), random.choice([2, 2, 3, 4, 6, 12]))
        for n in range(jobs)
    ]


def replayed(policy: Rival, jobs: list[Work], share: float = 0.3, over: tuple[float, ...] = COSTLY) -> list[Run]:
    room = empty()
    return Yard(room, policy, Network(room.index, over), share).replay(jobs)


@pytest.mark.parametrize("policy", EVERYONE, ids=lambda policy: policy.name)
def test_no_node_is_held_twice_and_no_job_is_lost(policy: Rival):
    jobs = a_trace(1)
    runs = replayed(policy, jobs)
    assert sorted(run.work.number for run in runs) == [work.number for work in jobs]
    for run in runs:
        assert len(set(run.ranks)) == len(run.ranks) == run.work.nodes
        assert run.start >= run.work.submitted
    held = sorted((run.start, run.end, position) for run in runs for position in run.ranks)
    for position in range(24):
        times = [(start, end) for start, end, at in held if at == position]
        assert all(end <= after for (_, end), (after, _) in pairwise(times))


@pytest.mark.parametrize("policy", EVERYONE, ids=lambda policy: policy.name)
def test_a_job_runs_as_long_as_the_trace_says_and_what_its_communication_costs(policy: Rival):
    for run in replayed(policy, a_trace(2)):
        assert run.slowdown >= 1
        assert run.end - run.start == pytest.approx(run.work.seconds * (0.7 + 0.3 * run.slowdown))
    assert {run.slowdown for run in replayed(policy, a_trace(2), over=FLAT)} == {1.0}


def test_the_head_is_not_delayed_by_back_fill():
    """24 nodes. A holds 20 for 100 s. B needs 22 and waits until then. C, D and E need 4: C ends in time and starts. D would
    take 500 s, and B leaves it only 2 nodes. E starts after C, since it ends in time too. D comes after B."""
    jobs = [Work(0, 0, 100, 20), Work(1, 1, 50, 22), Work(2, 2, 60, 4), Work(3, 3, 500, 4), Work(4, 4, 30, 4)]
    starts = {run.work.number: run.start for run in replayed(BestFit(), jobs, over=FLAT)}
    assert starts == {0: 0, 1: 100, 2: 2, 3: 150, 4: 62}


def test_a_long_job_may_start_on_nodes_that_the_head_will_not_get():
    """A holds 16 of 24 nodes for 100 s: the first spine and a leaf of the second. B waits for 12, which best fit will give it
    in the first spine. C runs for 500 s on 4 of the 8 free nodes and is in nobody's way."""
    jobs = [Work(0, 0, 100, 16), Work(1, 1, 50, 12), Work(2, 2, 500, 4)]
    starts = {run.work.number: run.start for run in replayed(BestFit(), jobs, over=FLAT)}
    assert starts == {0: 0, 1: 100, 2: 2}


def test_a_ring_is_as_slow_as_its_fullest_uplink():
    """Leaves of 4 with 2:1, so an uplink carries 2 edges at full rate. A ring that hops between two leaves at every step
    leaves each 4 times: twice the time. In depth-first order each is left once. With 3 edges of another ring on one of the
    uplinks, that order has 1 + 3 on it."""
    room = empty()
    network = Network(room.index, (1.0, 2.0))
    assert network.slowdown([0, 4, 1, 5, 2, 6, 3, 7]) == 2.0
    assert network.slowdown(range(8)) == 1.0
    network.add([0, 8, 1, 9, 2, 10])
    assert network.slowdown(range(8)) == 2.0
    assert network.slowdown([0, 1, 2]) == 1.0  # within its leaf it meets nobody
    network.add([0, 8, 1, 9, 2, 10], -1)
    assert network.slowdown(range(8)) == 1.0


def test_the_measures_of_two_runs_by_hand():
    """On 24 nodes: 4 nodes from 0 to 100, of which 80 were useful; 2 nodes submitted at 50, from 100 to 200, wholly after the
    last arrival. Until then 4 nodes of 24 were held. Leaves: 2 where 1 would do, and 1."""
    runs = [
        Run(Work(0, 0, 80, 4), 0, 100, (0, 1, 4, 5), 2.0),
        Run(Work(1, 50, 100, 2), 100, 200, (8, 9), 1.0),
    ]
    found = outcome(empty(), runs)
    assert found.spread == pytest.approx(1.5)
    assert found.edges == pytest.approx(1.0)
    assert found.communication == pytest.approx(1.5)
    assert found.communication_weighted == pytest.approx((2 * 320 + 200) / 520)
    assert found.waiting == pytest.approx(25)
    assert found.waiting_by_size == {"2": 50, "3-4": 0}
    assert found.utilisation == pytest.approx(4 / 24)
    assert found.useful == pytest.approx(4 * 0.8 / 24)


def test_fewest_leaves_take_the_largest_first():
    assert [fewest_leaves(empty())(members) for members in (1, 4, 5, 8, 24)] == [1, 1, 2, 2, 6]


def test_a_workload_has_the_load_that_was_asked_for_and_only_gangs():
    arrivals = [Arrival(1000.0 + 10 * n, 100.0, gpus) for n, gpus in enumerate([1, 4, 2, 1, 8, 64, 2])]
    jobs = workload(arrivals, nodes=24, load=0.5)
    assert [job.nodes for job in jobs] == [4, 2, 8, 2]
    span = jobs[-1].submitted - jobs[0].submitted
    assert sum(job.nodes * job.seconds for job in jobs) / (24 * span) == pytest.approx(0.5)
