"""Jobs, nodes and Fabrics as network settings are derived from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainyard.api.fabric import FabricSpec
from trainyard.api.names import LABEL_INSTANCE_TYPE
from trainyard.api.training_job import TrainingJobSpec
from trainyard.network.choice import Network, Unclear, choose_network
from trainyard.network.derive import derive
from trainyard.network.profiles import profiles
from trainyard.network.profiles.model import Profile
from trainyard.network.settings import Settings
from trainyard.world.records import Fabric, Node

GPU = "nvidia.com/gpu"


def a_spec(
    *,
    nodes: int = 2,
    limits: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    wishes: Mapping[str, str] | None = None,
    pod: Mapping[str, Any] | None = None,
    **container: Any,
) -> TrainingJobSpec:
    """A job of so many nodes, each with 8 accelerators unless limits says otherwise. wishes: its spec.network.env."""
    made = {
        "name": "trainer",
        "image": "trainyard/trainer:0.1.0",
        "resources": {"limits": {GPU: 8} if limits is None else limits},
        "env": [{"name": name, "value": value} for name, value in (env or {}).items()],
        **container,
    }
    return TrainingJobSpec.model_validate(
        {
            "nodes": nodes,
            "template": {"spec": {"containers": [made], **(pod or {})}},
            "network": {"env": [{"name": name, "value": value} for name, value in (wishes or {}).items()]},
        }
    )


def some_nodes(
    count: int = 2,
    kind: str = "",
    *,
    labels: Mapping[str, str] | None = None,
    offers: Mapping[str, int] | None = None,
    annotations: Mapping[str, str] | None = None,
    first: int = 0,
) -> list[Node]:
    """Nodes of one kind. kind: their instance type. offers: besides 8 accelerators, memory and huge pages."""
    return [
        Node(
            name=f"n-{n}",
            uid=f"uid-{n}",
            labels={**({LABEL_INSTANCE_TYPE: kind} if kind else {}), **(labels or {})},
            allocatable={GPU: 8, "memory": 1 << 41, "cpu": 192_000, "hugepages-2Mi": 1 << 34, **(offers or {})},
            annotations=annotations or {},
        )
        for n in range(first, first + count)
    ]


def a_fabric(**spec: Any) -> FabricSpec:
    """A Fabric's specification, camelCase as in YAML; env by name."""
    env = [{"name": name, "value": value} for name, value in spec.pop("env", {}).items()]
    return FabricSpec.model_validate({**({"env": env} if env else {}), **spec})


def fabrics(**by_name: FabricSpec) -> dict[str, Fabric]:
    return {name: Fabric(name, spec) for name, spec in by_name.items()}


def on(nodes: Sequence[Node], fabric: FabricSpec | None = None) -> Network:
    """The network of these nodes, which must be clear. fabric: a Fabric for all of them, named site."""
    network = choose_network(nodes, fabrics(site=fabric) if fabric is not None else {})
    assert not isinstance(network, Unclear), network.message
    return network


def derived(spec: TrainingJobSpec, nodes: Sequence[Node], fabric: FabricSpec | None = None) -> Settings:
    return derive(on(nodes, fabric), spec, nodes)


def values(settings: Settings, node: str | None = None) -> dict[str, str]:
    """By name; of a node those of its pod."""
    found = settings.on(node) if node is not None else settings
    return {setting.name: setting.value for setting in found.settings}


def equipped(profile: Profile, count: int = 2) -> tuple[list[Node], FabricSpec]:
    """Nodes that have all that a profile speaks of, and the Fabric by which an administrator chooses it."""
    kind = profile.machines[0].instance_types[0].replace("*", "x") if profile.machines else ""
    labels = {label: value.replace("*", "true") for label, value in profile.match.labels.items()}
    offers = dict.fromkeys((*profile.match.advertised, *profile.resources), 64)
    return some_nodes(count, kind, labels=labels, offers=offers), a_fabric(profile=profile.name)


def annotated(node: Node, **annotations: str) -> Node:
    return replace(node, annotations=annotations)


ALL_PROFILES = tuple(profiles().values())
