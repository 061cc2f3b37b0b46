"""The launcher before the user's command, also where the image has none: a container that runs first puts it beside.

What it puts there is one file (`trainyard_trainer.launch.archive`) that any Python from 3.10 on runs, so the pod trains with
the launcher of the operator's own version, whatever is in the image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from trainyard.api import names
from trainyard.api.template import is_our_image

LAUNCHER: Final = "trainyard-launch"
CONTAINER: Final = "trainyard-launcher"
VOLUME: Final = "trainyard-launcher"
ARCHIVE: Final = f"{names.LAUNCHER_FOLDER}/launch.pyz"
SOURCE: Final = "/opt/trainyard/launcher"
"""Where the launcher's image has what is to be put into the pod."""
_COMPUTED: Final = ("cpu", "memory", "ephemeral-storage")


def is_put_beside(container: Mapping[str, Any]) -> bool:
    """Whether the image of a container is one that needs not have the launcher: one with a command of its own that is not the
    launcher's. The trainer's image has it; and without a command the image knows what to run, the launcher first."""
    command: Sequence[str] = container.get("command") or ()
    return bool(command) and not _is_launcher(command) and not is_our_image(str(container.get("image", "")))


def command(container: Mapping[str, Any], processes: int, *, beside: bool) -> dict[str, Any]:
    """The launcher before the user's command. Without one the image knows what to run: ours starts the launcher itself."""
    own: dict[str, Any] = {key: container[key] for key in ("command", "args") if key in container}
    command: Sequence[str] = container.get("command") or ()
    if not command or _is_launcher(command):
        return own
    launcher = ["python3", ARCHIVE] if beside else [LAUNCHER]
    return {"command": [*launcher, "--procs", str(processes), "--", *command, *(container.get("args") or ())]}


def volume() -> dict[str, Any]:
    """What the launcher is put into."""
    return {"name": VOLUME, "emptyDir": {}}


def mount() -> dict[str, Any]:
    """Where the container that trains sees it."""
    return {"name": VOLUME, "mountPath": names.LAUNCHER_FOLDER, "readOnly": True}


def init_container(image: str, pod: Mapping[str, Any], trainer: Mapping[str, Any]) -> dict[str, Any]:
    """What puts it there.

    It asks for what the trainer's container asks for, devices aside: a pod's request is the larger of the two, and so stays what
    it was, as do its class of service and what quotas and limit ranges make of it. It has no rights: the restricted Pod Security
    Standard is content with it.
    """
    resources = {
        kind: {name: amount for name, amount in (asked or {}).items() if name in _COMPUTED}
        for kind, asked in (trainer.get("resources") or {}).items()
        if kind in ("requests", "limits")
    }
    as_root = (pod.get("securityContext") or {}).get("runAsUser") == 0
    return {
        "name": CONTAINER,
        "image": image,
        "command": ["cp", "-r", f"{SOURCE}/.", names.LAUNCHER_FOLDER],
        "resources": {kind: asked for kind, asked in resources.items() if asked},
        "volumeMounts": [{"name": VOLUME, "mountPath": names.LAUNCHER_FOLDER}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "seccompProfile": {"type": "RuntimeDefault"},
            **({} if as_root else {"runAsNonRoot": True}),
        },
    }


def _is_launcher(command: Sequence[str]) -> bool:
    return command[0].rsplit("/", 1)[-1] == LAUNCHER
