"""The operator's metrics: what happened is counted when it happens, what is there is computed when somebody asks.

All names begin with `trainyard_` and use base units. Labels are bounded: kinds, reasons, phases, levels. The name of a job is a
label only of the series that say how a job that has not ended trains; they are made from the last world at each scrape, so a
job that ended or was deleted has none.
"""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trainyard.api.conditions import ConditionType, Phase, Reason
from trainyard.api.training_job import TrainingJobStatus
from trainyard.cycle.actions import Action
from trainyard.lifecycle import conditions
from trainyard.lifecycle.goodput import CAUSES
from trainyard.telemetry.fragmentation import Stock, fragmentation_families
from trainyard.telemetry.jobs import active, job_families
from trainyard.telemetry.observed import observed_families
from trainyard.telemetry.topology import Layout, topology_families
from trainyard.topology.tree import Tree
from trainyard.world.records import Node, World

CYCLE_BUDGET_SECONDS: Final = 0.1
"""From a frozen world to its actions; more, and the whole reaction to an event takes longer than people call at once."""

_CYCLE_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_REQUEST_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_WAIT_BUCKETS: Final = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 24 * 3600.0)
_SAVE_BUCKETS: Final = (0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)


class Metrics:
    """Every series of one operator process, in a registry of its own.

    It is also what kube/ reports to while it works: `request`, `throttled`, `watch_event`, `relisted` and `polled`.
    """

    def __init__(self, version: str) -> None:
        # Otherwise every counter has a second series, of when it was made, that nobody reads.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        registry = self.registry = CollectorRegistry(auto_describe=True)
        build = Gauge("trainyard_build_info", "Always 1; the version is the label.", ["version"], registry=registry)
        build.labels(version).set(1)
        self.leader = Gauge("trainyard_leader", "1 while this process holds the Lease.", registry=registry)
        self.loop_lag_seconds = Gauge(
            "trainyard_event_loop_lag_seconds",
            "By how much the last beat of the event loop was late.",
            registry=registry,
        )
        self._cycle_seconds = Histogram(
            "trainyard_cycle_duration_seconds",
            "From a frozen world to its actions.",
            buckets=_CYCLE_BUCKETS,
            registry=registry,
        )
        self._over_budget = Counter(
            "trainyard_cycles_over_budget_total",
            f"Cycles that took more than {CYCLE_BUDGET_SECONDS} s.",
            registry=registry,
        )
        self.workqueue_depth = Gauge(
            "trainyard_workqueue_depth",
            "Jobs whose actions are being carried out or wait for their turn.",
            registry=registry,
        )
        self.broken_jobs = Gauge(
            "trainyard_jobs_broken",
            "Jobs that cannot be judged because of a bug in the operator, and are left as they are.",
            registry=registry,
        )
        self.backing_off = Gauge(
            "trainyard_jobs_backing_off",
            "Jobs left alone for a while after the API server failed them.",
            registry=registry,
        )
        self._actions = Counter(
            "trainyard_actions_total",
            "Actions carried out, by kind and how they ended.",
            ["kind", "result"],
            registry=registry,
        )
        self._requests = Histogram(
            "trainyard_api_request_duration_seconds",
            "Requests to the API server; code 0 where no answer came.",
            ["verb", "resource", "code"],
            buckets=_REQUEST_BUCKETS,
            registry=registry,
        )
        self._throttled = Counter(
            "trainyard_api_throttled_seconds_total",
            "Time spent waiting for the own rate limit or a Retry-After.",
            registry=registry,
        )
        self._watch_events = Counter(
            "trainyard_watch_events_total", "Events received by the watches.", ["kind", "type"], registry=registry
        )
        self._relists = Counter(
            "trainyard_watch_relists_total", "Whole lists read, by why.", ["kind", "reason"], registry=registry
        )
        self._polls = Counter(
            "trainyard_launcher_polls_total",
            "Questions to launchers, by how they ended.",
            ["result"],
            registry=registry,
        )
        self._attempts = Counter("trainyard_attempts_total", "Attempts started.", registry=registry)
        self._failures = Counter(
            "trainyard_failures_total", "Attempts that failed, by reason.", ["reason"], registry=registry
        )
        self._yields = Counter(
            "trainyard_preemptions_total",
            "Attempts that gave their nodes back when asked, by reason.",
            ["reason"],
            registry=registry,
        )
        self._ended = Counter("trainyard_jobs_ended_total", "Jobs that ended, by phase.", ["phase"], registry=registry)
        self._gang_wait = Histogram(
            "trainyard_gang_wait_seconds",
            "From the queue to the start of the first attempt.",
            buckets=_WAIT_BUCKETS,
            registry=registry,
        )
        self._start_seconds = Histogram(
            "trainyard_gang_start_seconds",
            "From the start of an attempt until all its members trained.",
            buckets=_WAIT_BUCKETS,
            registry=registry,
        )
        self._checkpoint_seconds = Histogram(
            "trainyard_checkpoint_duration_seconds",
            "From the decision to save until durable.",
            buckets=_SAVE_BUCKETS,
            registry=registry,
        )
        self._notice_to_durable = Histogram(
            "trainyard_notice_to_durable_seconds",
            "From the recorded request to stop until a checkpoint taken after it was durable.",
            buckets=_SAVE_BUCKETS,
            registry=registry,
        )
        self._goodput = Counter(
            "trainyard_goodput_seconds_total",
            "Time of all jobs by what it went into; causes as in status.goodput.",
            ["cause"],
            registry=registry,
        )
        self.scene = Scene()
        registry.register(self.scene)

    # What kube/ reports.

    def request(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """A request to the API server ended with this HTTP status; 0: with none."""
        self._requests.labels(verb, resource, str(code)).observe(seconds)

    def throttled(self, seconds: float) -> None:
        """A request waited this long before it was sent."""
        self._throttled.inc(seconds)

    def watch_event(self, kind: str, type: str) -> None:
        """A watch delivered an event: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""
        self._watch_events.labels(kind, type).inc()

    def relisted(self, kind: str, reason: str) -> None:
        """A watch read the whole list."""
        self._relists.labels(kind, reason).inc()

    def polled(self, result: str) -> None:
        """A question to a launcher ended."""
        self._polls.labels(result).inc()

    # What controller/ reports.

    def cycled(self, world: World, seconds: float) -> None:
        """A cycle was computed in `seconds`; its world is what the next scrape describes."""
        self._cycle_seconds.observe(seconds)
        if seconds > CYCLE_BUDGET_SECONDS:
            self._over_budget.inc()
        self.scene.show(world)

    def acted(self, action: Action, result: str) -> None:
        """An action was carried out, or was not."""
        self._actions.labels(type(action).__name__, result).inc()

    def wrote(self, before: TrainingJobStatus, after: TrainingJobStatus) -> None:
        """A status was written. Whatever is counted of jobs is read from what changed, so that nothing counts unless it is
        recorded, and nothing twice."""
        change = changed(before, after)
        if change.attempt_started:
            self._attempts.inc()
        if change.failure_reason:
            self._failures.labels(change.failure_reason).inc()
        if change.yield_reason:
            self._yields.labels(change.yield_reason).inc()
        if change.ended:
            self._ended.labels(change.ended).inc()
        for histogram, seconds in (
            (self._gang_wait, change.gang_wait_seconds),
            (self._start_seconds, change.start_seconds),
            (self._checkpoint_seconds, change.checkpoint_seconds),
            (self._notice_to_durable, change.notice_to_durable_seconds),
        ):
            if seconds is not None:
                histogram.observe(max(0.0, seconds))
        for cause, seconds in spent(before, after).items():
            self._goodput.labels(cause).inc(seconds)


@dataclass(frozen=True, slots=True)
class Change:
    """What a new status tells of a job, in the terms of the metrics. "" and None: nothing of the kind."""

    attempt_started: bool
    failure_reason: str
    yield_reason: str
    ended: str
    gang_wait_seconds: float | None
    start_seconds: float | None
    checkpoint_seconds: float | None
    notice_to_durable_seconds: float | None


def _faults(status: TrainingJobStatus) -> int:
    """How many attempts ended by one, the job's own or a node's."""
    restarts = status.restarts
    return restarts.failures + restarts.nodes_lost + restarts.unfit


def _why(before: TrainingJobStatus, after: TrainingJobStatus) -> str:
    """The reason for which an attempt ended: the recorded one, or where it was closed at once, what the status says of it."""
    if before.ending is not None:
        return before.ending.reason
    failure = after.last_failure
    if failure is not None and failure.attempt == before.attempt:
        return failure.reason
    running = conditions.find(after, ConditionType.RUNNING)
    return running.reason if running is not None else Reason.MEMBER_LOST


def changed(before: TrainingJobStatus, after: TrainingJobStatus) -> Change:
    """What happened between two statuses of one job."""
    started = after.attempt > before.attempt
    saved = after.checkpoint if after.checkpoint != before.checkpoint else None
    stop = after.stop or before.stop
    yielded = after.restarts.preemptions > before.restarts.preemptions
    failed = _faults(after) > _faults(before)
    return Change(
        attempt_started=started,
        failure_reason=_why(before, after) if failed else "",
        yield_reason=(stop.reason if stop else "Disrupted") if yielded else "",
        ended=str(after.phase) if after.phase and after.phase.ended and after.phase != before.phase else "",
        gang_wait_seconds=_between(after.queued_at, after.started_at) if started and after.attempt == 1 else None,
        start_seconds=_between(after.started_at, after.running_at) if after.running_at != before.running_at else None,
        checkpoint_seconds=saved.seconds if saved else None,
        notice_to_durable_seconds=(
            saved.time - stop.requested_at
            if saved
            and stop
            and saved.time is not None
            and saved.attempt == stop.attempt
            and saved.time >= stop.requested_at
            else None
        ),
    )


def spent(before: TrainingJobStatus, after: TrainingJobStatus) -> Mapping[str, float]:
    """What was accounted between two statuses, by cause."""
    known, now = before.goodput, after.goodput
    if now is None:
        return {}
    past = {cause: getattr(known, cause) if known is not None else 0.0 for cause in CAUSES}
    return {cause: max(0.0, getattr(now, cause) - past[cause]) for cause in CAUSES}


def _between(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else second - first


class Scene(Collector):
    """The last world as gauges, computed when scraped: no second bookkeeping that could drift from the first."""

    def __init__(self) -> None:
        self._world = World()
        self._layout = Layout()
        self._stock = Stock()

    def show(self, world: World) -> None:
        """Describe this world from now on."""
        self._world = world

    def collect(self) -> Iterator[Metric]:
        """The families, in a fixed order."""
        world = self._world
        layout = self._layout.of(world)
        yield _family("trainyard_jobs", "Jobs by phase.", "phase", _phases(world))
        yield _family("trainyard_jobs_pending", "Waiting jobs by why they wait.", "reason", _pending(world))
        yield _family("trainyard_nodes", "Nodes by whether a member of a gang is on them.", "state", _nodes(world))
        yield _family(
            "trainyard_best_domain_free_nodes",
            "Free nodes in that domain of a level that has most: the largest gang that fits within one.",
            "level",
            _best_domains(world, layout.tree),
        )
        yield _family(
            "trainyard_launchers_silent", "Launchers whose last question got no answer.", None, {"": _silent(world)}
        )
        yield _family("trainyard_world_objects", "Objects in the caches.", "kind", _objects(world))
        yield from topology_families(layout.coverage)
        yield from observed_families(world, layout.tree)
        yield from fragmentation_families(self._stock.of(world))
        yield from job_families(world, time.time())


def _family(name: str, text: str, label: str | None, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[label] if label else [])
    for value, amount in values.items():
        family.add_metric([value] if label else [], amount)
    return family


def _phases(world: World) -> Mapping[str, int]:
    tally = Tally(str(job.status.phase or Phase.PENDING) for job in world.jobs.values())
    return {phase: tally[phase] for phase in Phase}


def _pending(world: World) -> Mapping[str, int]:
    return Tally(job.status.pending.reason for job in active(world) if job.status.pending)


def _nodes(world: World) -> Mapping[str, int]:
    return {"free": 0, "used": 0, "unavailable": 0} | Tally(_node_states(world).values())


def _node_states(world: World) -> Mapping[str, str]:
    """By node name. used: a live member is bound or pinned there; else unavailable: cordoned or not ready; else free."""
    members = [pod for pod in world.pods.values() if pod.live and pod.membership]
    used = {pod.node or pod.membership.node for pod in members if pod.membership}

    def state(node: Node) -> str:
        if node.name in used:
            return "used"
        return "free" if node.is_open else "unavailable"

    return {name: state(node) for name, node in world.nodes.items()}


def _best_domains(world: World, tree: Tree) -> Mapping[str, int]:
    """By level. Free nodes that are far apart are worth less than their number says; this is how much less."""
    free = [name for name, state in _node_states(world).items() if state == "free"]
    return {
        level.name: max(Tally(tree.domain(name, depth) for name in free).values(), default=0)
        for depth, level in enumerate(tree.levels, start=1)
    }


def _silent(world: World) -> int:
    live = {uid for uid, pod in world.pods.items() if pod.live}
    return sum(bool(answer.error) for uid, answer in world.answers.items() if uid in live)


def _objects(world: World) -> Mapping[str, int]:
    return {
        "Node": len(world.nodes),
        "Pod": len(world.pods),
        "TrainingJob": len(world.jobs),
        "PriorityClass": len(world.priority_classes),
        "Fabric": len(world.fabrics),
    }
