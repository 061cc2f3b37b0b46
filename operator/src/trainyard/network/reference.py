"""docs/reference/networks.md: every built-in network, how it is known and what its pods get, made from the profiles themselves.

python -m trainyard.network.reference > docs/reference/networks.md
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from trainyard.api.fabric import FabricSpec
from trainyard.api.names import LABEL_INSTANCE_TYPE
from trainyard.api.training_job import TrainingJobSpec
from trainyard.network.choice import Network
from trainyard.network.derive import derive
from trainyard.network.meanings import meaning
from trainyard.network.profiles import profiles
from trainyard.network.profiles.model import Machine, Profile
from trainyard.network.settings import Settings
from trainyard.world.records import Node

_INTRODUCTION: Final = """\
<!-- Generated from trainyard/network/profiles by `python -m trainyard.network.reference`; change them, not this page. -->
# Reference: built-in networks

For those who run a cluster. One section for each network that Trainyard knows: by what its nodes are recognised, and what the
pods of a gang of two whole nodes get, with the reason of each setting. [network.md](../network.md) says how one is chosen,
how a Fabric replaces any of it, and what a job may say itself.

Besides what a section lists, every pod with accelerators gets `NCCL_DEBUG=WARN` and torch's flight recorder, and every pod whose
interface is known `GLOO_SOCKET_IFNAME`.
"""
_EVERYWHERE: Final = ("NCCL_DEBUG", "TORCH_", "GLOO_")
_MANY: Final = 64


def page() -> str:
    """The whole page in Markdown."""
    return "\n".join([_INTRODUCTION, *(line for profile in profiles().values() for line in _section(profile))])


def _section(profile: Profile) -> Iterator[str]:
    yield from (f"## {profile.name}", "", f"{profile.title}. {_known_by(profile)}", "")
    if profile.about:
        yield from (profile.about, "")
    settings = _settings(profile)
    shown = [setting for setting in settings.settings if not setting.name.startswith(_EVERYWHERE)]
    yield from ("| variable | value | why |", "|---|---|---|")
    yield from (f"| `{setting.name}` | `{setting.value}` | {_cell(setting.reason)} |" for setting in shown)
    yield ""
    yield from (f"* {line}" for line in (*_machines(profile), *_pods(profile, settings)))
    yield from (f"* From: {'; '.join(profile.sources)}.", "")


def _known_by(profile: Profile) -> str:
    if profile.like is not None:
        return f"Chosen by name alone, where nodes would be recognised as `{profile.like}`."
    match = profile.match
    marks = [
        *([f"the instance types {_list(match.instance_types)}"] if match.instance_types else []),
        *([f"the label {_list(match.labels)}"] if match.labels else []),
        *([f"the device {_list(match.advertised)}"] if match.advertised else []),
    ]
    return f"Recognised by {', or by '.join(marks)}." if marks else "Recognised by nothing, so chosen by name."


def _list(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _machines(profile: Profile) -> Iterator[str]:
    for machine in profile.machines:
        extra = ", ".join(f"`{name}={value}`{_does(name, value)}" for name, value in machine.env.items())
        kinds = _list(machine.instance_types)
        names = f"; adapters {machine.devices[0]} to {machine.devices[-1]}, by name" if machine.devices else ""
        yield f"{kinds}: {machine.nics} x {machine.nic_gbps} Gb/s{names}{f'; besides {extra}' if extra else ''}."


def _does(name: str, value: str) -> str:
    does = meaning(name, value)
    return f" ({does})" if does is not None else ""


def _pods(profile: Profile, settings: Settings) -> Iterator[str]:
    added, host = settings.additions, profile.host
    if added.resources:
        asked = ", ".join(f"`{name}: {amount}`" for name, amount in added.resources.items())
        yield f"The container asks for {asked}, unless it asks for another device of the network already."
    if added.capabilities:
        yield f"It has the capabilities {_list(added.capabilities)}."
    if added.annotations:
        yield f"The pod has the annotations {_list(added.annotations)}."
    if profile.nvlink_domains or any(machine.nvlink_domains for machine in profile.machines):
        yield (
            "NVLink goes beyond the node: where NVIDIA's DRA driver has channels to give, each pod claims one of the job's "
            "`ComputeDomain`, and `NCCL_MNNVL_ENABLE` is 1 for a gang of one clique."
        )
    if profile.env_scripts:
        yield f"`{', '.join(profile.env_scripts)}` is not to be sourced: it would undo what a pod says otherwise."
    rights = [
        *(["the host's network"] if host.host_network else []),
        *(["privileged"] if host.privileged else []),
        *(f"`{volume['hostPath']['path']}` of the host" for volume in host.volumes),
        *(f"the sidecar `{container['name']}`" for container in host.init_containers),
    ]
    if rights:
        yield f"Only where a Fabric says `profile: {profile.name}`: {', '.join(rights)}."


def _settings(profile: Profile) -> Settings:
    """Of a gang of two whole nodes that have all that the profile speaks of, granted."""
    machine = profile.machines[0] if profile.machines else None
    nodes = [_node(profile, machine, f"node-{n}") for n in range(2)]
    limits = {"nvidia.com/gpu": machine.accelerators if machine is not None else 8, "memory": "1Ti"}
    container = {"name": "trainer", "image": "trainyard/trainer", "resources": {"limits": limits}}
    spec = TrainingJobSpec(nodes=2, template={"spec": {"containers": [container]}})
    return derive(Network(FabricSpec(profile=profile.name), "", profile, "", granted=True), spec, nodes)


def _node(profile: Profile, machine: Machine | None, name: str) -> Node:
    labels = {LABEL_INSTANCE_TYPE: machine.instance_types[0].replace("*", "x")} if machine is not None else {}
    offers = dict.fromkeys((*profile.resources, *profile.fixed_resources), _MANY)
    return Node(name=name, uid=name, labels=labels, allocatable=offers)


if __name__ == "__main__":
    print(page(), end="")
