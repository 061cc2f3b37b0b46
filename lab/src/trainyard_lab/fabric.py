"""The emulated network: nodes on leaves, leaves on spines, spines on one core, every link with its rate.

                 core ---- host (API server, DNS)
               /      \\
         spine-a      spine-b          spine link   200 Mbit/s
         /     \\      /     \\
        a1     a2    b1     b2         leaf link    400 Mbit/s
       /  \\   /  \\  /  \\   /  \\
      node-0 ...          node-7       node link   2000 Mbit/s

It is a tree, so no broadcast can circle and no spanning tree protocol is needed. Every switch is a bridge
inside one network namespace of its own, every node is a namespace: deleting the namespaces removes all of
it, and the host keeps its own firewall and bridge settings (in the host's namespace, bridged frames would
pass its iptables a second time). The host has one link, to the core.

A link is a veth pair, and each of its two ends limits what it sends, so a rate is per direction. A bucket of
4 ms of the rate, a queue of 50 ms: numbers that gave the ring model's ratios for gloo all-reduce (a smaller
bucket starves TCP's segmentation offload, a longer queue only adds delay).

What the host says to nodes and they to it (API server, DNS, logs) goes through the same links in a class of
its own that is served first and not limited, as a cluster's management network stands beside its training
network: a saturated uplink does not make a kubelet miss its heartbeat. Between pods there is no such way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

from trainyard_lab import shell

LONGEST_LINK_NAME = 15
"""IFNAMSIZ less its zero byte."""

NAMESPACE_FOLDER = Path("/run/netns")
MBIT = 1_000_000
BURST_SECONDS = 0.004
QUEUE_SECONDS = 0.050
UNLIMITED_BITS_PER_SECOND = 100_000 * MBIT


@dataclass(frozen=True, slots=True)
class Node:
    """A node's place and addresses. `leaf` is a name within its spine's tree, e.g. a2 of spine-a."""

    name: str
    spine: str
    leaf: str
    address: str
    pod_network: str
    namespace: str


@dataclass(frozen=True, slots=True)
class Link:
    """A veth pair between two ports; a port is (namespace, link name, bridge it belongs to or None)."""

    below: tuple[str, str, str | None]
    above: tuple[str, str, str | None]
    bits_per_second: int


@dataclass(frozen=True, slots=True)
class Topology:
    """A tree of spines, leaves and nodes, in bits per second per direction.

    prefix: begins every namespace and host link of this network, so that they are found again by name.
    network: the nodes' own /24 on the fabric; pods: a /16 of which each node gets a /24.
    """

    spines: int = 2
    leaves_per_spine: int = 2
    nodes_per_leaf: int = 2
    node_bits_per_second: int = 2000 * MBIT
    leaf_bits_per_second: int = 400 * MBIT
    spine_bits_per_second: int = 200 * MBIT
    prefix: str = "trainyard"
    network: str = "10.99.0.0/24"
    pods: str = "10.244.0.0/16"

    def __post_init__(self) -> None:
        if len(self.host_link) > LONGEST_LINK_NAME:
            raise ValueError(
                f"prefix: {self.prefix!r} makes the link name {self.host_link!r}, longer than the kernel's "
                f"{LONGEST_LINK_NAME} characters; use at most {LONGEST_LINK_NAME - len('-host')}"
            )
        if not 1 <= self.spines <= 26:
            raise ValueError(f"spines: {self.spines} is not between 1 and 26 (they are named by a letter)")
        if len(self.nodes) > 200:
            raise ValueError(f"{len(self.nodes)} nodes do not fit into {self.network}; use at most 200")

    @property
    def switches(self) -> str:
        """The namespace that holds every bridge."""
        return f"{self.prefix}-switches"

    @property
    def host_link(self) -> str:
        return f"{self.prefix}-host"

    @property
    def host_address(self) -> str:
        return str(IPv4Network(self.network)[1])

    @property
    def nodes(self) -> tuple[Node, ...]:
        """In topology order: neighbours in this order share the smallest domain."""
        addresses, subnets = IPv4Network(self.network), list(IPv4Network(self.pods).subnets(new_prefix=24))
        places = [
            (spine, f"{spine}{leaf + 1}")
            for spine in "abcdefghijklmnopqrstuvwxyz"[: self.spines]
            for leaf in range(self.leaves_per_spine)
            for _ in range(self.nodes_per_leaf)
        ]
        return tuple(
            Node(
                name=f"node-{index}",
                spine=f"spine-{spine}",
                leaf=f"leaf-{leaf}",
                address=str(addresses[10 + index]),
                pod_network=str(subnets[index]),
                namespace=f"{self.prefix}-node-{index}",
            )
            for index, (spine, leaf) in enumerate(places)
        )

    @property
    def bridges(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(["core", *(n.spine for n in self.nodes), *(n.leaf for n in self.nodes)]))

    @property
    def links(self) -> tuple[Link, ...]:
        """Every limited link, from the core down."""
        up = self.switches
        spines = dict.fromkeys(node.spine for node in self.nodes)
        leaves = {node.leaf: node.spine for node in self.nodes}
        return (
            *(
                Link((up, f"{spine}-up", spine), (up, f"core-{spine}", "core"), self.spine_bits_per_second)
                for spine in spines
            ),
            *(
                Link(
                    (up, f"{leaf}-up", leaf),
                    (up, f"{spine}-{leaf.removeprefix('leaf-')}", spine),
                    self.leaf_bits_per_second,
                )
                for leaf, spine in leaves.items()
            ),
            *(
                Link((node.namespace, "eth0", None), (up, node.name, node.leaf), self.node_bits_per_second)
                for node in self.nodes
            ),
        )

    @property
    def namespaces(self) -> tuple[str, ...]:
        return (self.switches, *(node.namespace for node in self.nodes))

    def node(self, name: str) -> Node:
        """The node of that name; KeyError with the names there are."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(f"no node {name!r}; there are {', '.join(node.name for node in self.nodes)}")


def limit(link: str, bits_per_second: int, host_address: str) -> Iterator[str]:
    """The tc commands (without `tc`) that limit what a link sends, all but what the host sends or is sent."""
    yield f"qdisc add dev {link} root handle 1: htb default 2"
    yield f"class add dev {link} parent 1: classid 1:1 htb rate {UNLIMITED_BITS_PER_SECOND} quantum 60000 prio 0"
    yield from _rate("add", link, bits_per_second)
    for side in ("src", "dst"):
        yield f"filter add dev {link} parent 1: protocol ip prio 1 u32 match ip {side} {host_address}/32 flowid 1:1"


def _rate(verb: str, link: str, bits_per_second: int) -> Iterator[str]:
    """verb: add or change."""
    burst_bytes = int(bits_per_second * BURST_SECONDS / 8)
    queue_bytes = int(bits_per_second * QUEUE_SECONDS / 8)
    yield (
        f"class {verb} dev {link} parent 1: classid 1:2 htb rate {bits_per_second} "
        f"burst {burst_bytes} cburst {burst_bytes} quantum 60000 prio 1"
    )
    yield f"qdisc {verb} dev {link} parent 1:2 handle 2: bfifo limit {queue_bytes}"


def network_up(topology: Topology) -> None:
    """Bring the whole network to its wanted state; what is already there stays."""
    there = set(namespaces())
    for namespace in topology.namespaces:
        if namespace not in there:
            _ip(None, f"netns add {namespace}")
        # IPv6 would only add neighbour discovery to every bridge; frames between bridge ports are not the
        # switches' packets, so their firewall does not see them. -e: a kernel without one of them needs no telling.
        bridged = ["net.bridge.bridge-nf-call-iptables=0"] if namespace == topology.switches else []
        shell.run(
            "ip", "netns", "exec", namespace, "sysctl", "-e", "-q", "-w",
            "net.ipv4.ip_forward=1", "net.ipv6.conf.all.disable_ipv6=1", *bridged,
        )  # fmt: skip
        _ip(namespace, "link set lo up")
    present = _links(topology.switches)
    for bridge in topology.bridges:
        if bridge not in present:
            _ip(topology.switches, f"link add {bridge} type bridge", f"link set {bridge} up")
    _host_link_up(topology)
    for link in topology.links:
        _link_up(topology, link)
    for node in topology.nodes:
        _routes_up(topology, node)


def _host_link_up(topology: Topology) -> None:
    link, bits = topology.host_link, IPv4Network(topology.network).prefixlen
    if link not in _links(None):
        _ip(topology.switches, f"link add core-host type veth peer name {link} netns 1")
    _ip(topology.switches, "link set core-host master core up")
    _ip(None, f"link set {link} up", f"address replace {topology.host_address}/{bits} dev {link}")
    _ip(None, *(f"route replace {node.pod_network} via {node.address} dev {link}" for node in topology.nodes))


def _link_up(topology: Topology, link: Link) -> None:
    (low_space, low, _), (high_space, high, _) = link.below, link.above
    if low not in _links(low_space):
        _ip(low_space, f"link add {low} type veth peer name {high} netns {high_space}")
    for namespace, name, bridge in (link.below, link.above):
        _ip(namespace, f"link set {name} {f'master {bridge} ' if bridge else ''}up")
        if "htb" not in shell.run("tc", "-n", namespace, "qdisc", "show", "dev", name):
            commands = "\n".join(limit(name, link.bits_per_second, topology.host_address))
            shell.run("tc", "-n", namespace, "-batch", "-", stdin=commands)


def _routes_up(topology: Topology, node: Node) -> None:
    bits = IPv4Network(topology.network).prefixlen
    _ip(
        node.namespace,
        f"address replace {node.address}/{bits} dev eth0",
        f"route replace default via {topology.host_address} dev eth0",
        *(
            f"route replace {other.pod_network} via {other.address} dev eth0"
            for other in topology.nodes
            if other != node
        ),
    )


def network_down(topology: Topology) -> None:
    """Remove every namespace and host link that carries the prefix, whatever `up` got to."""
    for namespace in namespaces():
        if namespace.startswith(f"{topology.prefix}-"):
            _ip(None, f"netns delete {namespace}")
    # The kernel takes a deleted namespace apart a moment later, and the host's end of the pair with it.
    if topology.host_link in _links(None):
        try:
            _ip(None, f"link delete {topology.host_link}")
        except shell.CommandFailed as gone:
            if "Cannot find device" not in gone.stderr:
                raise
    # `ip netns add` mounts this folder onto itself, once, so that it can be shared.
    if NAMESPACE_FOLDER.is_mount() and not any(NAMESPACE_FOLDER.iterdir()):
        shell.run("umount", str(NAMESPACE_FOLDER))


def cut(topology: Topology, node: str) -> None:
    """Take a node off the network for good, as a pulled cable does: processes live on and reach nobody."""
    _ip(topology.switches, f"link set {topology.node(node).name} down")


def restore(topology: Topology, node: str) -> None:
    """Plug a cut node in again."""
    _ip(topology.switches, f"link set {topology.node(node).name} up")


def reshape(topology: Topology, node: str, bits_per_second: int) -> None:
    """Give a node's link another rate, in both directions, as a bad cable does; with the topology's own it is as before."""
    (below, above) = next((link.below, link.above) for link in topology.links if link.above[1] == node)
    for namespace, name, _ in (below, above):
        shell.run("tc", "-n", namespace, "-batch", "-", stdin="\n".join(_rate("change", name, bits_per_second)))


def namespaces() -> tuple[str, ...]:
    """The names of the machine's network namespaces."""
    return tuple(line.split()[0] for line in shell.run("ip", "netns", "list").splitlines())


def _links(namespace: str | None) -> frozenset[str]:
    where = ("-n", namespace) if namespace else ()
    lines = shell.run("ip", *where, "-o", "link", "show").splitlines()
    return frozenset(line.split(":")[1].strip().partition("@")[0] for line in lines)


def _ip(namespace: str | None, *commands: str) -> None:
    where = ("-n", namespace) if namespace else ()
    for command in commands:
        shell.run("ip", *where, *command.split())
