"""The nodes that a job could have, apart by network: what is planned for a part is what its pods will ask for."""

from hypothesis import given
from hypothesis import strategies as st
from support.networks import a_fabric, a_spec, fabrics, some_nodes
from trainyard.api.names import LABEL_NETWORK
from trainyard.network.choice import Network, Unclear, choose_network
from trainyard.network.container import pod_of
from trainyard.network.derive import settings_for
from trainyard.network.parts import parts
from trainyard.world.resources import parse_quantity

EFA = "vpc.amazonaws.com/efa"
KINDS = ["p5.48xlarge", "p5en.48xlarge", "p4d.24xlarge", "a4-highgpu-8g", "BM.GPU.H100.8", ""]
HUGE = "hugepages-2Mi"


def found(there, known=None, asked="auto", **spec):
    answer = parts(pod_of(a_spec(**spec)), there, known or {}, asked)
    assert not isinstance(answer, Unclear), answer.message
    return answer


@st.composite
def a_cluster(draw):
    """Nodes of several kinds, some of which lack devices or huge pages."""
    nodes = []
    for n in range(draw(st.integers(1, 12))):
        offers = {EFA: draw(st.sampled_from([0, 4, 16, 32])), "rdma/ib": draw(st.sampled_from([0, 1, 8]))}
        offers[HUGE] = draw(st.sampled_from([0, 1 << 34]))
        nodes += some_nodes(1, draw(st.sampled_from(KINDS)), offers=offers, first=n)
    return nodes


@given(nodes=a_cluster(), data=st.data())
def test_no_gang_within_a_part_asks_for_more_than_was_planned(nodes, data):
    spec = a_spec(nodes=2, limits={"nvidia.com/gpu": 8, "memory": "1Ti"})
    answer = parts(pod_of(spec), nodes, {})
    assert not isinstance(answer, Unclear)
    part = data.draw(st.sampled_from(answer))
    names = data.draw(st.sets(st.sampled_from(part.nodes), min_size=1))
    gang = [node for node in nodes if node.name in names]
    settings = settings_for(spec, gang, {})
    assert settings.problem == ""
    planned = {name: amount for added in part.additions for name, amount in _counted(added.pod.resources)}
    assert all(amount <= planned.get(name, 0) for name, amount in _counted(settings.additions.resources))


def _counted(resources):
    return [(name, parse_quantity(amount, name)) for name, amount in resources.items()]


@given(nodes=a_cluster())
def test_every_node_is_in_one_part_and_all_of_a_part_are_on_one_network(nodes):
    answer = found(nodes)
    assert sorted(name for part in answer for name in part.nodes) == sorted(node.name for node in nodes)
    for part in answer:
        there = [node for node in nodes if node.name in part.nodes]
        assert isinstance(choose_network(there, {}), Network)


def test_the_part_with_most_nodes_comes_first():
    nodes = [*some_nodes(1, "p5.48xlarge"), *some_nodes(3, "a4-highgpu-8g", first=1)]
    assert [len(part.nodes) for part in found(nodes)] == [3, 1]


def test_pods_over_gloo_and_those_without_peers_may_be_anywhere():
    nodes = [*some_nodes(1, "p5.48xlarge"), *some_nodes(3, "a4-highgpu-8g", first=1)]
    assert len(found(nodes, limits={"cpu": 8})) == 1
    assert len(found(nodes, nodes=1)) == 1


def test_nodes_that_name_no_network_that_exists_are_in_no_part():
    nodes = [*some_nodes(2, "p5.48xlarge"), *some_nodes(1, labels={LABEL_NETWORK: "roec"}, first=2)]
    assert [part.nodes for part in found(nodes)] == [("n-0", "n-1")]
    alone = parts(pod_of(a_spec()), nodes[2:], {})
    assert isinstance(alone, Unclear)
    assert "names roec" in alone.message


def test_what_is_asked_for_must_exist():
    assert isinstance(parts(pod_of(a_spec()), some_nodes(2), {}, "roec"), Unclear)
    known = fabrics(site=a_fabric(kind="tcp"))
    assert [part.network for part in found(some_nodes(2), known, "site")] == ["site (tcp)"]
