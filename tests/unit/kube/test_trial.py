"""Whose turn it is when the API server refuses a pod. The refusals are those of kube-apiserver 1.36."""

import pytest
from trainyard.api.conditions import Reason
from trainyard.cycle.actions import TryPod
from trainyard.kube.errors import ApiError, Cause
from trainyard.kube.trial import judge, template_path
from trainyard.world.records import Verdict

POD = {
    "metadata": {"name": "train-trial", "namespace": "team"},
    "spec": {
        "priorityClassName": "reserch",
        "containers": [{"name": "trainer", "env": [{"name": "RANK"}, {"name": "MINE"}]}],
        "volumes": [{"name": "ours"}, {"name": "data"}],
    },
}
TRY = TryPod("uid", 3, POD)

REFUSED, WAIT = Verdict.REFUSED, Verdict.WAIT
WAITS = [
    ApiError("create", 403, "Forbidden", 'pods "train-trial" is forbidden: exceeded quota: gpus, requested: pods=1'),
    ApiError("create", 403, "Forbidden", 'admission webhook "policy.example" denied the request: violates PodSecurity'),
    ApiError("create", 422, "Invalid", 'admission webhook "policy.example" denied the request: no'),
    ApiError("create", 500, "InternalError", 'failed calling webhook "x": connection refused'),
    ApiError("create", 429, "TooManyRequests", "slow down", (), 7.0),
    ApiError("create", 503, "", "etcd is away"),
    ApiError("create", 0, "TimeoutError", ""),
    ApiError("create", 403, "Forbidden", 'pods "x" is forbidden: error looking up service account team/sa: not found'),
    ApiError("create", 401, "Unauthorized", "token expired"),
    ApiError("create", 404, "NotFound", "the server could not find the requested resource"),
]


@pytest.mark.parametrize("error", WAITS, ids=lambda error: f"{error.code} {error.message[:40]}")
def test_what_may_pass_by_itself_is_waited_for(error):
    trial = judge(error, TRY, 5.0)
    assert (trial.verdict, trial.reason, trial.generation, trial.time) == (WAIT, Reason.API_REFUSES, 3, 5.0)
    assert trial.message


def test_a_namespace_that_goes_away_is_waited_for_by_its_own_name():
    leaving = ApiError("create", 403, "Forbidden", "...", (Cause("NamespaceTerminating", "", "metadata.namespace"),))
    assert judge(leaving, TRY, 0).reason == Reason.NAMESPACE_TERMINATING
    gone = ApiError("create", 404, "NotFound", 'namespaces "team" not found')
    assert judge(gone, TRY, 0).reason == Reason.NAMESPACE_TERMINATING


def test_a_field_that_is_wrong_is_named_as_the_user_wrote_it():
    causes = (
        Cause("FieldValueInvalid", 'Invalid value: "2": must be less', "spec.containers[0].resources.requests"),
        Cause("FieldValueInvalid", "Invalid value", "spec.containers[0].env[1].valueFrom"),
    )
    trial = judge(ApiError("create", 422, "Invalid", "long", causes), TRY, 0)
    assert (trial.verdict, trial.reason) == (REFUSED, Reason.TEMPLATE_REFUSED)
    assert trial.message == (
        'spec.template.spec.containers[0].resources.requests: Invalid value: "2": must be less; '
        "spec.template.spec.containers[0].env[MINE].valueFrom: Invalid value"
    )


def test_a_priority_class_that_is_not_there_is_the_users_to_mend():
    error = ApiError("create", 403, "Forbidden", 'pods "x" is forbidden: no PriorityClass with name reserch was found')
    trial = judge(error, TRY, 0)
    assert (trial.verdict, trial.reason) == (REFUSED, Reason.PRIORITY_CLASS_NOT_FOUND)
    assert trial.message.startswith("spec.priorityClassName: there is no PriorityClass reserch;")


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            'Pod in version "v1" cannot be handled as a Pod: json: cannot unmarshal number into Go struct field '
            "Container.spec.containers.image of type string",
            "spec.template.spec.containers.image: ",
        ),
        (
            'strict decoding error: unknown field "spec.containers[0].imagePullPolcy", unknown field "spec.shm"',
            "spec.template.spec.containers[0].imagePullPolcy: there is no such field",
        ),
        ("the body is odd", "spec.template: the body is odd"),
    ],
)
def test_a_template_that_is_no_pod_is_the_users_to_mend(message, said):
    trial = judge(ApiError("create", 400, "BadRequest", message), TRY, 0)
    assert trial.verdict == REFUSED
    assert trial.message.startswith(said)


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("spec.containers[0].image", "spec.template.spec.containers[0].image"),
        ("spec.containers[0].env[0].name", "spec.template.spec.containers[0].env[RANK].name"),
        ("spec.volumes[1].emptyDir", "spec.template.spec.volumes[data].emptyDir"),
        ("spec.volumes[9].emptyDir", "spec.template.spec.volumes[9].emptyDir"),
        ("metadata.labels", "spec.template.metadata.labels"),
    ],
)
def test_items_of_lists_that_the_operator_adds_to_are_called_by_name(path, shown):
    assert template_path(path, POD) == shown
