"""Phases, condition types and reasons: the one vocabulary of conditions, events and metric labels."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """Where a job stands, in one word. Derived from what is there; nothing is decided by it."""

    PENDING = "Pending"
    """Waits for nodes, for its turn, or for something the cluster lacks; `status.pending` says for what."""
    STARTING = "Starting"
    """Holds its nodes; not every member has reported from a running trainer yet."""
    RUNNING = "Running"
    YIELDING = "Yielding"
    """Was asked to save and leave, and still holds nodes."""
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def ended(self) -> bool:
        """No attempt follows."""
        return self in (Phase.SUCCEEDED, Phase.FAILED)


class ConditionType(StrEnum):
    """The conditions of a TrainingJob; each says True, False or Unknown."""

    ACCEPTED = "Accepted"
    """The specification makes sense and the API server takes the pods made from it."""
    PLACED = "Placed"
    """Nodes are reserved or held."""
    RUNNING = "Running"
    """All members run and report."""
    CONTROLLED = "Controlled"
    """The operator reaches the launchers. False: signals alone are left, so a yield costs the grace period."""
    TOPOLOGY_CHANGED = "TopologyChanged"
    """True: the labels of its nodes tell otherwise than when it was placed. It keeps its plan."""
    RDMA_DISABLED = "RdmaDisabled"
    """True: its nodes have a fast network, and its own variables switch that off. It trains over sockets."""
    STRAGGLER = "Straggler"
    """True: one rank computes slower than the others, which wait for it. It trains on."""
    SUSPENDED = "Suspended"
    COMPLETED = "Completed"
    FAILED = "Failed"


class Reason(StrEnum):
    """Why. CamelCase as Kubernetes wants it; used in conditions, events, `status.pending` and metric labels alike."""

    # Accepted
    VALID = "Valid"
    INVALID_SPEC = "InvalidSpec"
    TEMPLATE_REFUSED = "TemplateRefused"
    VOLUME_NOT_FOUND = "VolumeNotFound"
    PRIORITY_CLASS_NOT_FOUND = "PriorityClassNotFound"
    UNREADABLE_STATUS = "UnreadableStatus"
    CHECKING = "Checking"
    # waiting
    INSUFFICIENT_NODES = "InsufficientNodes"
    NO_DOMAIN_FITS = "NoDomainFits"
    BEHIND_OTHERS = "BehindOthers"
    UNKNOWN_LEVEL = "UnknownLevel"
    WAITING_FOR_VICTIMS = "WaitingForVictims"
    API_REFUSES = "ApiRefuses"
    BACKING_OFF = "BackingOff"
    NAMESPACE_TERMINATING = "NamespaceTerminating"
    NETWORK_UNCLEAR = "NetworkUnclear"
    # going
    GANG_STARTED = "GangStarted"
    QUESTIONABLE_SETTINGS = "QuestionableSettings"
    ALL_RUNNING = "AllRunning"
    MEMBERS_STARTING = "MembersStarting"
    LAUNCHER_UNREACHABLE = "LauncherUnreachable"
    LAUNCHERS_ANSWER = "LaunchersAnswer"
    LABELS_CHANGED = "LabelsChanged"
    NETWORK_SLOW = "NetworkSlow"
    STRAGGLER = "Straggler"
    OPERATOR_UNREACHABLE = "OperatorUnreachable"
    # leaving before the end
    PREEMPTED = "Preempted"
    SUSPENDED_BY_USER = "SuspendedByUser"
    RESUMED_BY_USER = "ResumedByUser"
    DISRUPTED = "Disrupted"
    NODES_LENT = "NodesLent"
    GROWING = "Growing"
    # faults of an attempt
    MEMBER_FAILED = "MemberFailed"
    MEMBER_LOST = "MemberLost"
    NODE_LOST = "NodeLost"
    LAUNCHER_SILENT = "LauncherSilent"
    HANG = "Hang"
    PREFLIGHT_FAILED = "PreflightFailed"
    NODES_UNLIKE = "NodesUnlike"
    RDMA_DISABLED_BY_USER = "RdmaDisabledByUser"
    NETWORK_DOUBTFUL = "NetworkDoubtful"  # fails nothing: what pods found of their network
    # what NCCL or torch said of the network before a member failed: as in contract.network.Sign
    RDMA_UNAVAILABLE = "RdmaUnavailable"
    RDMA_NOT_USED = "RdmaNotUsed"
    RDMA_DEVICE_MISSING = "RdmaDeviceMissing"
    GPUDIRECT_OFF = "GpuDirectOff"
    FABRIC_ERROR = "FabricError"
    GID_OR_RAIL_OR_MTU = "GidOrRailOrMtu"
    MEMLOCK_TOO_SMALL = "MemlockTooSmall"
    NCCL_VERSION_MISMATCH = "NcclVersionMismatch"
    INTERFACE_WRONG = "InterfaceWrong"
    MIXED_LINK_LAYERS = "MixedLinkLayers"
    TOPOLOGY_WRONG = "TopologyWrong"
    NVLINK_DOMAIN_BROKEN = "NvlinkDomainBroken"
    SHM_TOO_SMALL = "ShmTooSmall"
    PEER_UNREACHABLE = "PeerUnreachable"
    COLLECTIVE_TIMEOUT = "CollectiveTimeout"
    START_TIMEOUT = "StartTimeout"
    NODE_TAKEN = "NodeTaken"
    UNASKED_YIELD = "UnaskedYield"
    RANK_MISMATCH = "RankMismatch"
    HANDOVER_FAILED = "HandoverFailed"
    SPEC_CHANGED = "SpecChanged"
    # ends
    COMPLETED = "Completed"
    INVALID_CONFIGURATION = "InvalidConfiguration"
    FAILURE_BUDGET_SPENT = "FailureBudgetSpent"
    MAX_RUNTIME = "MaxRuntime"
