"""What a job makes besides its pods."""

import pytest
from support.rendering import UID, a_job, a_plan
from trainyard.contract.plan import decode
from trainyard.render.channel import compute_domain
from trainyard.render.objects import control, plan_map, service


@pytest.mark.parametrize(
    "made",
    [service(a_job()), plan_map(a_job(), a_plan(a_job())), control(a_job()), compute_domain(a_job())],
    ids=lambda m: m["kind"],
)
def test_all_of_it_belongs_to_the_job_and_goes_with_it(made):
    assert made["metadata"]["namespace"] == "research"
    assert made["metadata"]["labels"]["trainyard.dev/job"] == "small-lm"
    assert made["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "trainyard.dev/v1alpha1",
            "kind": "TrainingJob",
            "name": "small-lm",
            "uid": UID,
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


def test_members_find_each_other_before_any_of_them_is_ready():
    spec = service(a_job())["spec"]
    assert (spec["clusterIP"], spec["publishNotReadyAddresses"]) == ("None", True)
    assert spec["selector"] == {"trainyard.dev/job-uid": UID}


def test_the_plan_is_written_once_for_its_attempt_and_never_changed():
    plan = a_plan(a_job(), attempt=3)
    made = plan_map(a_job(), plan)
    assert (made["metadata"]["name"], made["immutable"]) == ("small-lm-plan-3", True)
    assert decode(made["data"]["plan.json"]) == plan


def test_the_key_is_not_in_what_is_rendered():
    made = control(a_job())
    assert made["metadata"]["name"] == "small-lm-control-0b5f9a6e"
    assert "data" not in made
    assert "stringData" not in made
