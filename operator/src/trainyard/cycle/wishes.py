"""What a member of a job asks of its node: the one place where that is worked out, for whoever counts room.

A pod is what the template says and what the network adds to it. So it is counted as it will be made, by the network that its node
is on, before a node is promised.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
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

MOST_KINDS: Final = 64
"""Kinds of members whose parts of the cluster are kept; each names every node that would take one."""


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


@dataclass(slots=True)
class _Memory:
    """What was worked out while nodes and fabrics stay as they are.

    wishes: by job uid, those of a generation. likely: settings by a digest of the specification, and the jobs that are so alike.
    parts: by kind of member, the one asked for last at the end; with the names of each, which all jobs share.
    """

    wishes: dict[str, tuple[int, Wished]] = field(default_factory=dict)
    likely: dict[bytes, tuple[Settings, set[str]]] = field(default_factory=dict)
    parts: dict[object, _Parts | Unclear] = field(default_factory=dict)


_Parts = tuple[tuple[Part, frozenset[str]], ...]


def _memory(inventory: Inventory) -> _Memory:
    return cast(_Memory, inventory.worked_out.setdefault("wishes", _Memory()))


def forget(inventory: Inventory, jobs: Collection[str]) -> None:
    """Let go of what was worked out for jobs other than these, by uid."""
    memory = _memory(inventory)
    for uid in [uid for uid in memory.wishes if uid not in jobs]:
        del memory.wishes[uid]
    for question in [known for known, (_, asked) in memory.likely.items() if not any(uid in jobs for uid in asked)]:
        del memory.likely[question]


def wished(inventory: Inventory, fabrics: Mapping[str, Fabric], job: Job) -> Wished:
    """What members of a job may ask. The inventory's nodes and these fabrics are of the same world."""
    known = _memory(inventory).wishes
    if job.uid not in known or known[job.uid][0] != job.generation:
        known[job.uid] = job.generation, _wished(inventory, fabrics, job)
    return known[job.uid][1]


def likely_settings(inventory: Inventory, fabrics: Mapping[str, Fabric], job: Job) -> Settings:
    """The settings of a job that has no nodes yet: on the network of most nodes. Worked out once for jobs that are alike, since
    all nodes are looked at."""
    spec = job.spec
    assert spec is not None
    known = _memory(inventory).likely
    question = blake2b(spec.model_dump_json().encode(), digest_size=16).digest()
    if question not in known:
        nodes = [inventory.nodes[name] for name in inventory.tree.index.names]
        known[question] = settings_for(spec, nodes, fabrics, planned=False), set()
    settings, asked = known[question]
    asked.add(job.uid)
    return settings


def member_requests(world: World, job: Job) -> Resources:
    """What the members of an opened attempt ask, each the same."""
    assert job.spec is not None
    reserved = job.status.reservation
    names = dict.fromkeys(reserved.nodes if reserved is not None else ())
    nodes = [world.nodes[name] for name in names if name in world.nodes]
    return _requests(job, settings_for(job.spec, nodes, world.fabrics))


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
        tuple(Wish(_most(job, part.additions), None if alone else names, part.network) for part, names in found)
    )


def _parts(inventory: Inventory, fabrics: Mapping[str, Fabric], spec: TrainingJobSpec) -> _Parts | Unclear:
    """Of the nodes that would take a member as its template has it, room aside. Equal for jobs that are alike."""
    pod, of_template = pod_of(spec), pod_spec(spec.template)
    takers = demand(of_template, pod_requests(of_template))
    known, question = _memory(inventory).parts, (takers, _told_apart(pod), spec.network.fabric)
    found = known.pop(question, None)
    if found is None:
        whole = inventory.supply(takers).whole
        nodes = [inventory.nodes[name] for name, fits in zip(inventory.tree.index.names, whole, strict=True) if fits]
        apart = parts(pod, nodes, fabrics, spec.network.fabric)
        found = apart if isinstance(apart, Unclear) else tuple((part, frozenset(part.nodes)) for part in apart)
        while len(known) >= MOST_KINDS:
            known.pop(next(iter(known)))
    known[question] = found
    return found


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
