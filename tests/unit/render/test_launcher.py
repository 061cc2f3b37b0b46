"""An image without Trainyard gets the launcher put beside it; one that has it is left alone."""

import pytest
from support.rendering import a_job, a_plan
from trainyard.network.settings import Settings
from trainyard.render.pod import pod, trial_pod
from trainyard.world.resources import pod_requests

CARRIER = "registry.example/trainyard/operator:0.1.0"
FOREIGN = {"image": "pytorch/pytorch:2.9.0", "command": ["torchrun", "train.py"], "args": ["--lr", "0.1"]}


def rendered(container, launcher_image=CARRIER, **more):
    job = a_job(container=container, **more)
    return pod(job, a_plan(job), 0, Settings(), launcher_image)


def trainer(made):
    return next(c for c in made["spec"]["containers"] if c["name"] == "trainer")


def beside(made):
    return [c for c in made["spec"].get("initContainers", ()) if c["name"] == "trainyard-launcher"]


def test_a_foreign_image_runs_the_launcher_that_was_put_beside_it():
    made = rendered(FOREIGN, processesPerNode=2)
    (puts,) = beside(made)
    assert puts["image"] == CARRIER
    assert trainer(made)["command"] == [
        *("python3", "/trainyard/launch.pyz", "--procs", "2", "--", "torchrun", "train.py", "--lr", "0.1"),
    ]
    assert "args" not in trainer(made)
    volume = puts["volumeMounts"][0]["name"]
    assert {"name": volume, "mountPath": "/trainyard", "readOnly": True} in trainer(made)["volumeMounts"]
    assert {"name": volume, "emptyDir": {}} in made["spec"]["volumes"]


@pytest.mark.parametrize(
    ("container", "runs"),
    [
        ({"command": ["python3", "train.py"]}, ["trainyard-launch", "--procs", "1", "--", "python3", "train.py"]),
        (
            {"image": "mine/on-the-trainers", "command": ["trainyard-launch", "--", "x"]},
            ["trainyard-launch", "--", "x"],
        ),
        ({"image": "mine/on-the-trainers"}, None),
    ],
)
def test_an_image_that_has_the_launcher_is_left_alone(container, runs):
    made = rendered(container)
    assert beside(made) == []
    assert trainer(made).get("command") == runs
    assert "/trainyard" not in {mount["mountPath"] for mount in trainer(made)["volumeMounts"]}


def test_without_an_image_for_it_every_image_is_to_have_the_launcher():
    made = rendered(FOREIGN, launcher_image="")
    assert beside(made) == []
    assert trainer(made)["command"][:2] == ["trainyard-launch", "--procs"]


@pytest.mark.parametrize(
    "resources",
    [
        {},
        {"limits": {"nvidia.com/gpu": 8}},
        {
            "requests": {"cpu": "4", "memory": "8Gi"},
            "limits": {"memory": "8Gi", "nvidia.com/gpu": 8, "hugepages-2Mi": "1Gi"},
        },
    ],
)
def test_a_pod_asks_for_as_much_as_without_it(resources):
    with_it, without = (rendered({**FOREIGN, "resources": resources}, image)["spec"] for image in (CARRIER, ""))
    assert pod_requests(with_it) == pod_requests(without)


def test_it_asks_for_what_the_trainer_asks_for_but_no_devices():
    asked = {"requests": {"cpu": "4", "memory": "8Gi"}, "limits": {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": 8}}
    (puts,) = beside(rendered({**FOREIGN, "resources": asked}))
    guaranteed = {"cpu": "4", "memory": "8Gi"}
    assert puts["resources"] == {
        "requests": guaranteed,
        "limits": guaranteed,
    }  # and so the pod's class stays Guaranteed


@pytest.mark.parametrize(
    ("pod_context", "non_root"), [({}, True), ({"runAsUser": 1000}, True), ({"runAsUser": 0}, None)]
)
def test_it_has_no_rights(pod_context, non_root):
    (puts,) = beside(rendered(FOREIGN, pod={"securityContext": pod_context}))
    context = puts["securityContext"]
    assert context.get("runAsNonRoot") is non_root
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["allowPrivilegeEscalation"] is False


def test_it_comes_before_what_the_job_runs_first_itself():
    made = rendered(FOREIGN, pod={"initContainers": [{"name": "fetch", "image": "busybox"}]})
    assert [c["name"] for c in made["spec"]["initContainers"]] == ["trainyard-launcher", "fetch"]


def test_the_api_server_is_shown_it_too():
    assert len(beside(trial_pod(a_job(container=FOREIGN), Settings(), CARRIER))) == 1
