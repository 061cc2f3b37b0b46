"""Every name that Trainyard writes into a cluster, once.

Labels select, annotations explain; both live under the API group, so that a reader of any object sees whose it is.
"""

from __future__ import annotations

from typing import Final

GROUP: Final = "trainyard.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND_JOB: Final = "TrainingJob"
KIND_FABRIC: Final = "Fabric"
JOBS: Final = "trainingjobs"
FABRICS: Final = "fabrics"

COMPUTE_DOMAINS: Final = "resource.nvidia.com/v1beta1"
KIND_COMPUTE_DOMAIN: Final = "ComputeDomain"

FIELD_MANAGER: Final = "trainyard"

# On pods and on all that a job makes.
LABEL_JOB: Final = f"{GROUP}/job"
LABEL_JOB_UID: Final = f"{GROUP}/job-uid"
LABEL_ATTEMPT: Final = f"{GROUP}/attempt"
LABEL_MEMBER: Final = f"{GROUP}/member"
LABEL_RANK: Final = f"{GROUP}/node-rank"

# The node that the plan gives a member: kept beside the affinity that enforces it, so that it can be read back.
ANNOTATION_NODE: Final = f"{GROUP}/node"
# Digest of the plan that a pod was made from.
ANNOTATION_PLAN: Final = f"{GROUP}/plan-digest"
ANNOTATION_MADE: Final = f"{GROUP}/made-for-attempt"
"""On a pod: the attempt that it was made for, whose plan it mounts; it may play in later ones."""
ANNOTATION_FORM: Final = f"{GROUP}/form"
"""On a pod: a digest of all of it that is not its identity. Only a pod that would be made alike is kept for another attempt."""

# On nodes, by an administrator or his agent: what network the node is on (a Fabric or a built-in profile), and what no label
# can hold: the adapters of the compute network, separated by commas, and the interface by which pods on the host's network meet.
LABEL_GPU_PRODUCT: Final = "nvidia.com/gpu.product"
"""Of a node, by GPU feature discovery: its accelerator, such as NVIDIA-H100-80GB-HBM3."""

LABEL_INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
"""Of a node, by the cloud's controller: what machine it is."""

CONDITION_DEGRADED: Final = "TrainyardNetworkDegraded"
"""Of a node, by Trainyard where that is switched on: several jobs found its network unfit."""

LABEL_NETWORK: Final = f"{GROUP}/network"
ANNOTATION_HCAS: Final = f"{GROUP}/hcas"
ANNOTATION_INTERFACE: Final = f"{GROUP}/interface"

FINALIZER_POD: Final = f"{GROUP}/last-words"
FINALIZER_JOB: Final = f"{GROUP}/teardown"

TRAINER_CONTAINER: Final = "trainer"
LAUNCHER_PORT: Final = 9400
LAUNCHER_PORT_NAME: Final = "trainyard"
RENDEZVOUS_PORT: Final = 29500

PLAN_FOLDER: Final = "/etc/trainyard/plan"
PLAN_KEY: Final = "plan.json"
CONTROL_FOLDER: Final = "/etc/trainyard/control"
CONTROL_KEY: Final = "key"
LAUNCHER_FOLDER: Final = "/trainyard"
"""Where the launcher is in an image that has none of its own."""

MAX_JOB_NAME: Final = 40

RESERVED_ENV: Final = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "NODE_RANK",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
    }
)
"""Identity in the gang: the plan's alone, since a second opinion about a rank breaks the rendezvous."""

RESERVED_ENV_PREFIXES: Final = ("TRAINYARD_", "PET_", "TORCHELASTIC_")


def service_name(job: str) -> str:
    """The headless Service under which the members find each other."""
    return job


def plan_name(job: str, attempt: int) -> str:
    """The ConfigMap that holds an attempt's plan.json."""
    return f"{job}-plan-{attempt}"


def channel_name(job: str) -> str:
    """The ComputeDomain of a job, and the template of claims on its channels."""
    return f"{job}-nvlink"


def control_name(job: str, uid: str) -> str:
    """The Secret that holds the job's control key. The uid is in it: the key of a job that had the name before is another, and
    the operator, which may not read Secrets, could not tell them apart."""
    return f"{job}-control-{uid[:8]}"


UNSAFE_ENV: Final = frozenset({"NCCL_COMM_ID", "NCCL_GRAPH_FILE", "NCCL_HOSTID"})
"""What a job may set only where it says that it means it (spec.network.allowUnsafe)."""


def is_reserved_env(name: str) -> bool:
    """Whether only the plan may say this variable's value."""
    return name in RESERVED_ENV or name.startswith(RESERVED_ENV_PREFIXES)
