"""Why each variable is there."""

from hypothesis import given
from hypothesis import strategies as st
from support.networks import a_fabric, a_spec, annotated, derived, some_nodes
from trainyard.network.explain import FROM_ELSEWHERE, MOST_VARIABLES, explain, told
from trainyard.network.settings import Source
from trainyard.render.env import environment

FABRIC = a_fabric(
    profile="roce",
    env={"NCCL_IB_QPS_PER_CONNECTION": "4"},
    podAdditions={"env": [{"name": "PYTHONPATH", "value": "/opt"}, {"name": "NCCL_DEBUG", "value": "VERSION"}]},
)


def test_a_variable_that_is_another_on_every_node_leaves_room_for_the_others():
    nodes = [annotated(node, **{"trainyard.dev/hcas": f"mlx5_{n // 2}"}) for n, node in enumerate(some_nodes(201))]
    found = told(derived(a_spec(nodes=201), nodes, FABRIC), a_spec(nodes=201), [node.name for node in nodes])
    assert [one.nodes for one in found if one.name == "NCCL_IB_HCA"] == [2, 2, 2, 2]
    assert {"NCCL_IB_TC", "NCCL_NET", "NCCL_DEBUG"} <= {one.name for one in found}
    assert len(found) <= MOST_VARIABLES


def explained(template=(), wishes=None, node="n-0"):
    env = {variable["name"]: variable["value"] for variable in template if "value" in variable}
    nodes = [
        annotated(some_nodes(1)[0], **{"trainyard.dev/hcas": "mlx5_0"}),
        annotated(some_nodes(1, first=1)[0], **{"trainyard.dev/hcas": "mlx5_1"}),
    ]
    settings = derived(a_spec(env=env, wishes=wishes), nodes, FABRIC)
    return {setting.name: setting for setting in explain(settings, template, node)}, settings


def test_each_says_its_source_and_its_reason():
    found, _ = explained([{"name": "NCCL_ALGO", "value": "Ring"}], {"NCCL_PROTO": "LL"})
    sources = {name: setting.source for name, setting in found.items()}
    assert sources["NCCL_IB_TC"] is Source.DERIVED
    assert sources["NCCL_IB_QPS_PER_CONNECTION"] is Source.FABRIC
    assert sources["PYTHONPATH"] is Source.FABRIC
    assert sources["NCCL_PROTO"] is Source.JOB
    assert sources["NCCL_ALGO"] is Source.TEMPLATE
    assert all(setting.reason for setting in found.values())


def test_what_would_have_been_written_is_told_where_the_job_says_otherwise():
    found, _ = explained([{"name": "NCCL_IB_TC", "value": "0"}], {"NCCL_SOCKET_IFNAME": "net1"})
    assert "Trainyard would write 106: DSCP 26" in found["NCCL_IB_TC"].reason
    assert "Trainyard would write =eth0" in found["NCCL_SOCKET_IFNAME"].reason


def test_it_is_the_pods_own_node_that_counts():
    assert explained(node="n-0")[0]["NCCL_IB_HCA"].value == "=mlx5_0"
    assert explained(node="n-1")[0]["NCCL_IB_HCA"].value == "=mlx5_1"


def test_a_value_from_elsewhere_is_not_shown():
    secret = {"name": "NCCL_DEBUG", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    found, _ = explained([secret, {"name": "HOME", "value": "/root"}])
    assert found["NCCL_DEBUG"].value == FROM_ELSEWHERE
    assert "HOME" not in found


names = st.sampled_from(["NCCL_DEBUG", "NCCL_IB_TC", "NCCL_IB_HCA", "PYTHONPATH", "NCCL_ALGO", "GLOO_SOCKET_IFNAME"])
said = st.dictionaries(names, st.sampled_from(["1", "x"]), max_size=4)


@given(said, said)
def test_what_is_explained_is_what_the_pod_gets(of_template, of_network):
    template = [{"name": name, "value": value} for name, value in of_template.items()]
    found, settings = explained(template, of_network)
    rendered = {v["name"]: v["value"] for v in environment(settings.on("n-0"), template) if "value" in v}
    shown = {name: setting.value for name, setting in found.items()}
    assert shown.items() <= rendered.items()
    hidden = rendered.keys() - shown.keys()
    assert all(name.startswith("TRAINYARD_") or name == "PYTHONPATH" for name in hidden)
