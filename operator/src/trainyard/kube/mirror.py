"""Everything known of the cluster, kept up to date, and frozen into a World whenever a cycle wants one.

Pods are watched twice, by selectors that no pod fulfils both of: strangers as long as they take room, and our own until they are
gone, since how they ended matters. So terminated strangers, of which a cluster may hold tens of thousands, never reach us.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from trainyard.api import names
from trainyard.kube import decode, resources
from trainyard.kube.client import KubeClient
from trainyard.kube.informer import Informer, Kind, Pace
from trainyard.kube.observer import Observer
from trainyard.kube.shapes import CustomShape, NamespaceShape, NodeShape, PodShape, PriorityClassShape, Shape
from trainyard.kube.slices import SLICES, Places, Slice, together
from trainyard.world.records import Answer, Job, Marks, Node, Pod, Trial, World

_PODS: Final = Shape(PodShape)
_CUSTOM: Final = Shape(CustomShape)

NODES: Final = Kind("nodes", resources.NODES, Shape(NodeShape), decode.node, by_name=True)
STRANGERS: Final = Kind(
    "pods",
    resources.PODS,
    _PODS,
    decode.pod,
    labels=f"!{names.LABEL_JOB_UID}",
    fields="status.phase!=Succeeded,status.phase!=Failed",
)
MEMBERS: Final = Kind("members", resources.PODS, _PODS, decode.pod, labels=names.LABEL_JOB_UID)
JOBS: Final = Kind("trainingjobs", resources.JOBS, _CUSTOM, decode.job)
FABRICS: Final = Kind("fabrics", resources.FABRICS, _CUSTOM, decode.fabric, by_name=True)
PRIORITY_CLASSES: Final = Kind(
    "priorityclasses", resources.PRIORITY_CLASSES, Shape(PriorityClassShape), decode.priority_class, by_name=True
)
NAMESPACES: Final = Kind(
    "namespaces", resources.NAMESPACES, Shape(NamespaceShape), decode.leaving_namespace, by_name=True
)

_SLICES: Final = frozenset(kind.name for kind in SLICES)


def _unmarked(raw: NodeShape) -> Node:
    found = decode.node(raw)
    return found if found.degraded is None else replace(found, degraded=None)


class Mirror:
    """The cluster as seen from here. `run` keeps it true; everything else only looks.

    generation: changes whenever anything that a World holds does.
    """

    def __init__(
        self,
        client: KubeClient,
        observer: Observer | None = None,
        pace: Pace | None = None,
        launcher_image: str = "",
        marks: Marks | None = None,
    ) -> None:
        def informer(kind: Kind[Any, Any]) -> Informer[Any, Any]:
            return Informer(client, kind, changed=self._bump, observer=observer, pace=pace)

        # A mark that nobody takes off any more must not keep a node from everybody.
        self._nodes = informer(NODES if marks is not None else replace(NODES, decode=_unmarked))
        self._strangers = informer(STRANGERS)
        self._members = informer(MEMBERS)
        self._jobs = informer(JOBS)
        self._fabrics = informer(FABRICS)
        self._classes = informer(PRIORITY_CLASSES)
        self._namespaces = informer(NAMESPACES)
        self._slices = tuple(informer(kind) for kind in SLICES)
        self.informers: tuple[Informer[Any, Any], ...] = (
            self._nodes,
            self._strangers,
            self._members,
            self._jobs,
            self._fabrics,
            self._classes,
            self._namespaces,
            *self._slices,
        )
        self._places = Places()
        self._told: Mapping[str, Slice] = {}
        self.generation = 0
        self._heard = 0
        self._bell = asyncio.Event()
        self._answers: dict[str, Answer] = {}
        self._trials: dict[str, Trial] = {}
        self._launcher_image = launcher_image
        self._marks = marks
        self._frozen = World()
        self._frozen_at: tuple[int, ...] = ()

    async def run(self) -> None:
        """Follow the cluster until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in self.informers:
                group.create_task(informer.run(), name=f"informer-{informer.kind}")

    @property
    def synced(self) -> bool:
        """Whether a whole list of everything was read: before that, what is missing may only be unread."""
        return all(informer.synced for informer in self.informers)

    @property
    def members(self) -> Mapping[str, Pod]:
        """Pods under our label, by uid; a live view."""
        return self._members.records

    @property
    def jobs(self) -> Mapping[str, Job]:
        """TrainingJobs by uid; a live view."""
        return self._jobs.records

    @property
    def answers(self) -> Mapping[str, Answer]:
        """What is known of launchers, by pod uid; a live view."""
        return self._answers

    async def change(self, since: int) -> int:
        """Wait until the generation is another than `since`; returns it."""
        while self.generation == since:
            self._bell.clear()
            await self._bell.wait()
        return self.generation

    async def wait_synced(self) -> None:
        """Wait until everything was read."""
        while not self.synced:
            await self.change(self.generation)

    def observe(self, raw: Mapping[str, Any]) -> None:
        """Take in what the API server answered to our own write: the next World holds it, whenever the watch tells of it.
        Objects of kinds that are not watched are passed over."""
        if raw.get("kind") == names.KIND_JOB:
            self._jobs.observe(raw)
        elif raw.get("kind") == names.KIND_FABRIC:
            self._fabrics.observe(raw)
        elif raw.get("kind") == "Node":
            self._nodes.observe(raw)
        elif raw.get("kind") == "Pod" and names.LABEL_JOB_UID in (raw["metadata"].get("labels") or {}):
            self._members.observe(raw)

    def answer(self, pod_uid: str, answer: Answer) -> None:
        """What a launcher said, or that it said nothing. Of pods that are gone nobody wants to know, and that all is as it was
        is no change, though the next World holds when it was said."""
        if pod_uid not in self._members.records:
            return
        known = self._answers.get(pod_uid)
        self._answers[pod_uid] = answer
        self._heard += 1
        if known is None or replace(known, time=answer.time) != answer:
            self._bump()

    def trial(self, job_uid: str, trial: Trial) -> None:
        """What the API server said of a job's pod."""
        if job_uid in self._jobs.records:
            self._trials[job_uid] = trial
            self._bump()

    def freeze(self) -> World:
        """The world at this instant. Only what changed since the last one is copied, and nothing of it ever changes again."""
        parts = (*(informer.generation for informer in self.informers), self._heard, self.generation)
        if parts == self._frozen_at:
            return self._frozen
        at = dict(zip((informer.kind for informer in self.informers), parts, strict=False))
        was = dict(zip((informer.kind for informer in self.informers), self._frozen_at, strict=False))
        fresh = {kind for kind in at if at[kind] != was.get(kind)}
        if "members" in fresh:
            self._answers = {uid: a for uid, a in self._answers.items() if uid in self._members.records}
        if "trainingjobs" in fresh:
            self._trials = {uid: t for uid, t in self._trials.items() if uid in self._jobs.records}
        old = self._frozen
        self._frozen_at = parts
        self._frozen = World(
            nodes=self._placed(fresh) if fresh & {"nodes", *_SLICES} else old.nodes,
            pods=self._strangers.records | self._members.records if fresh & {"pods", "members"} else old.pods,
            jobs=dict(self._jobs.records) if "trainingjobs" in fresh else old.jobs,
            priority_classes=dict(self._classes.records) if "priorityclasses" in fresh else old.priority_classes,
            fabrics=dict(self._fabrics.records) if "fabrics" in fresh else old.fabrics,
            answers=dict(self._answers),
            trials=dict(self._trials),
            leaving=frozenset(self._namespaces.records) if "namespaces" in fresh else old.leaving,
            launcher_image=self._launcher_image,
            marks=self._marks,
        )
        return self._frozen

    def _placed(self, fresh: Collection[str]) -> dict[str, Node]:
        if not _SLICES.isdisjoint(fresh):
            self._told = together(one for informer in self._slices for one in informer.records.values())
        return self._places.on(self._nodes.records, self._told)

    def _bump(self) -> None:
        self.generation += 1
        self._bell.set()
