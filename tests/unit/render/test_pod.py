"""A member's pod: pinned, started by the launcher, and otherwise the user's."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.clusters import a_node
from support.rendering import a_job, a_plan
from trainyard.api.fabric import FabricSpec, PodAdditions
from trainyard.contract.plan import digest
from trainyard.network.choice import described
from trainyard.network.derive import derive
from trainyard.network.settings import Setting, Settings, Source
from trainyard.render.pod import forms, pinned, pod, pods, trial_pod
from trainyard.world.selection import admits

GOLDEN = Path(__file__).with_name("pod.yaml")
CLAIM = {"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints"}}


def rendered(job, rank=0, settings=None):
    return pod(job, a_plan(job), rank, settings or Settings())


def trainer(made):
    return next(c for c in made["spec"]["containers"] if c["name"] == "trainer")


def mounts(made):
    return {mount["mountPath"]: mount["name"] for mount in trainer(made)["volumeMounts"]}


def volumes(made):
    return {volume["name"]: volume for volume in made["spec"]["volumes"]}


def test_a_whole_pod_as_it_goes_to_the_api_server():
    job = a_job(
        container={
            "resources": {"limits": {"nvidia.com/gpu": 8, "rdma/ib": 8}},
            "volumeMounts": [{"name": "checkpoints", "mountPath": "/checkpoints"}],
            "env": [{"name": "RUN", "value": "run of $(TRAINYARD_POD)"}],
        },
        pod={"volumes": [CLAIM], "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]},
        priorityClassName="research",
        checkpoint={"volume": "checkpoints", "grace": "2m"},
        network={"env": [{"name": "NCCL_DEBUG", "value": "INFO"}]},
    )
    fabric = FabricSpec.model_validate(
        {
            "kind": "tcp",
            "interface": "eth0",
            "podAdditions": {
                "volumes": [{"name": "torch", "hostPath": {"path": "/opt/torch", "type": "Directory"}}],
                "volumeMounts": [{"name": "torch", "mountPath": "/opt/torch", "readOnly": True}],
                "env": [{"name": "PYTHONPATH", "value": "/opt/torch"}],
            },
        }
    )
    plan = a_plan(job)
    made = pod(job, plan, 2, derive(described(fabric), job.spec))
    expected = yaml.safe_load(GOLDEN.read_text())
    expected["metadata"]["annotations"]["trainyard.dev/plan-digest"] = digest(plan)
    expected["metadata"]["annotations"]["trainyard.dev/made-for-attempt"] = "2"
    expected["metadata"]["annotations"]["trainyard.dev/form"] = forms(job, derive(described(fabric), job.spec))("a2-0")
    assert made == expected


# Where it runs -----------------------------------------------------------------------------------------------------------

KEYS = ("zone", "rack")
requirements = st.builds(
    lambda key, operator, values: {
        "key": key,
        "operator": operator,
        **({"values": values} if operator in ("In", "NotIn") else {}),
    },
    st.sampled_from(KEYS),
    st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]),
    st.lists(st.sampled_from("ab"), min_size=1, max_size=2, unique=True),
)
fields = st.builds(
    lambda operator, name: {"key": "metadata.name", "operator": operator, "values": [name]},
    st.sampled_from(["In", "NotIn"]),
    st.sampled_from(["x", "y"]),
)
terms = st.fixed_dictionaries(
    {}, optional={"matchExpressions": st.lists(requirements, max_size=2), "matchFields": st.lists(fields, max_size=1)}
)
affinities = st.one_of(
    st.none(),
    st.just({}),
    st.builds(
        lambda some: {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": some}}},
        st.lists(terms, min_size=1, max_size=3),
    ),
)
nodes = st.builds(
    lambda name, labels: a_node(name, labels=labels),
    st.sampled_from(["x", "y", "z"]),
    st.dictionaries(st.sampled_from(KEYS), st.sampled_from("ab")),
)


@given(affinities, nodes)
def test_pinned_leaves_the_planned_node_of_those_that_were_left_before(affinity, node):
    before = {"affinity": affinity} if affinity is not None else {}
    assert admits(node, {"affinity": pinned(affinity, "x")}) == (node.name == "x" and admits(node, before))


def test_what_else_the_affinity_says_is_kept():
    apart = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}
    wish = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5, "preference": {"matchExpressions": []}}]}
    made = pinned({**apart, "nodeAffinity": wish}, "x")
    assert made["podAntiAffinity"] == apart["podAntiAffinity"]
    assert (
        made["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        == wish["preferredDuringSchedulingIgnoredDuringExecution"]
    )


def test_each_member_is_pinned_to_its_own_node_and_named_by_its_number():
    job = a_job()
    plan = a_plan(job)
    made = list(pods(job, plan, range(4), Settings()))
    assert made == [pod(job, plan, rank, Settings()) for rank in range(4)]
    assert [one["metadata"]["name"] for one in made] == ["small-lm-4", "small-lm-5", "small-lm-6", "small-lm-7"]
    for rank, one in enumerate(made):
        here = plan.members[rank].node
        assert [name for name in ("a1-0", "a1-1", "a2-0", "a2-1", "b1-0") if admits(a_node(name), one["spec"])] == [
            here
        ]
        assert one["metadata"]["annotations"]["trainyard.dev/node"] == here
        assert one["metadata"]["labels"]["trainyard.dev/node-rank"] == str(rank)


# How it is started -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("container", "command", "args"),
    [
        ({}, None, None),
        ({"args": ["--verbose"]}, None, ["--verbose"]),
        ({"command": ["python3", "mine.py"]}, ["trainyard-launch", "--procs", "2", "--", "python3", "mine.py"], None),
        (
            {"command": ["python3"], "args": ["mine.py", "--run", "$(RUN)"]},
            ["trainyard-launch", "--procs", "2", "--", "python3", "mine.py", "--run", "$(RUN)"],
            None,
        ),
        ({"command": ["trainyard-launch", "--procs", "4"], "args": ["x"]}, ["trainyard-launch", "--procs", "4"], ["x"]),
        ({"command": ["/opt/bin/trainyard-launch"]}, ["/opt/bin/trainyard-launch"], None),
    ],
)
def test_the_launcher_starts_what_the_user_names(container, command, args):
    made = trainer(rendered(a_job(container=container, processesPerNode=2)))
    assert (made.get("command"), made.get("args")) == (command, args)


def test_a_process_for_each_accelerator():
    container = {"command": ["python3"], "resources": {"limits": {"nvidia.com/gpu": 8}}}
    assert trainer(rendered(a_job(container=container)))["command"][:3] == ["trainyard-launch", "--procs", "8"]


def test_last_words_go_where_the_operator_reads_them():
    made = trainer(
        rendered(
            a_job(container={"terminationMessagePath": "/tmp/log", "terminationMessagePolicy": "FallbackToLogsOnError"})
        )
    )
    assert (made["terminationMessagePath"], made["terminationMessagePolicy"]) == ("/dev/termination-log", "File")


@pytest.mark.parametrize(
    ("grace", "template", "seconds"), [("2m", None, 150), ("1500ms", None, 32), ("2m", 600, 600), ("2m", 30, 150)]
)
def test_the_kubelet_waits_longer_than_the_save_may_take(grace, template, seconds):
    pod_fields = {} if template is None else {"terminationGracePeriodSeconds": template}
    made = rendered(a_job(pod=pod_fields, checkpoint={"grace": grace}))
    assert made["spec"]["terminationGracePeriodSeconds"] == seconds


def test_a_member_is_never_restarted_in_place():
    assert rendered(a_job(pod={"restartPolicy": "Always"}))["spec"]["restartPolicy"] == "Never"


def test_the_launchers_port_is_declared_once():
    made = trainer(
        rendered(a_job(container={"ports": [{"containerPort": 9400}, {"containerPort": 6006, "name": "board"}]}))
    )
    assert made["ports"] == [{"containerPort": 6006, "name": "board"}, {"name": "trainyard", "containerPort": 9400}]


def test_on_the_hosts_network_names_still_resolve():
    assert rendered(a_job(pod={"hostNetwork": True}))["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert rendered(a_job(pod={"hostNetwork": True, "dnsPolicy": "None"}))["spec"]["dnsPolicy"] == "None"
    assert "dnsPolicy" not in rendered(a_job())["spec"]


# What is mounted ---------------------------------------------------------------------------------------------------------


def test_plan_and_key_are_for_the_trainer_container_alone():
    made = rendered(
        a_job(
            pod={"containers": [{"name": "trainer", "image": "trainyard/trainer"}, {"name": "logs", "image": "logs"}]}
        )
    )
    assert mounts(made)["/etc/trainyard/control"] == "trainyard-control"
    assert mounts(made)["/etc/trainyard/plan"] == "trainyard-plan"
    assert made["spec"]["containers"][1] == {"name": "logs", "image": "logs"}
    assert volumes(made)["trainyard-plan"]["configMap"] == {"name": "small-lm-plan-2"}
    assert volumes(made)["trainyard-control"]["secret"] == {
        "secretName": "small-lm-control-0b5f9a6e",
        "defaultMode": 0o444,
    }


def test_shared_memory_is_as_large_as_the_pods_unless_the_user_has_his_own():
    made = rendered(a_job())
    assert volumes(made)[mounts(made)["/dev/shm"]] == {"name": "trainyard-shm", "emptyDir": {"medium": "Memory"}}
    own = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}
    made = rendered(
        a_job(container={"volumeMounts": [{"name": "shm", "mountPath": "/dev/shm/"}]}, pod={"volumes": [own]})
    )
    assert "trainyard-shm" not in volumes(made)
    assert "/dev/shm" not in mounts(made)


def test_a_volume_for_checkpoints_that_nothing_mounts_is_mounted():
    job = a_job(pod={"volumes": [CLAIM]}, checkpoint={"volume": "checkpoints"})
    assert mounts(rendered(job))["/checkpoints"] == "checkpoints"


def test_what_the_job_mounts_wins_over_what_the_fabric_adds():
    added = PodAdditions(
        volumes=(
            {"name": "torch", "hostPath": {"path": "/opt/torch"}},
            {"name": "drivers", "hostPath": {"path": "/drivers"}},
        ),
        volume_mounts=({"name": "torch", "mountPath": "/opt/torch"}, {"name": "drivers", "mountPath": "/drivers"}),
    )
    own = {"name": "torch", "emptyDir": {}}
    job = a_job(
        container={"volumeMounts": [{"name": "mine", "mountPath": "/drivers/"}]},
        pod={"volumes": [own, {"name": "mine", "emptyDir": {}}]},
    )
    made = rendered(job, settings=Settings(additions=added))
    assert volumes(made)["torch"] == own
    assert [m["name"] for m in trainer(made)["volumeMounts"] if m["mountPath"].startswith(("/drivers", "/opt"))] == [
        "mine",
        "torch",
    ]


def test_each_pod_gets_the_settings_of_its_node():
    job = a_job()
    both = Setting("NCCL_DEBUG", "WARN", Source.DERIVED, "because")
    own = {
        node: (Setting("NCCL_IB_HCA", f"={node}", Source.DERIVED, "because"),)
        for node in ("a1-0", "a1-1", "a2-0", "a2-1")
    }
    settings = Settings(settings=(both,), by_node=own)
    for rank, made in enumerate(pods(job, a_plan(job), range(4), settings)):
        env = {v["name"]: v.get("value") for v in trainer(made)["env"]}
        assert env["NCCL_IB_HCA"] == f"={a_plan(job).members[rank].node}"
        assert env["NCCL_DEBUG"] == "WARN"


def test_devices_of_the_network_are_asked_for_beside_those_of_the_job():
    added = PodAdditions(resources={"rdma/ib": "1", "nvidia.com/gpu": "4"})
    job = a_job(container={"resources": {"limits": {"nvidia.com/gpu": 8}, "requests": {"cpu": 4}}})
    assert trainer(rendered(job, settings=Settings(additions=added)))["resources"] == {
        "limits": {"nvidia.com/gpu": 8, "rdma/ib": "1"},
        "requests": {"cpu": 4},
    }
    assert trainer(rendered(a_job(), settings=Settings(additions=added)))["resources"]["limits"]["rdma/ib"] == "1"
    assert "resources" not in trainer(rendered(a_job()))


@pytest.mark.parametrize(
    ("own", "settings", "expected"),
    [
        (None, Settings(), None),
        (None, Settings(additions=PodAdditions(capabilities=("IPC_LOCK",))), {"capabilities": {"add": ["IPC_LOCK"]}}),
        (
            {"runAsUser": 7, "capabilities": {"drop": ["ALL"], "add": ["SYS_NICE"]}},
            Settings(additions=PodAdditions(capabilities=("IPC_LOCK", "SYS_NICE"))),
            {"runAsUser": 7, "capabilities": {"drop": ["ALL"], "add": ["SYS_NICE", "IPC_LOCK"]}},
        ),
        (
            {"capabilities": {"add": ["ALL"]}},
            Settings(additions=PodAdditions(capabilities=("IPC_LOCK",))),
            {"capabilities": {"add": ["ALL"]}},
        ),
        (None, Settings(privileged=True), {"privileged": True}),
        ({"privileged": False}, Settings(privileged=True), {"privileged": False}),
    ],
)
def test_rights_that_the_network_needs_are_added_and_none_is_forced_on_the_job(own, settings, expected):
    container = {} if own is None else {"securityContext": own}
    assert trainer(rendered(a_job(container=container), settings=settings)).get("securityContext") == expected


def test_on_a_network_that_needs_the_hosts_the_pod_is_on_it_unless_it_says_no():
    on_host = Settings(host_network=True)
    made = rendered(a_job(), settings=on_host)["spec"]
    assert (made["hostNetwork"], made["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    refused = rendered(a_job(pod={"hostNetwork": False}), settings=on_host)["spec"]
    assert (refused["hostNetwork"], "dnsPolicy" in refused) == (False, False)


def test_annotations_and_sidecars_of_the_network_stand_before_the_jobs_which_win():
    added = PodAdditions(
        annotations={"net": "fabric", "more": "fabric"},
        init_containers=(
            {"name": "daemon", "image": "fabric", "restartPolicy": "Always"},
            {"name": "own", "image": "no"},
        ),
    )
    template = {
        "metadata": {"annotations": {"net": "mine"}},
        "spec": {
            "containers": [{"name": "trainer", "image": "trainyard/trainer"}],
            "initContainers": [{"name": "own", "image": "mine"}],
        },
    }
    made = rendered(a_job(template=template), settings=Settings(additions=added))
    assert (made["metadata"]["annotations"]["net"], made["metadata"]["annotations"]["more"]) == ("mine", "fabric")
    assert [c["image"] for c in made["spec"]["initContainers"]] == ["fabric", "mine"]


# What is kept ------------------------------------------------------------------------------------------------------------


def test_labels_and_annotations_of_the_template_are_kept_and_ours_win():
    template = {
        "metadata": {
            "labels": {"team": "nlp", "trainyard.dev/job": "forged"},
            "annotations": {"note": "mine", "karpenter.sh/do-not-disrupt": "false", "trainyard.dev/node": "forged"},
            "name": "forged",
        },
        "spec": {"containers": [{"name": "trainer", "image": "trainyard/trainer"}]},
    }
    metadata = rendered(a_job(template=template))["metadata"]
    assert (metadata["labels"]["team"], metadata["labels"]["trainyard.dev/job"]) == ("nlp", "small-lm")
    assert metadata["annotations"]["note"] == "mine"
    assert metadata["annotations"]["trainyard.dev/node"] == "a1-0"
    assert metadata["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
    assert metadata["name"] == "small-lm-4"


def test_whoever_says_himself_that_a_pod_may_be_disrupted_is_believed():
    template = {
        "metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "false"}},
        "spec": {"containers": [{"name": "trainer", "image": "trainyard/trainer"}]},
    }
    assert rendered(a_job(template=template))["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "false"


def test_the_priority_class_of_the_job_is_the_pods():
    assert rendered(a_job(priorityClassName="research"))["spec"]["priorityClassName"] == "research"
    assert "priorityClassName" not in rendered(a_job())["spec"]


OWN = {
    "hostname", "subdomain", "restartPolicy", "terminationGracePeriodSeconds", "containers", "volumes", "affinity",
    "enableServiceLinks", "dnsPolicy", "hostNetwork", "initContainers", "priorityClassName",
}  # fmt: skip
json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2),
    max_leaves=4,
)
unknown = st.dictionaries(
    st.text(st.characters(categories=["Ll"]), min_size=1, max_size=12).filter(lambda k: k not in OWN), json
)


@given(unknown, unknown)
def test_what_we_do_not_know_stays_as_it_is(of_pod, of_container):
    ours = {"name", "image", "command", "args", "env", "ports", "resources"}
    of_container = {key: value for key, value in of_container.items() if key not in ours}
    made = rendered(a_job(pod=of_pod, container=of_container))
    assert {key: made["spec"][key] for key in of_pod} == of_pod
    assert {key: trainer(made)[key] for key in of_container} == of_container


def test_rendering_changes_nothing_that_it_was_given():
    job = a_job(
        container={"env": [{"name": "A", "value": "1"}], "command": ["x"]}, pod={"affinity": {"nodeAffinity": {}}}
    )
    before = job.spec.model_dump_json()
    rendered(job)
    assert job.spec.model_dump_json() == before


# What a dry run is shown -------------------------------------------------------------------------------------------------


def test_a_trial_is_like_a_member_but_nowhere_and_held_by_nothing():
    job = a_job(container={"command": ["python3", "mine.py"]})
    tried, member = trial_pod(job, Settings()), rendered(job)
    assert tried["metadata"]["name"] == "small-lm-trial"
    assert "finalizers" not in tried["metadata"]
    assert "affinity" not in tried["spec"]
    assert trainer(tried) == trainer(member)
    assert tried["spec"].keys() == member["spec"].keys() - {"affinity"}
