"""The real cluster: 847 hosts of a three-layer Clos network, and the jobs of another that arrive on it.

The files are not part of the project; both are read from a folder that is given. `lingjun_topology.csv` has the columns host,
core, aggregation, access (Alibaba GPU cluster dataset 2023; Cao et al., SIGCOMM 2024), `philly_jobs.csv` the columns
timestamp, duration, num_gpus (Jeon et al., ATC 2019, as tabulated by the artifact of Sia, SOSP 2023).
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from trainyard.world.records import Node

from benchmarks.clusters import ALLOCATABLE

TOPOLOGY: Final = "lingjun_topology.csv"
JOBS: Final = "philly_jobs.csv"
_LABELS: Final = {
    "core": "fabric.topograph.run/tier-2",
    "aggregation": "fabric.topograph.run/tier-1",
    "access": "fabric.topograph.run/tier-0",
}


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job of the trace. submitted: seconds since the epoch; duration: seconds that it ran; gpus: how many it held."""

    submitted: float
    duration: float
    gpus: int


def topology(folder: Path) -> tuple[Node, ...]:
    """The hosts as nodes: core, spine and leaf by label. An access switch's id occurs below more than one aggregation
    switch."""
    with (folder / TOPOLOGY).open(newline="") as file:
        return tuple(
            Node(
                name=row["host"],
                uid=f"uid-{row['host']}",
                labels={"kubernetes.io/hostname": row["host"], **{label: row[of] for of, label in _LABELS.items()}},
                allocatable=ALLOCATABLE,
            )
            for row in csv.DictReader(file)
        )


def arrivals(folder: Path) -> tuple[Arrival, ...]:
    """The jobs in the order of their submission."""
    with (folder / JOBS).open(newline="") as file:
        found = (
            Arrival(
                datetime.fromisoformat(row["timestamp"]).replace(tzinfo=UTC).timestamp(),
                float(row["duration"]),
                int(row["num_gpus"]),
            )
            for row in csv.DictReader(file)
            if row["timestamp"]
        )
        return tuple(sorted(found, key=lambda job: (job.submitted, job.duration, job.gpus)))
