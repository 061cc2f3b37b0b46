"""Before the first step: real ranks over the loopback interface find out who is slow; and the rules by which they do."""

import math
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.launching import a_plan
from support.processes import plan_file, run
from trainyard.contract import env
from trainyard.contract.exits import Exit
from trainyard.contract.network import Alike, PodNetwork, encode_network
from trainyard.contract.plan import Domain, Member, decode, encode
from trainyard.contract.preflight import Finding, Preflight
from trainyard.network import consistency
from trainyard_trainer import report, train
from trainyard_trainer.parallel.rendezvous import Place, meet
from trainyard_trainer.preflight import apart, exchange, judge
from trainyard_trainer.preflight import gang as preflight
from trainyard_trainer.preflight.exchange import grow
from trainyard_trainer.preflight.gang import PreflightFailed, prove
from trainyard_trainer.preflight.judge import Exchange
from trainyard_trainer.preflight.pairs import MAX_TURNS, among_good, common_depth, neighbours, partner, with_good
from trainyard_trainer.preflight.unlike import compare
from trainyard_trainer.report import Reporter

MIB = 2**20
SIZE = MIB // 2
RATE = 20e6
"""Bytes a second that the pretended links have. The loopback interface is far above, a throttled rank far below."""
ASKED = Preflight(
    message_bytes=SIZE,
    expected_seconds=1.5 * SIZE / RATE,
    edge_bytes_per_second=(RATE,),
    budget_seconds=6.0,
    lost_seconds=20.0,
)


def throttle(bytes_per_second):
    """This process is at the end of a slow link: whatever it takes part in lasts as long as the bytes do."""

    def slowed(call, factor):
        def later(group, value, *arguments):
            time.sleep(factor * value.nbytes / bytes_per_second)
            return call(group, value, *arguments)

        return later

    exchange._reduce = slowed(exchange._reduce, 1.5)
    exchange._send, exchange._receive = slowed(exchange._send, 1.0), slowed(exchange._receive, 1.0)


def lose():
    """This process is at the end of a dead link: it takes part, and nothing that it sends or waits for comes."""
    exchange._reduce = exchange._send = exchange._receive = lambda *_: time.sleep(100)


def proves(asked, slow=(), ranks=4, rates=MappingProxyType({}), lost=(), **plan):
    """Work for a rank: meet, prove, and return what was found. rates: of slow ranks that are not five times too slow."""

    def work(rank):
        meet(Place.of(os.environ, rank, ranks), torch.device("cpu"), 60.0, lambda: False)
        if rank in slow:
            throttle(rates.get(rank, RATE / 5))
        if rank in lost:
            lose()
        given = a_plan(nodes=ranks, preflight=asked, **plan)
        try:
            return prove(given, torch.device("cpu"), Reporter.from_environment(rank))
        except PreflightFailed as failed:
            return failed.result

    return work


def results(folder, *arguments, environments=None, **options):
    """What each rank found and said."""
    ended = run(proves(*arguments, **options), options.get("ranks", 4), folder / "gang", environments=environments)
    assert [end.code for end in ended] == [0] * len(ended), ended[0].output
    return [end.result for end in ended], ended


def same(found):
    """The result, which all ranks must have alike but for the time that they took."""
    assert len({replace(one, seconds=0.0) for one in found}) == 1
    return found[0]


def test_a_network_as_fast_as_predicted_passes(tmp_path):
    found, ended = results(tmp_path, ASKED)
    result = same(found)
    assert (result.finding, result.nodes) == (Finding.PASSED, ())
    assert result.bus_bandwidth > result.expected_bus_bandwidth > 0
    assert result.message.startswith("an all-reduce of 512 KiB ran at ")
    said = [one for one in ended[3].reports if isinstance(one, report.PreflightDone)]
    assert [one.finding for one in said] == ["passed"]
    assert not any(isinstance(one, report.Failed) for end in ended for one in end.reports)


def test_one_slow_node_is_named_with_its_figures(tmp_path):
    found, ended = results(tmp_path, ASKED, slow=(2,))
    result = same(found)
    assert (result.finding, result.nodes) == (Finding.FAILED, ("node-2",))
    assert "node-2 reaches" in result.message
    assert "with node-3 and" in result.message  # its neighbour first, then a good node
    assert "predicted" in result.message
    assert result.bus_bandwidth < 0.5 * result.expected_bus_bandwidth
    assert len(result.edge_bytes_per_second) == 1
    for end in ended:
        (failed,) = (one for one in end.reports if isinstance(one, report.Failed))
        assert failed.preflight
        assert failed.message == result.message


def test_a_slow_node_of_three_is_named(tmp_path):
    found, _ = results(tmp_path, ASKED, slow=(0,), ranks=3)
    assert same(found).nodes == ("node-0",)


def test_a_gang_that_is_slow_as_a_whole_is_warned_of(tmp_path):
    found, ended = results(tmp_path, ASKED, slow=range(4))
    result = same(found)
    assert (result.finding, result.nodes) == (Finding.WARNED, ())
    assert "all 4 nodes are equally slow" in result.message
    warned = [one.reason for one in ended[0].reports if isinstance(one, report.Warned)]
    assert warned == ["NetworkSlow"]


def test_a_gang_that_is_slow_as_a_whole_fails_where_nobody_else_uses_its_links(tmp_path):
    found, _ = results(tmp_path, replace(ASKED, alone=True), slow=range(2), ranks=2)
    result = same(found)
    assert (result.finding, result.nodes) == (Finding.FAILED, ())
    assert result.message.startswith("all 2 nodes are equally slow")


def test_only_nodes_that_have_not_passed_lately_are_measured(tmp_path):
    found, _ = results(tmp_path, replace(ASKED, nodes=(1,)), slow=(1,))
    result = same(found)
    assert result.nodes == ("node-1",)
    assert result.bus_bandwidth is None
    found, _ = results(tmp_path / "fast", replace(ASKED, nodes=(1,)))
    assert same(found).finding == Finding.PASSED


def test_where_most_nodes_are_new_everybody_is_measured(tmp_path):
    asked = replace(ASKED, nodes=(1, 2, 3))
    found, _ = results(tmp_path, asked)
    result = same(found)
    assert result.finding == Finding.PASSED
    assert result.message.startswith("an all-reduce of 512 KiB ran at ")
    found, _ = results(tmp_path / "slow", asked, slow=(2,))
    assert same(found).nodes == ("node-2",)


UNKNOWN = replace(ASKED, expected_seconds=None, edge_bytes_per_second=())
ALIKE = MappingProxyType(dict.fromkeys(range(4), RATE))
"""Where only nodes are compared, all have to be slow enough for the machine's own hiccups not to count."""


def test_a_new_node_is_compared_with_the_others_where_no_speed_is_known(tmp_path):
    asked = replace(UNKNOWN, nodes=(2,))
    found, _ = results(tmp_path, asked, slow=range(4), rates={**ALIKE, 2: RATE / 5})
    assert same(found).nodes == ("node-2",)
    found, _ = results(tmp_path / "alike", asked, slow=range(4), rates=ALIKE)
    assert same(found).finding == Finding.PASSED


def test_a_new_node_that_gets_nothing_through_never_passes(tmp_path):
    asked = replace(UNKNOWN, lost_seconds=5.0, nodes=(2,))
    found, _ = results(tmp_path, asked, slow=range(4), rates=ALIKE, lost=(2,))
    assert same(found).nodes == ("node-2",)


def test_a_gang_that_has_passed_lately_measures_nothing(tmp_path):
    found, _ = results(tmp_path, replace(ASKED, nodes=()), slow=range(4))
    assert same(found).finding == Finding.SKIPPED


def test_processes_of_a_node_measure_side_by_side(tmp_path):
    def work(rank):
        meet(Place.of(os.environ, rank, 4), torch.device("cpu"), 60.0, lambda: False)
        plan = a_plan(procs=2, nodes=2, preflight=ASKED)
        return prove(plan, torch.device("cpu"), Reporter.from_environment(rank))

    ended = run(work, 4, tmp_path / "gang")
    assert same([end.result for end in ended]).finding == Finding.PASSED


def test_case_24_a_node_with_fewer_adapters_is_named_before_anything_is_measured(tmp_path):
    environments = {}
    for rank in range(4):
        alike = Alike(link_layer="InfiniBand", adapters=7 if rank == 1 else 8, rate_gbps=400.0)
        path = tmp_path / f"network-{rank}.json"
        path.write_text(encode_network(PodNetwork(alike=alike)))
        environments[rank] = {env.NETWORK_FILE: str(path)}
    found, _ = results(tmp_path, ASKED, environments=environments)
    result = same(found)
    assert (result.finding, result.nodes, result.bus_bandwidth) == (Finding.FAILED, ("node-1",), None)
    assert result.message == (
        "number of adapters: 8 on 3 nodes, 7 on node-1; NCCL ignores the difference, and collectives hang"
    )


def test_cases_45_and_50_ranks_that_are_not_those_of_the_plan_do_not_train(tmp_path):
    def work(rank):
        meet(Place.of(os.environ, rank, 2), torch.device("cpu"), 60.0, lambda: False)
        with pytest.raises(PreflightFailed, match="2 ranks have met, and the plan has 3"):
            prove(a_plan(nodes=3, preflight=ASKED), torch.device("cpu"), Reporter.from_environment(rank))

    assert [end.code for end in run(work, 2, tmp_path / "gang")] == [0, 0]


LOSING = replace(ASKED, lost_seconds=5.0)


@pytest.mark.parametrize(("ranks", "dead"), [(4, 1), (3, 2)])
def test_the_node_whose_link_loses_everything_is_named(tmp_path, ranks, dead):
    found, _ = results(tmp_path, LOSING, lost=(dead,), ranks=ranks)
    result = same(found)
    assert (result.finding, result.nodes) == (Finding.FAILED, (f"node-{dead}",))
    assert f"node-{dead} reaches nothing with node-" in result.message
    assert result.message.endswith("an all-reduce of up to 512 KiB did not come to an end in 5 s")


def test_where_nobody_described_the_network_such_a_node_is_named_as_well(tmp_path):
    asked = replace(UNKNOWN, lost_seconds=LOSING.lost_seconds)
    found, _ = results(tmp_path, asked, slow=range(4), rates=ALIKE, lost=(1,))
    assert same(found).nodes == ("node-1",)


def test_of_two_nodes_with_nothing_between_them_neither_is_to_blame(tmp_path):
    found, _ = results(tmp_path, replace(UNKNOWN, lost_seconds=LOSING.lost_seconds), lost=(1,), ranks=2)
    result = same(found)
    assert (result.finding, result.nodes) == (Finding.FAILED, ())
    assert result.message == "nothing gets through between node-0 and node-1, and which of them it is cannot be told"


WATCHDOG_SECONDS = 8.0
"""Of the pretended NCCL: what is stuck for longer takes the process down."""


class Kernels:
    """A group over NCCL, pretended: who sends to a dead link or waits for it is stuck in a kernel, without any error, until
    the group is aborted. A process that does not abort it is ended by its watchdog."""

    def __init__(self, group, dead):
        self._group, self._dead, self._aborted = group, dead, threading.Event()

    def allreduce(self, values, op):
        return self._stuck() if self._dead else self._group.allreduce(values, op)

    def send(self, values, rank, tag):
        return self._stuck() if self._dead else self._group.send(values, rank, tag)

    def recv(self, values, rank, tag):
        return self._stuck() if self._dead else self._group.recv(values, rank, tag)

    def _stuck(self):
        if not self._aborted.wait(WATCHDOG_SECONDS):
            os.abort()
        raise RuntimeError("NCCL communicator was aborted")

    def abort(self):
        self._aborted.set()
        self._group.abort()


def test_over_nccl_the_node_of_a_lost_link_is_named_before_a_watchdog_ends_anybody(tmp_path):
    """Only the waiting differs from gloo: the host waits for a kernel that no timeout of the group's ends."""

    def work(rank):
        made = apart.group
        with_whom = []

        def group(store, mine, ranks, device, seconds):
            dead = ranks > 2 or 1 in (rank, with_whom[-1])
            return Kernels(made(store, mine, ranks, device, 10 * WATCHDOG_SECONDS), dead)

        own = preflight._Gang._with

        def pair(self, other, *arguments):
            with_whom.append(other)
            return own(self, other, *arguments)

        apart.group, preflight._Gang._with = group, pair
        return proves(LOSING)(rank)

    ended = run(work, 4, tmp_path / "gang")
    assert [end.code for end in ended] == [0] * 4, ended[0].output
    result = same([end.result for end in ended])
    assert (result.finding, result.nodes) == (Finding.FAILED, ("node-1",))


def test_a_group_over_nccl_is_made_with_a_watchdog_that_ends_no_process(monkeypatch):
    made = []

    class Made:
        class Options:
            _timeout = None

        def __init__(self, store, rank, ranks, options):
            names = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_DUMP_ON_TIMEOUT")
            made.append((*(os.environ.get(name) for name in names), options._timeout.total_seconds()))

    monkeypatch.setattr(apart.dist, "ProcessGroupNCCL", Made, raising=False)
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")
    monkeypatch.delenv("TORCH_NCCL_DUMP_ON_TIMEOUT", raising=False)
    apart._nccl(None, 0, 2)
    assert made == [("0", "0", 3600.0)]
    assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"
    assert "TORCH_NCCL_DUMP_ON_TIMEOUT" not in os.environ


def test_an_error_of_our_own_is_not_taken_for_a_lost_message():
    def wrong(group):
        raise ValueError("ours")

    with pytest.raises(ValueError, match="ours"):
        apart.within(5.0, torch.device("cpu"), lambda: Kernels(NoGroup(), dead=False), wrong)


class NoGroup:
    def abort(self):
        pass


def a_training(tmp_path, asked, slow=()):
    """The built-in trainer on three ranks, with a preflight in its plan."""
    given = plan_file(tmp_path / "plan.json", tmp_path / "run", ranks=3)
    plan = replace(decode(Path(given[env.PLAN]).read_bytes()), preflight=asked)
    Path(given[env.PLAN]).write_text(encode(plan))

    def work(rank):
        if rank in slow:
            throttle(RATE / 5)
        return train.main([])

    return run(work, 3, tmp_path / "gang", environments=dict.fromkeys(range(3), given))


def test_a_gang_that_passes_goes_on_to_train(tmp_path):
    ended = a_training(tmp_path, ASKED)
    assert [end.code for end in ended] == [Exit.DONE] * 3, ended[0].output
    kinds = [type(one) for one in ended[0].reports]
    assert kinds.index(report.PreflightDone) < kinds.index(report.StepDone)


def test_the_trainer_leaves_by_77_where_the_gang_fails(tmp_path):
    ended = a_training(tmp_path, ASKED, slow=(1,))
    assert [end.code for end in ended] == [Exit.PREFLIGHT] * 3, ended[0].output
    for end in ended:
        assert not any(isinstance(one, report.StepDone) for one in end.reports)
        (done,) = (one for one in end.reports if isinstance(one, report.PreflightDone))
        assert done.nodes == "node-1"


def test_without_a_preflight_in_the_plan_nothing_is_asked():
    assert prove(a_plan(nodes=2), torch.device("cpu"), Reporter(0, None)) is None
    assert prove(a_plan(nodes=1, preflight=ASKED), torch.device("cpu"), Reporter(0, None)) is None


# Growing messages


def steady(bytes_per_second, sent):
    def once(size):
        sent.append(size)
        return size / bytes_per_second

    return once


def test_a_fast_network_carries_the_whole_message():
    sent = []
    timed = grow(steady(1e9, sent), 64 * MIB, 1.0)
    assert timed.bytes == 64 * MIB
    assert sent[:4] == [MIB, 4 * MIB, 16 * MIB, 64 * MIB]


@given(st.floats(1e3, 1e12), st.integers(64, 2**30), st.floats(0.1, 10.0))
def test_what_is_sent_after_the_first_piece_fits_twice_the_time(rate, size, allowance):
    sent = []
    timed = grow(steady(rate, sent), size, allowance)
    assert timed.bytes_per_second == pytest.approx(rate)
    assert sum(sent[2 if sent[0] == sent[1] else 1 :]) / rate <= 2 * allowance * 1.01


def test_a_process_that_was_not_scheduled_for_a_moment_is_no_slow_network():
    stalls = iter([0.9])
    timed = grow(lambda size: next(stalls, size / 1e9), 64 * MIB, 1.0)
    assert timed.bytes == 64 * MIB
    assert timed.bytes_per_second == pytest.approx(1e9)


def test_the_fastest_of_several_counts():
    times = iter([0.001, 0.004, 0.016, 0.9, 0.064, 0.2])
    assert grow(lambda size: next(times), 64 * MIB, 10.0).seconds == 0.064


# Pairs


@given(st.integers(2, 60))
def test_every_node_has_a_neighbour_and_one_partner_at_a_time(nodes):
    turns = neighbours(nodes)
    assert {node for turn in turns for pair in turn for node in pair} == set(range(nodes))
    for turn in turns:
        flat = [node for pair in turn for node in pair]
        assert len(flat) == len(set(flat))
        assert all(partner(turn, a) == b and partner(turn, b) == a for a, b in turn)
    assert len(turns) <= MAX_TURNS


def tree():
    """Two leaves of four nodes."""
    domains = (Domain(0, "leaf-a"), Domain(0, "leaf-b"))
    members = tuple(Member(n, f"node-{n}", n // 4) for n in range(8))
    return a_plan(nodes=8, levels=("leaf",), domains=domains, members=members)


def test_a_suspect_is_measured_with_a_good_node_of_its_own_leaf():
    assert with_good(tree(), (4, 5), {0, 1, 2, 3, 6, 7}, [(4, 5)]) == (((4, 6), (5, 7)),)
    assert with_good(tree(), (3,), {2, 4}, [(2, 3)]) == (((3, 4),),)  # not again with whom it was slow
    assert with_good(tree(), (3,), {2}, [(2, 3)]) == (((3, 2),),)


@given(st.sets(st.integers(0, 7), max_size=8))
def test_no_good_node_stands_in_two_pairs_of_a_turn(bad):
    good = set(range(8)) - bad
    turns = with_good(tree(), sorted(bad), good)
    for turn in turns:
        partners = [b for _, b in turn]
        assert len(partners) == len(set(partners))
        assert set(partners) <= good
    assert len(turns) <= MAX_TURNS


# Judging


@given(st.integers(2, 30), st.data())
def test_each_new_node_is_measured_or_everybody_is(nodes, data):
    fresh = data.draw(st.sets(st.integers(0, nodes - 1), min_size=1, max_size=nodes))
    good = set(range(nodes)) - fresh
    if len(good) >= len(fresh):  # else an all-reduce, or neighbours
        (turn,) = with_good(a_plan(nodes=nodes), sorted(fresh), good)
        assert {a for a, _ in turn} == fresh


def test_good_nodes_are_compared_with_each_other_over_ways_as_long_as_a_new_ones():
    assert among_good(tree(), ((4, 5),), {5, 6, 0}) == ((5, 6),)  # all of one leaf
    assert among_good(tree(), ((4, 3),), {0, 3, 5}) == ((3, 5),)  # across leaves, as 4 and 3 are
    assert among_good(tree(), ((4, 3),), {0, 1, 3}) == ()  # what is near would make 4 look slow


def test_who_gets_nothing_through_is_suspect_whoever_is_asked_about():
    assert judge.suspects({0: 1.0, 1: math.inf}, False, {1}) == (1,)
    assert judge.suspects({0: math.inf, 1: 1.0, 2: 1.0}, True, {1}) == (0,)
    assert judge.suspects({0: math.inf, 1: math.inf, 2: math.inf, 3: 1.0}, False) == (0, 1, 2)
    assert judge.suspects({0: 1.0, 1: 2.5}, False, {1}, 1.0) == (1,)
    assert judge.suspects({0: 1.0, 1: 2.5}, False, {1}) == ()  # nothing to compare with


def pretended(plan, asked, slow, link=lambda a, b: 1.0):
    """The two rounds over pretended links: a pair is as fast as the slower of its nodes. Returns who is named."""

    def measure(turns):
        return [
            Exchange(a, b, RATE * link(a, b) * min(slow.get(a, 1.0), slow.get(b, 1.0)))
            for turn in turns
            for a, b in turn
        ]

    rated = bool(asked.edge_bytes_per_second)
    first = neighbours(len(plan.members))
    exchanges = measure(first)
    suspects = judge.suspects(judge.best(plan, asked, exchanges), rated)
    good = set(range(len(plan.members))) - set(suspects)
    second = with_good(plan, suspects, good, [pair for turn in first for pair in turn])
    exchanges += measure(second)
    again = {node for turn in second for pair in turn for node in pair}
    return {n for n in judge.suspects(judge.best(plan, asked, exchanges), rated) if n in suspects and n in again}


@pytest.mark.parametrize("asked", [ASKED, replace(ASKED, edge_bytes_per_second=())])
@given(nodes=st.integers(3, 40), data=st.data())
def test_one_slow_node_is_named_and_no_other(asked, nodes, data):
    slow = data.draw(st.integers(0, nodes - 1))
    assert pretended(a_plan(nodes=nodes), asked, {slow: 0.1}) == {slow}


@given(st.integers(8, 40), st.data())
def test_no_good_node_is_named_however_many_are_slow(nodes, data):
    slow = data.draw(st.sets(st.integers(0, nodes - 1), max_size=nodes))
    assert pretended(a_plan(nodes=nodes), ASKED, dict.fromkeys(slow, 0.1)) <= slow


@given(st.integers(3, 30), st.floats(0.01, 10.0))
def test_nodes_that_are_equally_fast_are_never_named(nodes, speed):
    for asked in (ASKED, replace(ASKED, edge_bytes_per_second=())):
        assert pretended(a_plan(nodes=nodes), asked, dict.fromkeys(range(nodes), speed)) == set()


def test_a_node_that_must_cross_a_slow_uplink_is_not_slow():
    domains = (Domain(0, "leaf-a"), Domain(0, "leaf-b"))
    members = tuple(Member(n, f"node-{n}", int(n == 3)) for n in range(4))  # node 3 has nobody else in its leaf
    plan = a_plan(nodes=4, levels=("leaf",), domains=domains, members=members)
    asked = replace(ASKED, edge_bytes_per_second=(RATE / 10, RATE))
    uplink = lambda a, b: 1.0 if common_depth(plan, a, b) else 0.1  # noqa: E731
    assert pretended(plan, asked, {}, uplink) == set()
    assert pretended(plan, asked, {3: 0.01}, uplink) == {3}


def test_from_four_fifths_on_a_gang_passes_and_from_half_on_it_is_warned():
    assert [judge.by_ratio(r) for r in (1.2, 0.8, 0.79, 0.5, 0.49)] == [
        Finding.PASSED,
        Finding.PASSED,
        Finding.WARNED,
        Finding.WARNED,
        Finding.FAILED,
    ]


def test_a_pair_that_got_nothing_through_is_infinitely_slow():
    assert judge.slowness(a_plan(nodes=2), ASKED, Exchange(0, 1, 0.0)) == math.inf


def test_two_nodes_that_are_fast_with_others_have_a_slow_way_between_them():
    verdict = judge.nobody(tree(), ASKED, (4, 5), [Exchange(4, 5, 1e6), Exchange(4, 6, RATE)], "total")
    assert verdict.finding == Finding.WARNED
    assert verdict.message.startswith("node-4, node-5 were slow with one node and are fast with another")


# What must be alike


def found(**alike):
    return PodNetwork(alike=Alike(**alike))


def test_a_difference_by_which_collectives_hang_is_fatal_and_one_that_costs_is_told():
    said = compare({"a": found(nccl=(2, 30, 7)), "b": found(nccl=(2, 30, 7)), "c": found(nccl=(2, 29, 7))})
    assert said.fatal == ("NCCL version: 2.30.7 on 2 nodes, 2.29.7 on c; NCCL refuses to start",)
    assert (said.nodes, said.costly) == (("c",), ())
    said = compare({"a": found(gpudirect=True), "b": found(gpudirect=True), "c": found(gpudirect=False)})
    assert said.costly == ("GPUDirect: on on 2 nodes, off on c; the slowest sets the pace",)
    assert (said.nodes, said.fatal) == ((), ())


def test_what_a_pod_could_not_tell_says_nothing():
    assert compare({"a": found(nccl=(2, 30, 7)), "b": found(), "c": PodNetwork()}) == compare({})


@given(st.lists(st.sampled_from([400.0, 200.0]), min_size=2, max_size=5), st.lists(st.sampled_from([8, 7]), min_size=5))
def test_workers_and_operator_say_the_same_of_a_difference(rates, adapters):
    of = {f"node-{n}": found(rate_gbps=rate, adapters=adapters[n]) for n, rate in enumerate(rates)}
    reports = [consistency.Report(node, rank, one.alike) for rank, (node, one) in enumerate(of.items())]
    assert compare(of) == consistency.compare(reports, roce=False)


def test_a_node_with_a_fault_of_its_own_is_to_blame():
    said = compare(
        {"a": found(adapters=8), "b": PodNetwork(faults=("no RDMA adapter can be used",)), "c": found(adapters=8)}
    )
    assert said.fatal == ("b: no RDMA adapter can be used",)
    assert said.nodes == ("b",)
