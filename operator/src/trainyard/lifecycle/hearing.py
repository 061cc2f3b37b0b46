"""What launchers found: before the first step in what their nodes differ and how the preflight ended, and then who is slow."""

from __future__ import annotations

from trainyard.api.conditions import ConditionType, Reason
from trainyard.api.training_job import NetworkStatus, NetworkVariable, PreflightStatus, SlowRank, TrainingJobStatus
from trainyard.contract.preflight import Finding, PreflightResult
from trainyard.lifecycle import conditions, unfit
from trainyard.lifecycle.compare import LASTS, straggler
from trainyard.lifecycle.gang import Gang
from trainyard.lifecycle.needs import Need, Surroundings, Tell
from trainyard.lifecycle.noticed import notice
from trainyard.network.explain import MOST_VARIABLES, together
from trainyard.network.settings import MOST_WARNINGS, Setting, Source


def hear(
    status: TrainingJobStatus, gang: Gang, around: Surroundings, now: float
) -> tuple[TrainingJobStatus, list[Need]]:
    """The status with what is new of it, and what to tell. Each is taken in once for an attempt."""
    network, told = status.network or NetworkStatus(), list[Need]()
    if around.unlike is not None and not network.compared:
        lines = (*around.unlike.fatal, *around.unlike.costly)
        new = [line for line in lines if line not in network.warnings]
        network = network.but(
            compared=True,
            warnings=(*network.warnings, *new)[:MOST_WARNINGS],
            variables=(*network.variables, *_found_in_pods(gang))[:MOST_VARIABLES],
        )
        told += [Tell("Warning", Reason.NODES_UNLIKE, line) for line in new]
        status = status.but(network=network)
    status, news = notice(status, gang)
    told += news
    network = status.network or network
    result = gang.preflight
    if result is None or network.preflight is not None:
        return status, told
    network = network.but(preflight=_summary(result, now))
    status = status.but(network=network)
    if result.finding == Finding.WARNED:
        told.append(Tell("Warning", Reason.NETWORK_SLOW, f"preflight: {result.message}"))
    if result.finding in (Finding.PASSED, Finding.WARNED):
        status = unfit.prove(status, [node for node in gang.nodes if node and node not in result.nodes], now)
    return status, told


def _found_in_pods(gang: Gang) -> tuple[NetworkVariable, ...]:
    """What launchers gave their workers where nobody had said it, such as the adapters near the pod's accelerators."""
    found = [seat.status.network.settings for seat in gang.seats if seat.status is not None and seat.status.network]
    return together((1, [Setting(one.name, one.value, Source.POD, one.reason) for one in of_pod]) for of_pod in found)


def compare(status: TrainingJobStatus, gang: Gang, now: float, generation: int) -> tuple[TrainingJobStatus, list[Need]]:
    """The status with the rank that the others wait for, where there is one. It is kept as it was found until it is as fast as
    the others, and told once, when it has lasted."""
    known = status.straggler
    mesh = status.plan.mesh if status.plan is not None else {}
    before = known.rank if known is not None else None
    found = straggler(gang, status.attempt, mesh, before) if status.running_at is not None else None
    if found is None:
        unheard = not any(seat.status is not None and seat.status.ranks for seat in gang.seats)
        if known is None or (unheard and status.running_at is not None):
            return status, []
        return conditions.without(status.but(straggler=None), ConditionType.STRAGGLER), []
    if known is not None and known.rank == found.rank:
        told = conditions.find(status, ConditionType.STRAGGLER) is not None
        return (status, []) if told or now - known.time < LASTS else _tell(status, known, now, generation)
    slow = SlowRank(
        rank=found.rank,
        node=found.node,
        times=round(found.times, 2),
        own_seconds=_short(found.own_seconds) or 0.0,
        others_seconds=_short(found.peers_seconds) or 0.0,
        time=now,
    )
    return conditions.without(status.but(straggler=slow), ConditionType.STRAGGLER), []


def _tell(
    status: TrainingJobStatus, slow: SlowRank, now: float, generation: int
) -> tuple[TrainingJobStatus, list[Need]]:
    message = (
        f"rank {slow.rank} on {slow.node} takes {slow.times:g} times as long as the others for its own part of a step "
        f"({slow.own_seconds:g} s, they {slow.others_seconds:g} s; median of 20 steps): they wait for it"
    )
    status = conditions.put(status, ConditionType.STRAGGLER, True, Reason.STRAGGLER, message, now, generation)
    return status, [Tell("Warning", Reason.STRAGGLER, message)]


def _summary(result: PreflightResult, now: float) -> PreflightStatus:
    return PreflightStatus(
        finding=result.finding,
        message=result.message[:2000],
        seconds=result.seconds,
        bus_bandwidth=_short(result.bus_bandwidth),
        expected_bus_bandwidth=_short(result.expected_bus_bandwidth),
        edge_bytes_per_second=tuple(float(f"{edge:.4g}") for edge in result.edge_bytes_per_second[:16]),
        time=now,
    )


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
