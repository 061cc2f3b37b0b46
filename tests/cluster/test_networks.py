"""What every network wants of a pod is taken by the real API server, and follows from nodes as they are in a cluster."""

from __future__ import annotations

import pytest
from support import api_cases
from support.api import Api
from support.networks import ALL_PROFILES, a_fabric
from support.nodes import Nodes, a_node
from support.rendering import a_plan
from trainyard.api.names import LABEL_INSTANCE_TYPE
from trainyard.api.training_job import TrainingJobSpec, TrainingJobStatus
from trainyard.kube import decode
from trainyard.network.choice import Network, choose_network
from trainyard.network.derive import derive
from trainyard.network.profiles.model import Profile
from trainyard.network.settings import Settings
from trainyard.render.pod import pods
from trainyard.world.records import Fabric, Job, Node


async def a_job(api: Api, namespace: str) -> Job:
    """A gang of two whole nodes that the API server holds."""
    made = api_cases.a_job()
    made["metadata"]["namespace"] = namespace
    made["spec"] |= {"nodes": 2}
    made["spec"]["template"]["spec"]["containers"][0]["resources"] = {
        "limits": {"nvidia.com/gpu": 8, "memory": "256Gi"}
    }
    stored = await api.create(made)
    metadata = stored["metadata"]
    spec = TrainingJobSpec.model_validate(stored["spec"])
    return Job(
        namespace, metadata["name"], metadata["uid"], 1, metadata["resourceVersion"], 0.0, spec, TrainingJobStatus()
    )


async def equipped(api: Api, nodes: Nodes, profile: Profile) -> list[Node]:
    """Two nodes that carry all by which a profile is known, as the operator sees them."""
    kind = profile.machines[0].instance_types[0].replace("*", "x") if profile.machines else "other"
    labels = {
        LABEL_INSTANCE_TYPE: kind,
        **{name: value.replace("*", "yes") for name, value in profile.match.labels.items()},
    }
    offers = dict.fromkeys((*profile.match.advertised, *profile.resources), "64")
    names = await nodes.add(
        *(a_node(f"{profile.name}-{n}", labels=labels, resources={**offers, "hugepages-2Mi": "16Gi"}) for n in range(2))
    )
    return [decode.node(await api.get("Node", name)) for name in names]


def told(profile: Profile, nodes: list[Node], job: Job, granted: bool) -> tuple[Network, Settings]:
    fabrics = {"site": Fabric("site", a_fabric(profile=profile.name))} if granted else {}
    network = choose_network(nodes, fabrics)
    assert isinstance(network, Network)
    assert job.spec is not None
    return network, derive(network, job.spec, nodes)


@pytest.mark.parametrize("profile", ALL_PROFILES, ids=lambda profile: profile.name)
async def test_a_pod_of_every_network_is_taken_as_it_is(api: Api, namespace: str, nodes: Nodes, profile: Profile):
    job, there = await a_job(api, namespace), await equipped(api, nodes, profile)
    network, settings = told(profile, there, job, granted=True)
    assert network.profile is profile
    assert profile.resources.keys() <= settings.additions.resources.keys() or not profile.transport.fast
    for made in pods(job, a_plan(job, [node.name for node in there]), [0, 1], settings):
        stored = await api.create(dict(made), dry_run=True)
        env = {v["name"]: v.get("value") for v in stored["spec"]["containers"][0]["env"]}
        assert {setting.name: setting.value for setting in settings.settings}.items() <= env.items()
        assert profile.annotations.items() <= stored["metadata"]["annotations"].items()
        limits = stored["spec"]["containers"][0]["resources"]["limits"]
        assert settings.additions.resources.items() <= limits.items()
        assert len(stored["spec"].get("initContainers", [])) == len(profile.host.init_containers)


RECOGNISED = [
    profile for profile in ALL_PROFILES if profile.like is None and (profile.machines or profile.match.advertised)
]


async def test_nodes_of_a_cluster_are_recognised_by_what_they_carry(api: Api, namespace: str, nodes: Nodes):
    job = await a_job(api, namespace)
    for profile in RECOGNISED:
        there = await equipped(api, nodes, profile)
        network, settings = told(profile, there, job, granted=False)
        assert network.profile is profile
        assert bool(settings.settings)
