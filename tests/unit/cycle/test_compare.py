"""The ranks of a gang compared: the one that the others wait for is named, by its node, and who waits is not blamed."""

from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pretend import Pretend
from trainyard.contract.network import Trouble
from trainyard.contract.status import At, Fault
from trainyard.lifecycle.compare import median_without


def running(places, nodes=4, **spec):
    cluster = Pretend(places=places).with_nodes()
    cluster.submit("v", nodes, **spec)
    return cluster.until(lambda: cluster.status("v").progress is not None)


def told(cluster, reason):
    return [message for name, why, message in cluster.events if (name, why) == ("v", reason)]


def condition(cluster):
    return next((one for one in cluster.status("v").conditions if one.type == "Straggler"), None)


def test_a_rank_that_the_others_wait_for_is_named_once_with_its_node_and_by_how_much():
    own = {0: 0.3, 1: 0.3, 2: 0.51, 3: 0.31}
    cluster = running(lambda launcher, rank: (At(rank, launcher.step, own_seconds=own[rank]),))
    cluster.tick(50)
    assert condition(cluster) is None, "it may pass"
    cluster.tick(20)
    node = cluster.nodes_of("v")[2]
    assert condition(cluster).message == (
        f"rank 2 on {node} takes 1.7 times as long as the others for its own part of a step (0.51 s, they 0.3 s; median of 20 "
        f"steps): they wait for it"
    )
    assert condition(cluster).status == "True"
    assert told(cluster, "Straggler") == [condition(cluster).message]
    slow = cluster.status("v").straggler
    assert (slow.rank, slow.node, slow.times) == (2, node, 1.7)

    own[2] = 0.36  # 1.2 times: faster than it takes to be one, not fast enough to be none
    cluster.tick(10)
    assert cluster.status("v").straggler == slow
    own[2] = 0.31
    cluster.tick(10)
    assert condition(cluster) is None
    assert cluster.status("v").straggler is None


def test_a_time_that_no_step_takes_is_compared_with_nothing():
    cluster = running(lambda launcher, rank: (At(rank, launcher.step, own_seconds=1e-300 if rank else 1e9),))
    cluster.tick(65)
    assert cluster.status("v").straggler is None


def test_it_is_of_its_attempt():
    cluster = running(lambda launcher, rank: (At(rank, launcher.step, own_seconds=1.0 if rank else 2.0),))
    cluster.tick(65)
    assert condition(cluster) is not None
    cluster.edit("v", suspend=True)
    cluster.until(cluster.phase_is("v", "Suspended"))
    assert condition(cluster) is None
    assert cluster.status("v").straggler is None


def test_stages_of_a_pipeline_are_compared_within_themselves():
    own = {0: 1.0, 1: 1.05, 2: 2.0, 3: 2.1}
    places = lambda launcher, rank: (At(rank, launcher.step, own_seconds=own[rank]),)  # noqa: E731
    cluster = running(places, parallelism={"pipeline": 2})
    cluster.tick(3)
    assert cluster.status("v").plan.mesh["pipeline"] == 2
    assert cluster.status("v").straggler is None
    own[3] = 3.0
    cluster.tick(3)
    assert cluster.status("v").straggler.rank == 3


@given(st.lists(st.floats(0.2, 0.24), min_size=4, max_size=4))
@settings(max_examples=20, deadline=None)
def test_ranks_that_differ_by_little_are_none(own):
    cluster = running(lambda launcher, rank: (At(rank, launcher.step, own_seconds=own[rank]),))
    cluster.tick(2)
    assert cluster.status("v").straggler is None


@pytest.mark.parametrize("known_by", ["answers", "last words"])
def test_a_hang_is_blamed_on_the_rank_that_never_entered_the_collective(known_by):
    """The first to give up is one that waits: it says so, and the operator looks at all."""

    def places(launcher, rank):
        waits = "" if rank == 2 else "all_reduce 812 of default_pg"
        return (At(rank, launcher.step, 811 if rank == 2 else 812, waits),)

    cluster = running(places)
    cluster.tick(3)
    guilty = cluster.nodes_of("v")[2]
    last = cluster.pod("v-2" if known_by == "last words" else "v-0")
    words = places(cluster.launchers[last.uid], 2 if known_by == "last words" else 0)[0]
    cluster._end(last, 76, "Error", behind=words)
    cluster.until(lambda: cluster.status("v").last_failure is not None)
    failure = cluster.status("v").last_failure
    assert (failure.reason, failure.node, failure.rank) == ("Hang", guilty, 2)
    assert failure.message.startswith(
        f"rank 2 on {guilty} has not entered all_reduce 812 of default_pg, in which ranks 0, 1, 3 wait; "
    )


def test_a_collective_that_timed_out_is_blamed_on_the_rank_that_never_entered_it():
    """NCCL's watchdog ends a rank that waits before the launcher calls it a hang."""

    def places(launcher, rank):
        return (
            At(rank, launcher.step, 811 if rank == 2 else 812, "" if rank == 2 else "all_reduce 812 of default_pg"),
        )

    cluster = running(places)
    cluster.tick(3)
    guilty = cluster.nodes_of("v")[2]
    said = Trouble(
        "CollectiveTimeout", 0, cluster.now, "Watchdog caught collective operation timeout", bearing="secondary"
    )
    cluster._end(cluster.pod("v-0"), 1, "Error", Fault(0, cluster.now, "SIGABRT"), trouble=said)
    cluster.until(lambda: cluster.status("v").last_failure is not None)
    failure = cluster.status("v").last_failure
    assert (failure.reason, failure.node, failure.rank) == ("CollectiveTimeout", guilty, 2)
    assert failure.message.startswith(
        f"rank 2 on {guilty} has not entered all_reduce 812 of default_pg, in which ranks 0, 1, 3"
    )


def test_stages_that_take_part_in_fewer_collectives_are_not_blamed_for_that():
    def places(launcher, rank):
        return (At(rank, launcher.step, 5 if rank < 2 else 9, "all_gather 5 of mesh_shard"),)

    cluster = running(places, parallelism={"pipeline": 2})
    cluster.tick(3)
    node = cluster.nodes_of("v")[3]
    cluster._end(cluster.pod("v-3"), 76, "Error")
    cluster.until(lambda: cluster.status("v").last_failure is not None)
    assert cluster.status("v").last_failure.node == node, "who gave up first, since nobody stands out"


def test_where_nobody_stands_out_the_first_that_gave_up_is_named():
    cluster = running(lambda launcher, rank: (At(rank, launcher.step, 5, "all_reduce 5 of default_pg"),))
    cluster.tick(3)
    node = cluster.nodes_of("v")[1]
    cluster._end(cluster.pod("v-1"), 76, "Error")
    cluster.until(lambda: cluster.status("v").last_failure is not None)
    assert cluster.status("v").last_failure.node == node


@given(st.lists(st.integers(1, 9), min_size=2, max_size=12), st.data())
def test_the_median_of_the_others_is_that_of_the_list_without_one(values, data):
    one = data.draw(st.sampled_from(values))
    others = sorted(values)
    others.remove(one)
    assert median_without(sorted(values), one) == median(others)
