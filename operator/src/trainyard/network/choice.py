"""Which network a gang is on: what the job says, else what its nodes say, one after the other, and all alike.

For each node, the first of these counts: its label trainyard.dev/network; the Fabric object that selects it; its instance type;
its other labels; what it offers. A Fabric says which built-in profile it is like, or its kind does, or its nodes are recognised
as if there were none; its fields then replace those of the profile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trainyard.api.fabric import FabricKind, FabricSpec
from trainyard.api.names import LABEL_INSTANCE_TYPE, LABEL_NETWORK
from trainyard.network.profiles import profiles
from trainyard.network.profiles.model import Profile, matches_any
from trainyard.topology.fabrics import choose
from trainyard.world.records import Fabric, Node

AUTO: Final = "auto"
_BY_KIND: Final = {FabricKind.TCP: "tcp", FabricKind.INFINIBAND: "infiniband", FabricKind.ROCE: "roce"}


@dataclass(frozen=True, slots=True)
class Network:
    """What is known of the network of a gang.

    fabric: what an administrator says of it, with the object's name; None where nobody does. profile: what is built in; None
    where nothing is recognised. reason: why this one. granted: an administrator named the profile, so that its pods may have
    what it needs on their nodes.
    """

    fabric: FabricSpec | None = None
    fabric_name: str = ""
    profile: Profile | None = None
    reason: str = "nothing is known of the nodes' network"
    granted: bool = False

    @property
    def name(self) -> str:
        """As the status says it: the Fabric, and the profile where it is another word."""
        profile = self.profile.name if self.profile is not None else ""
        if not self.fabric_name or not profile:
            return self.fabric_name or profile
        return f"{self.fabric_name} ({profile})"


@dataclass(frozen=True, slots=True)
class Unclear:
    """Why no network can be said. message: a sentence with what would help. mixed: the nodes are on several."""

    message: str
    mixed: bool = False


def described(spec: FabricSpec | None, name: str = "") -> Network | Unclear:
    """The network that a Fabric describes, without looking at any node."""
    if spec is None:
        return Network()
    return _on(_Found(spec, name, "", f"described by Fabric {name}".rstrip()))


def choose_network(nodes: Iterable[Node], fabrics: Mapping[str, Fabric], asked: str = AUTO) -> Network | Unclear:
    """The network that all of these nodes are on. asked: spec.network.fabric, a Fabric or a profile, or auto."""
    if asked != AUTO and asked not in fabrics and asked not in profiles():
        return Unclear(f"spec.network.fabric: {asked} is neither a Fabric nor built in; {_known(fabrics)}")
    counts, found = _counted(nodes, fabrics, asked)
    if len(counts) > 1:
        return Unclear(_disagreement(counts), mixed=True)
    return _on(next(iter(found.values())))


def likeliest(nodes: Iterable[Node], fabrics: Mapping[str, Fabric], asked: str = AUTO) -> Network:
    """The network that most of these nodes are on; nothing known where that makes no sense."""
    known = asked if asked in fabrics or asked in profiles() else AUTO
    counts, found = _counted(nodes, fabrics, known)
    for key in sorted(counts, key=lambda key: (-counts[key], key)):
        network = _on(found[key])
        if isinstance(network, Network):
            return network
    return Network()


def apart(nodes: Iterable[Node], fabrics: Mapping[str, Fabric], asked: str = AUTO) -> Mapping[str, tuple[str, ...]]:
    """Names of the nodes by what their network is called, the network with most nodes first: a gang fits within one of them."""
    known = asked if asked in fabrics or asked in profiles() else AUTO
    finder = _Finder(fabrics, known)
    found: dict[tuple[str, str], list[str]] = {}
    for node in nodes:
        found.setdefault(finder.of(node).key, []).append(node.name)
    ordered = sorted(found, key=lambda key: (-len(found[key]), key))
    return {_called(key): tuple(found[key]) for key in ordered}


def by_network(
    nodes: Iterable[Node], fabrics: Mapping[str, Fabric], asked: str = AUTO
) -> Sequence[tuple[Network | Unclear, Sequence[Node]]]:
    """The nodes of each network, the network with most nodes first; none where what is asked for does not exist."""
    if asked != AUTO and asked not in fabrics and asked not in profiles():
        return ()
    finder = _Finder(fabrics, asked)
    found: dict[tuple[str, str], tuple[_Found, list[Node]]] = {}
    for node in nodes:
        one = finder.of(node)
        found.setdefault(one.key, (one, []))[1].append(node)
    ordered = sorted(found, key=lambda key: (-len(found[key][1]), key))
    return [(_on(found[key][0]), found[key][1]) for key in ordered]


def _counted(
    nodes: Iterable[Node], fabrics: Mapping[str, Fabric], asked: str
) -> tuple[Counter[tuple[str, str]], Mapping[tuple[str, str], _Found]]:
    """How many nodes are on each network. A cluster without nodes has the one that it would have with any."""
    finder = _Finder(fabrics, asked)
    found: dict[tuple[str, str], _Found] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for node in nodes:
        one = finder.of(node)
        counts[one.key] += 1
        found.setdefault(one.key, one)
    if not counts:
        one = finder.of_none()
        return Counter({one.key: 1}), {one.key: one}
    return counts, found


def recognise(labels: Mapping[str, str], offers: Iterable[str]) -> tuple[str, str] | None:
    """The profile whose marks a node carries, and by which; None where it carries none."""
    offered = frozenset(offers)
    known = [profile for profile in profiles().values() if profile.like is None]
    kind = labels.get(LABEL_INSTANCE_TYPE, "")
    for profile in known:
        if kind and matches_any(kind, profile.match.instance_types):
            return profile.name, f"recognised by the instance type {kind}"
    for profile in known:
        of = profile.match.labels
        if of and all(name in labels and matches_any(labels[name], (value,)) for name, value in of.items()):
            return profile.name, f"recognised by the label {', '.join(sorted(of))}"
    for profile in known:
        if profile.match.advertised and offered.issuperset(profile.match.advertised):
            return profile.name, f"recognised by what the nodes offer, {', '.join(profile.match.advertised)}"
    return None


@dataclass(frozen=True, slots=True)
class _Found:
    """What is found of one node. unknown: a name that means nothing."""

    fabric: FabricSpec | None = None
    fabric_name: str = ""
    profile: str = ""
    reason: str = "nothing is known of the nodes' network"
    unknown: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.fabric_name, self.profile or self.unknown


class _Finder:
    """Looks at nodes, at those alike only once."""

    def __init__(self, fabrics: Mapping[str, Fabric], asked: str) -> None:
        self._fabrics, self._asked = fabrics, asked
        self._labels = frozenset(
            {LABEL_INSTANCE_TYPE, LABEL_NETWORK}
            | {label for profile in profiles().values() for label in profile.match.labels}
            | {label for fabric in fabrics.values() for label in fabric.spec.node_selector}
        )
        self._offers = frozenset(name for profile in profiles().values() for name in profile.match.advertised)
        self._seen: dict[tuple[object, ...], _Found] = {}

    def of(self, node: Node) -> _Found:
        labels = node.labels
        marks = tuple((label, labels[label]) for label in self._labels if label in labels)
        offers = tuple(name for name in self._offers if node.allocatable.get(name, 0) > 0)
        if (marks, offers) not in self._seen:
            self._seen[marks, offers] = self._look(node, offers)
        return self._seen[marks, offers]

    def of_none(self) -> _Found:
        """As a cluster without nodes has it."""
        return self._look(None, ())

    def _look(self, node: Node | None, offers: tuple[str, ...]) -> _Found:
        labels = node.labels if node is not None else {}
        said, reason = (self._asked, "the job says so in spec.network.fabric")
        if said == AUTO and LABEL_NETWORK in labels:
            said, reason = labels[LABEL_NETWORK], f"the nodes' label {LABEL_NETWORK} says so"
        fabric = self._fabrics.get(said) or choose([] if node is None else [node], self._fabrics.values())
        if said != AUTO and said not in self._fabrics:
            if said not in profiles():
                return _Found(None, "", "", "", unknown=said)
            if fabric is None:
                return _Found(None, "", said, reason)
            return _Found(fabric.spec, fabric.name, said, reason)
        recognised = recognise(labels, offers)
        name, why = recognised if recognised is not None else ("", "nothing is known of the nodes' network")
        if fabric is None:
            return _Found(None, "", name, why)
        if said == AUTO:
            reason = f"Fabric {fabric.name} selects the nodes"
        own = _named_by(fabric.spec)
        if own or not name:
            return _Found(fabric.spec, fabric.name, own, reason)
        return _Found(fabric.spec, fabric.name, name, f"{reason}; {why}")


def _named_by(spec: FabricSpec) -> str:
    """The profile that a Fabric names by itself; "" where that is left to its nodes."""
    return spec.profile or _BY_KIND.get(spec.kind, "")


def _on(found: _Found) -> Network | Unclear:
    if found.unknown:
        return Unclear(
            f"the nodes' label {LABEL_NETWORK} names {found.unknown}, which is neither a Fabric nor built in; {_known({})}"
        )
    name = found.profile or (_named_by(found.fabric) if found.fabric is not None else "")
    if name and name not in profiles():
        return Unclear(f"Fabric {found.fabric_name}, spec.profile: {name} is not built in; {_known({})}")
    granted = found.fabric is not None and bool(name) and found.fabric.profile == name
    return Network(found.fabric, found.fabric_name, profiles().get(name), found.reason, granted)


def _known(fabrics: Mapping[str, Fabric]) -> str:
    objects = f"Fabrics: {', '.join(sorted(fabrics))}; " if fabrics else ""
    return f"{objects}built in are {', '.join(profiles())}"


def _disagreement(counts: Counter[tuple[str, str]]) -> str:
    ordered = sorted(counts, key=lambda key: (-counts[key], key))
    parts = ", ".join(f"{counts[key]} on {_called(key)}" for key in ordered)
    return (
        f"the nodes are on different networks: {parts}; collectives over both would hang or be as slow as the slowest. "
        f"Narrow template.spec.nodeSelector, or label the nodes with {LABEL_NETWORK}"
    )


def _called(key: tuple[str, str]) -> str:
    fabric, profile = key
    if not fabric:
        return profile or "none that is known"
    return f"Fabric {fabric} ({profile})" if profile else f"Fabric {fabric}"
