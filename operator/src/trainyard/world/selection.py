"""Whether a node would take a member at all, room aside: what kube-scheduler's filters say of one node and one pod.

Covered: readiness, cordons, taints, nodeName, nodeSelector, required node affinity. What depends on other pods (affinity between
pods, topology spread, host ports) or on volumes is left to kube-scheduler, which binds the pods and has the last word.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from trainyard.api.names import CONDITION_DEGRADED
from trainyard.world.records import Node, Taint

_BLOCKING: Final = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class Selection:
    """What a pod demands of a node, taken apart once for many nodes.

    terms: None where the pod has no required node affinity; one that holds is enough, so none at all admits no node.
    """

    avoid: frozenset[str]
    node_name: str
    labels: Mapping[str, str]
    tolerations: tuple[Mapping[str, Any], ...]
    terms: tuple[Mapping[str, Any], ...] | None

    def why_not(self, node: Node) -> str | None:
        """What keeps the pod off a node, in a few words that go for many nodes alike; None where nothing does.

        A node that is cordoned or not ready gets no member even if the pod tolerates the taints that say so: somebody wants
        the node empty, or it would never start one.
        """
        if node.name in self.avoid:
            return "in placement.avoidNodes"
        if not node.ready:
            return "not ready"
        if node.unschedulable:
            return "cordoned"
        if node.degraded is not None:
            return f"condition {CONDITION_DEGRADED}"
        for taint in node.taints:
            if not self._tolerates(taint):
                return f"taint {taint.key} not tolerated"
        if self.node_name and self.node_name != node.name:
            return f"not the nodeName {self.node_name}"
        for name, value in self.labels.items():
            if node.labels.get(name) != value:
                return f"not of nodeSelector {name}={value}"
        if self.terms is not None and not any(_term_holds(term, node) for term in self.terms):
            return "not of the required node affinity"
        return None

    def admits(self, node: Node) -> bool:
        """Whether nothing keeps the pod off the node."""
        return self.why_not(node) is None

    def _tolerates(self, taint: Taint) -> bool:
        return taint.effect not in _BLOCKING or any(_toleration_holds(one, taint) for one in self.tolerations)


def selection(pod_spec: Mapping[str, Any], avoid: Collection[str] = ()) -> Selection:
    """What a pod demands of its node. avoid: names of nodes that it never gets."""
    required = _object(
        _object(_object(pod_spec, "affinity"), "nodeAffinity"), "requiredDuringSchedulingIgnoredDuringExecution"
    )
    return Selection(
        avoid=frozenset(avoid),
        node_name=str(pod_spec.get("nodeName") or ""),
        labels={str(name): str(value) for name, value in _object(pod_spec, "nodeSelector").items()},
        tolerations=_objects(pod_spec, "tolerations"),
        terms=_objects(required, "nodeSelectorTerms") if required else None,
    )


def admits(node: Node, pod_spec: Mapping[str, Any], avoid: Collection[str] = ()) -> bool:
    """Whether a node would take the pod, room aside."""
    return selection(pod_spec, avoid).admits(node)


def why_not(node: Node, pod_spec: Mapping[str, Any], avoid: Collection[str] = ()) -> str | None:
    """What keeps the pod off a node, room aside; None where nothing does."""
    return selection(pod_spec, avoid).why_not(node)


def _object(of: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = of.get(key)
    return found if isinstance(found, Mapping) else {}


def _objects(of: Mapping[str, Any], key: str) -> tuple[Mapping[str, Any], ...]:
    found = of.get(key)
    return tuple(item for item in found if isinstance(item, Mapping)) if isinstance(found, list | tuple) else ()


def _toleration_holds(toleration: Mapping[str, Any], taint: Taint) -> bool:
    """An empty key with Exists tolerates every taint, an empty effect every effect."""
    key, effect = toleration.get("key") or "", toleration.get("effect") or ""
    if effect not in ("", taint.effect):
        return False
    match toleration.get("operator") or "Equal":
        case "Exists":
            return key in ("", taint.key)
        case "Equal":
            return key == taint.key and (toleration.get("value") or "") == taint.value
        case _:
            return False


def _term_holds(term: Mapping[str, Any], node: Node) -> bool:
    """All expressions and fields of a term; a term without any matches no node."""
    expressions, fields = _objects(term, "matchExpressions"), _objects(term, "matchFields")
    if not expressions and not fields:
        return False
    known_fields = {"metadata.name": node.name}
    return all(_holds(one, node.labels) for one in expressions) and all(
        one.get("key") in known_fields and _holds(one, known_fields) for one in fields
    )


def _holds(requirement: Mapping[str, Any], values: Mapping[str, str]) -> bool:
    """One requirement; an operator that Kubernetes does not have holds nowhere (the API server refuses it)."""
    found = values.get(str(requirement.get("key")))
    wanted = [str(value) for value in requirement.get("values") or ()]
    operator = _OPERATORS.get(str(requirement.get("operator")))
    return operator is not None and operator(found, wanted)


def _compares(found: str | None, wanted: list[str], sign: int) -> bool:
    """Gt and Lt compare whole numbers; what is no number does not compare."""
    try:
        return found is not None and sign * (int(found) - int(wanted[0])) > 0
    except (ValueError, IndexError):
        return False


_OPERATORS: Final[Mapping[str, Callable[[str | None, list[str]], bool]]] = {
    "In": lambda found, wanted: found is not None and found in wanted,
    "NotIn": lambda found, wanted: found is None or found not in wanted,
    "Exists": lambda found, _: found is not None,
    "DoesNotExist": lambda found, _: found is None,
    "Gt": lambda found, wanted: _compares(found, wanted, 1),
    "Lt": lambda found, wanted: _compares(found, wanted, -1),
}
