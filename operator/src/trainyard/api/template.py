"""The pod template of a job: read as it is, kept as it is.

A full pod schema would be 800 KB and would drop what a newer Kubernetes knows. So only what rules speak of is declared (names of
containers, of environment variables and of volumes, commands, restartPolicy), and the rest is preserved and left to the API
server, which is asked by a dry run before anything is made.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from trainyard.api import names

MAX_CONTAINERS: Final = 16
MAX_ENV: Final = 512
MAX_VOLUMES: Final = 256

OUR_IMAGE_PATTERN: Final = r"(^|/)trainyard/trainer([:@].*)?$"
"""The trainer's image, from whatever registry; it knows what to run without being told."""

_ACCELERATORS: Final = (
    r"nvidia\.com/(gpu(\.shared)?|mig-.+)",
    r"amd\.com/gpu",
    r"gpu\.intel\.com/(i915|xe)",
    r"habana\.ai/gaudi",
    r"google\.com/tpu",
    r"aws\.amazon\.com/neuron(core|device)?",
)
"""Names of extended resources, as patterns, of which one process drives one."""

_ACCELERATOR: Final = re.compile("|".join(f"(?:{name})" for name in _ACCELERATORS))
_PRESERVE: Final = {"x-kubernetes-preserve-unknown-fields": True}


@lru_cache(maxsize=1024)
def is_accelerator(resource: str) -> bool:
    """Whether an extended resource is one of which one process drives one."""
    return _ACCELERATOR.fullmatch(resource) is not None


def pod_spec(template: Mapping[str, Any]) -> Mapping[str, Any]:
    """`template.spec`; empty where there is none."""
    spec = template.get("spec")
    return spec if isinstance(spec, Mapping) else {}


def containers(template: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The containers that are objects, in their order."""
    found = pod_spec(template).get("containers")
    return [c for c in found if isinstance(c, Mapping)] if isinstance(found, list) else []


def trainer_container(template: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The container that trains: the one named trainer, or the only one; None where neither exists."""
    found = containers(template)
    named = [c for c in found if c.get("name") == names.TRAINER_CONTAINER]
    if named:
        return named[0]
    return found[0] if len(found) == 1 else None


def volume_names(template: Mapping[str, Any]) -> Sequence[str]:
    """Names of the template's volumes, in their order."""
    found = pod_spec(template).get("volumes")
    return [str(v.get("name")) for v in found if isinstance(v, Mapping)] if isinstance(found, list) else []


def mount_path(container: Mapping[str, Any], volume: str) -> str | None:
    """Where a container sees a volume and may write to it; None where it does not mount it so."""
    mounts = container.get("volumeMounts")
    for mount in mounts if isinstance(mounts, list) else ():
        if isinstance(mount, Mapping) and mount.get("name") == volume and not mount.get("readOnly"):
            return str(mount.get("mountPath"))
    return None


def is_our_image(image: str) -> bool:
    """Whether an image is the project's own trainer, judged by its repository's last two parts."""
    return re.search(OUR_IMAGE_PATTERN, image) is not None


def requested_accelerators(container: Mapping[str, Any]) -> int:
    """How many accelerators a container asks for: its limits, summed over all known kinds."""
    resources = container.get("resources")
    limits = resources.get("limits") if isinstance(resources, Mapping) else None
    if not isinstance(limits, Mapping):
        return 0
    counts = (str(count) for name, count in limits.items() if is_accelerator(str(name)))
    return sum(int(count) for count in counts if count.isdecimal())


def _container_schema(what: str, command: str, env: str) -> dict[str, Any]:
    name = {"type": "string", "maxLength": 63, "description": "Name of the container."}
    variable = {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string", "maxLength": 253, "description": "Name of the variable."},
            "value": {"type": "string", "description": "Its value."},
        },
        **_PRESERVE,
    }
    mount = {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string", "maxLength": 63, "description": "Name of the volume."},
            "readOnly": {"type": "boolean", "description": "Whether the container may only read it."},
        },
        **_PRESERVE,
    }
    return {
        "type": "object",
        "description": what,
        "required": ["name"],
        "properties": {
            "name": name,
            "image": {"type": "string", "maxLength": 1024, "description": "Image of the container."},
            "command": {"type": "array", "maxItems": 1024, "items": {"type": "string"}, "description": command},
            "volumeMounts": {
                "type": "array",
                "maxItems": MAX_VOLUMES,
                "items": mount,
                "description": "Where the container sees the volumes of the pod.",
            },
            "env": {
                "type": "array",
                "maxItems": MAX_ENV,
                "items": variable,
                "description": env,
            },
        },
        **_PRESERVE,
    }


def _list_of(items: dict[str, Any], most: int, description: str) -> dict[str, Any]:
    return {"type": "array", "maxItems": most, "items": items, "description": description}


TEMPLATE_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "metadata": {"type": "object", "description": "Labels and annotations of the pods.", **_PRESERVE},
        "spec": {
            "type": "object",
            "description": "An ordinary pod specification. All its fields are kept, also those not listed here.",
            "required": ["containers"],
            "properties": {
                "containers": {
                    **_list_of(
                        _container_schema(
                            "A container of the pod.",
                            command="What to run. Needed for one's own image or script: the launcher starts it once per process.",
                            env="Environment. It wins over Trainyard's settings, except for who a process is in the gang.",
                        ),
                        MAX_CONTAINERS,
                        "Containers of the pod. The one named trainer, or the only one, trains.",
                    ),
                    "minItems": 1,
                },
                "initContainers": _list_of(
                    _container_schema(
                        "A container that runs before the others.", command="What to run.", env="Environment."
                    ),
                    MAX_CONTAINERS,
                    "Containers that run before the others.",
                ),
                "volumes": _list_of(
                    {
                        "type": "object",
                        "required": ["name"],
                        "properties": {"name": {"type": "string", "maxLength": 63, "description": "Its name."}},
                        **_PRESERVE,
                    },
                    MAX_VOLUMES,
                    "Volumes of the pod.",
                ),
                "restartPolicy": {
                    "type": "string",
                    "maxLength": 16,
                    "description": "Never, or left out: a member that ends ends its attempt.",
                },
            },
            **_PRESERVE,
        },
    },
    **_PRESERVE,
}
"""The template's structural schema, in the OpenAPI that a CRD takes."""
