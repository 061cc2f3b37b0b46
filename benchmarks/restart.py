"""How soon a gang trains again when one of its workers is killed, with its pods kept.

Real launchers as processes, two pods of two ranks over gloo. What the operator does is done by its own code: its poller hears of
the failure by its own timetable, waits as long as it does for who failed first, and hands the plan over by signed requests.
Only the API server, whose part is one write of a status, is not there. Needs root, for the pods' own /etc/hosts.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from kubernetes.aio.client import Configuration
from trainyard.api import names
from trainyard.contract import env, requests
from trainyard.contract.plan import Checkpoints, Lineage, Mark, Plan, encode
from trainyard.contract.status import Status
from trainyard.kube.client import KubeClient
from trainyard.kube.launchers import LauncherClient, Poller
from trainyard.kube.mirror import Mirror
from trainyard.lifecycle import deadlines
from trainyard_trainer.report import Phase

from benchmarks.figures import Figure
from benchmarks.gangs import CONFIG, a_plan, launched
from benchmarks.launcher import STARTING, phases

PODS: Final = 2
PROCESSES: Final = 2
TRAINER: Final = [sys.executable, "-m", "trainyard_trainer.train"]
LONG: Final[dict[str, Any]] = {**CONFIG, "steps": 1_000_000, "logEvery": 1000}
OPERATOR_KEY: Final = b"o" * 32
SECONDS: Final = 300.0


def restarts(home: Path, runs: int) -> list[Figure]:
    """SIGKILL of one of four workers, to the first step of all: the median of `runs` in the same pods, one after the other."""
    home.mkdir()
    hosts = home / "hosts"  # where the pods find each other, as in a cluster
    plan = _plan(home, 1)
    hosts.write_text(f"{Path('/etc/hosts').read_text()}\n127.0.0.1 {plan.master_address}\n")
    return asyncio.run(_restarts(home, hosts, plan, runs))


async def _restarts(home: Path, hosts: Path, plan: Plan, runs: int) -> list[Figure]:
    under = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(hosts)]
    (home / "key").write_bytes(requests.job_key(OPERATOR_KEY, plan.uid))
    totals: list[float] = []
    told: list[float] = []
    parts: dict[Phase, list[float]] = {phase: [] for phase in STARTING}
    with ExitStack() as stack:
        pods = []
        for number in range(PODS):
            folder = home / f"pod-{number}"
            folder.mkdir()
            who = {env.POD: f"train-{number}", env.POD_UID: f"uid-{number}", "GLOO_SOCKET_IFNAME": "lo"}
            environment = {**who, env.CONTROL_KEY_FILE: str(home / "key")}
            arguments: dict[str, Any] = {"plan": plan, "command": TRAINER, "environment": environment, "under": under}
            pods.append(stack.enter_context(launched(folder, **arguments, stays=60.0)))
        async with _operator([pod.port for pod in pods]) as (mirror, client):
            await _all(mirror, lambda status: status.attempt == 1 and status.commit is not None)
            for attempt in range(2, runs + 2):
                killed = time.time()
                os.kill(max(pods[-1].children()), signal.SIGKILL)  # the youngest is the last rank
                heard = await _failed(mirror)
                told.append(heard - killed)
                await _hand_over(mirror, client, encode(_plan(home, attempt)).encode())
                again = await _all(mirror, lambda s, n=attempt: s.attempt == n and s.first_step_time is not None)
                totals.append(max(status.first_step_time or 0.0 for status in again) - killed)
                for phase, spent in parts.items():
                    spent.append(max(phases(pod).get(phase, 0.0) for pod in pods))
                await _all(mirror, lambda s, n=attempt: s.commit is not None and s.commit.attempt == n)
        for pod in pods:
            pod.process.kill()
    median = {phase.value: statistics.median(spent) for phase, spent in parts.items()}
    loading = median[Phase.LOAD.value]
    details = {
        "runs": totals,
        "heard of after": statistics.median(told),
        "loading": loading,
        "load": os.getloadavg()[0],
    }
    figures = [Figure("restart_seconds", statistics.median(totals), "s", 10.0, details=details)]
    figures += [Figure(f"start.warm.{name}", value, "s") for name, value in median.items()]
    rest = statistics.median(totals) - statistics.median(told) - sum(median.values())
    return [*figures, Figure("start.warm.launcher", max(rest, 0.0), "s")]


def _plan(home: Path, attempt: int) -> Plan:
    history = tuple(Mark(before, -1) for before in range(1, attempt))
    checkpoints = Checkpoints(str(home / "checkpoints"), every_steps=2, grace_seconds=30.0)
    port = 29610 + attempt % 8
    found: Plan = a_plan(
        procs=PROCESSES,
        nodes=PODS,
        attempt=attempt,
        rendezvous_port=port,
        checkpoints=checkpoints,
        trainer=LONG,
        lineage=Lineage(history=history),
    )
    return found


@asynccontextmanager
async def _operator(ports: Sequence[int]) -> AsyncIterator[tuple[Mirror, LauncherClient]]:
    address = {f"uid-{number}": ("127.0.0.1", port) for number, port in enumerate(ports)}
    async with (
        KubeClient(Configuration(host="http://127.0.0.1:9")) as nobody,
        LauncherClient(OPERATOR_KEY, address=lambda pod: address[pod.uid]) as client,
    ):
        mirror = Mirror(nobody)
        for number in range(len(ports)):
            mirror.observe(_pod(number))
        task = asyncio.create_task(Poller(client, mirror).run())
        try:
            yield mirror, client
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _pod(number: int) -> dict[str, Any]:
    labels = {names.LABEL_JOB_UID: "job-uid", names.LABEL_ATTEMPT: "1"}
    labels |= {names.LABEL_MEMBER: str(number), names.LABEL_RANK: str(number)}
    running = [{"name": "trainer", "state": {"running": {"startedAt": "2026-01-31T12:00:00Z"}}}]
    return {
        "kind": "Pod",
        "metadata": {
            "namespace": "lab",
            "name": f"train-{number}",
            "uid": f"uid-{number}",
            "resourceVersion": "1",
            "labels": labels,
            "ownerReferences": [{"kind": names.KIND_JOB, "uid": "job-uid", "controller": True}],
        },
        "spec": {"containers": [{"name": "trainer"}]},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "containerStatuses": running},
    }


async def _failed(mirror: Mirror) -> float:
    """Wait as the operator does: until one has ended, and then for the others, for a while."""
    first = 0.0
    while True:
        said = [answer.status for answer in mirror.answers.values() if answer.status is not None]
        ended = [status for status in said if status.ended is not None]
        if ended:
            first = first or time.time()
            if len(ended) == PODS or time.time() - first >= deadlines.GATHER:
                return time.time()
        await asyncio.sleep(0.01)


async def _hand_over(mirror: Mirror, client: LauncherClient, plan: bytes) -> None:
    answers = await asyncio.gather(*(client.plan(pod, plan) for pod in mirror.members.values()))
    for answer in answers:
        if not isinstance(answer, Status):
            raise RuntimeError(f"a launcher does not take the plan: {answer.error}")


async def _all(mirror: Mirror, holds: Any) -> list[Status]:
    """Wait until something holds of what every launcher says."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        said = [answer.status for answer in mirror.answers.values() if answer.status is not None]
        if len(said) == PODS and all(holds(status) for status in said):
            return said
        await asyncio.sleep(0.05)
    raise RuntimeError(f"not so within {SECONDS:.0f} s: {list(mirror.answers.values())}")
