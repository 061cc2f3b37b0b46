"""Room on the nodes: allocatable minus the requests of every live pod that is known, ours or not.

A pod of ours that is not bound yet counts at the node that its plan pins it to: it will take that room, so it is promised. One
that was bound elsewhere counts where it is. A foreign pod that is not bound counts nowhere, since nobody knows where it will go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from trainyard.world.records import Node, Pod, World


def free(world: World, without: Collection[str] = ()) -> dict[str, dict[str, int]]:
    """Room by node and resource, never below 0. without: uids of pods to leave out, as if they were gone."""
    left_out = frozenset(without)
    return room(world.nodes.values(), (pod for uid, pod in world.pods.items() if uid not in left_out))


def room(nodes: Iterable[Node], pods: Iterable[Pod]) -> dict[str, dict[str, int]]:
    """Room on these nodes beside these pods. A pod on a node that is not known takes nothing."""
    left = {node.name: dict(node.allocatable) for node in nodes}
    for pod in pods:
        at = left.get(place_of(pod))
        if at is None or not pod.live:
            continue
        for name, amount in pod.requests.items():
            if name in at:
                at[name] -= amount
    return {node: {name: max(0, amount) for name, amount in amounts.items()} for node, amounts in left.items()}


def place_of(pod: Pod) -> str:
    """The node on which a pod takes room: where it is bound, else where its plan pins it; "" where neither is known."""
    if pod.node:
        return pod.node
    return pod.membership.node if pod.membership is not None else ""
