"""Few settings, each with its source; the job's own win, identity excepted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainyard.api.fabric import FabricSpec
from trainyard.api.names import is_reserved_env
from trainyard.api.training_job import TrainingJobSpec
from trainyard.network.choice import described
from trainyard.network.derive import derive as derive_on
from trainyard.network.settings import Source

CUDA = {"nvidia.com/gpu": 8}
SPEAKS = {
    "NCCL_DEBUG": "WARN",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
}
"""What makes a failure of NCCL speak."""


def job(*, limits=None, env=(), network=(), **container):
    """A job of one container; env and network as (name, value)."""
    variables = [{"name": name, "value": value} for name, value in env]
    made = {"name": "trainer", "resources": {"limits": limits or {}}, "env": variables, **container}
    wishes = [{"name": name, "value": value} for name, value in network]
    return TrainingJobSpec.model_validate(
        {"nodes": 2, "template": {"spec": {"containers": [made]}}, "network": {"env": wishes}}
    )


def fabric(*, env=(), **spec):
    return FabricSpec.model_validate({"env": [{"name": name, "value": value} for name, value in env], **spec})


def derive(on, spec):
    return derive_on(described(on), spec)


def values(settings):
    return {setting.name: setting.value for setting in settings.settings}


@pytest.mark.parametrize(
    ("on", "limits", "expected"),
    [
        (None, None, {}),
        (None, CUDA, SPEAKS),
        (None, {"nvidia.com/mig-1g.10gb": "1"}, SPEAKS),
        (None, {"nvidia.com/gpu": 0}, {}),
        (None, {"amd.com/gpu": 8}, SPEAKS),
        (None, {"google.com/tpu": 8}, {}),
        (fabric(), None, {}),
        (fabric(interface="eth0"), None, {"GLOO_SOCKET_IFNAME": "eth0"}),
        (fabric(kind="tcp", interface="eth0"), None, {"GLOO_SOCKET_IFNAME": "eth0"}),
        (
            fabric(interface="eth0"),
            CUDA,
            {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "=eth0", **SPEAKS},
        ),
        (
            fabric(kind="tcp", interface="eth0"),
            CUDA,
            {
                "GLOO_SOCKET_IFNAME": "eth0",
                "NCCL_SOCKET_IFNAME": "=eth0",
                "NCCL_IB_DISABLE": "1",
                **SPEAKS,
            },
        ),
        (fabric(env=[("NCCL_IB_TC", "106")]), None, {}),
        (fabric(env=[("NCCL_IB_TC", "106")]), CUDA, {**SPEAKS, "NCCL_IB_TC": "106"}),
        (fabric(env=[("OMP_NUM_THREADS", "4")]), None, {"OMP_NUM_THREADS": "4"}),
        (fabric(env=[("NCCL_DEBUG", "INFO")]), CUDA, {**SPEAKS, "NCCL_DEBUG": "INFO"}),
    ],
)
def test_what_follows_from_a_fabric(on, limits, expected):
    assert values(derive(on, job(limits=limits))) == expected


def test_every_setting_says_where_it_came_from_and_why():
    found = derive(fabric(interface="eth0", env=[("MALLOC_ARENA_MAX", "2")]), job(network=[("NCCL_ALGO", "Ring")]))
    assert {setting.name: setting.source for setting in found.settings} == {
        "GLOO_SOCKET_IFNAME": Source.DERIVED,
        "MALLOC_ARENA_MAX": Source.FABRIC,
        "NCCL_ALGO": Source.JOB,
    }
    assert all(setting.reason for setting in found.settings)


@pytest.mark.parametrize("place", ["env", "network"])
def test_the_jobs_own_wins_over_the_fabrics(place):
    on = fabric(interface="eth0", env=[("NCCL_IB_TC", "106")])
    found = derive(on, job(**{place: [("NCCL_IB_TC", "41"), ("GLOO_SOCKET_IFNAME", "net1")]}))
    ours = {setting.name for setting in found.settings if setting.source is not Source.JOB}
    assert ours == set()


def test_identity_is_nobodys_to_set():
    found = derive(fabric(env=[("RANK", "0")]), job(network=[("WORLD_SIZE", "1")], env=[("TRAINYARD_POD", "me")]))
    assert values(found) == {}
    assert found.warnings == (
        "TRAINYARD_POD is left out: who a process is in the gang is the plan's to say",
        "WORLD_SIZE is left out: who a process is in the gang is the plan's to say",
    )


@pytest.mark.parametrize("place", ["env", "network"])
def test_an_interface_that_gloo_cannot_read_is_pointed_out(place):
    found = derive(None, job(**{place: [("GLOO_SOCKET_IFNAME", "=eth0")]}))
    assert found.warnings == (
        "GLOO_SOCKET_IFNAME: '=eth0' is no interface; gloo knows neither = nor ^, write plain names such as eth0",
    )


def test_env_from_is_pointed_out_since_it_loses_against_any_setting():
    found = derive(None, job(envFrom=[{"configMapRef": {"name": "mine"}}]))
    assert [warning.partition(":")[0] for warning in found.warnings] == ["envFrom"]


def test_additions_are_passed_on():
    added = {"volumes": [{"name": "torch", "hostPath": {"path": "/opt/torch"}}]}
    assert derive(fabric(podAdditions=added), job()).additions.volumes == tuple(added["volumes"])
    assert derive(None, job()).additions.volumes == ()


names = st.sampled_from(["A", "B", "NCCL_DEBUG", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "RANK", "TRAINYARD_POD"])
variables = st.lists(st.tuples(names, st.sampled_from(["x", "y"])), max_size=5, unique_by=lambda pair: pair[0])


@given(variables, variables, variables)
def test_each_name_once_and_the_jobs_last(of_fabric, of_template, of_network):
    found = derive(fabric(interface="eth0", env=of_fabric), job(limits=CUDA, env=of_template, network=of_network))
    listed = [setting.name for setting in found.settings]
    assert len(listed) == len(set(listed))
    assert not any(is_reserved_env(name) for name in listed)
    sources = [setting.source is Source.JOB for setting in found.settings]
    assert sources == sorted(sources)
    assert {s.name: s.value for s in found.settings if s.source is Source.JOB} == {
        name: value for name, value in of_network if not is_reserved_env(name)
    }
    assert not {s.name for s in found.settings if s.source is not Source.JOB} & {name for name, _ in of_template}
