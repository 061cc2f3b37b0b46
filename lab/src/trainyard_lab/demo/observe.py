"""What the API server says of the demonstration's namespace, as records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from trainyard.contract.codec import ContractError
from trainyard.contract.status import LastWords, decode_last_words

from trainyard_lab.api import Api

JOBS = "/apis/trainyard.dev/v1alpha1/namespaces/{}/trainingjobs"
PODS = "/api/v1/namespaces/{}/pods"


@dataclass(frozen=True, slots=True)
class Pod:
    """A member. words: its last words, once it has ended and left any."""

    name: str
    job: str
    attempt: int
    rank: int
    node: str
    phase: str
    exit_code: int | None = None
    words: LastWords | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A TrainingJob. status: as the API server has it."""

    name: str
    uid: str
    status: Mapping[str, Any]

    @property
    def phase(self) -> str:
        return str(self.status.get("phase", ""))

    @property
    def attempt(self) -> int:
        return int(self.status.get("attempt", 0))

    @property
    def step(self) -> int:
        return int(self.status.get("progress", {}).get("step", 0))

    @property
    def loss(self) -> float | None:
        loss = self.status.get("progress", {}).get("loss")
        return None if loss is None else float(loss)

    @property
    def waits(self) -> str:
        return str(self.status.get("pending", {}).get("message", ""))

    def restarts(self, kind: str) -> int:
        """How often an attempt ended: failures, preemptions or nodesLost."""
        return int(self.status.get("restarts", {}).get(kind, 0))

    def instant(self, *path: str) -> float | None:
        """A time of the status in seconds since the epoch."""
        at: Any = self.status
        for name in path:
            at = at.get(name, {}) if isinstance(at, Mapping) else {}
        return datetime.fromisoformat(at).timestamp() if isinstance(at, str) else None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All jobs by name and all pods at one time (seconds since the epoch)."""

    time: float
    jobs: Mapping[str, Job] = field(default_factory=dict)
    pods: tuple[Pod, ...] = ()

    def members(self, job: str) -> tuple[Pod, ...]:
        """The pods of a job's newest attempt in rank order."""
        mine = [pod for pod in self.pods if pod.job == job]
        newest = max((pod.attempt for pod in mine), default=0)
        return tuple(sorted((pod for pod in mine if pod.attempt == newest), key=lambda pod: pod.rank))


def look(api: Api, namespace: str, now: float) -> Snapshot:
    """One look at the namespace."""
    jobs = [_job(item) for item in api.get(JOBS.format(namespace))["items"]]
    pods = [_pod(item) for item in api.get(PODS.format(namespace))["items"] if "trainyard.dev/job" in _labels(item)]
    return Snapshot(now, {job.name: job for job in jobs}, tuple(pods))


def _labels(item: Mapping[str, Any]) -> Mapping[str, str]:
    labels = item["metadata"].get("labels", {})
    assert isinstance(labels, Mapping)
    return labels


def _job(item: Mapping[str, Any]) -> Job:
    return Job(item["metadata"]["name"], item["metadata"]["uid"], item.get("status", {}))


def _pod(item: Mapping[str, Any]) -> Pod:
    labels = _labels(item)
    ended = _terminated(item)
    return Pod(
        name=item["metadata"]["name"],
        job=labels["trainyard.dev/job"],
        attempt=int(labels["trainyard.dev/attempt"]),
        rank=int(labels["trainyard.dev/node-rank"]),
        node=item["spec"].get("nodeName", ""),
        phase=item.get("status", {}).get("phase", ""),
        exit_code=ended.get("exitCode"),
        words=_words(ended.get("message", "")),
    )


def _terminated(item: Mapping[str, Any]) -> Mapping[str, Any]:
    for container in item.get("status", {}).get("containerStatuses", []):
        if container["name"] == "trainer":
            found = container.get("state", {}).get("terminated", {})
            assert isinstance(found, Mapping)
            return found
    return {}


def _words(message: str) -> LastWords | None:
    try:
        return decode_last_words(message)
    except ContractError:
        return None
