"""What a member of a job asks of its node: the one place where that is worked out, for whoever counts room.

A pod is what the template says and what the network adds to it. So it is counted as it will be made, by the network that its node
is on, before a node is promised.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, cast

from trainyard.api.template import pod_spec
from trainyard.api.training_job import TrainingJobSpec
from trainyard.network.additions import Additions
from trainyard.network.choice import Unclear
from trainyard.network.container import Pod, pod_of
from trainyard.network.derive import settings_for
from trainyard.network.parts import Part, is_apart, parts
from trainyard.network.settings import Settings
from trainyard.render.pod import trial_pod
from trainyard.world.demand import demand
from trainyard.world.inventory import Inventory
from trainyard.world.records import Fabric, Job, Resources, World
from trainyard.world.resources import pod_requests

MOST_REMEMBERED: Final = 20_000
"""Answers that are kept while nodes and fabrics stay as they are; those on jobs that are gone go with all the others."""


@dataclass(frozen=True, slots=True)
class Wish:
    """requests: of a member. among: names of the nodes on which it asks for this, and on which its gang fits together; None: all
    that would take one. network: what these are on."""

    requests: Resources
    among: frozenset[str] | None = None
    network: str = ""

    def holds(self, nodes: Collection[str]) -> int:
        """How many of these nodes are its own."""
        return len(nodes) if self.among is None else sum(node in self.among for node in nodes)


@dataclass(frozen=True, slots=True)
class Wished:
    """wishes: at least one; that with most nodes first. problem: why no attempt should start wherever there is room, "" where
    nothing is in the way."""

    wishes: tuple[Wish, ...]
    problem: str = ""


def wished(inventory: Inventory, fabrics: Mapping[str, Fabric], job: Job) -> Wished:
    """What members of a job may ask. The inventory's nodes and these fabrics are of the same world."""
    question = ("wished", job.uid, job.generation)
    if question not in inventory.worked_out:
        _make_space(inventory)
        inventory.worked_out[question] = _wished(inventory, fabrics, job)
    return cast(Wished, inventory.worked_out[question])


def likely_settings(inventory: Inventory, fabrics: Mapping[str, Fabric], job: Job) -> Settings:
    """The settings of a job that has no nodes yet: on the network of most nodes. Worked out once for jobs that are alike, since
    all nodes are looked at."""
    spec = job.spec
    assert spec is not None
    question = ("settings", spec.model_dump_json())
    if question not in inventory.worked_out:
        _make_space(inventory)
        nodes = [inventory.nodes[name] for name in inventory.tree.index.names]
        inventory.worked_out[question] = settings_for(spec, nodes, fabrics, planned=False)
    return cast(Settings, inventory.worked_out[question])


def member_requests(world: World, job: Job) -> Resources:
    """What the members of an opened attempt ask, each the same."""
    assert job.spec is not None
    reserved = job.status.reservation
    names = dict.fromkeys(reserved.nodes if reserved is not None else ())
    nodes = [world.nodes[name] for name in names if name in world.nodes]
    return _requests(job, settings_for(job.spec, nodes, world.fabrics))


def _make_space(inventory: Inventory) -> None:
    if len(inventory.worked_out) >= MOST_REMEMBERED:
        inventory.worked_out.clear()


def _wished(inventory: Inventory, fabrics: Mapping[str, Fabric], job: Job) -> Wished:
    assert job.spec is not None
    plain = _requests(job, Settings())
    found = _parts(inventory, fabrics, job.spec)
    if isinstance(found, Unclear):
        return Wished((Wish(plain),), found.message)
    if not found:
        return Wished((Wish(plain),))
    alone = len(found) == 1
    return Wished(
        tuple(
            Wish(_most(job, part.additions), None if alone else frozenset(part.nodes), part.network) for part in found
        )
    )


def _parts(inventory: Inventory, fabrics: Mapping[str, Fabric], spec: TrainingJobSpec) -> tuple[Part, ...] | Unclear:
    """Of the nodes that would take a member as its template has it, room aside. Equal for jobs that are alike."""
    pod, of_template = pod_of(spec), pod_spec(spec.template)
    takers = demand(of_template, pod_requests(of_template))
    question = ("parts", takers, _told_apart(pod), spec.network.fabric)
    if question not in inventory.worked_out:
        whole = inventory.supply(takers).whole
        nodes = [inventory.nodes[name] for name, fits in zip(inventory.tree.index.names, whole, strict=True) if fits]
        inventory.worked_out[question] = parts(pod, nodes, fabrics, spec.network.fabric)
    return cast("tuple[Part, ...] | Unclear", inventory.worked_out[question])


def _told_apart(pod: Pod) -> tuple[object, ...]:
    """What of a pod decides what a network adds to it."""
    return (
        is_apart(pod),
        pod.backend,
        pod.accelerators,
        tuple(sorted(pod.limits.items())),
        tuple(sorted(pod.hosts)),
        pod.host_network,
    )


def _most(job: Job, added: Collection[Additions]) -> Resources:
    """The highest of each resource over what several networks would add."""
    most: dict[str, int] = {}
    for one in added:
        for name, amount in _requests(job, Settings(additions=one.pod)).items():
            most[name] = max(most.get(name, 0), amount)
    return most


def _requests(job: Job, settings: Settings) -> Resources:
    return pod_requests(trial_pod(job, settings)["spec"])
