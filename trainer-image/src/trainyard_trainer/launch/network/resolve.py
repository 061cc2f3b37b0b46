"""All that a pod finds of its network, and the variables that follow from it. Pure: the machine is an argument.

Interface and gloo's variable are for every gang of several nodes. What is NCCL's and RDMA's is for pods with CUDA devices. A
variable that is set, by the user or the operator, stands as it is; it is looked at, and what it would do is said. A name of an
interface that does not exist is a mistake of the job where the job says it, and else a fault of this node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from trainyard.contract import env
from trainyard.contract.matcher import exactly
from trainyard.contract.network import Alike, Fact, PodNetwork, Resolved, bounded

from trainyard_trainer.launch.network import interface as ways
from trainyard_trainer.launch.network import limits, rdma, tree
from trainyard_trainer.launch.network.interface import Way
from trainyard_trainer.launch.network.tree import Interface

GLOO: Final = "GLOO_SOCKET_IFNAME"
NCCL: Final = "NCCL_SOCKET_IFNAME"
RECORDS: Final = "TORCH_FR_BUFFER_SIZE"
OLD_RECORDS: Final = "TORCH_NCCL_TRACE_BUFFER_SIZE"
RENAMED: Final = (2, 8)
"""torch from this version on reads RECORDS (pytorch#152563), and warns in every process where OLD_RECORDS is set."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The machine as the pod sees it.

    root: folder that holds sys, proc and dev. addresses: by interface. address_of: looks a host name up; None where it is not
    known. source_of: the address that packets to another address leave from; None where there is no way. memlock_bytes: None: no
    limit. shm_bytes: size of /dev/shm; None: there is none. packages: folders of Python packages.
    """

    root: Path
    addresses: ways.Addresses
    address_of: Callable[[str], str | None]
    source_of: Callable[[str], str | None]
    memlock_bytes: int | None = None
    shm_bytes: int | None = None
    packages: Sequence[Path] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """Who the pod is in its gang. where: pod and node, for messages. built_in: it runs the built-in trainer, which always uses
    gloo too."""

    where: str
    nodes: int
    processes: int
    rank0: str
    built_in: bool = False

    @property
    def several(self) -> bool:
        """Whether it has anybody to meet over the network."""
        return self.nodes > 1


@dataclass(slots=True)
class _Found:
    """What grows while it looks."""

    facts: list[Fact] = field(default_factory=list)
    settings: list[Resolved] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    stranded: bool = False


def resolve(around: Surroundings, part: Part, environment: Mapping[str, str]) -> PodNetwork:
    """What there is, what follows, what is doubtful. environment: of the container."""
    found = _Found()
    cuda = tree.has_accelerators(around.root)
    interfaces = tree.interfaces(around.root)
    address_of = around.address_of if part.several else _nobody
    way = ways.find(interfaces, around.addresses, part.rank0, address_of, around.source_of)
    mtu = next((i.mtu for i in interfaces if way is not None and i.name == way.name), None)
    _interface(found, around, part, environment, interfaces, way, mtu, cuda)
    alike, used = Alike(interface_mtu=mtu), tuple[str, ...]()
    if cuda:
        alike, used = _cuda(found, around, part, environment, interfaces, mtu)
    return bounded(
        PodNetwork(
            interface=way.name if way is not None else None,
            adapters=used,
            alike=alike,
            facts=tuple(found.facts),
            settings=tuple(found.settings),
            warnings=tuple(found.warnings),
            faults=tuple(found.faults),
            stranded=found.stranded,
            refused=tuple(found.refused),
        )
    )


def _interface(
    found: _Found,
    around: Surroundings,
    part: Part,
    environment: Mapping[str, str],
    interfaces: Sequence[Interface],
    way: Way | None,
    mtu: int | None,
    cuda: bool,
) -> None:
    there = ways.listed(interfaces, around.addresses)
    if way is None:
        found.facts.append(
            Fact("interface", "not known", "/sys/class/net", f"of {there} none could be told to be the way")
        )
    else:
        found.facts.append(Fact("interface", way.name, way.source, way.reason))
        found.facts.append(Fact("interface MTU", str(mtu), f"/sys/class/net/{way.name}/mtu"))
    right = way.name if way is not None else None
    gloo, nccl = environment.get(GLOO, ""), environment.get(NCCL, "")
    given = environment.get(env.GIVEN, "").split(",")
    advice = _Advice(part.where, there, right, GLOO in given)
    _check_gloo(found, gloo, around, interfaces, part, cuda, advice)
    advice = _Advice(part.where, there, right and exactly([right]), NCCL in given)
    _check_nccl(found, nccl, around, interfaces, cuda, advice)
    if way is None or not part.several:
        return
    if not gloo:
        found.settings.append(Resolved(GLOO, way.name, f"{way.source}: {way.reason}; gloo would ask the host name"))
    if cuda and not nccl:
        why = f"{way.source}: {way.reason}; as a whole name, since without = eth1 means eth10 as well"
        found.settings.append(Resolved(NCCL, exactly([way.name]), why))


def _nobody(_name: str) -> str | None:
    """Alone on its node, a pod asks for nobody's address."""
    return None


@dataclass(frozen=True, slots=True)
class _Advice:
    """What to write instead of a name that does not exist. given: the node or its network says it, not the job."""

    where: str
    there: str
    right: str | None
    given: bool

    def __str__(self) -> str:
        if self.given:
            who = "the node's annotation trainyard.dev/interface, its Fabric or its profile says it"
            return f"{self.where} has {self.there}; {who}" + (f", and should say {self.right}" if self.right else "")
        instead = f"write {self.right}, or leave it out" if self.right else "leave it out"
        return f"{self.where} has {self.there}; {instead}"

    def tell(self, found: _Found, message: str) -> None:
        """That no worker can meet the others by this name."""
        if self.given:
            found.faults.append(message)
            found.stranded = True
        else:
            found.refused.append(message)


def _check_gloo(
    found: _Found,
    value: str,
    around: Surroundings,
    interfaces: Sequence[Interface],
    part: Part,
    cuda: bool,
    advice: _Advice,
) -> None:
    """gloo fails by a name that it does not find. Where NCCL is there, a script of one's own may never use gloo."""
    unknown = ways.gloo_unknown(value, interfaces, around.addresses) if value else []
    if not unknown:
        return
    message = f"{GLOO}: {', '.join(unknown)!r} is no interface here: {ways.gloo_form(value)}{advice}"
    if part.built_in or not cuda:
        advice.tell(found, message)
    else:
        found.warnings.append(message)


def _check_nccl(
    found: _Found, value: str, around: Surroundings, interfaces: Sequence[Interface], cuda: bool, advice: _Advice
) -> None:
    if len(value) < 2:  # NCCL does not look at a single character
        return
    if ways.nccl_matches(value, interfaces, around.addresses):
        found.warnings.extend(ways.nccl_doubts(value, interfaces, around.addresses) if cuda else ())
        return
    message = f"{NCCL}: {value!r} matches no interface: {advice}"
    if cuda:
        advice.tell(found, message)
    else:
        found.warnings.append(f"{message}; nothing reads it in a pod without accelerators")


def _cuda(
    found: _Found,
    around: Surroundings,
    part: Part,
    environment: Mapping[str, str],
    interfaces: Sequence[Interface],
    mtu: int | None,
) -> tuple[Alike, tuple[str, ...]]:
    """What must be alike, and the adapters that will be used."""
    root = around.root
    nccl, seen = limits.nccl_version(root, around.packages, environment.get("NCCL_VERSION", ""))
    version = ".".join(map(str, nccl)) if nccl else "not known"
    found.facts.append(Fact("NCCL version", version, seen or "Python packages and libraries"))
    found.facts.append(Fact("shared memory", str(around.shm_bytes or 0), "statvfs /dev/shm", "bytes"))
    found.warnings.extend(filter(None, [limits.shm_doubt(around.shm_bytes)]))
    found.settings.extend(_flight_records(around, environment))
    accelerators = tree.accelerators(root)
    found.warnings.extend(_topology(around, environment, accelerators))
    if not part.several:
        return Alike(nccl=nccl, interface_mtu=mtu), ()
    direct, why = limits.gpudirect(root)
    found.facts.append(Fact("GPUDirect", {True: "yes", False: "no", None: "not known"}[direct], why))
    looked = rdma.look(root, accelerators, [i.name for i in interfaces], environment, nccl)
    found.facts.extend(looked.facts)
    found.settings.extend(looked.settings)
    found.warnings.extend(looked.warnings)
    found.faults.extend(looked.faults)
    if looked.used:
        limit = "unlimited" if around.memlock_bytes is None else str(around.memlock_bytes)
        found.facts.append(Fact("locked memory", limit, "RLIMIT_MEMLOCK", "bytes"))
        found.warnings.extend(filter(None, [limits.memlock_doubt(around.memlock_bytes)]))
        if nccl is not None:
            found.warnings.extend(limits.too_old(nccl, has_gpudirect=direct))
        if direct is False:
            found.warnings.append(f"GPUDirect is off: every message goes through the host's memory ({why})")
    return looked.alike(nccl, direct if looked.used else None, mtu), tuple(port.device for port in looked.used)


def _flight_records(around: Surroundings, environment: Mapping[str, str]) -> Iterator[Resolved]:
    """How many collectives torch remembers, by the name that an old one reads."""
    torch, records = limits.torch_version(around.packages), environment.get(RECORDS, "")
    if torch is not None and torch < RENAMED and records and OLD_RECORDS not in environment:
        version = ".".join(map(str, torch))
        yield Resolved(OLD_RECORDS, records, f"the name of {RECORDS} in torch {version}, which keeps none by itself")


def _topology(
    around: Surroundings, environment: Mapping[str, str], accelerators: Sequence[tree.Accelerator]
) -> Iterator[str]:
    value = environment.get("NCCL_TOPO_FILE", "")
    if not value:
        return
    given = [accelerator.pci for accelerator in accelerators if accelerator.given]
    path = around.root / value.lstrip("/")
    doubt = limits.topology_doubt(path, value, given, whole=len(given) == len(accelerators))
    if doubt is not None:
        yield doubt


def changed(before: PodNetwork, now: PodNetwork) -> Iterator[str]:
    """What another attempt in the same pod finds otherwise than the last one did."""
    if before.interface != now.interface:
        yield f"the interface that reaches rank 0 was {before.interface}, and is {now.interface}"
    if before.alike.gid_indexes and before.alike.gid_indexes != now.alike.gid_indexes:
        rows = " and ".join(", ".join(map(str, alike.gid_indexes)) for alike in (before.alike, now.alike))
        yield f"rows of the adapters' addresses have changed since the last attempt: {rows}; addresses were taken away or renewed"
    if before.alike.adapters is not None and before.alike.adapters != now.alike.adapters:
        yield f"{before.alike.adapters} adapters were usable at the last attempt, and {now.alike.adapters} are now"
