"""What the planner believes of nodes and pods is what the real kube-scheduler does with them."""

from __future__ import annotations

import asyncio
from typing import Any

from support.api import Api, Object
from support.nodes import Nodes, a_node
from trainyard.render.pod import pinned
from trainyard.world.records import Node, Taint
from trainyard.world.resources import pod_requests
from trainyard.world.selection import admits

TAINT = {"key": "team", "value": "nlp", "effect": "NoSchedule"}


def affinity(*terms: Object) -> Object:
    return {
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
        }
    }


def expression(operator: str, *values: str, key: str = "zone") -> Object:
    return {"matchExpressions": [{"key": key, "operator": operator, **({"values": list(values)} if values else {})}]}


def field(operator: str, name: str) -> Object:
    return {"matchFields": [{"key": "metadata.name", "operator": operator, "values": [name]}]}


def tolerating(**toleration: str) -> Object:
    return {"tolerations": [toleration]}


DEMANDS: list[Object] = [
    {},
    {"nodeSelector": {"zone": "a"}},
    {"nodeSelector": {"zone": "b"}},
    affinity(expression("In", "a", "b")),
    affinity(expression("NotIn", "a")),
    affinity(expression("NotIn", "a", key="absent")),
    affinity(expression("Exists", key="absent")),
    affinity(expression("DoesNotExist", key="absent")),
    affinity(expression("Gt", "7", key="cores")),
    affinity(expression("Lt", "8", key="cores")),
    affinity(expression("In", "b"), field("NotIn", "elsewhere")),
    affinity({**expression("In", "a"), **field("NotIn", "elsewhere")}),
    affinity({**expression("In", "b"), **field("NotIn", "elsewhere")}),
    affinity({}, expression("Exists")),
    affinity({}),
    tolerating(key="team", operator="Exists"),
    tolerating(key="team", value="nlp", effect="NoSchedule"),
    tolerating(key="team", value="vision"),
    tolerating(key="team", operator="Exists", effect="NoExecute"),
    tolerating(operator="Exists"),
]


def container(cpu: str, **also: Any) -> Object:
    return {"name": f"c{cpu}", "image": "pretended", "resources": {"requests": {"cpu": cpu}}, **also}


def sidecar(cpu: str) -> Object:
    return {**container(cpu), "name": f"s{cpu}", "restartPolicy": "Always"}


PODS: list[Object] = [
    {"containers": [container("1"), container("2")]},
    {"containers": [container("1")], "initContainers": [container("5"), container("4")]},
    {"containers": [container("3")], "initContainers": [sidecar("2")]},
    {"containers": [container("1")], "initContainers": [sidecar("2"), container("4")]},
    {"containers": [container("1")], "initContainers": [container("4"), sidecar("2")]},
    {"containers": [container("1")], "initContainers": [sidecar("2"), sidecar("3"), container("4")]},
    {"containers": [container("1")], "resources": {"requests": {"cpu": "4"}}},
    {"containers": [{"name": "limited", "image": "pretended", "resources": {"limits": {"cpu": "1500m"}}}]},
]


async def is_bound(api: Api, namespace: str, name: str, node: str, spec: Object) -> bool:
    """Whether the scheduler binds such a pod to the node; it is given no other."""
    defaults = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "pretended"}]}
    here = {"affinity": pinned(spec.get("affinity"), node)}
    await api.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {**defaults, **spec, **here},
        }
    )
    decided = await api.wait_for("Pod", name, namespace, lambda pod: decision(pod) is not None)
    return decision(decided) == "True"


def decision(pod: Object) -> str | None:
    conditions = pod["status"].get("conditions", [])
    return next((c["status"] for c in conditions if c["type"] == "PodScheduled"), None)


async def test_which_nodes_a_pod_may_have(api: Api, namespace: str, nodes: Nodes):
    labels = {"zone": "a", "cores": "8"}
    plain, tainted = await nodes.add(a_node("plain", labels=labels), a_node("tainted", labels=labels, taints=[TAINT]))
    asked = [(node, demand) for demand in DEMANDS for node in (plain, tainted)]
    bound = await asyncio.gather(
        *(is_bound(api, namespace, f"p{n}", node, demand) for n, (node, demand) in enumerate(asked))
    )
    known = {
        plain: Node(plain, plain, labels, {}),
        tainted: Node(tainted, tainted, labels, {}, taints=(Taint(**TAINT),)),
    }
    assert [admits(known[node], demand) for node, demand in asked] == bound
    assert set(bound) == {True, False}


async def test_how_much_a_pod_takes(api: Api, namespace: str, nodes: Nodes):
    """On a node of just its size it is bound, on one that is a thousandth of a core smaller it is not."""
    needed = [pod_requests(pod)["cpu"] for pod in PODS]
    sizes = [(n, size) for n, cpu in enumerate(needed) for size in (cpu, cpu - 1)]
    names = await nodes.add(
        *(a_node(f"n{n}-{size}", accelerators=0, resources={"cpu": f"{size}m"}) for n, size in sizes)
    )
    bound = await asyncio.gather(
        *(is_bound(api, namespace, f"p{n}-{size}", node, PODS[n]) for (n, size), node in zip(sizes, names, strict=True))
    )
    assert bound == [size == needed[n] for n, size in sizes]
