"""What a pod finds of its network before its workers start, and what the libraries complain of while they run.

The launcher says both in its status. Everything has a bound: an answer has 64 KiB for all that it says.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

from trainyard.contract.codec import dumps, loads
from trainyard.contract.words import StrEnum

PODNETWORK_BYTES: Final = 24 * 1024
"""Of JSON, at most. 16 adapters with their rows take 5 KiB."""
TEXT_CHARACTERS: Final = 400
"""The longest text of one fact, warning or fault."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that was found. source: where it was read. reason: what follows from it, or why it does not count."""

    name: str
    value: str
    source: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A variable that the launcher gives its workers because neither the user nor the operator had set it."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class Alike:
    """What all pods of a gang must have alike. None: this pod could not tell, or it plays no part here.

    adapters: RDMA adapters that collectives will use; 0 is a finding, not ignorance. rate_gbps: of each of them. mtu: active, in
    bytes. family: of the addresses by which adapters find each other, AF_INET or AF_INET6. gid_indexes: the row of each adapter's
    table, in their order. nccl: version of the library. gpudirect: whether adapters reach the accelerators' memory.
    interface_mtu: of the socket interface, in bytes.
    """

    link_layer: str | None = None
    adapters: int | None = None
    rate_gbps: float | None = None
    mtu: int | None = None
    family: str | None = None
    gid_indexes: tuple[int, ...] = ()
    nccl: tuple[int, ...] | None = None
    gpudirect: bool | None = None
    interface_mtu: int | None = None


@dataclass(frozen=True, slots=True)
class PodNetwork:
    """What the launcher found and decided.

    interface: the one that reaches rank 0. adapters: RDMA adapters that collectives will use, rail by rail. settings: variables
    given to the workers. warnings: what may cost something. faults: what makes this node unfit for the job; the preflight fails
    by them. stranded: by a fault no worker here could meet the others, and none starts. refused: what the user set that cannot
    work; the attempt ends before its workers start.
    """

    interface: str | None = None
    adapters: tuple[str, ...] = ()
    alike: Alike = Alike()
    facts: tuple[Fact, ...] = ()
    settings: tuple[Resolved, ...] = ()
    warnings: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    stranded: bool = False
    refused: tuple[str, ...] = ()


class Sign(StrEnum):
    """What a line of NCCL or torch means. Reasons of conditions, events and metrics have the same names."""

    RDMA_UNAVAILABLE = "RdmaUnavailable"
    RDMA_NOT_USED = "RdmaNotUsed"
    RDMA_DEVICE_MISSING = "RdmaDeviceMissing"
    GPUDIRECT_OFF = "GpuDirectOff"
    FABRIC_ERROR = "FabricError"
    CONNECTION_REFUSED = "GidOrRailOrMtu"
    MEMLOCK = "MemlockTooSmall"
    VERSION_MISMATCH = "NcclVersionMismatch"
    INTERFACE_WRONG = "InterfaceWrong"
    MIXED_LINK_LAYERS = "MixedLinkLayers"
    TOPOLOGY_WRONG = "TopologyWrong"
    NVLINK_DOMAIN = "NvlinkDomainBroken"
    SHM_TOO_SMALL = "ShmTooSmall"
    PEER_UNREACHABLE = "PeerUnreachable"
    COLLECTIVE_TIMEOUT = "CollectiveTimeout"


class Bearing(StrEnum):
    """What a line has to do with a failure."""

    ERROR = "error"
    """The library gave up, and says why."""
    SECONDARY = "secondary"
    """It gave up because of something else, which another rank or another line may name."""
    OBSERVATION = "observation"
    """It goes on, slower than it should: never why anything failed."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A complaint of a library that was recognised in the output of a worker.

    rank: who printed it first; time: when, since the epoch. message: the line. hint: what usually is behind it. device: the
    adapter it names. peer: the address of the other end. count: how many lines said the same. bearing: one of `Bearing`.
    """

    sign: str
    rank: int
    time: float
    message: str
    hint: str = ""
    device: str | None = None
    peer: str | None = None
    count: int = 1
    bearing: str = Bearing.ERROR


def bounded(found: PodNetwork) -> PodNetwork:
    """The same within PODNETWORK_BYTES: texts are cut, then the last facts are left out; the settings stay."""
    facts = tuple(
        dataclasses.replace(f, name=_cut(f.name), value=_cut(f.value), source=_cut(f.source), reason=_cut(f.reason))
        for f in found.facts
    )
    small = dataclasses.replace(
        found, facts=facts, warnings=_few(found.warnings), faults=_few(found.faults), refused=_few(found.refused)
    )
    while small.facts and len(dumps(small).encode()) > PODNETWORK_BYTES:
        small = dataclasses.replace(small, facts=small.facts[: len(small.facts) * 3 // 4])
    return small


def encode_network(found: PodNetwork) -> str:
    """As JSON, for the file that workers read it from."""
    return dumps(found)


def decode_network(text: str | bytes) -> PodNetwork:
    """Read it; ContractError names what is wrong."""
    return loads(PodNetwork, text)


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARACTERS else f"{text[: TEXT_CHARACTERS - 4]} ..."


def _few(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_cut(text) for text in texts[:16])
