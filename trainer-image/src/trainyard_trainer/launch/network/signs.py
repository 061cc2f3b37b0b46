"""What lines of NCCL, torch and gloo mean: the ones that name a cause which an exit code does not.

Texts are those of NCCL 2.30.7 and torch 2.15, and older forms where they differ. A line is looked at only if it holds the word
that a signature needs, and only its first LINE_BYTES: what a worker prints costs the launcher a search for a few words.
NCCL's HINT lines are no help: after a completion with an error it prints the hints of other errors as well.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from trainyard.contract.network import Bearing, Sign, Trouble

LINE_BYTES: Final = 2048
MESSAGE_CHARACTERS: Final = 300
KEPT: Final = 16
"""Different troubles of a pod. An error takes the place of an observation, and the first of a sign that of a later one of
another."""


@dataclass(frozen=True, slots=True)
class Signature:
    """word: must be in the line. pattern: must match too; its groups `device` and `peer` are kept. hint: what usually is behind
    it. An observation means something only where adapters should be used."""

    sign: Sign
    word: bytes
    pattern: re.Pattern[bytes]
    hint: str = ""
    bearing: Bearing = Bearing.ERROR


def _signature(sign: Sign, word: str, pattern: str, hint: str = "", bearing: Bearing = Bearing.ERROR) -> Signature:
    return Signature(sign, word.encode(), re.compile(pattern.encode()), hint, bearing)


_COMPLETION: Final = (
    r"Got completion from peer (?P<peer>[^\s<]+)\S* with status="
    r"(?:[\w ]+\()?{status}\)?[ ,](?:.*\bhca (?P<device>\S+))?"
)

SIGNATURES: Final[tuple[Signature, ...]] = (
    _signature(
        Sign.RDMA_UNAVAILABLE,
        "Failed to initialize any NET plugin",
        r"",
        "NCCL_NET asks for adapters, and none can be used: no device, no driver library, or the wrong plugin",
    ),
    _signature(
        Sign.RDMA_NOT_USED,
        "Using network",
        r"NCCL INFO.* Using network Socket\b",
        "collectives run over sockets though the pod has adapters: a plugin or a library is missing, or NCCL_IB_DISABLE is set",
        Bearing.OBSERVATION,
    ),
    _signature(
        Sign.RDMA_DEVICE_MISSING,
        "NET/IB : No device found",
        r"",
        "no adapter with a link is visible: is /dev/infiniband in the pod, and rdma-core in the image?",
        Bearing.OBSERVATION,
    ),
    _signature(
        Sign.GPUDIRECT_OFF,
        "GPU Direct RDMA Disabled",
        r"GPU Direct RDMA Disabled for HCA \d+ '(?P<device>[^':]+)",
        "messages go through the host's memory: is nvidia-peermem loaded, or the open driver there?",
        Bearing.OBSERVATION,
    ),
    _signature(
        Sign.FABRIC_ERROR,
        "Got completion from peer",
        _COMPLETION.format(status="12"),
        "the peer did not acknowledge in time: link down, no way, another MTU, or packets dropped without flow control (PFC)",
    ),
    _signature(
        Sign.FABRIC_ERROR,
        "Got completion from peer",
        _COMPLETION.format(status="4"),
        "the adapter was not let at memory: ACS or the IOMMU stands between accelerator and adapter",
    ),
    _signature(
        Sign.FABRIC_ERROR,
        "Got completion from peer",
        _COMPLETION.format(status="5"),
        "what was under way was given up after another error",
        Bearing.SECONDARY,
    ),
    _signature(Sign.FABRIC_ERROR, "Got completion from peer", _COMPLETION.format(status=r"(?!(?:12|4|5)\b)\d+")),
    _signature(
        Sign.CONNECTION_REFUSED,
        "Call to ibv_modify_qp failed",
        r"Call to ibv_modify_qp failed(?!.*\bretrying\b)(?:.*?\bon dev (?P<device>[^\s:,]+))?(?:.*\bremote GID (?P<peer>\S+))?",
        "adapters cannot connect: wrong row of addresses, rails that do not reach each other (NCCL_CROSS_NIC=0), or MTU",
    ),
    _signature(
        Sign.MEMLOCK,
        "Cannot allocate memory",
        r"Call to ibv_(?:reg_\w*mr\w*|create_qp|create_cq)\w* failed",
        "memory could not be locked: give the container the capability IPC_LOCK",
    ),
    _signature(
        Sign.VERSION_MISMATCH,
        "Mismatched NCCL version",
        r"",
        "the pods run different images, or find different libraries",
    ),
    _signature(
        Sign.INTERFACE_WRONG,
        "interface found",
        r"Bootstrap : no socket interface found|NET/Socket : (?:no|No usable listening) interface found",
        "NCCL_SOCKET_IFNAME matches no interface with an address",
    ),
    _signature(
        Sign.INTERFACE_WRONG,
        "Unable to find",
        r"Unable to find (?:address|interface) for: ?(?P<device>\S*)",
        "GLOO_SOCKET_IFNAME names no interface with an address",
    ),
    _signature(
        Sign.MIXED_LINK_LAYERS,
        "Attempted to merge incompatible devices",
        r"",
        "adapters of InfiniBand and of Ethernet are used together; name those of one kind in NCCL_IB_HCA",
    ),
    _signature(
        Sign.TOPOLOGY_WRONG,
        "Could not find any local path from gpu",
        r"",
        "the topology that NCCL was given, or sees, is not this machine's: look at NCCL_TOPO_FILE and NCCL_IB_HCA",
    ),
    _signature(
        Sign.NVLINK_DOMAIN,
        "is available but not working on this system",
        r"MNNVL \(cliqueSize",
        "NVLink between nodes has no channel here: the pod needs a ComputeDomain's claim, or its IMEX daemons do not run",
    ),
    _signature(
        Sign.SHM_TOO_SMALL,
        "shared memory segment",
        r"Error while (?:creating|attaching to) shared memory segment|/dev/shm/\S+.*(?:No space left|size)",
        "/dev/shm is full or small: mount an emptyDir with medium Memory there",
    ),
    _signature(
        Sign.SHM_TOO_SMALL,
        "No space left on device",
        r"No space left on device.*(?:shm|nccl-)|(?:shm|nccl-)\S*.*No space left on device",
        "/dev/shm is full: mount an emptyDir with medium Memory there",
    ),
    _signature(
        Sign.SHM_TOO_SMALL,
        "Bus error",
        r"\bBus error\b",
        "a page of shared memory could not be had: /dev/shm is full or small; mount an emptyDir with medium Memory there",
    ),
    _signature(
        Sign.PEER_UNREACHABLE,
        "connectFullMesh failed",
        r"connectFullMesh failed with (?P<peer>\S.*)?",
        "not every pod can reach every other: network policy, or an interface that has no route",
    ),
    _signature(
        Sign.COLLECTIVE_TIMEOUT,
        "Watchdog caught collective operation timeout",
        r"",
        "a rank did not come to a collective, or its network lost it",
        Bearing.SECONDARY,
    ),
    _signature(
        Sign.COLLECTIVE_TIMEOUT,
        "Timed out waiting",
        r"Timed out waiting \d+ms for (?:recv|send) operation",
        "a rank did not come to a collective, or its network lost it",
        Bearing.SECONDARY,
    ),
)

WORDS: Final = tuple(dict.fromkeys(signature.word for signature in SIGNATURES))


def recognise(line: bytes, rdma: bool = True) -> tuple[Signature, re.Match[bytes]] | None:
    """What a line means, and its match; None where it means nothing to us. rdma: adapters should be used."""
    line = line[:LINE_BYTES]
    for signature in SIGNATURES:
        if signature.word in line and (rdma or signature.bearing is not Bearing.OBSERVATION):
            match = signature.pattern.search(line)
            if match is not None:
                return signature, match
    return None


class Signs:
    """What all workers of a pod have complained of; threads that read their output add to it."""

    def __init__(self) -> None:
        self.rdma = False
        self._lock = threading.Lock()
        self._found: dict[tuple[str, str | None, str | None, str], Trouble] = {}

    def add(self, rank: int, line: bytes, time: float) -> None:
        """One line of a worker's output. time: since the epoch."""
        recognised = recognise(line, self.rdma)
        if recognised is None:
            return
        signature, match = recognised
        groups = match.groupdict()
        device, peer = (_text(groups.get(name)) for name in ("device", "peer"))
        key = (signature.sign.value, device, peer, signature.bearing)
        with self._lock:
            known = self._found.get(key)
            if known is not None:
                self._found[key] = replace(known, count=known.count + 1)
                return
            message = line[:LINE_BYTES].decode("utf-8", "replace").replace("\0", "").strip()[:MESSAGE_CHARACTERS]
            self._found[key] = Trouble(
                signature.sign.value, rank, time, message, signature.hint, device, peer, 1, signature.bearing
            )
            if len(self._found) > KEPT:
                del self._found[self._least()]

    def _least(self) -> tuple[str, str | None, str | None, str]:
        """What to do without: of the least bearing the sign that was seen most often, and of it what came last."""
        nth: Counter[tuple[str, str]] = Counter()
        places = dict[tuple[str, str | None, str | None, str], tuple[int, bool, int, float]]()
        for key, trouble in sorted(self._found.items(), key=lambda item: item[1].time):
            nth[trouble.sign, trouble.bearing] += 1
            places[key] = (*_weight(trouble), nth[trouble.sign, trouble.bearing], trouble.time)
        return max(places, key=lambda key: places[key])

    def found(self) -> tuple[Trouble, ...]:
        """The likeliest cause of a failure first: errors, what follows from others, what is only observed; each by its time."""
        with self._lock:
            return tuple(sorted(self._found.values(), key=lambda trouble: (*_weight(trouble), trouble.time)))

    def cause(self) -> Trouble | None:
        """Why the workers failed, as far as a library said so; what was only observed is never it."""
        return next((trouble for trouble in self.found() if trouble.bearing != Bearing.OBSERVATION), None)


_BEARINGS: Final = (Bearing.ERROR, Bearing.SECONDARY, Bearing.OBSERVATION)


def _weight(trouble: Trouble) -> tuple[int, bool]:
    """Less is a likelier cause. Of what follows from others, a collective that timed out says most: somebody did not come."""
    return _BEARINGS.index(Bearing(trouble.bearing)), trouble.sign != Sign.COLLECTIVE_TIMEOUT


class Ear:
    """Listens to one stream of a worker, as it comes in pieces."""

    def __init__(self, rank: int, signs: Signs) -> None:
        self._rank = rank
        self._signs = signs
        self._partial = b""

    def hear(self, chunk: bytes, time: float) -> None:
        """A piece of output."""
        whole, newline, rest = chunk.rpartition(b"\n")
        if newline:
            self._look(self._partial + whole, time)
            self._partial = rest[:LINE_BYTES]
        elif len(self._partial) < LINE_BYTES:
            self._partial += rest[: LINE_BYTES - len(self._partial)]

    def end(self, time: float) -> None:
        """The stream has ended, perhaps in the middle of a line."""
        self._look(self._partial, time)
        self._partial = b""

    def _look(self, text: bytes, time: float) -> None:
        if any(word in text for word in WORDS):
            for line in _lines(text):
                self._signs.add(self._rank, line, time)


def _lines(text: bytes) -> Iterator[bytes]:
    lines: Sequence[bytes] = text.split(b"\n")
    return (line for line in lines if any(word in line for word in WORDS))


def _text(group: bytes | None) -> str | None:
    return group.decode("utf-8", "replace")[:100] if group else None
