"""What `kubectl trainyard env` prints: every variable of a job's trainer container, with who said it and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trainyard.api.conditions import Phase
from trainyard.api.names import channel_name, is_reserved_env, service_name
from trainyard.api.prose import count
from trainyard.api.template import trainer_container
from trainyard.api.training_job import TrainingJobSpec
from trainyard.cli.layout import WIDTH, page, wrapped
from trainyard.contract.network import PodNetwork
from trainyard.contract.plan import pod_name
from trainyard.lifecycle import roster
from trainyard.lifecycle.gang import is_open
from trainyard.lifecycle.noticed import observations
from trainyard.network.derive import settings_for
from trainyard.network.explain import FROM_ELSEWHERE, explain, of_template
from trainyard.network.settings import Setting, Settings, Source
from trainyard.render.env import identity
from trainyard.render.plan import rendezvous_port
from trainyard.world.capacity import place_of
from trainyard.world.records import Job, Pod, World

THREADS: Final = "OMP_NUM_THREADS"


@dataclass(frozen=True, slots=True)
class Seat:
    """A node rank of the gang. pod: who plays it, None before it is made. found: what its launcher says of the network."""

    rank: int
    node: str
    pod: Pod | None = None
    found: PodNetwork | None = None


@dataclass(frozen=True, slots=True)
class _Said:
    """A value and where it is from: what ranks that have it alike share."""

    value: str
    source: str
    reason: str


def seats(job: Job, members: Iterable[Pod]) -> tuple[Seat, ...]:
    """The node ranks of the current attempt in order; those that are reserved before there are pods; none while it waits."""
    current = {
        pod.membership.rank: pod for pod in members if pod.membership and pod.membership.attempt == job.status.attempt
    }
    if current:
        return tuple(Seat(rank, place_of(current[rank]), current[rank]) for rank in sorted(current))
    reserved = job.status.reservation
    return tuple(Seat(rank, node) for rank, node in enumerate(reserved.nodes)) if reserved is not None else ()


def settings_of(world: World, job: Job, seated: Sequence[Seat]) -> Settings:
    """As the operator derives them: by the network of the job's nodes; while it has none, by that of most nodes."""
    assert job.spec is not None
    names = dict.fromkeys(seat.node for seat in seated) if seated else dict.fromkeys(world.nodes)
    nodes = [world.nodes[name] for name in names if name in world.nodes]
    return settings_for(job.spec, nodes, world.fabrics, planned=bool(seated))


def env_page(job: Job, settings: Settings, seated: Sequence[Seat], rank: int | None = None, width: int = WIDTH) -> str:
    """The page. seated: all node ranks of the gang; rank: the one whose variables are wanted; None: all, those alike together.

    ValueError where there is no such rank.
    """
    assert job.spec is not None
    ranks = len(seated) or job.spec.nodes
    if rank is not None and not 0 <= rank < ranks:
        raise ValueError(f"--rank {rank}: {job.key} has node ranks 0 to {ranks - 1}")
    shown = [seat for seat in seated if rank is None or seat.rank == rank] or [Seat(0 if rank is None else rank, "")]
    found = {seat.rank: _of_seat(settings, job.spec, seat) for seat in shown}
    parts = [
        _head(job, settings, seated, width),
        _problem(settings, width),
        _who(job, seated, 0 if rank is None else rank, ranks - 1 if rank is None else rank, ranks, width),
        _variables(found, width),
        _more(job, width),
        _beside(job, settings, width),
        _warnings(job, settings, shown, width),
    ]
    return page(parts)


def _of_seat(settings: Settings, spec: TrainingJobSpec, seat: Seat) -> dict[str, _Said]:
    """The variables of one pod, those of the network first."""
    template, processes = of_template(spec), spec.processes
    found = {s.name: _said(s) for s in explain(settings, template, seat.node)}
    for resolved in seat.found.settings if seat.found is not None else ():
        found[resolved.name] = _Said(resolved.value, Source.POD, resolved.reason)
    for variable in template:
        name = str(variable.get("name"))
        if not is_reserved_env(name) and (name not in found or found[name].source == Source.FABRIC):
            value = str(variable["value"]) if "value" in variable else FROM_ELSEWHERE
            found[name] = _Said(value, Source.TEMPLATE, "set by the template's env; no network library reads it")
    if processes > 1 and THREADS not in found:
        why = "as torchrun sets it: the processes of a pod would otherwise each take all of its cores"
        found[THREADS] = _Said("1", Source.POD, why)
    return found


def _said(setting: Setting) -> _Said:
    return _Said(setting.value, setting.source, setting.reason)


def _head(job: Job, settings: Settings, seated: Sequence[Seat], width: int) -> Iterator[str]:
    assert job.spec is not None
    network = settings.network or "a network of which nothing is known"
    if any(seat.pod is not None for seat in seated):
        where = f"attempt {job.status.attempt}, {count(len(seated), 'node')} on {network}"
    elif seated:
        where = f"attempt {job.status.attempt or 1} is reserved {count(len(seated), 'node')} on {network}"
    else:
        waits = "ended" if job.status.phase in (Phase.SUCCEEDED, Phase.FAILED) else "has no nodes yet"
        where = f"{waits}; as if it got {count(job.spec.nodes, 'node')} of those most of which are on {network}"
    yield from wrapped(f"{job.key}: {where}", then="  ", width=width)


def _problem(settings: Settings, width: int) -> Iterator[str]:
    if settings.problem:
        yield from wrapped(settings.problem, "No attempt starts: ", "  ", width)


def _who(job: Job, seated: Sequence[Seat], first: int, last: int, ranks: int, width: int) -> Iterator[str]:
    """Who the processes of some node ranks are: the plan's to say, and nobody else's."""
    assert job.spec is not None
    processes = job.spec.processes
    number = roster.numbers(job)[0] if is_open(job) else job.status.next_member
    leader = seated[0].pod.name if seated and seated[0].pod is not None else pod_name(job.name, number)
    said = {
        "RANK": _span(first * processes, (last + 1) * processes - 1),
        "LOCAL_RANK": _span(0, processes - 1),
        "WORLD_SIZE": str(ranks * processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": f"{leader}.{service_name(job.name)}",
        "MASTER_PORT": str(rendezvous_port(job.status, job.status.attempt)),
    }
    yield "Who each process is, by the plan (nobody else's to say):"
    yield from wrapped(" ".join(f"{name}={value}" for name, value in said.items()), "  ", width=width)
    yield from wrapped(" ".join(str(variable["name"]) for variable in identity()), "  ", width=width)
    yield from wrapped("and, as torchrun gives them, GROUP_*, ROLE_* and TORCHELASTIC_*", "  ", width=width)


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}..{last}"


def _variables(found: Mapping[int, Mapping[str, _Said]], width: int) -> Iterator[str]:
    """Each name once, with the ranks that have it otherwise below each other."""
    names = dict.fromkeys(name for of_rank in found.values() for name in of_rank)
    if not names:
        yield "No variable is written for the network, and the template has none."
    for name in names:
        by_value: dict[_Said | None, list[int]] = {}
        for rank, of_rank in found.items():
            by_value.setdefault(of_rank.get(name), []).append(rank)
        if len(by_value) == 1:
            (said,) = by_value
            assert said is not None
            yield f"{name}={said.value}"
            yield from wrapped(f"{said.source}: {said.reason}", "    ", width=width)
            continue
        yield f"{name} differs:"
        for said, ranks in by_value.items():
            who = f"rank{'s' if len(ranks) > 1 else ''} {numbers(ranks)}"
            yield f"  {who}: {said.value if said is not None else '(not set)'}"
            if said is not None:
                yield from wrapped(f"{said.source}: {said.reason}", "    ", width=width)


def _more(job: Job, width: int) -> Iterator[str]:
    assert job.spec is not None
    if (trainer_container(job.spec.template) or {}).get("envFrom"):
        text = "and whatever the template's envFrom holds, which nobody but the kubelet looks into; it loses against all of these"
        yield from wrapped(text, width=width)


def _beside(job: Job, settings: Settings, width: int) -> Iterator[str]:
    """What the network wants of the pods besides variables."""
    added = settings.additions
    things = [
        *(f"{name}: {amount}" for name, amount in added.resources.items()),
        *([f"the capability {', '.join(added.capabilities)}"] if added.capabilities else []),
        *([f"a channel of the ComputeDomain {channel_name(job.name)}"] if settings.channel else []),
        *([f"the annotations {', '.join(added.annotations)}"] if added.annotations else []),
        *(f"{mount.get('mountPath')} of the volume {mount.get('name')}" for mount in added.volume_mounts),
        *(f"the container {container.get('name')}" for container in added.init_containers),
        *(["the host's network"] if settings.host_network else []),
        *(["all rights on the node (privileged)"] if settings.privileged else []),
    ]
    if things:
        yield from wrapped("; ".join(things), "Besides, the network adds to each pod: ", "  ", width)


def _warnings(job: Job, settings: Settings, shown: Sequence[Seat], width: int) -> Iterator[str]:
    of_pods: dict[str, list[int]] = {}
    for seat in shown:
        for warning in (*seat.found.refused, *seat.found.faults, *seat.found.warnings) if seat.found else ():
            of_pods.setdefault(warning, []).append(seat.rank)
    while_running = observations(job.status.network.warnings) if job.status.network is not None else ()
    if settings.warnings or of_pods or while_running:
        yield "Warnings:"
    for warning in (*settings.warnings, *while_running):
        yield from wrapped(warning, "  - ", width=width)
    for warning, ranks in of_pods.items():
        yield from wrapped(f"rank{'s' if len(ranks) > 1 else ''} {numbers(ranks)}: {warning}", "  - ", width=width)


def numbers(ranks: Sequence[int]) -> str:
    """`0-2,5`: ascending numbers, neighbours together."""
    parts: list[str] = []
    first = before = ranks[0]
    for rank in (*ranks[1:], -1):
        if rank == before + 1:
            before = rank
            continue
        parts.append(str(first) if first == before else f"{first}-{before}")
        first = before = rank
    return ",".join(parts)
