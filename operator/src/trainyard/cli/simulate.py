"""What `kubectl trainyard simulate` prints: when each job of a queue would start, where, and what it would have to give up.

The jobs are those of a file. Two annotations say what no specification does: `trainyard.dev/simulate-at`, when the job is applied
(counted from the beginning; otherwise at once), and `trainyard.dev/simulate-for`, how long it trains (otherwise its maxRuntime;
without either it never ends).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from trainyard.api import names
from trainyard.api.model import duration_seconds
from trainyard.api.prose import count, length
from trainyard.cli.layout import WIDTH, page, table, wrapped
from trainyard.cli.manifests import ManifestError, documents, is_a, job_documents, job_of
from trainyard.cli.pretended import Pretended, Stint, Submission
from trainyard.kube import decode
from trainyard.kube.shapes import CustomShape, NodeShape, PriorityClassShape, Shape
from trainyard.planner.place import CLUSTER
from trainyard.planner.rank import spans
from trainyard.topology.tree import Tree
from trainyard.world.capacity import place_of
from trainyard.world.inventory import Inventory
from trainyard.world.records import World

ANNOTATION_AT: Final = f"{names.GROUP}/simulate-at"
ANNOTATION_FOR: Final = f"{names.GROUP}/simulate-for"

_NODE: Final = Shape(NodeShape)
_OWN: Final = Shape(CustomShape)
_CLASS: Final = Shape(PriorityClassShape)


@dataclass(frozen=True, slots=True)
class Course:
    """What became of one job. submitted, started, ended: seconds from the beginning; None: it did not come to that.

    last: the nodes of its last attempt, in rank order; waits: why it has none at the end, "" where it has.
    """

    key: str
    members: int
    submitted: float
    started: float | None
    ended: float | None
    yields: int
    last: tuple[str, ...]
    waits: str


def read_submissions(text: str, namespace: str, now: float) -> list[Submission]:
    """The queue of a file. ManifestError names what is wrong."""
    found = []
    for number, document in enumerate(job_documents(text)):
        job = job_of(document, f"job-{number}", namespace, now)
        limit = job.spec.max_runtime_seconds if job.spec is not None else None
        notes = (document.get("metadata") or {}).get("annotations") or {}
        at, work = _seconds(notes, ANNOTATION_AT, job.key), _seconds(notes, ANNOTATION_FOR, job.key)
        found.append(Submission(job, at or 0.0, work if work is not None else limit))
    return found


def read_nodes(text: str) -> World:
    """The cluster of a file, as `kubectl get nodes,priorityclasses,fabrics -o yaml` writes it.

    ManifestError where it is something else.
    """
    try:
        found = list(documents(text))
        nodes = [decode.node(_NODE.one.validate_python(raw)) for raw in found if is_a(raw, "Node", "v1")]
        fabrics = [decode.fabric(_OWN.one.validate_python(raw)) for raw in found if _is_fabric(raw)]
        classes = [decode.priority_class(_CLASS.one.validate_python(raw)) for raw in found if _is_class(raw)]
    except (KeyError, ValidationError, ValueError) as error:
        raise ManifestError(f"is not what kubectl get writes: {error}") from error
    if not nodes:
        raise ManifestError("holds no Node")
    return World(
        nodes={node.name: node for node in nodes},
        fabrics={fabric.name: fabric for fabric in fabrics},
        priority_classes={one.name: one for one in classes},
    )


def releases(world: World) -> dict[str, float]:
    """When the members of jobs that train leave, where the job says how long it may run: by uid of the pod."""
    found = {}
    for pod in world.pods.values():
        job = world.jobs.get(pod.membership.job_uid) if pod.membership is not None else None
        limit = job.spec.max_runtime_seconds if job is not None and job.spec is not None else None
        if job is not None and limit is not None and job.status.running_at is not None and place_of(pod):
            found[pod.uid] = job.status.running_at + limit - job.status.ran_seconds
    return found


def simulated(
    world: World, submissions: Sequence[Submission], begin: float, seconds: float
) -> tuple[list[Course], Pretended]:
    """Run a queue for so long. Returns what became of each job, in the order of the file, and the cluster as it is then."""
    cluster = Pretended(world, begin, releases(world))
    cluster.run(submissions, begin + seconds)
    return [_course(one, cluster, begin) for one in submissions], cluster


def simulated_page(
    world: World, submissions: Sequence[Submission], begin: float, seconds: float, width: int = WIDTH
) -> str:
    """The page."""
    courses, cluster = simulated(world, submissions, begin, seconds)
    tree = Inventory.of(World(nodes=world.nodes, fabrics=world.fabrics)).tree
    ran = cluster.now - begin
    return page(
        [_rows(courses, tree, ran), _waiting(courses, width), _sums(courses, cluster.stints, world, begin, ran)]
    )


def _rows(courses: Sequence[Course], tree: Tree, ran: float) -> Iterator[str]:
    rows = [("JOB", "NODES", "APPLIED", "WAITED", "STARTED", "ENDED", "YIELDS", "WHERE")]
    for one in courses:
        waited = (one.started if one.started is not None else ran) - one.submitted
        rows.append(
            (
                one.key,
                str(one.members),
                length(one.submitted),
                length(max(0.0, waited)),
                length(one.started) if one.started is not None else "-",
                length(one.ended) if one.ended is not None else "-",
                str(one.yields),
                _where(tree, one.last),
            )
        )
    yield from table(rows, right=range(1, 7))


def _waiting(courses: Sequence[Course], width: int) -> Iterator[str]:
    for one in courses:
        if one.waits:
            yield from wrapped(f"{one.key} still waits, {one.waits}", then="  ", width=width)


def _sums(courses: Sequence[Course], stints: Sequence[Stint], world: World, begin: float, ran: float) -> Iterator[str]:
    ended = sum(one.ended is not None for one in courses)
    started = [one for one in courses if one.started is not None]
    state = [f"{ended} ended", f"{len(started) - ended} under way", f"{len(courses) - len(started)} never started"]
    yield f"{count(len(courses), 'job')} over {length(ran)}: {', '.join(state)}."
    waits = sorted(one.started - one.submitted for one in started if one.started is not None)
    if waits:
        yield f"Waits of those that started: mean {length(sum(waits) / len(waits))}, longest {length(waits[-1])}."
    used = sum(((s.ended if s.ended is not None else begin + ran) - s.started) * len(s.nodes) for s in stints)
    if ran > 0 and world.nodes:
        yield f"Of {count(len(world.nodes), 'node')} these jobs used {used / (ran * len(world.nodes)):.0%} of the time."


def _course(submission: Submission, cluster: Pretended, begin: float) -> Course:
    mine = [stint for stint in cluster.stints if stint.key == submission.job.key]
    now = cluster.jobs.get(submission.job.uid)
    pending = now.status.pending if now is not None else None
    last = mine[-1] if mine else None
    done = last is not None and last.ended is not None and not last.yielded
    return Course(
        key=submission.job.key,
        members=submission.job.spec.nodes if submission.job.spec is not None else 0,
        submitted=submission.at,
        started=mine[0].started - begin if mine else None,
        ended=last.ended - begin if done and last is not None and last.ended is not None else None,
        yields=sum(stint.yielded for stint in mine),
        last=last.nodes if last is not None else (),
        waits=f"{pending.reason}: {pending.message}" if pending is not None else "",
    )


def _where(tree: Tree, nodes: Sequence[str]) -> str:
    """The domain of nodes, or over how many they extend."""
    known = [node for node in nodes if node in tree.paths]
    if not known:
        return "-"
    over = spans(tree, known)
    within = next((level for level, domains in reversed([*over.items()]) if domains == 1), None)
    if within is not None:
        depth = tree.depth(within) or 0
        return f"{within} {'/'.join(tree.domain(known[0], depth))}"
    return f"{CLUSTER}, over {next(iter(over.values()))} {next(iter(over))} domains" if over else CLUSTER


def _seconds(notes: Mapping[str, Any], name: str, key: str) -> float | None:
    if name not in notes:
        return None
    try:
        return duration_seconds(str(notes[name]))
    except ValueError as error:
        raise ManifestError(f"{key}: metadata.annotations[{name}]: {error}") from error


def _is_fabric(raw: object) -> bool:
    return is_a(raw, names.KIND_FABRIC, names.API_VERSION)


def _is_class(raw: object) -> bool:
    return is_a(raw, "PriorityClass", "scheduling.k8s.io/v1")
