"""What is said of the variables that a job sets itself: its own win, with eyes open.

Refused is only what says who a process is in the gang. Everything else stands as it is written, and where it does something else
than it seems to, or costs what nobody asked for, the job is told what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from trainyard.api.names import is_reserved_env
from trainyard.contract.matcher import Matcher, Port, parse
from trainyard.network.adapters import devices, over_sockets
from trainyard.network.choice import Network
from trainyard.network.container import Backend, Pod
from trainyard.network.nvlink import CHANNELS, seen_to
from trainyard.network.profiles.model import Transport
from trainyard.network.reading import integer, misread
from trainyard.network.roce import DEFAULT_RETRIES, dscp, ecn, gives_up_seconds, traffic_class
from trainyard.network.variables import RELICS, VARIABLES, Kind, is_read, nearest
from trainyard.world.records import Node

LISTS: Final = 3
"""Of how many different sets of adapters it is said what a list takes: nodes are of few kinds."""


class Said(NamedTuple):
    """A variable as the job sets it, and where. nodes: those that it may act on, as far as they are known."""

    name: str
    value: str
    network: Network
    pod: Pod
    timeout_seconds: float
    channel: bool
    nodes: Sequence[Node]


def judge(
    network: Network,
    pod: Pod,
    process_group_timeout_seconds: float,
    nodes: Sequence[Node] = (),
    *,
    channel: bool = False,
) -> Iterator[str]:
    """What the job had better know of its variables, each a sentence that begins with the name. channel: its pods claim one for
    NVLink beyond their nodes."""
    for name in sorted({*pod.named, *pod.wishes}):
        if is_reserved_env(name):
            yield f"{name} is left out: who a process is in the gang is the plan's to say"
    for name, value in sorted(pod.said.items()):
        if not is_reserved_env(name) and "$(" not in value:  # what Kubernetes puts there is not known here
            claims = channel or seen_to(network, pod)
            said = Said(name, value, network, pod, process_group_timeout_seconds, claims, nodes)
            yield from (f"{name}: {doubt}" for doubt in _doubts(said))
    if pod.env_from:
        yield "envFrom: Kubernetes lets env win over it; a setting of Trainyard is replaced by env or spec.network.env alone"


def off(network: Network, pod: Pod) -> str:
    """What of the job switches the fast network of its nodes off, "" where nothing does."""
    profile = network.profile
    if profile is None or not profile.transport.fast or not pod.many or pod.backend is not Backend.NCCL:
        return ""
    names = [name for name in ("NCCL_NET", "NCCL_IB_DISABLE") if over_sockets(profile, {name: pod.said.get(name, "")})]
    said = " and ".join(f"{name}={pod.said[name]}" for name in names)
    return f"{said} of the job: collectives run over sockets, though the nodes have {profile.title}" if said else ""


def _doubts(said: Said) -> Iterator[str]:
    if said.name in RELICS:
        yield f"nothing reads it; {RELICS[said.name]}"
        return
    if said.name.startswith("NCCL_") and not is_read(said.name):
        like = nearest(said.name)
        yield "NCCL reads no such variable" + (f"; {like} is nearest to it" if like is not None else "")
        return
    variable = VARIABLES.get(said.name)
    wrong = misread(variable, said.value) if variable is not None else None
    if wrong is not None:
        yield wrong
    if variable is not None and variable.kind is Kind.NAMES:
        yield from _plain_names(said)
    if _ignored(said):
        yield f"the network {said.network.name} is not driven by NCCL itself, which alone reads it"
        return
    rule = _RULES.get(said.name)
    if rule is not None:
        yield from rule(said)


def _ignored(said: Said) -> bool:
    """NCCL's own variables of adapters, where a plugin drives them."""
    profile = said.network.profile
    by_plugin = profile is not None and profile.transport in (Transport.EFA, Transport.TCPX)
    return by_plugin and said.name.startswith("NCCL_IB_") and said.name != "NCCL_IB_DISABLE"


def _fast(said: Said) -> bool:
    profile = said.network.profile
    return profile is not None and profile.transport.fast and said.pod.many


def _number(said: Said) -> int | None:
    value = integer(said.value).value
    return value if isinstance(value, int) else None


def _plain_names(said: Said) -> Iterator[str]:
    value = said.value
    if value[:1] in ("=", "^"):
        yield f"{value!r} is no interface; gloo knows neither = nor ^, write plain names such as eth0"
    elif ":" in value or value.replace(".", "").isdigit():
        yield f"{value!r} is no interface but looks like an address; write the name of one, such as eth0"


def _ib_disable(said: Said) -> Iterator[str]:
    profile = said.network.profile
    if _fast(said) and profile is not None and over_sockets(profile, {said.name: said.value}):
        yield f"collectives run over sockets, though the nodes have {_title(said)}"


def _net(said: Said) -> Iterator[str]:
    if _fast(said) and said.value.lower() == "socket":
        yield f"collectives run over sockets, though the nodes have {_title(said)}"


def _hca(said: Said) -> Iterator[str]:
    matcher = parse(said.value)
    yield from _form(matcher, "mlx5_1 is mlx5_10 as well")
    if not matcher.items:
        return
    lists: dict[tuple[str, ...], str] = {}
    for node in said.nodes or (None,):
        lists.setdefault(devices(said.network, said.pod, node)[0], node.name if node is not None else "")
    lists.pop((), None)
    for known, where in list(lists.items())[:LISTS]:
        taken = [name for name in known if matcher.takes(Port(name, 1))]
        whose = f" of {where}" if len(lists) > 1 else ""
        if not taken:
            yield f"{said.value!r} means none of the network's adapters{whose}, {', '.join(known)}"
        elif not matcher.allows:
            yield f"of the network's {len(known)} adapters{whose} it takes {len(taken)}: {', '.join(taken)}"


def _ifname(said: Said) -> Iterator[str]:
    if len(said.value) == 1:
        yield f"{said.value!r} is ignored: NCCL does not look at a single character"
        return
    yield from _form(parse(said.value), "eth1 is eth10 and eth1.100 as well")


def _form(matcher: Matcher, example: str) -> Iterator[str]:
    if matcher.negate:
        yield (
            "a list of what not to take takes whatever else a pod has, such as pod-id-link0 or a function without a route; "
            "name what to take, with = before it"
        )
    elif not matcher.exact and matcher.items:
        yield f"without = before the list its names are beginnings of names: {example}"
    if matcher.exact and any(item.name[:1] in ("=", "^") for item in matcher.items):
        yield "= stands once, before the whole list, and after ^; elsewhere it is part of a name"


def _gid_index(said: Said) -> Iterator[str]:
    profile = said.network.profile
    if profile is None or _number(said) in (None, -1):
        return
    if profile.transport is Transport.INFINIBAND:
        yield "InfiniBand has no such tables in use; leave it out"
    elif profile.roce is not None and _number(said) != profile.roce.gid_index:
        yield (
            "a pod's table of addresses is its own, so the row is another in each; leave it out: NCCL since 2.21 finds it "
            "by NCCL_IB_ADDR_FAMILY"
        )


def _class(said: Said) -> Iterator[str]:
    profile, value = said.network.profile, _number(said)
    if profile is None or value is None:
        return
    if profile.transport is Transport.INFINIBAND and value not in (-1, 0):
        yield "InfiniBand switches do not look at it; leave it out"
    if profile.roce is None:
        return
    rdma = said.network.fabric.rdma if said.network.fabric is not None else None
    known = rdma.dscp if rdma is not None and rdma.dscp is not None else profile.roce.dscp
    if known is None or value < 0 or dscp(value) == known:
        return
    right = traffic_class(known, profile.roce.ecn)
    if value == known:
        yield (
            f"{value} is the network's DSCP, but the variable holds the whole byte: as it is, packets have DSCP {dscp(value)}; "
            f"write {right}"
        )
    elif dscp(value) == 0:
        yield f"packets have DSCP 0, which switches do not protect: they are dropped when links are full; write {right}"
    else:
        yield f"packets have DSCP {dscp(value)} and ECN {ecn(value)}; the network protects DSCP {known}, which is {right}"


def _timeout(said: Said) -> Iterator[str]:
    value = _number(said)
    if value is None or not 1 <= value <= 31:
        yield f"{said.value!r} is no exponent from 1 to 31; 0 waits for ever"
        return
    retries = integer(said.pod.said.get("NCCL_IB_RETRY_CNT", "")).value
    seconds = gives_up_seconds(value, retries if isinstance(retries, int) else DEFAULT_RETRIES)
    if seconds >= said.timeout_seconds:
        yield (
            f"an adapter would give up after {seconds:.0f} s, later than the process group ({said.timeout_seconds:g} s), and "
            "nobody would hear which adapter it was"
        )


def _merge_vfs(said: Said) -> Iterator[str]:
    if _number(said) == 0 and said.network.profile is None:
        yield "each virtual function counts as an adapter of its own, right only where each has a rate of its own"


def _slow(what: str) -> Callable[[Said], Iterator[str]]:
    def rule(said: Said) -> Iterator[str]:
        if _number(said) != 0:
            yield f"costs bandwidth: {what}"

    return rule


def _forced(said: Said) -> Iterator[str]:
    """A profile of a vendor may say the same; then it is no news."""
    profile = said.network.profile
    if profile is None or profile.env.get(said.name) != said.value:
        yield "forces for all sizes what is best for some, and fails or crawls at others; NCCL chooses by size if it is left out"


def _unsafe(what: str) -> Callable[[Said], Iterator[str]]:
    def rule(said: Said) -> Iterator[str]:
        yield f"is not safe here: {what}"

    return rule


def _error_handling(said: Said) -> Iterator[str]:
    match _number(said):
        case 0:
            yield "a collective that fails hangs for ever; leave it out, or write 3"
        case 1 | 2:
            yield "a collective that fails ends the process before its flight record is written; write 3"
        case _:
            return


def _roce_version(said: Said) -> Iterator[str]:
    if _number(said) == 1:
        yield "RoCE v1 does not pass a router; write 2, or leave it out"


def _mnnvl(said: Said) -> Iterator[str]:
    profile = said.network.profile
    if _number(said) == 1 and not said.channel and (profile is None or CHANNELS not in profile.env):
        yield "the pod claims no channel of a ComputeDomain, and without one NCCL fails at the first memory of another node"


def _cross_nic(said: Said) -> Iterator[str]:
    profile = said.network.profile
    rdma = said.network.fabric.rdma if said.network.fabric is not None else None
    rails = (
        rdma.rails if rdma is not None and rdma.rails is not None else profile.rails if profile is not None else None
    )
    if rails == "isolated" and _number(said) != 0:
        yield "an adapter of this network reaches those of its own rail alone, so connections across rails time out; write 0"


def _topology(said: Said) -> Iterator[str]:
    yield (
        "it describes one whole machine and must be in the image or mounted; on another kind of machine, or a part of one, NCCL "
        "finds no path to its adapters"
    )


def _never_on_efa(said: Said) -> Iterator[str]:
    profile = said.network.profile
    if profile is not None and profile.transport is Transport.EFA:
        yield "is for software that is no longer in use: libfabric from 1.18 and aws-ofi-nccl from 1.7 on need nothing of it"


def _title(said: Said) -> str:
    assert said.network.profile is not None
    return said.network.profile.title


_RULES: Final[Mapping[str, Callable[[Said], Iterator[str]]]] = {
    "NCCL_IB_DISABLE": _ib_disable,
    "NCCL_NET": _net,
    "NCCL_IB_HCA": _hca,
    "NCCL_SOCKET_IFNAME": _ifname,
    "NCCL_IB_GID_INDEX": _gid_index,
    "NCCL_IB_TC": _class,
    "NCCL_IB_TIMEOUT": _timeout,
    "NCCL_IB_MERGE_VFS": _merge_vfs,
    "NCCL_IB_ROCE_VERSION_NUM": _roce_version,
    "NCCL_MNNVL_ENABLE": _mnnvl,
    "NCCL_CROSS_NIC": _cross_nic,
    "NCCL_TOPO_FILE": _topology,
    "NCCL_P2P_DISABLE": _slow("accelerators of a node no longer reach each other directly"),
    "NCCL_SHM_DISABLE": _slow("processes of a node talk over the network"),
    "NCCL_ALGO": _forced,
    "NCCL_PROTO": _forced,
    "NCCL_BUFFSIZE": _forced,
    "NCCL_NTHREADS": _forced,
    "NCCL_HOSTID": _unsafe("two hosts of one id look like one, and NCCL tries shared memory between them"),
    "NCCL_GRAPH_FILE": _unsafe("the graph is that of other accelerators as soon as the job has other nodes"),
    "NCCL_COMM_ID": _unsafe("torch brings its ranks together through its own store"),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": _error_handling,
    "NCCL_ASYNC_ERROR_HANDLING": _error_handling,
    "FI_PROVIDER": _never_on_efa,
    "FI_EFA_USE_DEVICE_RDMA": _never_on_efa,
    "FI_EFA_FORK_SAFE": _never_on_efa,
    "RDMAV_FORK_SAFE": _never_on_efa,
}
