"""Alert rules for Prometheus, made from a table.

    python -m trainyard.telemetry.alerts            write manifests/alerts/trainyard.yaml
    python -m trainyard.telemetry.alerts --check    fail where it differs

A rule speaks of what somebody should look at, and its description says what to do first.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from trainyard.telemetry.generated import written

FILE: Final = Path("manifests/alerts/trainyard.yaml")

_JOB: Final = "max by (namespace, job)"


@dataclass(frozen=True, slots=True)
class Alert:
    """expression: PromQL. lasts: how long it has to hold, as Prometheus writes it. severity: critical wakes somebody."""

    name: str
    expression: str
    lasts: str
    severity: str
    summary: str
    description: str


ALERTS: Final = (
    Alert(
        "TrainyardJobStuck",
        # Without the second term a job whose first step has just ended would have done none for 30 minutes.
        f"{_JOB} (changes(trainyard_job_step[30m])) == 0 and {_JOB} (trainyard_job_step offset 30m) >= 0 "
        f"and {_JOB} (trainyard_job_ready_nodes) > 0",
        "10m",
        "warning",
        "{{ $labels.namespace }}/{{ $labels.job }} trains and has done no step for 30 minutes",
        "kubectl trainyard why, then GET /v1/status of its launchers: the rank that waits in no collective is missing.",
    ),
    Alert(
        "TrainyardJobWaits",
        f"time() - {_JOB} (trainyard_job_waiting_since_timestamp_seconds) > 14400",
        "5m",
        "info",
        "{{ $labels.namespace }}/{{ $labels.job }} has waited for nodes for 4 hours",
        "kubectl trainyard why says what would let it start.",
    ),
    Alert(
        "TrainyardNodeBlamed",
        "max by (node) (trainyard_node_blamed_jobs) >= 2",
        "5m",
        "warning",
        "{{ $value }} jobs name node {{ $labels.node }} as unfit, slow or failing",
        "Cordon it and look at its adapters, accelerators and logs; each job avoids it for itself only.",
    ),
    Alert(
        "TrainyardStraggler",
        "max by (namespace, job, node) (trainyard_job_straggler_ratio) > 0",
        "10m",
        "warning",
        "{{ $labels.node }} holds up {{ $labels.namespace }}/{{ $labels.job }}: its rank takes {{ $value }} times as long",
        "status.straggler has the figures. A slow disk, a hot or throttled accelerator, or another process on the node.",
    ),
    Alert(
        "TrainyardCheckpointOld",
        f"time() - {_JOB} (trainyard_job_unsaved_since_timestamp_seconds) > 7200 and {_JOB} (trainyard_job_ready_nodes) > 0",
        "10m",
        "warning",
        "{{ $labels.namespace }}/{{ $labels.job }} trains, and nothing of the last 2 hours is durable",
        "Its launchers' warnings say whether saves fail (SaveFailed, SaveLate); else spec.checkpoint.every is long.",
    ),
    Alert(
        "TrainyardLaunchersSilent",
        "max(trainyard_launchers_silent) > 0",
        "10m",
        "warning",
        "{{ $value }} launchers have not answered for 10 minutes",
        "All of a namespace: a NetworkPolicy. All of a cluster: the operator's own network.",
    ),
    Alert(
        "TrainyardNoLeader",
        "sum(trainyard_leader) != 1 or absent(trainyard_leader)",
        "5m",
        "critical",
        "There is not exactly one operator that leads",
        "Jobs train on and save; nothing starts. The Lease and the operator's log say who could not lead.",
    ),
)


def groups() -> dict[str, Any]:
    """The `spec` of a PrometheusRule."""
    return {"groups": [{"name": "trainyard", "rules": [_rule(alert) for alert in ALERTS]}]}


def _rule(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expression,
        "for": alert.lasts,
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "description": alert.description},
    }


def text() -> str:
    """The file."""
    return yaml.safe_dump(groups(), sort_keys=False, width=120)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file, or compare it."""
    return written(FILE, text(), "trainyard.telemetry.alerts", arguments)


if __name__ == "__main__":
    sys.exit(main())
