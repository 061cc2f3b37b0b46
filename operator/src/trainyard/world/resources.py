"""What a pod asks for, counted as kube-scheduler counts it (k8s.io/component-helpers/resource, PodRequests, v1.36)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Any, Final

from trainyard.world.records import Resources

CPU: Final = "cpu"
PODS: Final = "pods"

_QUANTITY: Final = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([eE][+-]?[0-9]{1,2})|([KMGTPE]i|[numkMGTPE]))?")
_SCALE: Final = {
    **{
        suffix: Fraction(1000) ** power
        for power, suffix in enumerate(["n", "u", "m", "", "k", "M", "G", "T", "P", "E"], -3)
    },
    **{suffix: Fraction(1024) ** power for power, suffix in enumerate(["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"], 1)},
}
_WHOLE_POD: Final = re.compile(r"cpu|memory|hugepages-.+")
"""The resources for which a request of the whole pod replaces the sum over its containers."""


def parse_quantity(text: str | int | float, resource: str) -> int:
    """A Kubernetes quantity in the unit of its resource (cpu: millicores; else what the name says), rounded up.

    Rounding up is what the API server does as well: a node never holds more than it promises. ValueError for anything else.
    """
    return _parse(str(text), 1000 if resource == CPU else 1)


@lru_cache(maxsize=4096)
def _parse(text: str, unit: int) -> int:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a quantity; write for example 8, 500m or 16Gi")
    number, exponent, suffix = match.groups()
    scale = Fraction(10) ** int(exponent[1:]) if exponent else _SCALE[suffix or ""]
    return ceil(Fraction(number) * scale * unit)


def parse_amounts(amounts: object) -> dict[str, int]:
    """A resource list as the API server writes it (of a container, or of a node's allocatable); {} where there is none."""
    if not isinstance(amounts, Mapping):
        return {}
    return {str(name): parse_quantity(text, str(name)) for name, text in amounts.items()}


def pod_requests(pod_spec: Mapping[str, Any]) -> dict[str, int]:
    """What a pod takes on its node.

    Containers and sidecars (init containers that restart always) run side by side, so they add up. An ordinary init container
    runs beside the sidecars that were started before it, alone otherwise: the highest such peak counts where it is higher.
    The pod's overhead comes on top, and the pod itself counts one of the node's `pods`.
    """
    running = _sum(_container_requests(c) for c in _objects(pod_spec.get("containers")))
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in _objects(pod_spec.get("initContainers")):
        own = _container_requests(container)
        if container.get("restartPolicy") == "Always":
            sidecars = _sum([sidecars, own])
            own = sidecars
        else:
            own = _sum([sidecars, own])
        peak = _highest(peak, own)
    needed = _highest(_sum([running, sidecars]), peak)
    whole = {name: n for name, n in _container_requests(pod_spec).items() if _WHOLE_POD.fullmatch(name)}
    total = _sum([{**needed, **whole}, parse_amounts(pod_spec.get("overhead"))])
    return {**total, PODS: 1}


def fits(requests: Resources, room: Resources) -> bool:
    """Whether the room holds the requests; a resource that a node does not have is one it has none of."""
    return first_lacking(requests, room) is None


def first_lacking(requests: Resources, room: Resources) -> str | None:
    """A resource that the room holds too little of; None where it holds the requests."""
    for name, amount in requests.items():  # a plain loop: asked for every node, several times a cycle
        if amount > 0 and amount > room.get(name, 0):
            return name
    return None


def _container_requests(container: Mapping[str, Any]) -> dict[str, int]:
    """Requests; a limit without a request requests as much, which is how the API server completes a pod."""
    resources = container.get("resources")
    if not isinstance(resources, Mapping):
        return {}
    return {**parse_amounts(resources.get("limits")), **parse_amounts(resources.get("requests"))}


def _objects(items: object) -> Iterable[Mapping[str, Any]]:
    return [item for item in items if isinstance(item, Mapping)] if isinstance(items, list | tuple) else []


def _sum(parts: Iterable[Resources]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = total.get(name, 0) + amount
    return total


def _highest(a: Resources, b: Resources) -> dict[str, int]:
    return {name: max(a.get(name, 0), b.get(name, 0)) for name in (*a, *(name for name in b if name not in a))}
