"""The environment variables that the network libraries read, by name, and how each reads its value.

Those of NCCL are the names that NCCL 2.30.7 reads (its NCCL_PARAM and DEFINE_NCCL_PARAM macros and its calls of ncclGetEnv and
getenv); a name that is not here does nothing, however many recipes carry it. Of the other libraries only those are here that
Trainyard writes or judges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import Final

NCCL_VERSION: Final = "2.30.7"
"""The version whose names these are; torch 2.14 and 2.15 bring it."""


class Kind(StrEnum):
    """How a value is read. The numbers of NCCL are all read alike; their kinds say what they mean."""

    SWITCH = "switch"
    """A number, 0 for off. A word is read as 0."""
    NUMBER = "number"
    """A number by strtoll with base 0: decimal, 0x for hexadecimal, a leading 0 for octal; what follows it is ignored."""
    SIZE = "size"
    """A number of bytes, read like any number: suffixes are ignored."""
    TRUTH = "truth"
    """1, T, TRUE, 0, F or FALSE in either case; anything else is ignored."""
    MATCHERS = "matchers"
    """A list of names of interfaces or devices, with ^ and = before it (see `contract.matcher`)."""
    LEVEL = "level"
    """A distance in a machine: LOC, PIX, ... or a digit."""
    ELEMENTS = "elements"
    """Names of algorithms or protocols by collective; a word that is none is an error."""
    CHOICE = "choice"
    """One of a few words."""
    FAMILY = "family"
    """AF_INET or AF_INET6; anything else is ignored."""
    NAMES = "names"
    """Names of interfaces, one after the other, whole and as they are."""
    TEXT = "text"
    """Anything: a path, an address, the name of a library."""


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable. library: who reads it. choices: the words that it takes, where it takes only some."""

    name: str
    library: str
    kind: Kind
    choices: tuple[str, ...] = ()


_SWITCHES: Final = """
    ALLGATHERV_ENABLE ALLOC_P2P_NET_LL_BUFFERS CHECK_POINTERS COLLNET_ENABLE COMM_BLOCKING
    COMM_SHRINK_SHARE_RESOURCES COMM_SPLIT_SHARE_RESOURCES CUMEM_ENABLE CUMEM_HOST_ENABLE DEV_API_JIT
    DISABLE_MEM_MANAGER DMABUF_ENABLE ELASTIC_BUFFER_REGISTER ENABLE_VERSION_CHECK GDAKI_USE_RELIABLE_DB
    GDRCOPY_ENABLE GDRCOPY_FIFO_ENABLE GDRCOPY_FLUSH_ENABLE GDRCOPY_SYNC_ENABLE GDR_FLUSH_DISABLE GIN_ENABLE
    GRAPH_HELPER_DISABLE GRAPH_MIXING_SUPPORT GRAPH_REGISTER GRAPH_STREAM_ORDERING IB_ADAPTIVE_ROUTING
    IB_DATA_DIRECT IB_DEVICE_PCI_ORDER IB_DISABLE IB_ECE_ENABLE IB_MERGE_NICS IB_MERGE_VFS IB_MQP_RETRY_ALL
    IB_OOO_RQ IB_PREPOST_RECEIVE_WORK_REQUESTS IB_QUERY_PORT_SPEED IB_RECEIVER_SIDE_MATCHING_SCHEME
    IB_RESILIENCY_PORT_FAILOVER IB_RESILIENCY_PORT_RECOVERY IB_RETURN_ASYNC_EVENTS IB_SPLIT_DATA_ON_QPS
    IB_SUBNET_AWARE_ROUTING IB_USE_INLINE IB_WARN_RAIL_LOCAL IGNORE_COLLNET_MISMATCH IGNORE_CPU_AFFINITY
    IGNORE_DISABLED_P2P IGNORE_NET_MISMATCH IPC_USE_ABSTRACT_SOCKET LAUNCH_ORDER_IMPLICIT LAUNCH_RACE_FATAL
    LEGACY_CUDA_REGISTER LL128_C2C LOCAL_REGISTER MLOPART_RDMA_ENABLE MNNVL_CROSS_CLIQUE MNNVL_ENABLE
    MNNVL_RAIL_PER_HOST MNNVL_SCATTER_NETS_ENABLE MULTI_RANK_GPU_ENABLE MULTI_SEGMENT_REGISTER NET_DISABLE_INTRA
    NET_FORCE_FLUSH NET_GDR_C2C NET_GDR_MLOPART NET_GDR_READ NET_OPTIONAL_RECV_COMPLETION NET_SHARED_BUFFERS
    NET_SHARED_COMMS NVB_DISABLE NVB_PRECONNECT NVLINK_UTIL_CENTRIC_SCHED_ENABLE NVLS_ENABLE NVTX_DISABLE
    OOB_NET_ENABLE P2P_DIRECT_DISABLE P2P_DISABLE P2P_EPOCH_ENABLE P2P_READ_ENABLE P2P_USE_CUDA_MEMCPY PAT_ENABLE
    PXN_C2C PXN_DISABLE RAS_ENABLE REPORT_CONNECT_PROGRESS RMA_DISABLE RUNTIME_CONNECT SET_CPU_STACK_SIZE
    SET_STACK_SIZE SHM_DISABLE SINGLE_PROC_MEM_REG_ENABLE SYM_GIN_KERNELS_ENABLE SYM_NOWIN_ENABLE
    SYM_REUSE_SYSMEM_HANDLES SYM_TMA_ENABLE TOPO_SPLIT_MLOPART UNPACK_DOUBLE_NCHANNELS WIN_ENABLE
"""
_SIZES: Final = """
    BUFFSIZE CHUNK_SIZE IB_AR_THRESHOLD LL128_BUFFSIZE LL_BUFFSIZE NVLSTREE_MAX_CHUNKSIZE NVLS_CHUNKSIZE
    P2P_LL_THRESHOLD P2P_NET_CHUNKSIZE P2P_NVL_CHUNKSIZE P2P_PCI_CHUNKSIZE SHADOW_MEMPOOL_MAX_SIZE SOCKET_INLINE
    SOCKET_MIN_TASKSIZE SOCKET_RCVBUF SOCKET_SNDBUF SYM_CE_THRESHOLD SYM_RS_GIN_CHUNK_SIZE WIN_STRIDE
    WORK_ARGS_BYTES WORK_FIFO_BYTES
"""
_NUMBERS: Final = """
    CGA_CLUSTER_SIZE COLLNET_NODE_THRESHOLD CONNECT_ROUND_MAX_PEERS CROSS_NIC GIN_ERROR_QUERY_SEC
    GIN_GDAKI_MAX_DEST_RD_ATOMIC GIN_GDAKI_MAX_QP_RD_ATOMIC GIN_GDAKI_NIC_HANDLER GIN_GDAKI_QP_DEPTH GIN_IB_TC
    GIN_NCONNECTIONS GIN_PLUGIN_REF_COUNT GIN_PROXY_QUEUE_SIZE GIN_TYPE GRAPH_DUMP_FILE_RANK GROUP_CUDA_STREAM
    IB_FIFO_TC IB_GID_INDEX IB_MQP_RETRY_CNT IB_MQP_RETRY_SLEEP_MSEC IB_PCI_RELAXED_ORDERING IB_PKEY
    IB_QPS_PER_CONNECTION IB_RESILIENCY_PORT_FAILOVER_MAX_ATTEMPTS IB_RESILIENCY_PORT_FAILOVER_PROBE_DELAY
    IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL
    IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_SIZE IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_SEQUENCE_SIZE
    IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_TIMEOUT IB_RESILIENCY_PORT_RECOVERY_ATTEMPTS_MAX
    IB_RESILIENCY_PORT_RECOVERY_START_DELAY IB_RETRY_CNT IB_ROCE_VERSION_NUM IB_ROUTABLE_FLID_GID_INDEX IB_SL
    IB_SUBNET_PREFIX_LEN IB_TC IB_TIMEOUT L1_SHARED_MEMORY_CARVEOUT LL128_NTHREADS LSA_TEAM_SIZE MAX_CTAS
    MAX_NCHANNELS MAX_NRINGS MAX_P2P_NCHANNELS MEM_SYNC_DOMAIN MIN_CTAS MIN_NCHANNELS MIN_NRINGS MIN_P2P_NCHANNELS
    MNNVL_CLIQUE_ID MNNVL_UUID NCHANNELS_PER_NET_PEER NET_OVERHEAD NET_PLUGIN_REF_COUNT NSOCKS_PERTHREAD NTHREADS
    NUM_RMA_CTX NVLS_NCHANNELS P2P_MAX_PEERS P2P_PER_CHANNEL_NET_BW P2P_PXN_LEVEL P2P_SCHEDULE_GROUP_SIZE
    PROGRESS_APPENDOP_FREQ PROXY_APPEND_BATCH_SIZE PROXY_DUMP_SIGNAL RAS_TIMEOUT_FACTOR RMA_PLUGIN_REF_COUNT
    RMA_PROXY_DUMP_SIGNAL RMA_PROXY_QUEUE_SIZE SHM_LOCALITY SOCKET_NTHREADS SOCKET_POLL_TIMEOUT_MSEC
    SOCKET_RETRY_CNT SOCKET_RETRY_SLEEP_MSEC SYM_CTAS TOPO_DUMP_FILE_RANK UID_STAGGER_RATE UID_STAGGER_THRESHOLD
"""
_TEXTS: Final = """
    CHECK_MODE COMM_ID CONF_FILE CTA_POLICY DEBUG_FILE DEBUG_SUBSYS DEBUG_TIMESTAMP_FORMAT DEBUG_TIMESTAMP_LEVELS
    ENV_PLUGIN GIN_PLUGIN GRAPH_DUMP_FILE GRAPH_FILE HOSTID IBVERBS_LIB IB_ADDR_RANGE NET NETDEVS_POLICY
    NET_FORCE_MERGE NET_PLUGIN NO_CACHE OOB_NET_IFNAME PROFILER_PLUGIN PROXY_CPUSET RAS_ADDR RMA_PLUGIN SOCKET_MAGIC
    SYM_KERNEL THREAD_THRESHOLDS TOPO_DUMP_FILE TOPO_FILE TUNER_PLUGIN
"""
_LEVELS: Final = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
ALGORITHMS: Final = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
PROTOCOLS: Final = ("LL", "LL128", "Simple")
COLLECTIVES: Final = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")

NCCL: Final = "NCCL"
TORCH: Final = "torch"
GLOO: Final = "gloo"
LIBFABRIC: Final = "libfabric"
UCX: Final = "UCX"
SHARP: Final = "SHARP"


def _nccl() -> Iterator[Variable]:
    plain = ((Kind.SWITCH, _SWITCHES), (Kind.SIZE, _SIZES), (Kind.NUMBER, _NUMBERS), (Kind.TEXT, _TEXTS))
    for kind, names in plain:
        yield from (Variable(f"NCCL_{name}", NCCL, kind) for name in names.split())
    for name in ("PARAM_DUMP_ALL", "SET_THREAD_NAME", "WARN_ENABLE_DEBUG_INFO"):
        yield Variable(f"NCCL_{name}", NCCL, Kind.TRUTH)
    for name in ("IB_HCA", "SOCKET_IFNAME"):
        yield Variable(f"NCCL_{name}", NCCL, Kind.MATCHERS)
    for name in ("NET_GDR_LEVEL", "P2P_LEVEL"):
        yield Variable(f"NCCL_{name}", NCCL, Kind.LEVEL, _LEVELS)
    yield Variable("NCCL_NET_MERGE_LEVEL", NCCL, Kind.CHOICE, ("LOC", "PORT", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS"))
    for name in ("IB_ADDR_FAMILY", "SOCKET_FAMILY"):
        yield Variable(f"NCCL_{name}", NCCL, Kind.FAMILY, ("AF_INET", "AF_INET6"))
    yield Variable("NCCL_ALGO", NCCL, Kind.ELEMENTS, ALGORITHMS)
    yield Variable("NCCL_PROTO", NCCL, Kind.ELEMENTS, PROTOCOLS)
    yield Variable("NCCL_DEBUG", NCCL, Kind.CHOICE, ("VERSION", "WARN", "INFO", "ABORT", "TRACE"))
    yield Variable("NCCL_LAUNCH_MODE", NCCL, Kind.CHOICE, ("GROUP", "PARALLEL"))
    yield Variable("NCCL_NET_MERGE_POLICY", NCCL, Kind.CHOICE, ("ALL", "RAIL"))


def _others() -> Iterator[Variable]:
    for name in (
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "TORCH_FR_BUFFER_SIZE",
        "TORCH_NCCL_TRACE_BUFFER_SIZE",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
    ):
        yield Variable(name, TORCH, Kind.NUMBER)
    for name in ("TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_ENABLE_MONITORING", "TORCH_NCCL_BLOCKING_WAIT"):
        yield Variable(name, TORCH, Kind.SWITCH)
    # Names of torch before 2.2, which it still reads.
    yield Variable("NCCL_ASYNC_ERROR_HANDLING", TORCH, Kind.NUMBER)
    yield Variable("NCCL_BLOCKING_WAIT", TORCH, Kind.SWITCH)
    yield Variable("GLOO_SOCKET_IFNAME", GLOO, Kind.NAMES)
    yield Variable("TP_SOCKET_IFNAME", TORCH, Kind.NAMES)
    yield Variable("FI_PROVIDER", LIBFABRIC, Kind.TEXT)
    for name in ("FI_EFA_USE_DEVICE_RDMA", "FI_EFA_FORK_SAFE", "FI_EFA_USE_HUGE_PAGE", "FI_EFA_SET_CUDA_SYNC_MEMOPS"):
        yield Variable(name, LIBFABRIC, Kind.SWITCH)
    yield Variable("RDMAV_FORK_SAFE", LIBFABRIC, Kind.SWITCH)
    for name in ("UCX_TLS", "UCX_NET_DEVICES"):
        yield Variable(name, UCX, Kind.TEXT)
    yield Variable("SHARP_COLL_ENABLE_PCI_RELAXED_ORDERING", SHARP, Kind.SWITCH)


VARIABLES: Final[Mapping[str, Variable]] = {variable.name: variable for variable in (*_nccl(), *_others())}
"""By name."""

NCCL_NAMES: Final = frozenset(name for name, variable in VARIABLES.items() if variable.library == NCCL)
"""What NCCL itself reads."""

PLUGIN_PREFIXES: Final = (
    "NCCL_FASTRAK_",
    "NCCL_SHIMNET_",
    "NCCL_GPUDIRECTTCPX_",
    "OFI_NCCL_",
    "NCCL_TUNER_",
    "NCCL_INSPECTOR_",
)
"""Names that NCCL's plugins read; each plugin knows its own."""

RELICS: Final[Mapping[str, str]] = {
    "NCCL_SOCKET_TIMEOUT_MS": "how often a connection is tried is NCCL_SOCKET_RETRY_CNT",
    "NCCL_IB_NET_LATENCY": "there never was such a variable",
    "NCCL_IB_CUDA_SUPPORT": "GPUDirect is limited by NCCL_NET_GDR_LEVEL since NCCL 2.4",
    "NCCL_CHECKS_DISABLE": "checks are off unless NCCL_CHECK_POINTERS or NCCL_CHECK_MODE says otherwise",
    "NCCL_MIN_CHANNELS": "the variable is NCCL_MIN_NCHANNELS",
    "NCCL_MAX_CHANNELS": "the variable is NCCL_MAX_NCHANNELS",
    "NCCL_TREE_THRESHOLD": "algorithms are chosen by NCCL_ALGO since NCCL 2.5",
    "NCCL_LL_THRESHOLD": "protocols are chosen by NCCL_PROTO since NCCL 2.5",
}
"""Names seen in recipes that NCCL does not read, and what is meant."""


_NCCL: Final = "NCCL_"


def is_read(name: str) -> bool:
    """Whether anything known reads a name that begins with NCCL_."""
    return name in VARIABLES or name.startswith(PLUGIN_PREFIXES)


def nearest(name: str) -> str | None:
    """The name of NCCL that is most like one that it does not read; None where none is much like it."""
    known = sorted(known.removeprefix(_NCCL) for known in NCCL_NAMES)  # all begin alike, which is no likeness
    found = get_close_matches(name.removeprefix(_NCCL), known, n=1, cutoff=0.6)
    return f"{_NCCL}{found[0]}" if found else None
