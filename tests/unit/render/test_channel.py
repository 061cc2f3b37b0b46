"""NVLink beyond the node: what a pod claims, and from what."""

from support.networks import a_spec
from support.rendering import a_job
from trainyard.network.settings import Settings
from trainyard.render.channel import compute_domain
from trainyard.render.pod import trial_pod


def test_each_pod_claims_a_channel_of_the_jobs_compute_domain():
    job = a_job(container={"resources": {"limits": {"nvidia.com/gpu": 4}}})
    made = trial_pod(job, Settings(channel=True))["spec"]
    assert made["resourceClaims"] == [{"name": "trainyard-nvlink", "resourceClaimTemplateName": "small-lm-nvlink"}]
    assert made["containers"][0]["resources"] == {
        "limits": {"nvidia.com/gpu": 4},
        "claims": [{"name": "trainyard-nvlink"}],
    }
    channel = compute_domain(job)["spec"]["channel"]
    assert channel == {"resourceClaimTemplate": {"name": "small-lm-nvlink"}}


def test_only_who_trains_gets_it_and_nobody_where_none_is_to_be_claimed():
    beside = {"name": "beside", "image": "x"}
    job = a_job(pod={"containers": [{"name": "trainer", "image": "x"}, beside]})
    assert trial_pod(job, Settings(channel=True))["spec"]["containers"][1] == beside
    assert "resourceClaims" not in trial_pod(job, Settings())["spec"]
    assert "resources" not in trial_pod(job, Settings())["spec"]["containers"][0]


def test_old_drivers_wait_for_as_many_nodes_as_the_gang_has_unless_it_may_have_fewer():
    assert compute_domain(a_job(nodes=4))["spec"]["numNodes"] == 4
    assert compute_domain(a_job(nodes=4, minNodes=2))["spec"]["numNodes"] == 0
    assert a_spec(nodes=4).min_nodes is None
