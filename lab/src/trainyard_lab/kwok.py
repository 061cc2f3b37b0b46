"""Pretended nodes and pods that end as they are told, finalizers left alone.

kwok plays the Stage objects in ``stages/``. kwok's own ``pod/fast`` stages would not do: they delete pods at once,
finalizers and all, so everything that reads a pod's last words would pass unseen.

A node is pretended if it carries `PRETENDED`. The annotations below steer nodes and pods; all of them may be set at
creation or patched later, and a change counts at once. A delay is a Go duration ("1500ms", "10s") and begins anew whenever
the pod changes while it runs.
"""

from collections.abc import Sequence
from pathlib import Path

STAGES = Path(__file__).parent / "stages"
# Loopback: nothing that a test asks a pretended pod may leave the machine, and the operator refuses such an address.
POD_NETWORK = "127.64.0.1/10"

PRETENDED = {"kwok.x-k8s.io/node": "fake"}
PREFIX = "kwok.trainyard.dev"

# On a node: the status of its Ready condition, "False" or "Unknown"; taken off, the node is Ready again.
READY = f"{PREFIX}/ready"

# On a pod: how long it takes to run and be ready; at once if absent.
START_AFTER = f"{PREFIX}/start-after"

# On a pod: its trainer ends with this code, after this delay (at once if absent), with this termination message.
# The trainer is the container of that name, or the only one.
EXIT_CODE = f"{PREFIX}/exit-code"
EXIT_AFTER = f"{PREFIX}/exit-after"
EXIT_MESSAGE = f"{PREFIX}/exit-message"

# On a pod that is being deleted: the same for how it ends then; 143 (SIGTERM), at once, if absent.
STOP_CODE = f"{PREFIX}/stop-code"
STOP_AFTER = f"{PREFIX}/stop-after"
STOP_MESSAGE = f"{PREFIX}/stop-message"


def command(program: Path, kubeconfig: Path) -> Sequence[str | Path]:
    """How to run kwok on this cluster; it touches no node that is not pretended."""
    return (
        program,
        f"--kubeconfig={kubeconfig}",
        *(f"--config={path}" for path in sorted(STAGES.glob("*.yaml"))),
        "--manage-all-nodes=false",
        "--manage-nodes-with-annotation-selector=" + ",".join(f"{name}={value}" for name, value in PRETENDED.items()),
        # With a lease that is renewed, a node's status need not be written again and again.
        "--node-lease-duration-seconds=40",
        f"--cidr={POD_NETWORK}",
    )
