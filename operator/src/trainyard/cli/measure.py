"""The job that measures: made, waited for, read, and deleted whatever happens."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from trainyard import __version__
from trainyard.api import names
from trainyard.api.conditions import Phase
from trainyard.api.template import requested_accelerators, trainer_container
from trainyard.cli.manifests import ManifestError
from trainyard.cli.reading import read_job
from trainyard.contract.codec import ContractError
from trainyard.contract.measured import Measured, read
from trainyard.kube import resources
from trainyard.kube.client import KubeClient
from trainyard.kube.errors import ApiError
from trainyard.world.capacity import place_of
from trainyard.world.records import Job, Node, Pod, PriorityClass

IMAGE: Final = f"trainyard/trainer:{__version__}"
SIZES: Final = "1KiB,64KiB,1MiB,16MiB"
HOST: Final = "kubernetes.io/hostname"
LOOK_SECONDS: Final = 1.0
COMMAND: Final = ("python3", "-m", "trainyard_trainer.measure")


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be measured.

    nodes: how many; on: the only ones that may be taken, () for any. sizes: of messages, in bytes. priority_class: None for the
    cluster's default. like: the template of a job whose image, devices and tolerations are taken over; None: our image, with all
    accelerators of a node.
    """

    name: str
    namespace: str
    nodes: int
    on: tuple[Node, ...]
    sizes: tuple[int, ...]
    processes: int | None = None
    priority_class: str | None = None
    like: Mapping[str, Any] | None = None
    image: str = IMAGE


def manifest(asked: Asked, nodes: Collection[Node]) -> dict[str, Any]:
    """The TrainingJob. nodes: of the cluster, from which accelerators are read where nobody says which job it is to be like."""
    template = dict(asked.like) if asked.like is not None else {"spec": {"containers": [_container(asked, nodes)]}}
    of_pod = dict(template.get("spec") or {})
    trains = trainer_container(template)
    if trains is None:
        raise ManifestError("the job's template has no container that trains")
    args = ["collectives", "--sizes", ",".join(map(str, asked.sizes))]
    own = {**trains, "command": list(COMMAND), "args": args}
    of_pod["containers"] = [own if one is trains else one for one in of_pod["containers"]]
    if asked.on:
        hosts = [node.labels.get(HOST, node.name) for node in asked.on]
        term = {"matchExpressions": [{"key": HOST, "operator": "In", "values": hosts}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        of_pod["affinity"] = {**(of_pod.get("affinity") or {}), "nodeAffinity": required}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND_JOB,
        "metadata": {"name": asked.name, "namespace": asked.namespace},
        "spec": {
            "nodes": asked.nodes,
            "processesPerNode": asked.processes or max(1, requested_accelerators(own)),
            **({"priorityClassName": asked.priority_class} if asked.priority_class is not None else {}),
            "restart": {"failures": 0},
            "network": {"preflight": False},  # a slow node is to be measured, not left out
            "template": {**template, "spec": of_pod},
        },
    }


def _container(asked: Asked, nodes: Collection[Node]) -> dict[str, Any]:
    """Our trainer with all accelerators of a node, of the kind that most of the nodes have.

    A processor for each process, but half of the smallest node's at most: without a request every other process of a busy node
    goes first, and what is measured is the wait for a processor.
    """
    of = list(asked.on or nodes)
    kinds: dict[tuple[str, int], int] = {}
    for node in of:
        for name, amount in node.allocatable.items():
            if amount and requested_accelerators({"resources": {"limits": {name: amount}}}):
                kinds[name, amount] = kinds.get((name, amount), 0) + 1
    limits = {}
    if kinds:
        name, amount = max(kinds, key=lambda kind: (kinds[kind], kind))
        limits = {name: amount}
    processes = asked.processes or max(limits.values(), default=1)
    half = min((node.allocatable.get("cpu", 0) for node in of), default=0) // 2
    resources = {"limits": limits, "requests": {"cpu": f"{min(1000 * processes, half)}m"}}
    return {"name": names.TRAINER_CONTAINER, "image": asked.image, "resources": resources}


def lowest(classes: Collection[PriorityClass]) -> str | None:
    """The class that gives way to everybody: the lowest, where it is below what a job has without one."""
    usual = next((one.value for one in classes if one.default), 0)
    below = [one for one in classes if one.value < usual]
    return min(below, key=lambda one: (one.value, one.name)).name if below else None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A measurement with the nodes that it ran on, in rank order, and the job as it was."""

    job: Job
    nodes: tuple[str, ...]
    measured: Measured


async def run(
    client: KubeClient, made: Mapping[str, Any], within_seconds: float, *, keep: bool, say: Callable[[str], None]
) -> Outcome:
    """Make the job, wait for its end, read it. ManifestError where it does not come to a good one; the job is gone afterwards,
    also where this is cancelled.

    say: told what it waits for, whenever that changes.
    """
    namespace, name = made["metadata"]["namespace"], made["metadata"]["name"]
    uid = await _made(client, made, keep=keep)
    try:
        job, members = await _ended(client, namespace, name, within_seconds, say)
        if job.status.phase is not Phase.SUCCEEDED:
            raise ManifestError(f"{job.key} did not measure: {_why(job)}")
        ranked = [pod for pod in members if pod.membership and pod.membership.attempt == job.status.attempt]
        ranked.sort(key=lambda pod: pod.membership.rank if pod.membership else 0)
        log = await client.request("get", resources.PODS, namespace, ranked[0].name, "log", query=_of_trainer(job))
        return Outcome(job, tuple(map(place_of, ranked)), read(log.decode(errors="replace").splitlines()))
    except ContractError as error:
        raise ManifestError(f"{namespace}/{name}: {error}") from error
    finally:
        if not keep:
            await _gone(client, namespace, name, uid)


async def _made(client: KubeClient, made: Mapping[str, Any], *, keep: bool) -> str:
    """Make the job; its uid. Whoever interrupts that has it deleted too: the API server may have it already."""
    making = asyncio.ensure_future(client.create(resources.JOBS, made))
    try:
        return str((await asyncio.shield(making))["metadata"]["uid"])
    except asyncio.CancelledError:
        with suppress(ApiError):
            meta = (await making)["metadata"]
            if not keep:
                await _gone(client, meta["namespace"], meta["name"], str(meta["uid"]))
        raise


async def _ended(
    client: KubeClient, namespace: str, name: str, within_seconds: float, say: Callable[[str], None]
) -> tuple[Job, Sequence[Pod]]:
    deadline, before = time.monotonic() + within_seconds, ""
    while True:
        job, members = await read_job(client, namespace, name)
        now = _stands(job)
        if now != before:
            say(now)
            before = now
        if job.status.phase in (Phase.SUCCEEDED, Phase.FAILED):
            return job, members
        if time.monotonic() > deadline:
            raise ManifestError(f"{job.key} was not done within {within_seconds:.0f} s: {now}")
        await asyncio.sleep(LOOK_SECONDS)


def _stands(job: Job) -> str:
    pending = job.status.pending
    said = f"{pending.reason}: {pending.message}" if pending is not None else ""
    return f"{job.key}: {job.status.phase or 'made'}{f', {said}' if said else ''}"


def _why(job: Job) -> str:
    failure = job.status.last_failure
    return f"{failure.reason}: {failure.message}" if failure is not None else str(job.status.phase)


def _of_trainer(job: Job) -> Mapping[str, str]:
    container = trainer_container(job.spec.template) if job.spec is not None else None
    return {"container": str(container["name"])} if container is not None else {}


async def _gone(client: KubeClient, namespace: str, name: str, uid: str) -> None:
    try:
        await client.delete(resources.JOBS, namespace, name, uid=uid)
    except ApiError as error:
        if not error.not_found:
            print(f"kubectl trainyard: {namespace}/{name} is left behind: {error}", file=sys.stderr)


async def template_of(client: KubeClient, namespace: str, name: str) -> tuple[Mapping[str, Any], int]:
    """A job's template and its processes on a node."""
    job, _ = await read_job(client, namespace, name)
    if job.spec is None:
        raise ManifestError(f"{job.key}: its specification makes no sense")
    return job.spec.template, job.spec.processes


def chosen(names_of: Sequence[str], nodes: Mapping[str, Node]) -> tuple[Node, ...]:
    """The nodes of these names; ManifestError where one does not exist."""
    missing = [name for name in names_of if name not in nodes]
    if missing:
        raise ManifestError(f"--nodes: there is no node {', '.join(missing)}")
    return tuple(nodes[name] for name in names_of)


def with_devices(asked: Asked, like: Mapping[str, Any], processes: int) -> Asked:
    """The same in the pods of another job."""
    return replace(asked, like=like, processes=asked.processes or processes)
