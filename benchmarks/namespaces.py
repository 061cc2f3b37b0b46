"""The lab's emulated fabric without its cluster: a process in each node's network namespace, forked from this one.

Links are shaped as the lab shapes them; the fabric has names and addresses of its own, so that a lab that is up is no
hindrance.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from trainyard_lab.fabric import MBIT, NAMESPACE_FOLDER, Topology, network_down, network_up

from benchmarks.fabric import CannotRun
from benchmarks.gangs import Ended, start

CLONE_NEWNET: Final = 0x40000000  # linux/sched.h
WITHIN_SECONDS: Final = 1500.0


@contextmanager
def fabric(node: int = 2000, leaf: int = 400, spine: int = 200) -> Iterator[Topology]:
    """2 spines, 4 leaves and 8 nodes; rates of the links in Mbit/s. CannotRun where this machine lets nobody make namespaces."""
    if os.geteuid() != 0:
        raise CannotRun("network namespaces need root")
    topology = Topology(
        node_bits_per_second=node * MBIT,
        leaf_bits_per_second=leaf * MBIT,
        spine_bits_per_second=spine * MBIT,
        prefix="bench",
        network="10.98.0.0/24",
        pods="10.243.0.0/16",
    )
    network_down(topology)
    network_up(topology)
    try:
        yield topology
    finally:
        network_down(topology)


def run(work: Callable[[int], Any], topology: Topology, home: Path) -> list[Ended]:
    """work(n) on each node, which speaks to the others through its link; they meet at a store in this process, which is reached
    over the management network. Raises RuntimeError with what was said where one of them failed."""
    ranks = len(topology.nodes)

    def on_node(rank: int) -> Any:
        enter(topology.nodes[rank].namespace)
        return work(rank)

    there = {"MASTER_ADDR": topology.host_address, "GLOO_SOCKET_IFNAME": "eth0"}
    ended: list[Ended] = start(on_node, ranks, home, dict.fromkeys(range(ranks), there)).wait(WITHIN_SECONDS)
    if any(end.code for end in ended):
        raise RuntimeError("\n".join(end.output for end in ended if end.code))
    return ended


def enter(namespace: str) -> None:
    """Put this thread, the only one, into a network namespace."""
    with open(NAMESPACE_FOLDER / namespace, "rb") as there:
        if ctypes.CDLL(None, use_errno=True).setns(there.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {namespace}")


def sent_bytes() -> int:
    """What this namespace's eth0 has sent so far: frames with their headers."""
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == "eth0":
            return int(counters.split()[8])
    raise OSError("there is no eth0 in this namespace")
