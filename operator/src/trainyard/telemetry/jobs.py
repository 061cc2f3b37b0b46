"""Series of single jobs that have not ended: how each trains, where its time goes, and which nodes it names.

Made from the last world at each scrape, so a job that ended or was deleted has none.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily

from trainyard.contract.sent import Sent
from trainyard.contract.status import Status
from trainyard.cycle.parties import doubtful
from trainyard.lifecycle.goodput import CAUSES
from trainyard.lifecycle.unfit import avoided
from trainyard.world.records import Job, World

_LABELS: Final = ("namespace", "job")


def active(world: World) -> Iterator[Job]:
    """Jobs that have not ended."""
    return (job for job in world.jobs.values() if not (job.status.phase and job.status.phase.ended))


def job_families(world: World, now: float) -> Iterator[GaugeMetricFamily]:
    """The series, in a fixed order. now: Unix time."""
    jobs, answers = list(active(world)), _answers(world)
    yield _one("ready_nodes", "Members that train.", ((job, job.status.ready_nodes) for job in jobs))
    yield _one("attempt", "Number of the current attempt.", ((job, job.status.attempt) for job in jobs))
    steps = ((job, _step(answers[job.uid].values())) for job in jobs if job.uid in answers)
    yield _one("step", "The last step that all members finished; none before the first of each.", steps)
    saved = [(job, job.status.checkpoint) for job in jobs if job.status.checkpoint is not None]
    yield _one("checkpoint_step", "Step of the newest durable checkpoint.", ((job, one.step) for job, one in saved))
    yield _one(
        "unsaved_since_timestamp_seconds",
        "Since when its work is not durable, Unix time: its newest checkpoint; before the first, as long ago as it has trained.",
        ((job, _unsaved_since(job)) for job in jobs),
    )
    first = [(job, members[0]) for job in jobs if 0 in (members := answers.get(job.uid, {}))]
    yield _one("loss", "The last loss reported.", ((job, said.loss) for job, said in first))
    yield _one("gradient_norm", "Norm of the gradient before clipping.", ((job, said.grad_norm) for job, said in first))
    yield _one(
        "tokens_per_second",
        "Tokens trained per second, over all members.",
        ((job, said.tokens_per_second) for job, said in first),
    )
    yield _one("mfu", "Model FLOP utilisation, 0 to 1.", ((job, said.mfu) for job, said in first))
    yield _one(
        "memory_bytes",
        "Most memory that a worker has taken, of those whose launchers answer.",
        ((job, _most(members.values())) for job in jobs if (members := answers.get(job.uid, {}))),
    )
    yield from _sent([(job, said.sent) for job, said in first if said.sent is not None])
    yield _one(
        "durable_in_seconds",
        "How long a save from now would take, as estimated.",
        ((job, job.status.progress.durable_seconds) for job in jobs if job.status.progress is not None),
    )
    waits = ((job, job.status.waiting_since) for job in jobs if job.status.started_at is None)
    yield _one("waiting_since_timestamp_seconds", "Since when it waits for nodes, Unix time.", waits)
    yield _goodput(jobs)
    yield _stragglers(jobs)
    yield _blamed(world, now)


def _one(name: str, about: str, values: Iterable[tuple[Job, float | None]]) -> GaugeMetricFamily:
    """A series a job; one whose value is not known has none."""
    family = GaugeMetricFamily(f"trainyard_job_{name}", about, labels=_LABELS)
    for job, value in values:
        if value is not None:
            family.add_metric([job.namespace, job.name], value)
    return family


def _unsaved_since(job: Job) -> float | None:
    """None where nothing is to be saved, and before a first checkpoint while it does not train. Earlier attempts count too: a job
    whose saves all fail would otherwise begin anew with each."""
    if job.status.checkpoint is not None:
        return job.status.checkpoint.time
    if job.spec is None or not job.spec.checkpoint.saves or job.status.running_at is None:
        return None
    return job.status.running_at - job.status.ran_seconds


def _step(answers: Collection[Status]) -> int | None:
    """None where a launcher has seen no step yet: a script of one's own may report none at all, which is not to stand still."""
    if any(said.first_step_time is None for said in answers):
        return None
    return min(said.step for said in answers)


def _sent(jobs: Sequence[tuple[Job, Sent]]) -> Iterator[GaugeMetricFamily]:
    """What one step of rank 0 sends, counted in the third step of the attempt."""
    yield _by(
        "sent_bytes", "Logical bytes of a step of rank 0, by class.", "data", ((job, sent.data) for job, sent in jobs)
    )
    yield _by(
        "sent_wire_bytes", "What its interface sends of them.", "level", ((job, sent.level_bytes) for job, sent in jobs)
    )
    predicted = ((job, sent.predicted_wire_bytes) for job, sent in jobs)
    yield _one("sent_predicted_wire_bytes", "The same by the planner's formulas, over all levels.", predicted)
    communication = ((job, sent.communication_seconds) for job, sent in jobs)
    yield _one("communication_seconds", "Time of that step in which anything was on its way.", communication)
    exposed = ((job, sent.exposed_seconds) for job, sent in jobs)
    yield _one("communication_exposed_seconds", "Time of that step in which training waited for it.", exposed)


def _by(name: str, about: str, label: str, values: Iterable[tuple[Job, Mapping[str, float]]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"trainyard_job_{name}", about, labels=[*_LABELS, label])
    for job, figures in values:
        for key, value in figures.items():
            family.add_metric([job.namespace, job.name, key], value)
    return family


def _most(answers: Iterable[Status]) -> float | None:
    return max((said.memory_bytes for said in answers if said.memory_bytes is not None), default=None)


def _goodput(jobs: Iterable[Job]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "trainyard_job_goodput_seconds",
        "Where its time went so far, as last accounted; the sum over causes is its age.",
        labels=[*_LABELS, "cause"],
    )
    for job in jobs:
        if job.status.goodput is not None:
            for cause in CAUSES:
                family.add_metric([job.namespace, job.name, cause], getattr(job.status.goodput, cause))
    return family


def _stragglers(jobs: Iterable[Job]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "trainyard_job_straggler_ratio",
        "A rank that the others wait for: its own time of a step by theirs, when it was found.",
        labels=[*_LABELS, "node"],
    )
    for job in jobs:
        if job.status.straggler is not None:
            family.add_metric([job.namespace, job.name, job.status.straggler.node], job.status.straggler.times)
    return family


def _blamed(world: World, now: float) -> GaugeMetricFamily:
    """Of nodes that are there: a node that was replaced keeps no bad name."""
    family = GaugeMetricFamily(
        "trainyard_node_blamed_jobs",
        "Jobs that name a node: it was unfit within the hour, the last failure of the day was on it, or its rank is slow.",
        labels=["node"],
    )
    for node, jobs in sorted(Tally(node for job in active(world) for node in _named(job, now)).items()):
        if node in world.nodes:
            family.add_metric([node], jobs)
    return family


def _named(job: Job, now: float) -> set[str]:
    """For as long as the job itself goes by it."""
    slow = {job.status.straggler.node} if job.status.straggler is not None else set()
    return {*doubtful(job.status, now), *slow, *avoided(job.status, now)} - {""}


def _answers(world: World) -> Mapping[str, Mapping[int, Status]]:
    """By job uid and node rank, what the launchers of the current attempt said last."""
    found: dict[str, dict[int, Status]] = {}
    for pod_uid, answer in world.answers.items():
        pod = world.pods.get(pod_uid)
        if answer.status is None or pod is None or pod.membership is None or not pod.live:
            continue
        job = world.jobs.get(pod.membership.job_uid)
        if job and pod.membership.attempt == job.status.attempt:
            found.setdefault(job.uid, {})[pod.membership.rank] = answer.status
    return found
