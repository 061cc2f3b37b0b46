"""plan.json says who is who, stays small, and is not believed when it contradicts itself."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainyard.contract.codec import ContractError
from trainyard.contract.plan import (
    Axis,
    Checkpoints,
    Domain,
    Lineage,
    Mark,
    Member,
    NewerFormat,
    Plan,
    decode,
    digest,
    encode,
)
from trainyard.contract.preflight import Preflight


def a_plan(**changes):
    given = {
        "namespace": "team",
        "job": "small-lm",
        "uid": "5f0c",
        "attempt": 3,
        "service": "small-lm",
        "processes_per_node": 8,
        "members": (Member(7, "node-b", 1), Member(4, "node-a", 2)),
        "mesh": (Axis("replicate", 2), Axis("shard", 8)),
        "levels": ("spine", "leaf"),
        "domains": (Domain(0, "s0"), Domain(1, "l0", 0), Domain(1, "l1", 0)),
        "lineage": Lineage((Mark(1, 120), Mark(2, -1)), Mark(1, 100)),
        "checkpoints": Checkpoints("/ckpt/5f0c", every_steps=50),
        "trainer": {"steps": 10, "model": {"layers": 2}},
    }
    return Plan(**(given | changes))


def big(members, per_leaf=16, leaves_per_spine=16):
    leaves = -(-members // per_leaf)
    spines = -(-leaves // leaves_per_spine)
    domains = [Domain(0, f"spine-{n}") for n in range(spines)]
    domains += [Domain(1, f"leaf-{n}", n // leaves_per_spine) for n in range(leaves)]
    gang = tuple(
        Member(n, f"ip-10-{n // 250}-{n % 250}.eu-west-1.compute.internal", spines + n // per_leaf)
        for n in range(members)
    )
    return a_plan(members=gang, mesh=(Axis("shard", 8 * members),), domains=tuple(domains))


members_of_jobs = st.lists(st.integers(0, 10**6), min_size=1, max_size=20, unique=True)


@given(members_of_jobs, st.integers(1, 16), st.integers(1, 10**6))
def test_a_plan_is_read_as_it_was_written(numbers, processes, attempt):
    gang = tuple(Member(number, f"node-{number}") for number in numbers)
    axes = (Axis("replicate", len(gang)), Axis("shard", processes))
    plan = a_plan(members=gang, mesh=axes, processes_per_node=processes, attempt=attempt)
    assert decode(encode(plan)) == plan
    assert digest(decode(encode(plan))) == digest(plan)


@given(members_of_jobs)
def test_each_pod_finds_its_own_rank(numbers):
    plan = a_plan(members=tuple(Member(number, "n") for number in numbers))
    assert [plan.node_rank(plan.pod(rank)) for rank in range(len(numbers))] == list(range(len(numbers)))
    assert plan.master_address == f"small-lm-{numbers[0]}.small-lm"


def test_a_pod_of_another_attempt_has_no_rank():
    with pytest.raises(KeyError, match="small-lm-5 is not a member of attempt 3 of team/small-lm"):
        a_plan().node_rank("small-lm-5")


def test_a_members_domains_are_named_from_the_top():
    plan = a_plan()
    assert plan.path(0) == ("s0", "l0")
    assert plan.path(1) == ("s0", "l1")
    assert a_plan(members=(Member(0, "n"), Member(1, "m"))).path(0) == ()


def test_ten_thousand_members_fit_in_a_config_map():
    text = encode(big(10_000))
    assert len(text.encode()) < 700_000
    assert decode(text).world_size == 80_000


def test_the_digest_tells_plans_apart():
    plans = [a_plan(), a_plan(attempt=4), a_plan(trainer=None), a_plan(rendezvous_port=29501)]
    assert len({digest(plan) for plan in plans}) == len(plans)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mesh": (Axis("shard", 15),)}, r"Plan.mesh: its axes multiply to 15, but members x processes is 16"),
        ({"mesh": (Axis("a", -4), Axis("b", -4))}, r"Plan.mesh\[0\].size: -4"),
        ({"members": ()}, r"Plan.members: empty"),
        ({"members": (Member(4, "a"), Member(4, "b"))}, r"Plan.members\[1\].member: 4 plays two ranks"),
        ({"members": (Member(-1, "a"), Member(4, "b"))}, r"Plan.members\[0\].member: -1"),
        ({"members": (Member(4, "a", 3), Member(5, "b"))}, r"Plan.members\[0\].domain: 3 is not in domains"),
        ({"domains": (Domain(0, "s", 0),), "members": (Member(4, "a"), Member(5, "b"))}, r"Plan.domains\[0\]: parent"),
        ({"domains": (Domain(2, "s"),), "members": (Member(4, "a"), Member(5, "b"))}, r"Plan.domains\[0\]: parent"),
        ({"processes_per_node": 0}, r"Plan.processes_per_node: 0"),
        ({"attempt": 0}, r"Plan.attempt: 0"),
        ({"rendezvous_port": 70000}, r"Plan.rendezvous_port: 70000"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(changes, message):
    with pytest.raises(ContractError, match=message):
        decode(encode(a_plan(**changes)))


def test_a_newer_format_is_told_apart_from_a_broken_plan():
    with pytest.raises(NewerFormat, match="update the image"):
        decode(encode(dataclasses.replace(a_plan(), format=2)))


def test_what_a_gang_is_to_prove_travels_and_is_nothing_where_it_is_left_out():
    asked = Preflight(2**20, 0.25, (1e9, 2e9, 4e9), (0, 1), alone=True, budget_seconds=8.0)
    assert decode(encode(a_plan(preflight=asked))).preflight == asked
    assert decode(encode(a_plan(preflight=Preflight(nodes=())))).preflight.nodes == ()
    assert decode(encode(a_plan())).preflight is None
    assert "preflight" not in encode(a_plan())
