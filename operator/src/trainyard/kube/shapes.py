"""The parts of the API server's objects that are read, as pydantic checks them.

Whatever is not named here is dropped while the JSON is parsed, at the speed of pydantic's Rust core: that, and not a smaller
object, is what makes a list of 10,000 pods cheap. Every field may be absent or null.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter
from typing_extensions import TypedDict

S = TypeVar("S")


class OwnerShape(TypedDict, total=False):
    """metadata.ownerReferences[]"""

    kind: str
    uid: str
    controller: bool | None


class MetaShape(TypedDict, total=False):
    """metadata"""

    name: str
    namespace: str | None
    uid: str
    resourceVersion: str
    generation: int | None
    creationTimestamp: str | None
    deletionTimestamp: str | None
    deletionGracePeriodSeconds: int | None
    labels: dict[str, str] | None
    annotations: dict[str, str] | None
    finalizers: list[str] | None
    ownerReferences: list[OwnerShape] | None


class ConditionShape(TypedDict, total=False):
    """status.conditions[]"""

    type: str
    status: str
    reason: str | None
    message: str | None
    lastTransitionTime: str | None


class TaintShape(TypedDict, total=False):
    """spec.taints[] of a node"""

    key: str
    value: str | None
    effect: str | None


class NodeSpecShape(TypedDict, total=False):
    """spec of a node"""

    unschedulable: bool | None
    taints: list[TaintShape] | None


class NodeStatusShape(TypedDict, total=False):
    """status of a node"""

    allocatable: dict[str, str] | None
    conditions: list[ConditionShape] | None


class NodeShape(TypedDict, total=False):
    """A node"""

    metadata: MetaShape
    spec: NodeSpecShape | None
    status: NodeStatusShape | None


class ContainerShape(TypedDict, total=False):
    """spec.containers[] and spec.initContainers[] of a pod: what their requests follow from"""

    name: str
    restartPolicy: str | None
    resources: dict[str, Any] | None


class PodSpecShape(TypedDict, total=False):
    """spec of a pod"""

    nodeName: str | None
    priority: int | None
    containers: list[ContainerShape] | None
    initContainers: list[ContainerShape] | None
    resources: dict[str, Any] | None
    overhead: dict[str, str] | None
    terminationGracePeriodSeconds: int | None


class WaitingShape(TypedDict, total=False):
    """state.waiting"""

    reason: str | None
    message: str | None


class RunningShape(TypedDict, total=False):
    """state.running"""

    startedAt: str | None


class TerminatedShape(TypedDict, total=False):
    """state.terminated"""

    exitCode: int
    reason: str | None
    message: str | None
    finishedAt: str | None


class StateShape(TypedDict, total=False):
    """state of a container"""

    waiting: WaitingShape | None
    running: RunningShape | None
    terminated: TerminatedShape | None


class ContainerStatusShape(TypedDict, total=False):
    """status.containerStatuses[] and status.initContainerStatuses[]"""

    name: str
    state: StateShape | None


class PodStatusShape(TypedDict, total=False):
    """status of a pod"""

    phase: str | None
    reason: str | None
    message: str | None
    podIP: str | None
    conditions: list[ConditionShape] | None
    containerStatuses: list[ContainerStatusShape] | None
    initContainerStatuses: list[ContainerStatusShape] | None


class PodShape(TypedDict, total=False):
    """A pod"""

    metadata: MetaShape
    spec: PodSpecShape | None
    status: PodStatusShape | None


class PriorityClassShape(TypedDict, total=False):
    """A PriorityClass"""

    metadata: MetaShape
    value: int
    preemptionPolicy: str | None
    globalDefault: bool | None


class NamespaceStatusShape(TypedDict, total=False):
    """status of a namespace"""

    phase: str | None


class NamespaceShape(TypedDict, total=False):
    """A namespace"""

    metadata: MetaShape
    status: NamespaceStatusShape | None


class CustomShape(TypedDict, total=False):
    """An object of our own API; what is in it is the API's business"""

    metadata: MetaShape
    spec: Any
    status: Any


PageMetaShape = TypedDict("PageMetaShape", {"resourceVersion": str, "continue": str | None}, total=False)
"""metadata of a list; written this way since `continue` is no name in Python"""


class Page(TypedDict, Generic[S], total=False):
    """A page of a list"""

    metadata: PageMetaShape
    items: list[S] | None


class Event(TypedDict, Generic[S]):
    """A line of a watch"""

    type: str
    object: S


class Shape(Generic[S]):
    """How one kind is read: single objects, pages of lists, events of watches."""

    def __init__(self, kind: type[S]) -> None:
        self.one: TypeAdapter[S] = TypeAdapter(kind)
        self.page: TypeAdapter[Page[S]] = TypeAdapter(Page[kind])  # type: ignore[valid-type]
        self.event: TypeAdapter[Event[S]] = TypeAdapter(Event[kind])  # type: ignore[valid-type]
