"""Which network a gang is on: job, label, Fabric, instance type, what nodes offer; and never two at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.networks import ALL_PROFILES, a_fabric, equipped, fabrics, some_nodes
from trainyard.api.names import LABEL_NETWORK
from trainyard.network.choice import Network, Unclear, apart, choose_network, described, likeliest, recognise

P5 = "p5.48xlarge"


def chosen(nodes, known=None, asked="auto"):
    found = choose_network(nodes, known or {}, asked)
    assert isinstance(found, Network), found.message
    return found.profile.name if found.profile is not None else None


@pytest.mark.parametrize("profile", [p for p in ALL_PROFILES if p.like is None], ids=lambda profile: profile.name)
def test_nodes_are_recognised_by_what_their_profile_names(profile):
    nodes, _ = equipped(profile)
    marked = profile.match.instance_types or profile.match.labels or profile.match.advertised
    assert chosen(nodes) == (profile.name if marked else None)


@pytest.mark.parametrize("profile", ALL_PROFILES, ids=lambda profile: profile.name)
def test_a_profile_can_be_asked_for_by_job_label_and_fabric(profile):
    nodes = some_nodes(2, P5)
    assert chosen(nodes, asked=profile.name) == profile.name
    assert chosen(some_nodes(2, P5, labels={LABEL_NETWORK: profile.name})) == profile.name
    assert chosen(nodes, fabrics(site=a_fabric(profile=profile.name))) == profile.name


def test_each_way_wins_over_those_after_it():
    known = fabrics(site=a_fabric(profile="roce"), other=a_fabric(profile="infiniband", nodeSelector={"no": "node"}))
    labelled = some_nodes(2, P5, labels={LABEL_NETWORK: "azure-nd"}, offers={"rdma/ib": 1})
    assert chosen(labelled, known, "other") == "infiniband"
    assert chosen(labelled, known, "tcp") == "tcp"
    assert chosen(labelled, known) == "azure-nd"
    assert chosen(some_nodes(2, P5, offers={"rdma/ib": 1}), known) == "roce"
    assert chosen(some_nodes(2, P5, offers={"rdma/ib": 1})) == "aws-efa"
    assert chosen(some_nodes(2, offers={"rdma/ib": 1})) == "infiniband"
    assert chosen(some_nodes(2)) is None


def test_the_label_may_name_a_fabric_that_selects_other_nodes():
    known = fabrics(east=a_fabric(kind="infiniband", nodeSelector={"site": "east"}), west=a_fabric(kind="roce"))
    found = choose_network(some_nodes(2, labels={LABEL_NETWORK: "east"}), known)
    assert (found.fabric_name, found.profile.name, found.name) == ("east", "infiniband", "east (infiniband)")


@pytest.mark.parametrize(
    ("spec", "profile", "granted"),
    [
        ({"kind": "tcp"}, "tcp", False),
        ({"kind": "infiniband"}, "infiniband", False),
        ({"kind": "roce"}, "roce", False),
        ({"kind": "generic"}, "aws-efa", False),
        ({"profile": "aws-efa"}, "aws-efa", True),
        ({"kind": "tcp", "profile": "gcp-gib"}, "gcp-gib", True),
    ],
)
def test_a_fabric_names_its_profile_or_leaves_it_to_its_nodes(spec, profile, granted):
    found = choose_network(some_nodes(2, P5), fabrics(site=a_fabric(**spec)))
    assert (found.profile.name, found.granted, found.fabric_name) == (profile, granted, "site")


def test_a_job_that_asks_for_another_profile_has_none_of_the_rights_of_the_fabrics():
    found = choose_network(some_nodes(2), fabrics(site=a_fabric(profile="gcp-gib")), "oci-roce-host")
    assert (found.profile.name, found.granted) == ("oci-roce-host", False)


def test_nodes_of_two_networks_are_nobodys_gang():
    found = choose_network([*some_nodes(3, P5), *some_nodes(1, "a4-highgpu-8g", first=3)], {})
    assert isinstance(found, Unclear)
    assert "3 on aws-efa, 1 on gcp-gib" in found.message
    assert LABEL_NETWORK in found.message
    mixed = choose_network(
        [*some_nodes(1, labels={"on": "it"}), *some_nodes(1, first=1)],
        fabrics(site=a_fabric(nodeSelector={"on": "it"})),
    )
    assert (
        "1 on Fabric site, 1 on none that is known" in mixed.message
        or "1 on none that is known, 1 on Fabric site" in (mixed.message)
    )


@pytest.mark.parametrize(
    ("nodes", "known", "asked", "says"),
    [
        (some_nodes(1), {}, "roec", "spec.network.fabric: roec is neither"),
        (some_nodes(1), fabrics(site=a_fabric()), "sight", "Fabrics: site; built in are"),
        (some_nodes(1, labels={LABEL_NETWORK: "ib"}), {}, "auto", "names ib, which is neither"),
        (
            some_nodes(1),
            fabrics(site=a_fabric(profile="gib")),
            "auto",
            "Fabric site, spec.profile: gib is not built in",
        ),
    ],
)
def test_a_name_that_means_nothing_is_said_with_those_that_do(nodes, known, asked, says):
    found = choose_network(nodes, known, asked)
    assert isinstance(found, Unclear)
    assert says in found.message
    assert "coreweave-ib" in found.message


def test_without_nodes_the_network_is_the_one_that_any_would_be_on():
    assert choose_network([], fabrics(site=a_fabric(kind="tcp"))).name == "site (tcp)"
    assert choose_network([], {}).profile is None


def test_a_description_alone_is_enough_where_it_says_what_it_is_like():
    assert described(None).profile is None
    assert described(a_fabric(kind="roce"), "site").name == "site (roce)"
    assert described(a_fabric(interface="eth1"), "site").profile is None


def test_the_reason_says_by_what_a_network_was_known():
    assert "instance type p5.48xlarge" in choose_network(some_nodes(1, P5), {}).reason
    assert "Fabric site selects the nodes" in choose_network(some_nodes(1), fabrics(site=a_fabric(kind="tcp"))).reason


KINDS = ["", P5, "a4-highgpu-8g", "BM.GPU.H100.8", "Standard_ND96isr_H100_v5"]
drawn = st.lists(
    st.tuples(st.sampled_from(KINDS), st.sampled_from([{}, {"rdma/ib": 1}, {"vpc.amazonaws.com/efa": 4}])), max_size=6
)


@given(drawn, st.randoms(use_true_random=False))
def test_the_order_of_the_nodes_does_not_matter_and_most_of_them_decide(kinds, random):
    nodes = [node for n, (kind, offers) in enumerate(kinds) for node in some_nodes(1, kind, offers=offers, first=n)]
    shuffled = random.sample(nodes, len(nodes))
    known = fabrics(site=a_fabric(nodeSelector={"node.kubernetes.io/instance-type": P5}))
    assert choose_network(nodes, known) == choose_network(shuffled, known)
    likely = likeliest(nodes, known)
    assert likely == likeliest(shuffled, known)
    clear = choose_network(nodes, known)
    if isinstance(clear, Network):
        assert likely == clear
    elif nodes:
        names = [chosen([node], known) for node in nodes]
        most = max(names.count(name) for name in names)
        assert names.count(likely.profile.name if likely.profile is not None else None) <= most


def test_nodes_are_told_apart_by_network_the_largest_first():
    nodes = [*some_nodes(2, "a4-highgpu-8g"), *some_nodes(3, P5, first=2), *some_nodes(1, first=5)]
    found = apart(nodes, {})
    assert list(found) == ["aws-efa", "gcp-gib", "none that is known"]
    assert found["aws-efa"] == ("n-2", "n-3", "n-4")
    assert list(apart(nodes, {}, "tcp")) == ["tcp"]


def test_instance_types_count_before_what_is_offered():
    assert recognise({"node.kubernetes.io/instance-type": "Standard_ND96isr_H100_v5"}, ["rdma/ib"])[0] == "azure-nd"
    assert recognise({}, []) is None
