"""What the order of ranks and a hierarchical sum are worth, and what really goes over the wire.

On the lab's emulated fabric of 8 nodes with a process on each, gloo (`namespaces.py`). Training is the trainer's own main, from a
plan as the operator writes it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
import torch.distributed as dist
from trainyard.api.fabric import FabricSpec
from trainyard.contract import env
from trainyard.contract.plan import Axis, Domain, Member, Plan, encode
from trainyard.planner import predict
from trainyard.planner.collectives import Collective
from trainyard.planner.links import links_of
from trainyard.planner.traffic import REPLICATE, Traffic, by_levels
from trainyard_lab import cluster
from trainyard_lab.demo.figures import tree_of
from trainyard_lab.fabric import Topology
from trainyard_trainer.ledger import COUNTED_STEP
from trainyard_trainer.measure.orders import orders
from trainyard_trainer.measure.sizes import sample
from trainyard_trainer.parallel.hierarchical import Levels
from trainyard_trainer.parallel.mesh import build
from trainyard_trainer.parallel.places import Places
from trainyard_trainer.parallel.rendezvous import Place, meet
from trainyard_trainer.report import Overlapped, SentInStep
from trainyard_trainer.session import Session
from trainyard_trainer.train import main

from benchmarks.figures import Figure
from benchmarks.namespaces import fabric, run, sent_bytes

NODES: Final = 8
PLANNED: Final = tuple(range(NODES))
TURNS: Final = 3
"""How many other orders are measured between two times of the planned one."""
WARM_UP, STEPS = 2, 3
"""Steps of each order that are not measured, and that are."""
WIRE_STEPS: Final = 5
MEBIBYTES: Final = 16
ROUNDS: Final = 5
CONFIG: Final[Mapping[str, Any]] = {
    "model": {"width": 192, "layers": 2, "heads": 4, "kvHeads": 2, "hidden": 768},
    "data": {"sequenceLength": 16, "globalBatch": NODES, "microBatch": 1},
    "steps": WARM_UP + STEPS + 1,
    "logEvery": 1000,
}
"""1.2 million parameters and one sample of 16 tokens a rank: next to nothing to compute."""
BOUND: Final[Mapping[str, Any]] = {
    **CONFIG,
    "model": {"width": 320, "layers": 2, "heads": 4, "kvHeads": 2, "hidden": 1280},
}
"""3.2 million parameters, of which copies sum 13 MB a step."""
DDP: Final = (Axis("replicate", NODES), Axis("shard", 1))
SHARED: Final = (Axis("shard", NODES),)
FORMS: Final[Mapping[str, tuple[tuple[Axis, ...], Mapping[str, Any]]]] = {
    "ddp": (DDP, {}),
    "fsdp": (SHARED, {}),
    "hsdp": ((Axis("replicate", 2), Axis("shard", 4)), {}),
    "hsdp and tensor": ((Axis("replicate", 2), Axis("shard", 2), Axis("tensor", 2)), {}),
    "pipeline and fsdp": (
        (Axis("pipeline", 2), Axis("shard", 4)),
        {"data": {**CONFIG["data"], "globalBatch": 2 * NODES}},
    ),
    "ddp by levels": (DDP, {"parallel": {"allReduce": "hierarchical"}}),
    "ddp in int8": (DDP, {"parallel": {"compression": {"method": "int8"}}}),
}
"""Meshes whose bytes are counted at the interfaces."""
OVERLAPPED: Final[Mapping[str, tuple[tuple[Axis, ...], Mapping[str, Any]]]] = {
    "ddp in one bucket": (DDP, {"parallel": {"bucketMebibytes": 100.0}}),
    "ddp in buckets of 1 MiB": (DDP, {"parallel": {"bucketMebibytes": 1.0}}),
    "fsdp": (SHARED, {}),
}
BUSY: Final[Mapping[str, Any]] = {"sequenceLength": 64, "globalBatch": 4 * NODES, "microBatch": 4}
"""Enough to compute that something can be hidden behind it."""
RANGE: Final = (0.75, 1.35)
"""Within which a hierarchical sum is to be of the model's time."""


@dataclass(frozen=True, slots=True)
class Training:
    """What a rank saw of one run. seconds: of each step; sent: bytes of its interface, before each step."""

    seconds: tuple[float, ...]
    sent: tuple[int, ...]


def plan_of(topology: Topology, order: Sequence[int], mesh: Sequence[Axis], trainer: Mapping[str, Any]) -> Plan:
    """The plan of a gang whose ranks are on the nodes of these numbers. It saves nothing."""
    spines = list(dict.fromkeys(node.spine for node in topology.nodes))
    leaves = list(dict.fromkeys((node.leaf, node.spine) for node in topology.nodes))
    domains = [Domain(0, name) for name in spines] + [Domain(1, leaf, spines.index(spine)) for leaf, spine in leaves]
    nodes = [topology.nodes[n] for n in order]
    return Plan(
        namespace="benchmark",
        job="job",
        uid="1",
        attempt=1,
        service="job",
        processes_per_node=1,
        members=tuple(
            Member(n, node.name, len(spines) + leaves.index((node.leaf, node.spine))) for n, node in enumerate(nodes)
        ),
        mesh=tuple(mesh),
        levels=("spine", "leaf"),
        domains=tuple(domains),
        trainer=dict(trainer),
    )


def trained(node: int, name: str, order: Sequence[int], plan: Path) -> Training:
    """Train as the rank that the plan gives to this node. Called on all nodes; name: the same on all, and new."""
    os.environ |= {
        env.PLAN: str(plan),
        "RANK": str(list(order).index(node)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "TORCHELASTIC_RUN_ID": name,
    }
    moments, sent = [], []

    def between(session: Session) -> bool:
        moments.append(time.perf_counter())
        sent.append(sent_bytes())
        return False

    Session.should_stop = between  # type: ignore[method-assign, assignment]
    code = main([])
    if code:
        raise RuntimeError(f"{name} ended with {code}")
    return Training(tuple(b - a for a, b in pairwise(moments)), tuple(sent))


def planned_over_random(home: Path, count: int) -> Figure:
    """Step time of the planned order over the median of some random ones, in turns. Each is a gang of its own: a process that was
    another rank before would find shapes of that rank in torch's caches."""
    runs: list[tuple[int, ...]] = []
    for n, order in enumerate(orders(NODES, count)):
        runs += [PLANNED, order] if n % TURNS == 0 else [order]
    steps = []
    with fabric() as topology:
        for n, order in enumerate(runs):
            plan = home / f"plan-{n}.json"
            plan.write_text(encode(plan_of(topology, order, DDP, BOUND)))
            work = partial(trained, name=f"order-{n}", order=order, plan=plan)
            ended = run(work, topology, home / f"order-{n}")
            of_ranks = zip(*(end.result.seconds[WARM_UP:] for end in ended), strict=True)
            steps.append(median(max(step) for step in of_ranks))
    planned = median(seconds for seconds, order in zip(steps, runs, strict=True) if order == PLANNED)
    random = [seconds for seconds, order in zip(steps, runs, strict=True) if order != PLANNED]
    return Figure(
        "planned_over_random_step",
        planned / median(random),
        "",
        0.7,
        against=f"{planned:.2f} s a step planned, {median(random):.2f} s the median of {count} random orders, "
        f"{max(random):.2f} s the worst",
        details={"planned_seconds": planned, "random_seconds": random},
    )


def wire(home: Path) -> Figure:
    """Bytes that the ledger says the interface sends, against what it did send, over all forms and ranks."""
    found: dict[str, list[float]] = {}
    with fabric(10_000, 10_000, 10_000) as topology:
        for name, (mesh, given) in FORMS.items():
            config = {**CONFIG, **given, "steps": WARM_UP + 1 + WIRE_STEPS}
            plan = home / "plan.json"
            plan.write_text(encode(plan_of(topology, PLANNED, mesh, config)))
            ended = run(partial(trained, name=name, order=PLANNED, plan=plan), topology, home / name)
            found[name] = [
                over_said(end.result.sent, [r for r in end.reports if isinstance(r, SentInStep)]) for end in ended
            ]
    worst = max((abs(over), name) for name, ranks in found.items() for over in ranks)
    overheads = [over for ranks in found.values() for over in ranks]
    return Figure(
        "wire_difference",
        worst[0],
        "",
        0.05,
        against=f"worst of {len(found)} forms: {worst[1]}; sent over said: {min(overheads):+.1%} to {max(overheads):+.1%}, "
        "which is headers and acknowledgements of TCP",
        details={"by_form": found},
    )


def over_said(sent: Sequence[int], said: Sequence[SentInStep]) -> float:
    """By which share an interface sent more than the ledger says, over the steps after the one that was counted."""
    first = WARM_UP + 1
    wanted = sum(line.wire_bytes for line in said) * (len(sent) - 1 - first)
    return (sent[-1] - sent[first]) / wanted - 1.0


def overlap(home: Path) -> Figure:
    """What of the time in which something is on its way the training waits for it: DDP's buckets against one bucket, and FSDP."""
    found: dict[str, Overlapped] = {}
    with fabric() as topology:
        for name, (mesh, given) in OVERLAPPED.items():
            config = {**CONFIG, **given, "data": BUSY, "steps": COUNTED_STEP + 1}
            plan = home / "plan.json"
            plan.write_text(encode(plan_of(topology, PLANNED, mesh, config)))
            ended = run(partial(trained, name=name, order=PLANNED, plan=plan), topology, home / name)
            found[name] = next(report for report in ended[0].reports if isinstance(report, Overlapped))
    shares = {name: one.exposed_seconds / one.communication_seconds for name, one in found.items()}
    return Figure(
        "exposed_over_communication",
        shares["ddp in buckets of 1 MiB"],
        "",
        against=", ".join(f"{share:.2f} {name}" for name, share in shares.items()),
        details={
            name: {"communication": one.communication_seconds, "exposed": one.exposed_seconds, "step": one.step_seconds}
            for name, one in found.items()
        },
    )


def hierarchical(home: Path) -> Iterator[Figure]:
    """A sum by levels against one flat ring, both in planned order, and against the model's time, on two fabrics."""
    over_model: dict[str, float] = {}
    for spine in (200, 100):
        with fabric(spine=spine) as topology:
            ended = run(partial(_sums, topology=topology), topology, home / f"sums-{spine}")
            nested, (flat, levels) = (2, 2, 2), (median(times) for times in ended[0].result)
            over_model[f"2000/400/{spine}"] = levels / modelled(topology, nested)
    furthest = max(over_model.values(), key=lambda ratio: max(ratio / RANGE[1], RANGE[0] / ratio))
    yield Figure(
        "hierarchical_over_model",
        furthest,
        "",
        RANGE[1],
        at_least=RANGE[0],
        against=", ".join(f"{ratio:.2f} at {links}" for links, ratio in over_model.items())
        + " Mbit/s (node/leaf/spine)",
    )
    yield Figure(
        "hierarchical_over_flat",
        levels / flat,
        "",
        0.9,
        against=f"{levels:.2f} s by levels, {flat:.2f} s in one ring; {MEBIBYTES} MiB at 2000/400/100 Mbit/s",
    )


def _sums(node: int, topology: Topology) -> tuple[list[float], list[float]]:
    """Seconds of both ways, in turns. What was idle begins slowly: a quarter of the message goes before each."""
    meet(Place.of(os.environ, node, NODES), torch.device("cpu"), 300.0, lambda: False)
    mesh = build(DDP, NODES, "cpu")
    plan = plan_of(topology, PLANNED, DDP, {})
    sums = Levels(mesh, Places.of(plan, NODES, 1).nested(mesh)).sum
    message = torch.zeros(MEBIBYTES * 2**18)
    flat: list[float] = []
    levels: list[float] = []
    for _ in range(1 + ROUNDS):
        for way, times in ((dist.all_reduce, flat), (sums, levels)):
            way(message[: message.numel() // 4])
            times.append(sample(partial(way, message), 1, torch.device("cpu")))
    dist.destroy_process_group()
    return flat[1:], levels[1:]


def modelled(topology: Topology, nested: Sequence[int]) -> float:
    """Seconds of an all-reduce in nested groups by the planner's model, from the Fabric that the lab's administrator wrote."""
    tree = tree_of(topology)
    spec = FabricSpec.model_validate(cluster.fabric_object(Path("/"), topology)["spec"])
    entries = [
        Traffic(REPLICATE, collective, size, stride, size_bytes)
        for collective, size, stride, size_bytes in by_levels(
            Collective.ALL_REDUCE, NODES, 1, MEBIBYTES * 2.0**20, nested
        )
    ]
    found = predict.Predictor(links_of(spec, tree.levels), tree, [node.name for node in topology.nodes]).step(entries)
    return sum(found.seconds.values())
