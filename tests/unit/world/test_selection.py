"""Which nodes would take a member, room aside."""

from dataclasses import replace

import pytest
from support.clusters import a_node
from trainyard.world.records import Degraded, Taint
from trainyard.world.selection import admits, why_not

GPU_TAINT = Taint("nvidia.com/gpu", "present", "NoSchedule")


def affinity(*terms):
    return {
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
        }
    }


def expression(operator, *values, key="zone"):
    return {"matchExpressions": [{"key": key, "operator": operator, **({"values": list(values)} if values else {})}]}


def field(operator, *values):
    return {"matchFields": [{"key": "metadata.name", "operator": operator, "values": list(values)}]}


def test_a_plain_pod_goes_anywhere():
    assert admits(a_node("x"), {})


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (a_node("x", ready=False), "not ready"),
        (replace(a_node("x"), degraded=Degraded(1.0)), "condition TrainyardNetworkDegraded"),
        (a_node("x", cordoned=True), "cordoned"),
        (a_node("bad"), "in placement.avoidNodes"),
        (a_node("x", taints=[GPU_TAINT]), "taint nvidia.com/gpu not tolerated"),
    ],
)
def test_what_keeps_a_pod_off_a_node_is_said(node, reason):
    assert why_not(node, {}, avoid=["bad"]) == reason


def test_a_cordon_holds_even_for_a_pod_that_tolerates_everything():
    everything = {"tolerations": [{"operator": "Exists"}]}
    cordon = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
    assert not admits(a_node("x", cordoned=True, taints=[cordon]), everything)
    assert not admits(a_node("x", ready=False), everything)


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"key": "nvidia.com/gpu", "operator": "Exists"}, True),
        ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "nvidia.com/gpu", "operator": "Equal", "value": "present"}, True),
        ({"key": "nvidia.com/gpu", "value": "present"}, True),
        ({"key": "nvidia.com/gpu", "value": "absent"}, False),
        ({"key": "nvidia.com/gpu"}, False),
        ({"operator": "Exists"}, True),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "nvidia.com/gpu", "operator": "Perhaps"}, False),
    ],
)
def test_tolerations(toleration, tolerated):
    assert admits(a_node("x", taints=[GPU_TAINT]), {"tolerations": [toleration]}) is tolerated


@pytest.mark.parametrize(
    ("effect", "kept_off"), [("NoSchedule", True), ("NoExecute", True), ("PreferNoSchedule", False)]
)
def test_a_taint_that_only_prefers_keeps_nobody_off(effect, kept_off):
    assert admits(a_node("x", taints=[Taint("k", "", effect)]), {}) is not kept_off


def test_every_taint_must_be_tolerated():
    node = a_node("x", taints=[GPU_TAINT, Taint("reserved", "", "NoExecute")])
    assert (
        why_not(node, {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]})
        == "taint reserved not tolerated"
    )


@pytest.mark.parametrize(
    ("selector", "taken"),
    [({"zone": "a"}, True), ({"zone": "b"}, False), ({"zone": "a", "rack": "1"}, False), ({}, True)],
)
def test_node_selector(selector, taken):
    assert admits(a_node("x", labels={"zone": "a"}), {"nodeSelector": selector}) is taken


@pytest.mark.parametrize(
    ("terms", "taken"),
    [
        ([expression("In", "a", "b")], True),
        ([expression("In", "b")], False),
        ([expression("In", "a", key="absent")], False),
        ([expression("NotIn", "a")], False),
        ([expression("NotIn", "b")], True),
        ([expression("NotIn", "b", key="absent")], True),
        ([expression("Exists")], True),
        ([expression("Exists", key="absent")], False),
        ([expression("DoesNotExist")], False),
        ([expression("DoesNotExist", key="absent")], True),
        ([expression("Gt", "7", key="cores")], True),
        ([expression("Gt", "8", key="cores")], False),
        ([expression("Lt", "9", key="cores")], True),
        ([expression("Lt", "8", key="cores")], False),
        ([expression("Gt", "7")], False),
        ([expression("Gt", "7", key="absent")], False),
        ([expression("Perhaps", "a")], False),
        ([field("In", "x")], True),
        ([field("In", "y")], False),
        ([field("NotIn", "y")], True),
        ([{"matchFields": [{"key": "spec.name", "operator": "NotIn", "values": ["x"]}]}], False),
        # Terms are alternatives; what a term says holds together.
        ([expression("In", "b"), field("In", "x")], True),
        ([{**expression("In", "a"), **field("In", "y")}], False),
        ([{**expression("In", "a"), **field("In", "x")}], True),
        # A term that says nothing matches nothing.
        ([{}], False),
        ([{}, expression("Exists")], True),
    ],
)
def test_required_node_affinity(terms, taken):
    assert admits(a_node("x", labels={"zone": "a", "cores": "8"}), affinity(*terms)) is taken


def test_preferred_affinity_keeps_nobody_off():
    wish = {"weight": 1, "preference": expression("In", "b")}
    pod = {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}}}
    assert admits(a_node("x", labels={"zone": "a"}), pod)


def test_a_pod_that_names_its_node_goes_nowhere_else():
    assert admits(a_node("x"), {"nodeName": "x"})
    assert why_not(a_node("y"), {"nodeName": "x"}) == "not the nodeName x"


@pytest.mark.parametrize("change", [{}, {"ready": False}, {"unschedulable": True}, {"degraded": Degraded(1.0)}])
def test_a_node_is_open_where_nothing_of_its_own_keeps_members_off(change):
    node = replace(a_node("x"), **change)
    assert node.is_open == (not change) == admits(node, {})
