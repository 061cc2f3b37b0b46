"""Collectives timed by real ranks over the loopback interface, and the rules by which they are done."""

import json
import os
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from support.launching import a_plan
from support.processes import run
from trainyard.contract import env
from trainyard.contract.codec import ContractError
from trainyard.contract.measured import Edge, Gang, Point, Way, encode_line, read
from trainyard.contract.plan import Domain, Member, encode
from trainyard_trainer.measure import __main__ as command
from trainyard_trainer.measure import edges, orders, trees, ways
from trainyard_trainer.parallel.rendezvous import Place, meet
from trainyard_trainer.preflight.pairs import common_depth

CPU = torch.device("cpu")
EIGHT = a_plan(
    nodes=8,
    levels=("spine", "leaf"),
    domains=(
        Domain(0, "a"), Domain(1, "a1", 0), Domain(1, "a2", 0), Domain(0, "b"), Domain(1, "b1", 3), Domain(1, "b2", 3)
    ),
    members=tuple(Member(n, f"node-{n}", (1, 1, 2, 2, 4, 4, 5, 5)[n]) for n in range(8)),
)  # fmt: skip


def planned(file, plan):
    file.write_text(encode(plan))
    return str(file)


def in_gang(ranks, work):
    """Work for a rank that has met the others."""

    def whole(rank):
        meet(Place.of(os.environ, rank, ranks), CPU, 60.0, lambda: False)
        return work(rank)

    return whole


@pytest.mark.parametrize("ranks", [2, 5, 6])
def test_two_trees_sum_what_all_ranks_have(tmp_path, ranks):
    def work(rank):
        message = torch.arange(1001, dtype=torch.float32) * (rank + 1)
        trees.PIECE_BYTES = 256
        trees.all_reduce(message, rank, trees.both(ranks))
        return bool((message == torch.arange(1001) * sum(range(1, ranks + 1))).all())

    assert all(end.result for end in run(in_gang(ranks, work), ranks, tmp_path / "gang"))


def test_every_way_does_what_the_collective_is(tmp_path):
    """Each is done with ones; the buffers are looked at through the closures, so that what is timed is what is checked."""
    plan = a_plan(nodes=2, processes_per_node=2)

    def work(rank):
        size, found = 4096, {}
        for (collective, way), make in ways.ways(plan, rank, CPU).items():
            once = make(size)
            buffers = {
                name: cell.cell_contents for name, cell in zip(once.__code__.co_freevars, once.__closure__, strict=True)
            }
            for held in buffers.values():
                if isinstance(held, torch.Tensor):
                    held.fill_(1.0 if collective != "broadcast" else float(rank == 0))
            if collective == "send-receive":
                ops = buffers["ops"]
                for op in ops:
                    op.tensor.fill_(float(rank) if op.op is dist.isend else -1.0)
                once()
                found[collective, way] = [float(op.tensor[0]) for op in ops if op.op is dist.irecv]
                continue
            once()
            tensors = {name: float(held.mean()) for name, held in buffers.items() if isinstance(held, torch.Tensor)}
            found[collective, way] = tensors
        return found

    ended = run(in_gang(4, work), 4, tmp_path / "gang")
    assert [end.code for end in ended] == [0] * 4, ended[0].output
    for rank, end in enumerate(ended):
        found = end.result
        for way in (Way.RING, Way.TREE, Way.HIERARCHICAL):
            assert found["all-reduce", way]["message"] == 4.0, way
        assert found["all-gather", Way.LIBRARY] == {"whole": 1.0, "part": 1.0}
        assert found["reduce-scatter", Way.LIBRARY]["part"] == 4.0
        assert found["broadcast", Way.LIBRARY]["message"] == 1.0
        assert found["send-receive", Way.LIBRARY] == ([] if rank == 0 else [rank - 1.0])


def test_the_command_says_each_collective_at_each_size(tmp_path):
    leaves, members = (Domain(0, "a"), Domain(0, "b")), tuple(Member(n, f"node-{n}", n // 2) for n in range(4))
    plan = a_plan(nodes=4, levels=("leaf",), domains=leaves, members=members)

    def work(rank):
        os.environ[env.PLAN] = planned(tmp_path / f"plan-{rank}.json", plan)
        return command.main(["collectives", "--sizes", "64,65536"])

    ended = run(work, 4, tmp_path / "gang")
    assert [end.code for end in ended] == [0] * 4, ended[0].output
    found = read(ended[0].output.splitlines())
    assert (found.gang.ranks, found.gang.backend, found.gang.neighbours) == (4, "gloo", 2)
    assert [(edge.depth, edge.pairs) for edge in found.edges] == [(0, 1), (1, 2)]
    assert all(1e6 < edge.bytes_per_second < 1e11 for edge in found.edges)
    assert [(p.collective, p.way) for p in found.points if p.bytes == 65536] == [
        ("all-reduce", "ring"),
        ("all-reduce", "tree"),
        ("all-reduce", "hierarchical"),
        ("all-gather", "library"),
        ("reduce-scatter", "library"),
        ("broadcast", "library"),
        ("send-receive", "library"),
    ]
    assert all(point.seconds > 0 for point in found.points)
    assert not any(line.startswith("{") for end in ended[1:] for line in end.output.splitlines())


def test_sizes_that_would_take_too_long_are_left_out(tmp_path):
    def work(rank):
        os.environ[env.PLAN] = planned(tmp_path / f"plan-{rank}.json", a_plan(nodes=2))
        return command.main(["collectives", "--sizes", "1024,65536", "--allowance", "1e-9"])

    found = read(run(work, 2, tmp_path / "gang")[0].output.splitlines())
    assert {point.bytes for point in found.points} == {1024}


def test_orders_are_measured_against_the_planned_one(tmp_path):
    def work(rank):
        os.environ[env.PLAN] = planned(tmp_path / f"plan-{rank}.json", a_plan(nodes=3))
        return command.main(["orders", "--mebibytes", "0.25", "0.5", "--orders", "4", "3"])

    ended = run(work, 3, tmp_path / "gang")
    assert [end.code for end in ended] == [0] * 3, ended[0].output
    lines = [json.loads(line) for line in ended[0].output.splitlines() if line.startswith("{")]
    assert [line["mebibytes"] for line in lines] == [0.25, 0.5]
    assert [(len(line["random"]), len(line["orders"])) for line in lines] == [(4, 4), (3, 3)]
    assert all(sorted(order) == [0, 1, 2] for line in lines for order in line["orders"])


def test_at_each_level_every_domain_sends_to_one_other_of_the_same_domain():
    assert edges.pairs_at(EIGHT, 0) == ((0, 4),)
    assert edges.pairs_at(EIGHT, 1) == ((0, 2), (4, 6))
    assert edges.pairs_at(EIGHT, 2) == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert edges.pairs_at(a_plan(nodes=3), 0) == ((0, 1),)


@given(st.lists(st.integers(-1, 5), min_size=1, max_size=12))
def test_pairs_share_what_their_level_says_and_no_way_up(places):
    members = tuple(Member(n, f"node-{n}", place) for n, place in enumerate(places))
    plan = replace(EIGHT, members=members)
    for depth in range(3):
        turn = edges.pairs_at(plan, depth)
        assert all(common_depth(plan, a, b) == depth for a, b in turn)
        below = [
            (*plan.path(node)[: depth + 1], node if len(plan.path(node)) <= depth else "")
            for pair in turn
            for node in pair
        ]
        assert len(below) == len(set(below))


def test_the_worst_order_leaves_the_broadest_domain_at_every_step():
    apart = orders.alternating(EIGHT)
    assert apart == (0, 4, 2, 6, 1, 5, 3, 7)


def test_neighbours_are_those_of_a_node_else_of_the_narrowest_domain_that_all_have_alike():
    assert ways.neighbours(EIGHT) == 2
    assert ways.neighbours(a_plan(nodes=2, processes_per_node=4)) == 4
    assert ways.neighbours(a_plan(nodes=4)) == 0


def test_a_gang_that_lies_unevenly_has_no_neighbours_below_the_level_where_it_is_even():
    members = tuple(Member(n, f"node-{n}", (1, 2, 2, 2, 4, 4, 4, 5)[n]) for n in range(8))
    plan = a_plan(nodes=8, levels=EIGHT.levels, domains=EIGHT.domains, members=members)
    assert ways.neighbours(plan) == 4


@given(st.integers(2, 300))
def test_both_trees_reach_everybody_and_share_the_work(ranks):
    first, second = trees.both(ranks)
    for tree in (first, second):
        assert sum(parent < 0 for parent in tree) == 1
        assert trees.depth(tree) <= ranks.bit_length()  # finite: no circle
        assert max(sum(parent == rank for parent in tree) for rank in range(ranks)) <= 2
    inner = [{parent for parent in tree if parent >= 0} for tree in (first, second)]
    assert len(inner[0] & inner[1]) <= 2  # but for the roots' children, who has children in one is a leaf in the other


counts = st.integers(1, 2**31)
points = st.builds(Point, st.just("broadcast"), st.sampled_from(list(Way)), counts, st.floats(0, 9), st.just(3))
seen = st.builds(Edge, st.integers(0, 9), st.floats(0, 1e12), counts)


@given(st.builds(Gang, counts, counts, st.just("gloo"), st.integers(0, 2**31)), st.lists(points), st.lists(seen))
def test_a_measurement_is_read_from_among_other_lines(gang, said, ways_up):
    lines = ["a warning", "{not json", encode_line(gang), *map(encode_line, [*ways_up, *said]), '{"other": 1}']
    found = read([encode_line(Gang(1, 1, "old")), encode_line(Edge(0, 1.0, 1)), *lines])
    assert (found.gang, list(found.points), list(found.edges)) == (gang, said, ways_up)


def test_a_log_without_a_measurement_is_said_to_hold_none():
    with pytest.raises(ContractError, match="holds no measurement"):
        read(["{}", "nothing"])
