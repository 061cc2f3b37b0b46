"""The preflight of a gang, called by all ranks once they have met.

Rank 0 judges and the others wait for its word, all through the store. First what pods found of themselves is compared. Then one
all-reduce is timed against the model's prediction; where it is too slow or does not end, pairs of nodes exchange messages in two
rounds, and who is slow with everybody is named. Where few nodes are new, and the others passed lately, pairs are all there is.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_store
from trainyard.contract import env
from trainyard.contract.alike import Unlike
from trainyard.contract.codec import ContractError, dumps, loads
from trainyard.contract.network import PodNetwork, decode_network, encode_network
from trainyard.contract.plan import Plan
from trainyard.contract.preflight import Finding, Preflight, PreflightResult

from trainyard_trainer.preflight import apart, exchange, judge, pairs
from trainyard_trainer.preflight.exchange import WAYS, Timed
from trainyard_trainer.preflight.judge import Exchange, Verdict
from trainyard_trainer.preflight.pairs import Turns
from trainyard_trainer.preflight.unlike import compare
from trainyard_trainer.report import Reporter

log = logging.getLogger("trainyard_trainer.preflight")

ALL_REDUCE_SHARE: Final = 0.25
"""Of the time, for the all-reduce."""
TURN_SHARE: Final = 0.1
"""Of the time, for one turn of pairs; two rounds have six at most."""
LOST_SHARE: Final = 0.5
"""Of the time until a message counts as lost, for a pair: that one is lost is known then, and it remains to tell whose."""
GRACE_SECONDS: Final = 5.0
"""Beyond the time, until a rank no longer waits for the others, and once more until it no longer waits for rank 0's word."""
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
        for message in gang.compared.costly:
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
        self.compared = Unlike()
        self._store: Store = PrefixStore("preflight", _get_default_store())
        self._began = time.monotonic()
        self._network = _found(environment)

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
        return self._measure()

    def leave(self) -> None:
        """Before a rank ends: rank 0 takes the store with it, and the others may not have read the verdict yet."""
        self._store.add("left", 1)
        until = time.monotonic() + LEAVE_SECONDS
        while self.rank == 0 and time.monotonic() < until and self._store.add("left", 0) < self.ranks:
            time.sleep(POLL_SECONDS)

    # What pods found of themselves

    def _compare(self) -> Unlike:
        if self.local == 0:
            self._store.set(f"found/{self.node}", encode_network(self._network) if self._network is not None else "")
        if self.rank == 0:
            keys = [f"found/{node}" for node in range(len(self.plan.members))]
            said = self._gather(keys, self.asked.budget_seconds)
            found = {}
            for member, text in zip(self.plan.members, said, strict=True):
                if text:
                    found[member.node] = decode_network(text)
            self._say("compared", dumps(compare(found)))
        return loads(Unlike, self._hear("compared", self.asked.budget_seconds + GRACE_SECONDS))

    # Measuring

    def _measure(self) -> PreflightResult:
        asked, nodes = self.asked, range(len(self.plan.members))
        fresh = nodes if asked.nodes is None else asked.nodes
        good = sorted(set(nodes).difference(fresh))
        if len(good) < len(fresh):
            good = []  # not each can have one of them at a time, and all wait meanwhile: to measure everybody takes no longer
        timed, total = None, ""
        if not good and asked.expected_seconds is not None:
            timed = self._all_reduce()
            total, finding = self._of_all(timed)
            if finding is not Finding.FAILED:
                return self._result(Verdict(finding, total), timed)
        first = self._first(sorted(fresh), good) if good else pairs.neighbours(len(nodes))
        exchanges = self._round("first", first)
        suspects = self._suspects(exchanges, good)
        partners = [node for node in good or nodes if node not in suspects]
        second = pairs.with_good(self.plan, suspects, partners, [pair for turn in first for pair in turn])
        exchanges = (*exchanges, *self._round("second", second))
        again = {node for turn in second for pair in turn for node in pair}
        slow = tuple(node for node in self._suspects(exchanges, good) if node in suspects and node in again)
        cleared = [node for node in suspects if node in again and node not in slow]
        verdict = self._judged(slow, cleared, exchanges, total, stuck=bool(total) and timed is None)
        return self._result(verdict, timed, exchanges)

    def _first(self, fresh: Sequence[int], good: Sequence[int]) -> Turns:
        """Each fresh node with one that passed lately; where speeds are not known, those with each other, to compare."""
        first = pairs.with_good(self.plan, fresh, good)
        to_compare = () if self.asked.edge_bytes_per_second else pairs.among_good(self.plan, first[0], good)
        return (*first, to_compare) if to_compare else first

    def _suspects(self, exchanges: Sequence[Exchange], good: Sequence[int]) -> tuple[int, ...]:
        of = judge.best(self.plan, self.asked, exchanges)
        rated = bool(self.asked.edge_bytes_per_second)
        if not good:
            return judge.suspects(of, rated)
        known = judge.usual(self.plan, self.asked, exchanges, good)
        return judge.suspects(of, rated, frozenset(of).difference(good), known)

    def _judged(
        self, slow: Sequence[int], cleared: Sequence[int], exchanges: Sequence[Exchange], total: str, *, stuck: bool
    ) -> Verdict:
        """total: what came of the all-reduce, "" where there was none. stuck: it did not end."""
        if slow:
            return judge.blame(self.plan, slow, exchanges, total)
        if stuck or any(exchange.bytes_per_second <= 0.0 for exchange in exchanges):
            return judge.cut(self.plan, exchanges, total)
        if total:
            return judge.nobody(self.plan, self.asked, cleared, exchanges, total)
        return Verdict(Finding.PASSED, f"{len(exchanges)} pairs of nodes were measured, and none is slow")

    def _all_reduce(self) -> Timed | None:
        """Over the whole gang, the same on all ranks; None where it did not come to an end on each."""
        asked, device = self.asked, self.device
        until = time.monotonic() + asked.lost_seconds + apart.FREED + GRACE_SECONDS
        timed = apart.within(
            asked.lost_seconds,
            device,
            lambda: apart.group(
                PrefixStore("all-reduce", self._store), self.rank, self.ranks, device, asked.lost_seconds
            ),
            lambda group: exchange.grow(
                exchange.all_reduce(group, device), asked.message_bytes, ALL_REDUCE_SHARE * asked.budget_seconds
            ),
        )
        self._store.add("stuck" if timed is None else "through", 1)
        if self.rank == 0:
            while self._ended() < self.ranks and time.monotonic() < until:
                time.sleep(POLL_SECONDS)
            self._say("all-reduce", "through" if self._store.add("through", 0) == self.ranks else "stuck")
        return timed if self._hear("all-reduce", _left(until) + GRACE_SECONDS) == "through" else None

    def _ended(self) -> int:
        """How many ranks know how the all-reduce ended for them."""
        return self._store.add("through", 0) + self._store.add("stuck", 0)

    def _round(self, name: str, turns: Turns) -> tuple[Exchange, ...]:
        """What all pairs of a round reached, the same on all ranks. Nobody's time is spent on a round without pairs."""
        if not turns:
            return ()
        lost_seconds = LOST_SHARE * self.asked.lost_seconds
        until = time.monotonic() + len(turns) * (lost_seconds + apart.FREED) + GRACE_SECONDS
        mine = []
        for number, turn in enumerate(turns):
            other = pairs.partner(turn, self.node)
            if other is not None:
                mine.append(self._with(other, f"{name}/{number}", lost_seconds, until))
        if mine:
            self._store.set(f"{name}/{self.rank}", json.dumps(mine))
        if self.rank == 0:
            self._say(name, json.dumps(self._collected(name, turns, _left(until))))
        said = self._hear(name, _left(until) + GRACE_SECONDS)
        return tuple(Exchange(a, b, speed) for a, b, speed in json.loads(said))

    def _with(self, other: int, turn: str, lost_seconds: float, until: float) -> float:
        """Bytes a second that this process and its like on another node reach; 0: nothing gets through. Both begin together: the
        other may be stuck with another still, and is waited for until the round should be over."""
        device, peer = self.device, other * self.processes + self.local
        low, high = sorted((self.rank, peer))
        store = PrefixStore(f"{turn}/{low}-{high}", self._store)
        store.set(str(self.rank), "")
        try:
            store.wait([str(peer)], timedelta(seconds=_left(until)))
        except dist.DistError:
            return 0.0
        mine = int(self.rank == high)
        timed = apart.within(
            lost_seconds,
            device,
            lambda: apart.group(store, mine, 2, device, lost_seconds),
            lambda group: exchange.grow(
                exchange.with_peer(group, mine, 1 - mine, device),
                self.asked.message_bytes,
                TURN_SHARE * self.asked.budget_seconds,
                WAYS,
            ),
        )
        return timed.bytes_per_second if timed is not None else 0.0

    def _collected(self, name: str, turns: Turns, seconds: float) -> list[tuple[int, int, float]]:
        """Processes of a node share its interfaces: together they are as fast as the slowest of them times their number."""
        ranks = sorted(
            node * self.processes + local
            for node in {node for turn in turns for pair in turn for node in pair}
            for local in range(self.processes)
        )
        said = dict(zip(ranks, self._gather([f"{name}/{rank}" for rank in ranks], seconds), strict=True))
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

    # What comes of it

    def _bus(self, bytes_per_second: float) -> float:
        """Bus bandwidth of an all-reduce: what each interface carries (nccl-tests, PERFORMANCE.md)."""
        return 2 * (self.ranks - 1) / self.ranks * bytes_per_second

    def _of_all(self, timed: Timed | None) -> tuple[str, Finding]:
        """What an all-reduce of the whole gang shows."""
        asked = self.asked
        if timed is None:
            size = judge.size(asked.message_bytes)
            return f"an all-reduce of up to {size} did not come to an end in {asked.lost_seconds:.0f} s", Finding.FAILED
        assert asked.expected_seconds is not None
        ratio = asked.expected_seconds * timed.bytes / asked.message_bytes / timed.seconds
        reached = self._bus(timed.bytes_per_second)
        total = (
            f"an all-reduce of {judge.size(timed.bytes)} ran at {judge.speed(reached)} of bus bandwidth, {ratio:.2f} of the "
            f"{judge.speed(reached / ratio)} predicted"
        )
        return total, judge.by_ratio(ratio)

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

    def _gather(self, keys: Sequence[str], seconds: float) -> list[str]:
        """What ranks have said; empty for those that have not within the time."""
        there = list(keys)
        try:
            self._store.wait(there, timedelta(seconds=seconds))
        except dist.DistError:
            there = [key for key in keys if self._store.check([key])]
        said = dict(zip(there, self._store.multi_get(there), strict=True)) if there else {}
        return [said.get(key, b"").decode() for key in keys]

    def _say(self, key: str, text: str) -> None:
        self._store.set(f"word/{key}", text)

    def _hear(self, key: str, seconds: float) -> str:
        """Rank 0's word. DistStoreError where it does not come in time."""
        self._store.wait([f"word/{key}"], timedelta(seconds=seconds))
        return self._store.get(f"word/{key}").decode()


def _left(until: float) -> float:
    return max(until - time.monotonic(), 0.1)


def _found(environment: Mapping[str, str]) -> PodNetwork | None:
    """What the launcher found of this pod; None without a launcher that looks."""
    path = environment.get(env.NETWORK_FILE)
    try:
        return decode_network(Path(path).read_bytes()) if path else None
    except (OSError, ContractError) as error:
        log.warning("%s=%s: %s", env.NETWORK_FILE, path, error)
        return None
