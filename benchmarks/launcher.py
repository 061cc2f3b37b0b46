"""What the launcher costs beside the training, and how long a pod takes to its first step. Needs root, for the pod's own
/etc/hosts."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, Final

from trainyard_trainer.report import Phase

from benchmarks.figures import Figure
from benchmarks.gangs import CONFIG, a_plan, launched, until

PROCESSES: Final = 2
TRAINER: Final = [sys.executable, "-m", "trainyard_trainer.train"]
LONG: Final[dict[str, Any]] = {**CONFIG, "model": {"preset": "small-lm"}, "steps": 1_000_000, "logEvery": 1000}
SCRAPE_SECONDS: Final = 15.0
ASK_SECONDS: Final = 5.0
"""How often Prometheus and the operator usually ask."""
STARTING: Final = (Phase.IMPORT, Phase.INIT, Phase.LOAD, Phase.WARM_UP)


def cold_start_and_exporter(home: Path, seconds: float) -> list[Figure]:
    """One pod of two ranks: to its first step, and then what the launcher computes while it is asked."""
    home.mkdir()
    plan = a_plan(procs=PROCESSES, checkpoints=None, trainer=LONG)
    began = time.time()
    environment = {"GLOO_SOCKET_IFNAME": "lo"}
    hosts = home / "hosts"  # where the pod finds its own name, as in a cluster
    hosts.write_text(f"{Path('/etc/hosts').read_text()}\n127.0.0.1 {plan.master_address}\n")
    under = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(hosts)]
    with launched(home, plan=plan, command=TRAINER, environment=environment, under=under) as pod:
        first = None
        while first is None:
            first = _first_step_time(pod)
            if time.time() > began + 120:
                raise RuntimeError(f"no step in 120 s:\n{pod.err}")
            time.sleep(0.05)
        parts = phases(pod)
        spent = {phase.value: parts.get(phase, 0.0) for phase in STARTING}
        figures = [Figure("start.cold.total", first - began, "s", details={"load": os.getloadavg()[0]})]
        figures += [Figure(f"start.cold.{name}", value, "s") for name, value in spent.items()]
        figures.append(Figure("start.cold.launcher", max(first - began - sum(spent.values()), 0.0), "s"))
        # The workers, and who forked them: it waits for the next attempt, and computes nothing meanwhile.
        workers = until(lambda: len(pod.children()) >= PROCESSES and pod.children(), "workers")
        before = [_heartbeats(pod), *(_cpu_seconds(pid) for pid in (pod.process.pid, *workers))]
        end, scrape_at = time.monotonic() + seconds, 0.0
        while time.monotonic() < end:
            pod.request("GET", "/v1/status")
            if time.monotonic() >= scrape_at:
                pod.request("GET", "/metrics")
                scrape_at = time.monotonic() + SCRAPE_SECONDS
            time.sleep(ASK_SECONDS)
        after = [_heartbeats(pod), *(_cpu_seconds(pid) for pid in (pod.process.pid, *workers))]
        heartbeats, launcher, *computed = [now - then for now, then in zip(after, before, strict=True)]
        steps = sum(computed) - heartbeats
        details = {
            "launcher_cpu_seconds": launcher,
            "heartbeats_cpu_seconds": heartbeats,
            "workers_cpu_seconds": steps,
            "seconds": seconds,
        }
        ratio = (launcher + heartbeats) / steps
        figures.append(Figure("exporter_ratio", ratio, "of the workers' CPU", 0.005, details=details))
        pod.process.kill()
    return figures


def _first_step_time(pod: Any) -> float | None:
    try:
        found: float | None = pod.status.first_step_time
    except OSError:  # it does not listen yet
        return None
    return found


def phases(pod: Any) -> dict[Phase, float]:
    """The longest that a worker has spent in each phase."""
    spent: dict[Phase, float] = {}
    for line in pod.request("GET", "/metrics")[1].decode().splitlines():
        if line.startswith("trainyard_trainer_phase_seconds_total{"):
            labels, value = line.rsplit(" ", 1)
            phase = Phase(labels.split('phase="')[1].split('"')[0])
            spent[phase] = max(spent.get(phase, 0.0), float(value))
    return spent


def _heartbeats(pod: Any) -> float:
    """CPU seconds of the threads that beat, in all workers, by their last beat."""
    name = "trainyard_trainer_heartbeat_cpu_seconds_total{"
    lines = pod.request("GET", "/metrics")[1].decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def _cpu_seconds(pid: int) -> float:
    """Of a process and all its threads, user and system (proc_pid_stat(5), fields 14 and 15)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
