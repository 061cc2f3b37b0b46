"""The settings of a job's pods on a network. The later wins: profile, what follows, Fabric, template, spec.network.env.

Few on purpose: what a library finds out by itself is left to it. Who a process is in the gang is nobody's to set here: that is
the plan's. Variables of NCCL and of adapters are for pods with accelerators whose collectives NCCL carries; over gloo the network
gives its interface and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from trainyard.api.names import ANNOTATION_HCAS, ANNOTATION_INTERFACE, LABEL_INSTANCE_TYPE, is_reserved_env
from trainyard.api.training_job import TrainingJobSpec
from trainyard.contract.plan import PROCESS_GROUP_TIMEOUT_SECONDS
from trainyard.network.adapters import adapters, all_accelerators, in_use, named
from trainyard.network.additions import Additions, additions
from trainyard.network.always import meeting, speaking
from trainyard.network.choice import Network, choose_network, likeliest
from trainyard.network.consistency import before_admission
from trainyard.network.container import Backend, Pod, pod_of
from trainyard.network.doubts import doubts, obstacle
from trainyard.network.meanings import meaning
from trainyard.network.nvlink import CHANNELS, beyond_the_node, claims_channel, nvlink
from trainyard.network.policy import judge, off
from trainyard.network.settings import Setting, Settings, Source
from trainyard.network.variables import GLOO, TORCH, VARIABLES
from trainyard.world.records import Fabric, Node


def settings_for(
    spec: TrainingJobSpec, nodes: Sequence[Node], fabrics: Mapping[str, Fabric], *, planned: bool = True
) -> Settings:
    """The settings of a job on these nodes. planned: they are the job's; otherwise any of them may become so.

    What is in the way of an attempt stands in `problem`: a network that does not exist, or members of NCCL's on several. The
    settings are those of the network that most of the nodes are on.
    """
    asked = spec.network.fabric
    settings = derive(likeliest(nodes, fabrics, asked), spec, nodes)
    clear = choose_network(nodes if planned else (), fabrics, asked)
    if isinstance(clear, Network):
        return settings
    pod = pod_of(spec)
    harmless = clear.mixed and not (pod.many and pod.backend is Backend.NCCL)
    return replace(
        settings, problem=settings.problem if harmless else clear.message, warnings=(clear.message, *settings.warnings)
    )


def derive(
    network: Network,
    spec: TrainingJobSpec,
    nodes: Sequence[Node] = (),
    process_group_timeout_seconds: float = PROCESS_GROUP_TIMEOUT_SECONDS,
) -> Settings:
    """The settings of a job's pods. nodes: those that it gets, as far as they are known; all that it may get before that."""
    pod = pod_of(spec)
    added = additions(network, pod, nodes)
    ours = _Ours(network, pod, added, nodes, process_group_timeout_seconds)
    kind_of = {node.name: _kind(node) for node in nodes}
    by_kind = {kind_of[node.name]: ours.on(node) for node in {kind_of[node.name]: node for node in nodes}.values()}
    by_kind = by_kind or {(): ours.on(None)}
    theirs = {*pod.named, *pod.wishes}
    replaced = {s.name: s for settings in by_kind.values() for s in settings if s.name in theirs}
    by_kind = {kind: tuple(s for s in of if s.name not in theirs) for kind, of in by_kind.items()}
    common, own = _shared(by_kind)
    jobs = tuple(
        Setting(name, value, Source.JOB, "set by spec.network.env")
        for name, value in pod.wishes.items()
        if not is_reserved_env(name)
    )
    return Settings(
        settings=(*common, *jobs),
        additions=added.pod,
        warnings=(
            *judge(network, pod, process_group_timeout_seconds, nodes, channel=ours.channel),
            *doubts(network, pod, added),
            *before_admission(network, pod, nodes),
            *added.warnings,
        ),
        by_node={name: own[kind] for name, kind in kind_of.items() if own[kind]},
        replaced=tuple(replaced.values()),
        host_network=added.host_network,
        privileged=added.privileged,
        channel=ours.channel,
        network=network.name,
        problem=obstacle(network, pod),
        over_sockets=off(network, pod),
    )


def _kind(node: Node) -> tuple[object, ...]:
    """What of a node its settings depend on."""
    labels, annotations = node.labels, node.annotations
    said = labels.get(LABEL_INSTANCE_TYPE, ""), annotations.get(ANNOTATION_HCAS), annotations.get(ANNOTATION_INTERFACE)
    return said if not node.adapters else (*said, node.adapters, all_accelerators(node))


class _Ours:
    """What Trainyard writes where the job does not say otherwise. What all machines of one kind have alike is found once."""

    def __init__(
        self, network: Network, pod: Pod, added: Additions, nodes: Sequence[Node], timeout_seconds: float
    ) -> None:
        self._network, self._pod, self._nodes, self._timeout_seconds = network, pod, nodes, timeout_seconds
        self._host_network = added.host_network
        self._profile = in_use(network, pod, added.usable)
        self.channel = claims_channel(network, self._profile, pod, nodes)
        self._writes_profile = pod.backend is Backend.NCCL and pod.many and added.usable
        said = () if network.fabric is None else network.fabric.env
        self._of_fabric = tuple(
            Setting(v.name, v.value, Source.FABRIC, "set by the Fabric object") for v in said if _meant(v.name, pod)
        )
        self._by_machine: dict[str, tuple[Setting, ...]] = {}

    def on(self, node: Node | None) -> tuple[Setting, ...]:
        """On a node, each name once; the later of two stands where it was said."""
        kind = node.labels.get(LABEL_INSTANCE_TYPE, "") if node is not None else ""
        if kind not in self._by_machine:
            self._by_machine[kind] = tuple(self._alike(node))
        network, pod, profile = self._network, self._pod, self._profile
        own = [*meeting(network, pod, node, self._host_network)]
        if profile is not None:
            own += named(network, profile, pod, node)
        found: dict[str, Setting] = {}
        for setting in (*own, *self._by_machine[kind], *self._of_fabric):  # a profile says none of the first
            found.pop(setting.name, None)
            found[setting.name] = setting
        return tuple(setting for setting in found.values() if not is_reserved_env(setting.name))

    def _alike(self, node: Node | None) -> Iterable[Setting]:
        if self._writes_profile:
            written = _of_profile(self._network, node.labels if node is not None else {})
            yield from (one for one in written if not (self.channel and one.name == CHANNELS))
        yield from speaking(self._network, self._pod)
        if self._profile is not None:
            yield from adapters(self._network, self._profile, self._pod, self._timeout_seconds)
            if beyond_the_node(self._profile, node):
                yield from nvlink(self._network, self._profile, self._pod, self._nodes, self.channel)


def _of_profile(network: Network, labels: Mapping[str, str]) -> Iterable[Setting]:
    profile = network.profile
    if profile is None:
        return
    for name, value in profile.env.items():
        yield Setting(name, value, Source.PROFILE, _why(name, value, f"the profile {profile.name}"))
    machine = profile.machine(labels)
    if machine is not None:
        kind = labels[LABEL_INSTANCE_TYPE]
        for name, value in machine.env.items():
            yield Setting(name, value, Source.PROFILE, _why(name, value, f"the profile {profile.name} for {kind}"))


def _why(name: str, value: str, whose: str) -> str:
    does = meaning(name, value)
    return f"{does} ({whose})" if does is not None else whose


def _meant(name: str, pod: Pod) -> bool:
    """Whether a Fabric's variable is for this pod: those of NCCL and of adapters are for nothing else."""
    if pod.backend is Backend.NCCL:
        return True
    known = VARIABLES.get(name)
    fast = known is not None and known.library not in (GLOO, TORCH)
    return not (fast or name.startswith(("NCCL_", "TORCH_NCCL_", "OFI_NCCL_", "FI_", "UCX_", "SHARP_")))


def _shared(
    by_kind: Mapping[tuple[object, ...], tuple[Setting, ...]],
) -> tuple[tuple[Setting, ...], Mapping[tuple[object, ...], tuple[Setting, ...]]]:
    """What all kinds of nodes have alike, and for each kind the rest. A name is in one of the two only."""
    kinds = list(by_kind)
    first = by_kind[kinds[0]]
    if len(kinds) == 1:
        return first, {kinds[0]: ()}
    values = [{s.name: s.value for s in by_kind[kind]} for kind in kinds]
    alike = {s.name for s in first if all(of.get(s.name) == s.value for of in values)}
    common = tuple(s for s in first if s.name in alike)
    return common, {kind: tuple(s for s in by_kind[kind] if s.name not in alike) for kind in kinds}
