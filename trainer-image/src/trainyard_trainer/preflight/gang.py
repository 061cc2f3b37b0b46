"""The preflight of a gang, called by all ranks once they have met.

Rank 0 judges and the others wait for its word, all through the store. First what pods found of themselves is compared. Then one
all-reduce is timed against the model's prediction; where it is too slow, pairs of nodes exchange messages in two rounds, and who
is slow with everybody is named.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_store
from trainyard.contract import env
from trainyard.contract.codec import ContractError, dumps, loads
from trainyard.contract.network import PodNetwork, decode_network, encode_network
from trainyard.contract.plan import Plan
from trainyard.contract.preflight import Finding, Preflight, PreflightResult

from trainyard_trainer.preflight import exchange, judge, pairs
from trainyard_trainer.preflight.exchange import WAYS, Timed
from trainyard_trainer.preflight.judge import Exchange, Verdict
from trainyard_trainer.preflight.pairs import Turns
from trainyard_trainer.preflight.unlike import Compared, compare
from trainyard_trainer.report import Reporter

log = logging.getLogger("trainyard_trainer.preflight")

ALL_REDUCE_SHARE: Final = 0.25
"""Of the time, for the all-reduce."""
TURN_SHARE: Final = 0.1
"""Of the time, for one turn of pairs; two rounds have six at most."""
STUCK_SHARE: Final = 0.5
"""Of the time, until a message that does not get through is given up."""
GRACE_SECONDS: Final = 5.0
"""Beyond the time, until a rank no longer waits for the others' word."""
LEAVE_SECONDS: Final = 2.0
"""How long rank 0, which holds the store, waits for the others to have read the verdict before it leaves."""
POLL_SECONDS: Final = 0.01


class PreflightFailed(RuntimeError):
    """The gang must not train on these nodes. result: the same on all ranks."""

    def __init__(self, result: PreflightResult) -> None:
        super().__init__(result.message)
        self.result = result


def prove(
    plan: Plan, device: torch.device, report: Reporter, environment: Mapping[str, str] = os.environ
) -> PreflightResult | None:
    """What was found; None where the plan asks for nothing. Raises PreflightFailed, which the launcher was told of already."""
    asked = plan.preflight
    if asked is None or len(plan.members) < 2:
        return None
    gang = _Gang(plan, asked, device, environment)
    result = gang.run()
    report.preflight(result)
    if gang.rank == 0:
        log.info("preflight %s in %.1f s: %s", result.finding, result.seconds, result.message)
        for message in gang.compared.warnings:
            report.warned("NodesUnlike", message)
        if result.finding == Finding.WARNED:
            report.warned("NetworkSlow", result.message)
    if result.finding == Finding.FAILED:
        failed = PreflightFailed(result)
        report.failed(failed, preflight=True)
        gang.leave()
        raise failed
    return result


class _Gang:
    """One rank's part. Every method is called by all ranks in the same order."""

    def __init__(self, plan: Plan, asked: Preflight, device: torch.device, environment: Mapping[str, str]) -> None:
        self.plan, self.asked, self.device = plan, asked, device
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.processes = plan.processes_per_node
        self.node, self.local = divmod(self.rank, self.processes)
        self.compared = Compared()
        self._store: Store = PrefixStore("preflight", _get_default_store())
        self._began = time.monotonic()
        self._until = self._began + asked.budget_seconds
        self._network = _found(environment)
        self._broken = False

    def run(self) -> PreflightResult:
        """Compare, then measure."""
        if self.ranks != self.plan.world_size:
            wrong = f"{self.ranks} ranks have met, and the plan has {self.plan.world_size}"
            return self._result(Verdict(Finding.FAILED, wrong))
        self.compared = self._compare()
        if self.compared.fatal:
            nodes = tuple(n for n, member in enumerate(self.plan.members) if member.node in self.compared.nodes)
            return self._result(Verdict(Finding.FAILED, "; ".join(self.compared.fatal), nodes))
        if self.asked.nodes == ():
            return self._result(Verdict(Finding.SKIPPED, "all nodes have passed lately"))
        group = dist.new_group(timeout=timedelta(seconds=STUCK_SHARE * self.asked.budget_seconds))
        assert isinstance(group, dist.ProcessGroup)
        try:
            return self._measure(group)
        finally:
            if not self._broken:
                dist.destroy_process_group(group)

    def leave(self) -> None:
        """Before a rank ends: rank 0 takes the store with it, and the others may not have read the verdict yet."""
        self._store.add("left", 1)
        until = time.monotonic() + LEAVE_SECONDS
        while self.rank == 0 and time.monotonic() < until and self._store.add("left", 0) < self.ranks:
            time.sleep(POLL_SECONDS)

    # What pods found of themselves

    def _compare(self) -> Compared:
        if self.local == 0:
            self._store.set(f"found/{self.node}", encode_network(self._network) if self._network is not None else "")
        if self.rank == 0:
            said = self._gather([f"found/{node}" for node in range(len(self.plan.members))])
            found = {}
            for member, text in zip(self.plan.members, said, strict=True):
                if text:
                    found[member.node] = decode_network(text)
            self._say("compared", dumps(compare(found)))
        return loads(Compared, self._hear("compared"))

    # Measuring

    def _measure(self, group: dist.ProcessGroup) -> PreflightResult:
        asked, timed, total = self.asked, None, ""
        if asked.nodes is None and asked.expected_seconds is not None:
            timed = self._try(exchange.all_reduce(group, self.device), ALL_REDUCE_SHARE)
            if timed is None:
                stuck = f"an all-reduce of up to {judge.size(asked.message_bytes)} did not come to an end"
                return self._result(Verdict(Finding.FAILED, stuck))
            ratio = asked.expected_seconds * timed.bytes / asked.message_bytes / timed.seconds
            total = self._total(timed, ratio)
            finding = judge.by_ratio(ratio)
            if finding is not Finding.FAILED:
                return self._result(Verdict(finding, total), timed)
        nodes = range(len(self.plan.members))
        fresh = frozenset(nodes if asked.nodes is None else asked.nodes)
        known_good = [node for node in nodes if node not in fresh]
        first = pairs.with_good(self.plan, sorted(fresh), known_good) if known_good else pairs.neighbours(len(nodes))
        exchanges = self._round(group, "first", first)
        suspects = self._suspects(exchanges, known_good)
        good = known_good or [node for node in nodes if node not in suspects]
        second = pairs.with_good(self.plan, suspects, good, [pair for turn in first for pair in turn])
        exchanges = (*exchanges, *self._round(group, "second", second))
        again = {node for turn in second for pair in turn for node in pair}
        slow = tuple(node for node in self._suspects(exchanges, known_good) if node in suspects and node in again)
        return self._result(self._judged(slow, suspects, exchanges, total), timed, exchanges)

    def _suspects(self, exchanges: Sequence[Exchange], known_good: Sequence[int]) -> tuple[int, ...]:
        of = judge.best(self.plan, self.asked, exchanges)
        rated = bool(self.asked.edge_bytes_per_second)
        return judge.suspects(of, rated, frozenset(of).difference(known_good) if known_good else None)

    def _judged(
        self, slow: Sequence[int], suspects: Sequence[int], exchanges: Sequence[Exchange], total: str
    ) -> Verdict:
        if slow:
            return judge.blame(self.plan, slow, exchanges, total)
        if total:
            return judge.nobody(self.plan, self.asked, suspects, exchanges, total)
        return Verdict(Finding.PASSED, f"{len(exchanges)} pairs of nodes were measured, and none is slow")

    def _round(self, group: dist.ProcessGroup, name: str, turns: Turns) -> tuple[Exchange, ...]:
        """What all pairs of a round reached, the same on all ranks. Nobody's time is spent on a round without pairs."""
        if not turns:
            return ()
        mine = []
        for turn in turns:
            other = pairs.partner(turn, self.node)
            if other is not None:
                peer = other * self.processes + self.local
                timed = self._try(exchange.with_peer(group, self.rank, peer, self.device), TURN_SHARE, WAYS)
                mine.append(timed.bytes_per_second if timed is not None else 0.0)
        if mine:
            self._store.set(f"{name}/{self.rank}", json.dumps(mine))
        if self.rank == 0:
            self._say(name, json.dumps(self._collected(name, turns)))
        return tuple(Exchange(a, b, speed) for a, b, speed in json.loads(self._hear(name)))

    def _collected(self, name: str, turns: Turns) -> list[tuple[int, int, float]]:
        """Processes of a node share its interfaces: together they are as fast as the slowest of them times their number."""
        ranks = sorted(
            node * self.processes + local
            for node in {node for turn in turns for pair in turn for node in pair}
            for local in range(self.processes)
        )
        said = dict(zip(ranks, self._gather([f"{name}/{rank}" for rank in ranks]), strict=True))
        left = {rank: list(json.loads(text)) if text else [] for rank, text in said.items()}
        found = []
        for turn in turns:
            for a, b in turn:
                reached = [
                    left[node * self.processes + local].pop(0) if left[node * self.processes + local] else 0.0
                    for node in (a, b)
                    for local in range(self.processes)
                ]
                found.append((a, b, min(reached) * self.processes))
        return found

    def _try(self, once: Callable[[int], float], share: float, times: int = 1) -> Timed | None:
        """None where it did not get through; the group is of no use then."""
        if self._broken:
            return None
        try:
            return exchange.grow(once, self.asked.message_bytes, share * self.asked.budget_seconds, times)
        except (RuntimeError, dist.DistError) as error:
            log.warning("rank %s: %s", self.rank, error)
            self._broken = True
            return None

    # What comes of it

    def _bus(self, bytes_per_second: float) -> float:
        """Bus bandwidth of an all-reduce: what each interface carries (nccl-tests, PERFORMANCE.md)."""
        return 2 * (self.ranks - 1) / self.ranks * bytes_per_second

    def _total(self, timed: Timed, ratio: float) -> str:
        reached, size = self._bus(timed.bytes_per_second), judge.size(timed.bytes)
        return (
            f"an all-reduce of {size} ran at {judge.speed(reached)} of bus bandwidth, {ratio:.2f} of the "
            f"{judge.speed(reached / ratio)} predicted"
        )

    def _result(
        self, verdict: Verdict, timed: Timed | None = None, exchanges: Sequence[Exchange] = ()
    ) -> PreflightResult:
        asked, expected = self.asked, None
        if asked.expected_seconds is not None:
            expected = self._bus(asked.message_bytes / asked.expected_seconds)
        return PreflightResult(
            finding=verdict.finding.value,
            message=verdict.message,
            seconds=round(time.monotonic() - self._began, 3),
            bus_bandwidth=self._bus(timed.bytes_per_second) if timed is not None else None,
            expected_bus_bandwidth=expected,
            nodes=tuple(judge.name(self.plan, node) for node in verdict.nodes),
            edge_bytes_per_second=judge.edges(self.plan, asked, exchanges) if exchanges else (),
        )

    # Through the store

    def _gather(self, keys: Sequence[str]) -> list[str]:
        """What ranks have said; empty for those that have not within the time."""
        with contextlib.suppress(dist.DistError):
            self._store.wait(list(keys), timedelta(seconds=max(self._until - time.monotonic(), 0.1)))
        there = [key for key in keys if self._store.check([key])]
        said = dict(zip(there, self._store.multi_get(there), strict=True)) if there else {}
        return [said.get(key, b"").decode() for key in keys]

    def _say(self, key: str, text: str) -> None:
        self._store.set(f"word/{key}", text)

    def _hear(self, key: str) -> str:
        """Rank 0's word. DistStoreError where it does not come."""
        self._store.wait([f"word/{key}"], timedelta(seconds=max(self._until - time.monotonic(), 0.1) + GRACE_SECONDS))
        return self._store.get(f"word/{key}").decode()


def _found(environment: Mapping[str, str]) -> PodNetwork | None:
    """What the launcher found of this pod; None without a launcher that looks."""
    path = environment.get(env.NETWORK_FILE)
    try:
        return decode_network(Path(path).read_bytes()) if path else None
    except (OSError, ContractError) as error:
        log.warning("%s=%s: %s", env.NETWORK_FILE, path, error)
        return None
