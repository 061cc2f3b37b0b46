"""Names of the environment through which a pod learns who it is. Set by the operator, read by the launcher."""

from __future__ import annotations

from typing import Final

PLAN: Final = "TRAINYARD_PLAN"
"""Path of plan.json."""
CONTROL_KEY_FILE: Final = "TRAINYARD_CONTROL_KEY_FILE"
"""Path of the job's control key."""
POD: Final = "TRAINYARD_POD"
"""Name of the pod (downward API): which member of the plan this is."""
POD_UID: Final = "TRAINYARD_POD_UID"
"""Uid of the pod (downward API): requests are signed for it."""
PORT: Final = "TRAINYARD_PORT"
"""Port of the launcher's control endpoint and metrics."""
STOP_FILE: Final = "TRAINYARD_STOP_FILE"
"""Set by the launcher for its workers: exists once a stop was asked."""
CHECKPOINT_FILE: Final = "TRAINYARD_CHECKPOINT_FILE"
"""Set by the launcher for its workers: replaced, with a higher `number`, each time a save was asked."""
REPORT_FD: Final = "TRAINYARD_REPORT_FD"
"""Set by the launcher for its workers: a pipe for their reports, one JSON object a line."""
TERMINATION_LOG: Final = "TRAINYARD_TERMINATION_LOG"
"""Path for the last words; /dev/termination-log, the kubelet's default, where unset."""
GIVEN: Final = "TRAINYARD_GIVEN"
"""Names of the pod's variables that its node or network says, separated by commas. A mistake in one of them is not the job's."""
NETWORK_FILE: Final = "TRAINYARD_NETWORK_FILE"
"""Set by the launcher for its workers: what the pod found of its network (`contract.network.PodNetwork`), as JSON."""
