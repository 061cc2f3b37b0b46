"""The pages of `kubectl trainyard` for programs (`-o json`): the same facts as plain values, camelCase as in the API."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from trainyard.cli.page import state
from trainyard.cli.planned import asked, code_of, refusal
from trainyard.planner.fragmentation import Kind, kinds
from trainyard.topology.detection import detect
from trainyard.topology.tree import build
from trainyard.world.capacity import free, place_of
from trainyard.world.inventory import Inventory
from trainyard.world.observed import fresh
from trainyard.world.records import Job, Pod, World

Data = dict[str, Any]


def written(data: object) -> str:
    """As a page of JSON."""
    return json.dumps(data, indent=2) + "\n"


def status_data(job: Job, members: Iterable[Pod]) -> Data:
    """A job: its status, what is wrong with its specification, and the members of the current attempt in rank order."""
    current = [(pod.membership, pod) for pod in members if pod.membership]
    ranked = sorted((one for one in current if one[0].attempt == job.status.attempt), key=lambda one: one[0].rank)
    return {
        "namespace": job.namespace,
        "name": job.name,
        "status": job.status.to_manifest(),
        "errors": [{"field": error.path, "message": error.message} for error in job.errors],
        "members": [
            {"rank": membership.rank, "pod": pod.name, "node": place_of(pod), "trainer": state(pod)}
            for membership, pod in ranked
        ],
    }


def planned_data(world: World, jobs: Sequence[Job], now: float) -> tuple[list[Data], int]:
    """What would become of each job as if it were alone, and the exit code, as of the pages."""
    world = fresh(world, now)
    found = [_planned(world, job, now) for job in jobs]
    return [data for data, _ in found], max(code for _, code in found)


def _planned(world: World, job: Job, now: float) -> tuple[Data, int]:
    answer, _ = asked(world, job, now)
    who: Data = {"namespace": job.namespace, "name": job.name}
    if answer is None:
        return {**who, "starts": False, "suspended": True}, code_of(None, "")
    status, reserved = answer.status, answer.status.reservation
    refused = refusal(world, answer)
    ways = answer.explanation.ways if answer.explanation is not None else ()
    data = {
        **who,
        "starts": answer.starts is not None,
        "refused": refused or None,
        "nodes": list(reserved.nodes) if reserved is not None else None,
        "plan": status.plan.to_manifest() if status.plan is not None else None,
        "pending": status.pending.to_manifest() if status.pending is not None and answer.starts is None else None,
        "wouldStartIt": [way.text for way in ways],
        "ahead": [{"job": one.key, "nodes": one.members, "priority": one.priority} for one in answer.ahead],
    }
    return {key: value for key, value in data.items() if value is not None}, code_of(answer, refused)


def topology_data(world: World) -> Data:
    """The network as its labels tell it, each node with its place, its room and its members, and which gangs would fit."""
    tree = build(world.nodes.values(), detect(world.nodes.values(), world.fabrics.values()).levels)
    room, tenants = free(world), [pod for pod in world.pods.values() if pod.membership and pod.live]
    nodes = []
    for name in tree.paths:
        node = world.nodes[name]
        nodes.append(
            {
                "name": name,
                "domains": dict(zip((level.name for level in tree.levels), tree.known(name), strict=False)),
                "ready": node.ready,
                "unschedulable": node.unschedulable,
                "networkDegraded": node.degraded is not None,
                "allocatable": dict(node.allocatable),
                "free": room[name],
                "members": sorted(f"{pod.namespace}/{pod.name}" for pod in tenants if place_of(pod) == name),
            }
        )
    return {
        "levels": [{"name": level.name, "label": level.label} for level in tree.levels],
        "nodes": nodes,
        "gangs": [_kind(kind) for kind in kinds(Inventory.of(world))],
    }


def _kind(kind: Kind) -> Data:
    levels = [
        {"level": at.level, "slots": dict(at.slots), "largest": at.largest, "domain": at.domain}
        for at in kind.gangs.levels
    ]
    return {"nodes": kind.name, "free": kind.gangs.free, "of": kind.gangs.whole, "levels": levels}
