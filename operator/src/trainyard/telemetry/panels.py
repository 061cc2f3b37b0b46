"""What the Grafana dashboard shows: a table of panels, in rows by question.

Each panel has a unit and says in a sentence what to look for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Query:
    """expression: PromQL. legend: of its series, in Grafana's {{label}} form."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """unit: a unit id of Grafana, such as s, short or percentunit. width: of 24 columns."""

    title: str
    text: str
    unit: str
    queries: tuple[Query, ...]
    width: int = 8


@dataclass(frozen=True, slots=True)
class Row:
    """Panels about one question, under its heading."""

    title: str
    panels: tuple[Panel, ...]


def _quantiles(metric: str) -> tuple[Query, ...]:
    return tuple(
        Query(f"histogram_quantile({q}, sum by (le) (rate({metric}_bucket[$__rate_interval])))", f"p{round(q * 100)}")
        for q in (0.5, 0.99)
    )


def _rates(metric: str, label: str) -> tuple[Query, ...]:
    return (Query(f"sum by ({label}) (rate({metric}[$__rate_interval]))", f"{{{{{label}}}}}"),)


_JOB: Final = '{namespace=~"$namespace", job=~"$job"}'
_PRODUCTIVE: Final = '{cause="productive", namespace=~"$namespace", job=~"$job"}'

ROWS: Final = (
    Row(
        "What waits, and why",
        (
            Panel("Jobs", "By phase.", "short", (Query("max by (phase) (trainyard_jobs)", "{{phase}}"),)),
            Panel(
                "Waiting jobs",
                "By reason; kubectl get tj and status.pending say it in numbers.",
                "short",
                (Query("max by (reason) (trainyard_jobs_pending)", "{{reason}}"),),
            ),
            Panel(
                "Nodes",
                "Free nodes beside waiting jobs: the gangs do not fit where the room is.",
                "short",
                (Query("max by (state) (trainyard_nodes)", "{{state}}"),),
            ),
            Panel(
                "Room in one domain",
                "The largest gang that fits within one domain of a level; far below the free nodes: fragmented.",
                "short",
                (Query("max by (level) (trainyard_best_domain_free_nodes)", "{{level}}"),),
                6,
            ),
            Panel(
                "Wait of a gang",
                "From the queue to the first attempt.",
                "s",
                _quantiles("trainyard_gang_wait_seconds"),
                6,
            ),
            Panel(
                "Start of a gang",
                "From the decision until all members train: images, rendezvous, first step.",
                "s",
                _quantiles("trainyard_gang_start_seconds"),
                6,
            ),
            Panel("Ended jobs", "Per second, by phase.", "cps", _rates("trainyard_jobs_ended_total", "phase"), 6),
        ),
    ),
    Row(
        "What is lost, and what is saved",
        (
            Panel(
                "Yields",
                "Attempts that saved and left when asked, by reason; they lose no step.",
                "cps",
                _rates("trainyard_preemptions_total", "reason"),
            ),
            Panel(
                "Failures",
                "By reason; they lose the steps since the last checkpoint.",
                "cps",
                _rates("trainyard_failures_total", "reason"),
            ),
            Panel(
                "Notice to durable", "What a grace must cover.", "s", _quantiles("trainyard_notice_to_durable_seconds")
            ),
            Panel(
                "Checkpoints",
                "From the decision to save until durable.",
                "s",
                _quantiles("trainyard_checkpoint_duration_seconds"),
            ),
            Panel(
                "Attempts",
                "Started per second.",
                "cps",
                (Query("sum(rate(trainyard_attempts_total[$__rate_interval]))", "attempts"),),
            ),
            Panel(
                "Silent launchers",
                "Last question got no answer; all at once: the operator's own network.",
                "short",
                (Query("max(trainyard_launchers_silent)", "silent"),),
            ),
        ),
    ),
    Row(
        "The jobs",
        (
            Panel(
                "Loss",
                "As rank 0 reports it.",
                "none",
                (Query(f"max by (namespace, job) (trainyard_job_loss{_JOB})", "{{job}}"),),
            ),
            Panel(
                "Step",
                "The last step that all members finished, and the newest durable one.",
                "short",
                (
                    Query(f"max by (namespace, job) (trainyard_job_step{_JOB})", "{{job}}"),
                    Query(f"max by (namespace, job) (trainyard_job_checkpoint_step{_JOB})", "{{job}} saved"),
                ),
            ),
            Panel(
                "Tokens per second",
                "Over all members.",
                "short",
                (Query(f"max by (namespace, job) (trainyard_job_tokens_per_second{_JOB})", "{{job}}"),),
            ),
            Panel(
                "Members that train",
                "Fewer than its nodes: it starts, drains or has lost one.",
                "short",
                (Query(f"max by (namespace, job) (trainyard_job_ready_nodes{_JOB})", "{{job}}"),),
                12,
            ),
            Panel(
                "Attempt",
                "Climbs with every restart.",
                "short",
                (Query(f"max by (namespace, job) (trainyard_job_attempt{_JOB})", "{{job}}"),),
                12,
            ),
        ),
    ),
    Row(
        "Where the time goes",
        (
            Panel(
                "Goodput",
                "Share of a job's time since it was made that went into steps no attempt had done before.",
                "percentunit",
                (
                    Query(
                        f"max by (namespace, job) (trainyard_job_goodput_seconds{_PRODUCTIVE})"
                        f" / sum by (namespace, job) (max by (namespace, job, cause) (trainyard_job_goodput_seconds{_JOB}))",
                        "{{job}}",
                    ),
                ),
            ),
            Panel(
                "Time by cause",
                "Seconds of all jobs a second; what grows beside productive is where to look.",
                "short",
                _rates("trainyard_goodput_seconds_total", "cause"),
            ),
            Panel(
                "MFU",
                "Model FLOP utilisation by the accelerator's published peak; none is known of a CPU.",
                "percentunit",
                (Query(f"max by (namespace, job) (trainyard_job_mfu{_JOB})", "{{job}}"),),
            ),
            Panel(
                "Stragglers",
                "A rank's own time of a step by that of the others, which wait for it: look at its node.",
                "short",
                (Query(f"max by (namespace, job, node) (trainyard_job_straggler_ratio{_JOB})", "{{job}} on {{node}}"),),
            ),
            Panel(
                "Nodes that jobs name",
                "As unfit, as the place of a failure, or as slow; two jobs and more: cordon it.",
                "short",
                (Query("max by (node) (trainyard_node_blamed_jobs)", "{{node}}"),),
            ),
            Panel(
                "Gradient norm",
                "Before clipping; a jump comes before the loss.",
                "short",
                (Query(f"max by (namespace, job) (trainyard_job_gradient_norm{_JOB})", "{{job}}"),),
            ),
            Panel(
                "Memory",
                "Most that a worker has taken: of its GPU, or of the process where it has none.",
                "bytes",
                (Query(f"max by (namespace, job) (trainyard_job_memory_bytes{_JOB})", "{{job}}"),),
                6,
            ),
            Panel(
                "A save from now",
                "Until it would be durable, as estimated: what a preemption has to wait for.",
                "s",
                (Query(f"max by (namespace, job) (trainyard_job_durable_in_seconds{_JOB})", "{{job}}"),),
                6,
            ),
            Panel(
                "Age of the newest checkpoint",
                "What a kill now would cost; before the first one, how long it has trained.",
                "s",
                (
                    Query(
                        f"time() - max by (namespace, job) (trainyard_job_unsaved_since_timestamp_seconds{_JOB})",
                        "{{job}}",
                    ),
                ),
                6,
            ),
            Panel(
                "Waits for",
                "Of a job without nodes; kubectl trainyard why says for what.",
                "s",
                (
                    Query(
                        f"time() - max by (namespace, job) (trainyard_job_waiting_since_timestamp_seconds{_JOB})",
                        "{{job}}",
                    ),
                ),
                6,
            ),
        ),
    ),
    Row(
        "What a step sends",
        (
            Panel(
                "Logical bytes by class",
                "Of a step of rank 0, as counted at its process groups.",
                "bytes",
                (Query(f"max by (namespace, job, data) (trainyard_job_sent_bytes{_JOB})", "{{job}} {{data}}"),),
            ),
            Panel(
                "On the wire, by level",
                "What rank 0's interface sends in a step over each level of the network, and the planner's prediction of all.",
                "bytes",
                (
                    Query(f"max by (namespace, job, level) (trainyard_job_sent_wire_bytes{_JOB})", "{{job}} {{level}}"),
                    Query(
                        f"max by (namespace, job) (trainyard_job_sent_predicted_wire_bytes{_JOB})", "{{job}} predicted"
                    ),
                ),
            ),
            Panel(
                "Communication, exposed and in all",
                "Time of a step in which anything was on its way, and in which training waited for it.",
                "s",
                (
                    Query(f"max by (namespace, job) (trainyard_job_communication_seconds{_JOB})", "{{job}}"),
                    Query(
                        f"max by (namespace, job) (trainyard_job_communication_exposed_seconds{_JOB})",
                        "{{job}} exposed",
                    ),
                ),
            ),
        ),
    ),
    Row(
        "The network's labels",
        (
            Panel(
                "What tells the network",
                "The dialect or Fabric that counts, and who completes it with NVLink; a change moves every new plan.",
                "short",
                (
                    Query(
                        "max by (source, described_by, nvlink) (trainyard_topology_info)",
                        "{{source}} ({{described_by}}) {{nvlink}}",
                    ),
                ),
                6,
            ),
            Panel(
                "Nodes without a label",
                "By level; such a node shares nothing with any other, so gangs that ask for a level pass it over.",
                "short",
                (Query('max by (level) (trainyard_topology_nodes{state="unlabelled"})', "{{level}}"),),
                6,
            ),
            Panel(
                "Domains, and names of several",
                "By level; names that come again where none should, of racks or NVLink domains: wrong labels.",
                "short",
                (
                    Query("max by (level) (trainyard_topology_domains)", "{{level}}: domains"),
                    Query("max by (level) (trainyard_topology_conflicts)", "{{level}}: names of several"),
                ),
                6,
            ),
            Panel(
                "Other dialects",
                "Nodes that carry labels which do not count, by whose they are; half and half: a change that got stuck.",
                "short",
                (Query("max by (dialect) (trainyard_topology_other_dialect_nodes)", "{{dialect}}"),),
                6,
            ),
            Panel(
                "Links as observed",
                "What one node was seen to send, over what the Fabric declares; only what is at most a day old counts.",
                "percentunit",
                (
                    Query(
                        "max by (fabric, level) (trainyard_fabric_observed_ratio) and max by (fabric, level) "
                        "(time() - trainyard_fabric_observed_timestamp_seconds) < 86400",
                        "{{fabric}} {{level}}",
                    ),
                ),
                12,
            ),
        ),
    ),
    Row(
        "What is free",
        (
            Panel(
                "Free accelerators",
                "Of nodes that are ready and not cordoned.",
                "short",
                (
                    Query(
                        "max by (kind) (trainyard_fragmentation_free_accelerators)",
                        "{{kind}}",
                    ),
                ),
                6,
            ),
            Panel(
                "Largest gang that fits",
                "Nodes of it, by level: how far free nodes are apart.",
                "short",
                (
                    Query(
                        "max by (level, kind) (trainyard_fragmentation_largest_gang_nodes)",
                        "{{level}} ({{kind}})",
                    ),
                ),
                6,
            ),
            Panel(
                "Free gangs of 8 nodes",
                "How many would fit at once, each within one domain of the level.",
                "short",
                (
                    Query(
                        'max by (level, kind) (trainyard_fragmentation_free_gangs{size="8"})',
                        "{{level}} ({{kind}})",
                    ),
                ),
                6,
            ),
            Panel(
                "Free, and of no use",
                "Share of the free accelerators that a gang of a size cannot use, and the mean over sizes of 2 to 64 nodes.",
                "percentunit",
                (
                    Query(
                        "max by (kind) (trainyard_fragmentation_expected_ratio)",
                        "mean ({{kind}})",
                    ),
                    Query(
                        "max by (size, kind) (trainyard_fragmentation_unusable_ratio)",
                        "{{size}} nodes ({{kind}})",
                    ),
                ),
                6,
            ),
        ),
    ),
    Row(
        "The operator itself",
        (
            Panel("Leaders", "Exactly one.", "short", (Query("sum(trainyard_leader)", "leaders"),), 6),
            Panel(
                "Cycle",
                "From a frozen world to its actions; budget 0.1 s.",
                "s",
                (
                    *_quantiles("trainyard_cycle_duration_seconds"),
                    Query("sum(rate(trainyard_cycles_over_budget_total[$__rate_interval]))", "over budget per second"),
                ),
                6,
            ),
            Panel("Actions", "By how they ended.", "cps", _rates("trainyard_actions_total", "result"), 6),
            Panel(
                "Jobs at work",
                "Whose actions are being carried out, and who backs off.",
                "short",
                (
                    Query("max(trainyard_workqueue_depth)", "at work"),
                    Query("max(trainyard_jobs_backing_off)", "backing off"),
                    Query("max(trainyard_jobs_broken)", "left alone because of a bug"),
                ),
                6,
            ),
            Panel(
                "API requests",
                "By status; 0: no answer.",
                "cps",
                (
                    Query(
                        "sum by (code) (rate(trainyard_api_request_duration_seconds_count[$__rate_interval]))",
                        "{{code}}",
                    ),
                ),
                6,
            ),
            Panel(
                "API latency",
                "From sending to the status line.",
                "s",
                _quantiles("trainyard_api_request_duration_seconds"),
                6,
            ),
            Panel(
                "Throttled",
                "Share of time that requests waited.",
                "percentunit",
                (Query("sum(rate(trainyard_api_throttled_seconds_total[$__rate_interval]))", "throttled"),),
                6,
            ),
            Panel(
                "Event loop",
                "How late it is.",
                "s",
                (Query("max by (pod) (trainyard_event_loop_lag_seconds)", "{{pod}}"),),
                6,
            ),
            Panel("Watch events", "By kind.", "cps", _rates("trainyard_watch_events_total", "kind")),
            Panel(
                "Whole lists read",
                "By reason; often: the watches do not hold.",
                "cps",
                _rates("trainyard_watch_relists_total", "reason"),
            ),
            Panel("Launcher polls", "By result.", "cps", _rates("trainyard_launcher_polls_total", "result")),
            Panel(
                "Objects cached",
                "By kind.",
                "short",
                (Query("max by (kind) (trainyard_world_objects)", "{{kind}}"),),
            ),
            Panel(
                "Silence of the watches",
                "The API server sends a bookmark about every minute; from 180 s on the process is restarted.",
                "s",
                (Query("max by (kind) (trainyard_watch_silence_seconds)", "{{kind}}"),),
            ),
            Panel(
                "Versions",
                "More than one: a rollout.",
                "short",
                (Query("sum by (version) (trainyard_build_info)", "{{version}}"),),
            ),
        ),
    ),
)
