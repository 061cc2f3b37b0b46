"""What a launcher answers to GET /v1/status, and what it leaves behind as last words.

Last words go to the container's termination message, which the kubelet cuts at 4,096 bytes: they are kept under 3,500, long
texts cut first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from trainyard.contract.codec import Instant, Seconds, dumps, loads
from trainyard.contract.network import PodNetwork, Trouble
from trainyard.contract.plan import Mark
from trainyard.contract.preflight import PreflightResult
from trainyard.contract.sent import Sent
from trainyard.contract.words import StrEnum

LAST_WORDS_BYTES = 3500
NAMED_NODES = 16
"""Nodes that a preflight blames, in last words."""
WORKER_EXITS = 64
"""Exit codes of more workers than this are left out where room is short; no node has as many accelerators."""
_GAP = " ... "


class WorkerPhase(StrEnum):
    """What the workers of a pod are at; the slowest of them speaks for the pod."""

    STARTING = "starting"
    LOADING = "loading"
    TRAINING = "training"
    SAVING = "saving"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Commit:
    """A checkpoint that exists: its record was written after all ranks agreed and everything was synced.

    time: seconds since the epoch. seconds: from the decision to save until durable.
    """

    attempt: int
    step: int
    path: str
    bytes: int = 0
    seconds: Seconds = 0.0
    time: Instant = 0.0


@dataclass(frozen=True, slots=True)
class Fault:
    """The first thing that went wrong in a pod. rank: of the worker, -1 for the launcher itself; time: since the epoch."""

    rank: int
    time: Instant
    message: str
    exit_code: int | None = None
    signal: str | None = None


@dataclass(frozen=True, slots=True)
class At:
    """Where a worker is, for whoever compares it with the others of its gang.

    rank: global. step: steps done. entered: collectives entered, over all process groups of the mesh: ranks of one pipeline stage
    enter the same ones in the same order. waits_in: the collective in which it waits for others, "" where it waits in none.
    beat_seconds: since its last heartbeat; None: it never had one. own_seconds: what of a step it did not wait for others, the
    median of the last 20; None while there are fewer.
    """

    rank: int
    step: int
    entered: int = 0
    waits_in: str = ""
    beat_seconds: Seconds | None = None
    own_seconds: Seconds | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """A launcher's answer.

    pod_uid, attempt, plan_digest, node_rank: who speaks, and by which plan; the operator checks them against its own.
    step: the last step that all local workers finished (0: none). loss, tokens_per_second: of the most recent report.
    notice: when the launcher was first asked to stop, in seconds since the epoch, and why.
    commit: the newest checkpoint known to be durable. resumed: the commit that this attempt started from.
    durable_seconds: estimate of how long a save would take from now until durable; None while unknown. durable_basis: what it
    rests on. ranks: where the workers are. phase_seconds: of the first worker, seconds of this attempt by phase. grad_norm, mfu:
    of the most recent report. memory_bytes: of the worker that took most. sent: in a step of the first worker.
    network: what the pod found of its network; None until it has looked. preflight: how that ended, on all pods the same; None
    before, and where nothing was to be checked. trouble: what the libraries complained of, the likeliest cause first.
    ended: the last words of this attempt, where its workers have ended and the launcher waits for a later plan; ended_time: since
    when, in seconds since the epoch.
    """

    pod_uid: str
    attempt: int
    plan_digest: str
    node_rank: int
    phase: str
    step: int = 0
    loss: float | None = None
    tokens_per_second: float | None = None
    step_seconds: Seconds | None = None
    first_step_time: Instant | None = None
    notice_time: Instant | None = None
    notice_reason: str | None = None
    commit: Commit | None = None
    resumed: Mark | None = None
    durable_seconds: Seconds | None = None
    durable_basis: str = ""
    ranks: tuple[At, ...] = ()
    phase_seconds: Mapping[str, Seconds] = field(default_factory=dict)
    grad_norm: float | None = None
    mfu: float | None = None
    memory_bytes: int | None = None
    sent: Sent | None = None
    fault: Fault | None = None
    warnings: tuple[str, ...] = ()
    network: PodNetwork | None = None
    preflight: PreflightResult | None = None
    trouble: tuple[Trouble, ...] = ()
    ended: LastWords | None = None
    ended_time: Instant | None = None


@dataclass(frozen=True, slots=True)
class LastWords:
    """What a pod says of its end, in the termination message of its trainer container.

    exit: the launcher's exit code. step: last finished step. commit: newest durable checkpoint. fault: first local failure.
    cause: one sentence. worker_exits: the workers' own exit codes (negative: signal), by local rank. trouble: the likeliest cause
    that a library named. preflight: how it ended, where it failed. behind: after a hang, the worker that others wait for.
    """

    attempt: int
    node_rank: int
    exit: int
    cause: str
    step: int = 0
    commit: Commit | None = None
    resumed: Mark | None = None
    fault: Fault | None = None
    notice_time: Instant | None = None
    first_step_time: Instant | None = None
    worker_exits: tuple[int, ...] = ()
    trouble: Trouble | None = None
    preflight: PreflightResult | None = None
    behind: At | None = None


def encode_status(status: Status) -> str:
    """The body of the answer to GET /v1/status."""
    return dumps(status)


def decode_status(text: str | bytes) -> Status:
    """Read an answer; ContractError names the field that is wrong: of another type, or a figure that cannot be (a time in
    milliseconds, an integer beyond 64 bits)."""
    return loads(Status, text)


def encode_last_words(words: LastWords) -> str:
    """At most LAST_WORDS_BYTES bytes of JSON: texts are cut in their middle, as little as is needed; numbers stay.

    A path that has no room is left out, not cut: attempt and step name the commit as well, and half a path names nothing.
    """
    text = dumps(words)
    room = LAST_WORDS_BYTES
    while len(text.encode()) > LAST_WORDS_BYTES and room:
        room //= 2
        text = dumps(_within(words, room))
    return text


def _within(words: LastWords, room: int) -> LastWords:
    """The same with texts of at most `room` characters each."""
    fault, commit = words.fault, words.commit
    if fault is not None:
        name = fault.signal and _cut(fault.signal, room)
        fault = dataclasses.replace(fault, message=_cut(fault.message, room), signal=name)
    if commit is not None and len(commit.path) > room:
        commit = dataclasses.replace(commit, path="")
    trouble, preflight, behind = words.trouble, words.preflight, words.behind
    if trouble is not None:
        trouble = dataclasses.replace(
            trouble,
            sign=_cut(trouble.sign, room),
            message=_cut(trouble.message, room),
            hint=_cut(trouble.hint, room),
            device=trouble.device and _cut(trouble.device, room),
            peer=trouble.peer and _cut(trouble.peer, room),
        )
    if preflight is not None:
        preflight = dataclasses.replace(
            preflight,
            finding=_cut(preflight.finding, room),
            message=_cut(preflight.message, room),
            nodes=tuple(name for name in preflight.nodes[:NAMED_NODES] if len(name) <= room),
            edge_bytes_per_second=preflight.edge_bytes_per_second[:NAMED_NODES],
        )
    return dataclasses.replace(
        words,
        fault=fault,
        commit=commit,
        cause=_cut(words.cause, room),
        worker_exits=words.worker_exits[:WORKER_EXITS],
        trouble=trouble,
        preflight=preflight,
        behind=behind and dataclasses.replace(behind, waits_in=_cut(behind.waits_in, room)),
    )


def _cut(text: str, room: int) -> str:
    """Its beginning says what went wrong, its end where: keep both."""
    if len(text) <= room:
        return text
    half = max(room - len(_GAP), 0) // 2
    return f"{text[:half]}{_GAP}{text[-half:]}" if half else text[:room]


def decode_last_words(text: str | bytes) -> LastWords:
    """Read a termination message; ContractError where it is not ours (a user's own text, or cut)."""
    return loads(LastWords, text)
