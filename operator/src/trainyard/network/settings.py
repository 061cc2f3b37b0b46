"""What the network wants of a job's pods: settings, each with its source and its reason, and what stands beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from trainyard.api.fabric import PodAdditions

MOST_WARNINGS: Final = 32
"""As many as a job's status takes; all of them become events."""


class Source(StrEnum):
    """Who said so. Each wins over those before it, but for the last."""

    PROFILE = "profile"
    """The settings of the built-in profile."""
    DERIVED = "derived"
    """Trainyard: it follows from what is known of the network, the node and the job."""
    FABRIC = "fabric"
    """The settings of the Fabric object."""
    JOB = "job"
    """The job's spec.network.env."""
    TEMPLATE = "template"
    """The environment of the job's own trainer container."""
    POD = "pod"
    """The launcher, which found it in the pod where nobody had said it."""


@dataclass(frozen=True, slots=True)
class Setting:
    """An environment variable of the trainer container, and why it is there."""

    name: str
    value: str
    source: Source
    reason: str


@dataclass(frozen=True, slots=True)
class Settings:
    """What the network wants of a job's pods.

    settings: each name once, those of the fabric before those of the job, so that a value may refer to what precedes it.
    by_node: for nodes that need others, those that differ; none of the names is in `settings`.
    replaced: what Trainyard would have written for some node where the job says otherwise.
    additions: what the fabric adds to its pods.
    host_network, privileged: rights that the profile needs and an administrator gave.
    channel: each pod claims one of a ComputeDomain of the job, for NVLink beyond its node.
    warnings: what the job had better change. network: what it is called.
    problem: why no attempt should start, "" where nothing is in the way.
    over_sockets: what of the job switches the nodes' fast network off, "" where nothing does.
    """

    settings: tuple[Setting, ...] = ()
    additions: PodAdditions = field(default_factory=PodAdditions)
    warnings: tuple[str, ...] = ()
    by_node: Mapping[str, tuple[Setting, ...]] = field(default_factory=dict)
    replaced: tuple[Setting, ...] = ()
    host_network: bool = False
    privileged: bool = False
    channel: bool = False
    network: str = ""
    problem: str = ""
    over_sockets: str = ""

    def on(self, node: str) -> Settings:
        """Those of the pod on this node."""
        own = self.by_node.get(node, ())
        return replace(self, settings=(*own, *self.settings), by_node={}) if own else self
