"""TrainingJobs with one thing wrong each, and what is answered: put to the API server and to `trainyard.api.validate` alike."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from trainyard.api import rules
from trainyard.api.parallelism import NO_DIVISOR, NO_PRODUCT, NO_SIZE

Manifest = dict[str, Any]


def a_job(name: str = "small-lm", **spec: Any) -> Manifest:
    """The shortest job there is, with the given fields of its specification."""
    container = {"name": "trainer", "image": "trainyard/trainer:0.1.0"}
    return {
        "apiVersion": "trainyard.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {"nodes": 4, "template": {"spec": {"containers": [container]}}, **spec},
    }


def with_pod(**pod_spec: Any) -> Manifest:
    """The shortest job with fields of its pod's specification replaced."""
    job = a_job()
    job["spec"]["template"]["spec"] |= pod_spec
    return job


def with_trainer(**container: Any) -> Manifest:
    """The shortest job with fields of the container that trains replaced."""
    job = a_job()
    job["spec"]["template"]["spec"]["containers"][0] |= container
    return job


def with_volume(**volume: Any) -> Manifest:
    """A job that saves to a volume of the given kind."""
    job = with_trainer(volumeMounts=[{"name": "state", "mountPath": "/state"}])
    job["spec"]["template"]["spec"]["volumes"] = [{"name": "state", **volume}]
    return with_spec(job, checkpoint={"volume": "state"})


def with_spec(job: Manifest, **spec: Any) -> Manifest:
    """A copy of a job with fields of its specification replaced; None takes one away."""
    changed = copy.deepcopy(job)
    merged = {**changed["spec"], **spec}
    changed["spec"] = {key: value for key, value in merged.items() if value is not None}
    return changed


def read_only(job: Manifest) -> Manifest:
    """A copy of a job whose container that trains may only read its volumes."""
    changed = copy.deepcopy(job)
    for mount in changed["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]:
        mount["readOnly"] = True
    return changed


@dataclass(frozen=True, slots=True)
class Wrong:
    """A job that is refused.

    path: of the field that is blamed. said: part of what `validate` says of it. at_apply: part of the API server's answer;
    None where no schema can say it, so that the operator says it in a condition.
    """

    job: Manifest
    path: str
    said: str
    at_apply: str | None


CLAIM = {"persistentVolumeClaim": {"claimName": "c"}}
CONTAINERS = "spec.template.spec.containers"
PAIR = [{"name": "one", "image": "a"}, {"name": "two", "image": "b"}]

WRONG: dict[str, Wrong] = {
    "no nodes at all": Wrong(
        a_job(nodes=0), "spec.nodes", "0 is too small; use 1 or more", "greater than or equal to 1"
    ),
    "negative nodes": Wrong(
        a_job(nodes=-1), "spec.nodes", "-1 is too small; use 1 or more", "greater than or equal to 1"
    ),
    "nodes left out": Wrong(with_spec(a_job(), nodes=None), "spec.nodes", "is missing", "Required value"),
    "nodes in words": Wrong(
        a_job(nodes="four"), "spec.nodes", '"four" is not a whole number', "must be of type integer"
    ),
    "more nodes than the control plane is asked to hold": Wrong(
        a_job(nodes=100_000), "spec.nodes", "use 20000 or less", "less than or equal to 20000"
    ),
    "at least more nodes than it has": Wrong(
        a_job(minNodes=5), "spec.minNodes", rules.MORE_THAN_NODES, rules.MORE_THAN_NODES
    ),
    "at least no nodes": Wrong(a_job(minNodes=0), "spec.minNodes", "use 1 or more", "greater than or equal to 1"),
    "no members on a node": Wrong(
        a_job(placement={"podsPerNode": 0}),
        "spec.placement.podsPerNode",
        "use 1 or more",
        "greater than or equal to 1",
    ),
    "several members on the host's own network": Wrong(
        with_spec(with_pod(hostNetwork=True), placement={"podsPerNode": 2}),
        "spec.placement.podsPerNode",
        "host's own ports",
        None,
    ),
    "a deadline on a locality that is only wished for": Wrong(
        a_job(placement={"within": {"level": "leaf"}, "relax": [{"after": "5m", "level": "spine"}]}),
        "spec.placement.relax",
        rules.NOTHING_TO_RELAX,
        rules.NOTHING_TO_RELAX,
    ),
    "deadlines out of order": Wrong(
        a_job(
            placement={
                "within": {"level": "leaf", "required": True},
                "relax": [{"after": "10m", "level": "spine"}, {"after": "5m", "level": "cluster"}],
            }
        ),
        "spec.placement.relax",
        rules.RELAXES_LATER,
        rules.RELAXES_LATER,
    ),
    "segments of which one is torn": Wrong(
        a_job(placement={"segments": {"nodes": 3, "level": "leaf"}}),
        "spec.placement.segments.nodes",
        rules.TORN_SEGMENT,
        rules.TORN_SEGMENT,
    ),
    "segments of one": Wrong(
        a_job(placement={"segments": {"nodes": 1, "level": "leaf"}}),
        "spec.placement.segments.nodes",
        "use 2 or more",
        "greater than or equal to 2",
    ),
    "a deadline without a time": Wrong(
        a_job(placement={"within": {"level": "leaf", "required": True}, "relax": [{"level": "spine"}]}),
        "spec.placement.relax[0].after",
        "is missing",
        "Required value",
    ),
    "a name too long for host names": Wrong(a_job("a" * 41), "metadata.name", "at most 40", "at most 40"),
    "a name with a dot": Wrong(
        a_job("small.lm"), "metadata.name", '"small.lm" is not a name', "small.lm is not a name"
    ),
    "a name that begins with a digit": Wrong(
        a_job("7b"), "metadata.name", "beginning with a letter", "beginning with a letter"
    ),
    "no container at all": Wrong(with_pod(containers=[]), CONTAINERS, "at least one container", "at least 1 items"),
    "two containers, none of them named trainer": Wrong(
        with_pod(containers=PAIR), CONTAINERS, rules.ONE_TRAINER, rules.ONE_TRAINER
    ),
    "a restartPolicy that restarts": Wrong(
        with_pod(restartPolicy="Always"), "spec.template.spec.restartPolicy", rules.NEVER_RESTARTS, rules.NEVER_RESTARTS
    ),
    "a rank of one's own": Wrong(
        with_trainer(env=[{"name": "FINE"}, {"name": "RANK", "value": "0"}]),
        f"{CONTAINERS}[0].env[1].name",
        "RANK says who a process is",
        "RANK says who a process is in the gang and is set by Trainyard; leave it out",
    ),
    "a setting of the launcher": Wrong(
        with_trainer(env=[{"name": "TRAINYARD_PLAN", "value": "/mine"}]),
        f"{CONTAINERS}[0].env[0].name",
        "TRAINYARD_PLAN says who",
        "TRAINYARD_PLAN says who",
    ),
    "a reserved name among the network's settings": Wrong(
        a_job(network={"env": [{"name": "MASTER_ADDR", "value": "10.0.0.1"}]}),
        "spec.network.env[0].name",
        "MASTER_ADDR says who",
        "MASTER_ADDR says who",
    ),
    "a variable that is not safe": Wrong(
        a_job(network={"env": [{"name": "NCCL_COMM_ID", "value": "10.0.0.1:1"}]}),
        "spec.network.env[0].name",
        "NCCL_COMM_ID is not safe",
        None,
    ),
    "a variable of the template that is not safe": Wrong(
        with_trainer(env=[{"name": "NCCL_HOSTID", "value": "a"}]),
        f"{CONTAINERS}[0].env[0].name",
        "set spec.network.allowUnsafe",
        None,
    ),
    "an image of one's own without a command": Wrong(
        with_trainer(image="mine/lm:3"), CONTAINERS, rules.NEEDS_COMMAND, rules.NEEDS_COMMAND
    ),
    "a command beside a configuration of the built-in trainer": Wrong(
        with_spec(with_trainer(command=["python", "mine.py"]), trainer={}),
        "spec.trainer",
        rules.COMMAND_OR_TRAINER,
        rules.COMMAND_OR_TRAINER,
    ),
    "checkpoints on a volume that is not there": Wrong(
        a_job(checkpoint={"volume": "nowhere"}), "spec.checkpoint.volume", rules.NO_SUCH_VOLUME, rules.NO_SUCH_VOLUME
    ),
    "checkpoints on a volume that the container that trains does not mount": Wrong(
        with_spec(with_pod(volumes=[{"name": "state", **CLAIM}]), checkpoint={"volume": "state"}),
        "spec.checkpoint.volume",
        rules.NOT_MOUNTED,
        rules.NOT_MOUNTED,
    ),
    "checkpoints on a volume that may only be read": Wrong(
        read_only(with_volume(**CLAIM)), "spec.checkpoint.volume", rules.NOT_MOUNTED, rules.NOT_MOUNTED
    ),
    "checkpoints on a volume that no two pods share": Wrong(
        with_volume(emptyDir={}), "spec.checkpoint.volume", "kind emptyDir", None
    ),
    "checkpoints on a volume and at a URL": Wrong(
        with_spec(with_volume(**CLAIM), checkpoint={"volume": "state", "url": "s3://bucket/runs"}),
        "spec.checkpoint.url",
        rules.VOLUME_OR_URL,
        rules.VOLUME_OR_URL,
    ),
    "checkpoints at a URL without a bucket": Wrong(
        a_job(checkpoint={"url": "s3:///runs"}), "spec.checkpoint.url", "s3://bucket/folder", "s3://bucket/folder"
    ),
    "a path in the place of a URL": Wrong(
        a_job(checkpoint={"url": "/mnt/runs"}), "spec.checkpoint.url", "by checkpoint.volume", "by checkpoint.volume"
    ),
    "a URL too long": Wrong(
        a_job(checkpoint={"url": f"s3://{'b' * 1024}"}), "spec.checkpoint.url", "s3://bucket/folder", "Too long"
    ),
    "copies in memory by the unit of disks": Wrong(
        a_job(checkpoint={"memory": "16GB"}), "spec.checkpoint.memory", "'16GB' is not an amount", "such as 16Gi"
    ),
    "a variable with a space in its name": Wrong(
        a_job(network={"env": [{"name": "NCCL DEBUG", "value": "INFO"}]}),
        "spec.network.env[0].name",
        "letters, digits and underscores",
        "letters, digits and underscores",
    ),
    "a grace without a unit": Wrong(
        a_job(checkpoint={"grace": 120}),
        "spec.checkpoint.grace",
        "120 has no unit; write 120s",
        "must be of type string",
    ),
    "copies in memory of no size": Wrong(
        a_job(checkpoint={"memory": "plenty"}), "spec.checkpoint.memory", "not an amount", "not an amount"
    ),
    "a node chosen by hand": Wrong(with_pod(nodeName="n1"), "spec.template.spec.nodeName", "leave it out", None),
    "an interval of no steps": Wrong(
        a_job(checkpoint={"every": 0}), "spec.checkpoint.every", "0 is too small", "neither steps nor"
    ),
    "an interval in days": Wrong(
        a_job(checkpoint={"every": "1d"}), "spec.checkpoint.every", "not a duration", "neither steps nor"
    ),
    "a grace of no time": Wrong(
        a_job(checkpoint={"grace": "0s"}), "spec.checkpoint.grace", "no time at all", "more than 0s"
    ),
    "no checkpoint to keep": Wrong(
        a_job(checkpoint={"keep": 0}), "spec.checkpoint.keep", "use 1 or more", "greater than or equal to 1"
    ),
    "a time without a unit": Wrong(a_job(maxRuntime="48"), "spec.maxRuntime", "not a duration", "not a time"),
    "a level that cannot be a name": Wrong(
        a_job(placement={"within": {"level": "Leaf 1"}}),
        "spec.placement.within.level",
        "not a name",
        "not a name; use lower-case",
    ),
    "locality without a level": Wrong(
        a_job(placement={"within": {"required": True}}), "spec.placement.within.level", "is missing", "Required value"
    ),
    "a negative failure budget": Wrong(
        a_job(restart={"failures": -1}), "spec.restart.failures", "use 0 or more", "greater than or equal to 0"
    ),
    "a training of no steps": Wrong(
        a_job(trainer={"steps": 0}), "spec.trainer.steps", "use 1 or more", "greater than or equal to 1"
    ),
    "a model that does not exist": Wrong(
        a_job(trainer={"model": {"preset": "huge"}}),
        "spec.trainer.model.preset",
        "none of the choices",
        "Unsupported value",
    ),
    "heads that do not divide the width": Wrong(
        a_job(trainer={"model": {"preset": "tiny", "heads": 5}}), "spec.trainer.model.width", "not a multiple", None
    ),
    "an axis that does not divide the processes": Wrong(
        a_job(processesPerNode=2, parallelism={"shard": 3}),
        "spec.parallelism.shard",
        "3 does not divide the 8 processes (4 nodes x 2); use 1, 2, 4 or 8, or auto",
        NO_DIVISOR,
    ),
    "an axis that does not divide the accelerators": Wrong(
        with_spec(with_trainer(resources={"limits": {"nvidia.com/gpu": 8}}), parallelism={"replicate": 5}),
        "spec.parallelism.replicate",
        "5 does not divide the 32 processes (4 nodes x 8)",
        None,
    ),
    "axes that do not make up the processes": Wrong(
        a_job(processesPerNode=2, parallelism={"shard": 2, "replicate": 2}),
        "spec.parallelism.replicate",
        "2 times shard 2 is not the 8 processes (4 nodes x 2); use 4, or auto",
        NO_PRODUCT,
    ),
    "axes that leave too few processes": Wrong(
        a_job(processesPerNode=2, parallelism={"tensor": 4, "pipeline": 4}),
        "spec.parallelism.pipeline",
        "4 does not divide the 2 that tensor 4 leaves of the 8 processes (4 nodes x 2); use 1 or 2",
        None,
    ),
    "four axes that do not make up the processes": Wrong(
        a_job(processesPerNode=2, parallelism={"tensor": 2, "pipeline": 2, "shard": 1, "replicate": 1}),
        "spec.parallelism.replicate",
        "1 times tensor 2 x pipeline 2 x shard 1 is not the 8 processes (4 nodes x 2); use 2, or auto",
        NO_PRODUCT,
    ),
    "more tensor ranks than heads of keys": Wrong(
        a_job(processesPerNode=2, parallelism={"tensor": 8}),
        "spec.parallelism.tensor",
        "8 does not divide the 4 heads (spec.trainer.model.heads); use 1, 2 or 4",
        None,
    ),
    "a sequence that tensor ranks cannot share": Wrong(
        a_job(processesPerNode=2, parallelism={"tensor": 2}, trainer={"data": {"sequenceLength": 127}}),
        "spec.parallelism.tensor",
        "2 does not divide the 127 tokens of a sample (spec.trainer.data.sequenceLength); use 1 or 127",
        None,
    ),
    "stages that do not divide the layers": Wrong(
        a_job(processesPerNode=2, parallelism={"pipeline": 8}),
        "spec.parallelism.pipeline",
        "8 does not divide the 4 layers (spec.trainer.model.layers); use 1, 2 or 4",
        None,
    ),
    "stages of every process that do not divide the layers": Wrong(
        a_job(
            processesPerNode=2,
            parallelism={"pipeline": 4},
            trainer={"parallel": {"schedule": "interleaved", "stagesPerRank": 2}},
        ),
        "spec.parallelism.pipeline",
        "4 with 2 stages in each process (spec.trainer.parallel.stagesPerRank) does not divide the 4 layers",
        None,
    ),
    "one stage to interleave": Wrong(
        a_job(trainer={"parallel": {"schedule": "interleaved"}}),
        "spec.trainer.parallel.stagesPerRank",
        "1 is nothing to interleave; use 2 or more, or schedule 1f1b",
        None,
    ),
    "several stages to a schedule of one": Wrong(
        a_job(trainer={"parallel": {"schedule": "gpipe", "stagesPerRank": 2}}),
        "spec.trainer.parallel.stagesPerRank",
        "gpipe has one stage for each process, not 2; use 1, or schedule interleaved or zero-bubble",
        None,
    ),
    "weights given back between two halves of a backward pass": Wrong(
        a_job(trainer={"parallel": {"schedule": "zero-bubble", "reshard": "always"}}),
        "spec.trainer.parallel.reshard",
        "always gives weights back before the second half of the backward pass (schedule: zero-bubble) needs them; use auto",
        None,
    ),
    "a backward pass in two halves, compiled": Wrong(
        a_job(trainer={"compile": True, "parallel": {"schedule": "zero-bubble"}}),
        "spec.trainer.compile",
        "true, but a backward pass that is cut in two (parallel.schedule: zero-bubble) cannot be compiled",
        None,
    ),
    "a scale that changes under what compression left out": Wrong(
        a_job(trainer={"precision": "float16", "parallel": {"compression": {"method": "int8"}}}),
        "spec.trainer.precision",
        "float16 changes by how much gradients are scaled, and what int8 left out of those before",
        None,
    ),
    "fewer samples than stages": Wrong(
        a_job(processesPerNode=2, parallelism={"pipeline": 4}, trainer={"data": {"globalBatch": 4}}),
        "spec.parallelism.pipeline",
        "use a pipeline of at most 2, or a globalBatch of at least 8",
        None,
    ),
    "an axis without members": Wrong(a_job(parallelism={"shard": 0}), "spec.parallelism.shard", NO_SIZE, NO_SIZE),
    "an axis of another word": Wrong(
        a_job(parallelism={"replicate": "all"}), "spec.parallelism.replicate", NO_SIZE, NO_SIZE
    ),
}

FINE: dict[str, Manifest] = {
    "the shortest job": a_job(),
    "the longest name": a_job("a" * 40),
    "the only container, whatever its name": with_trainer(name="main"),
    "one of several containers named trainer": with_pod(
        containers=[{"name": "trainer", "image": "trainyard/trainer"}, PAIR[0]]
    ),
    "an image of one's own with a command": with_trainer(image="mine/lm:3", command=["python", "mine.py"]),
    "an image of one's own that holds the built-in trainer": with_spec(with_trainer(image="mine/lm:3"), trainer={}),
    "the trainer's image from another registry": with_trainer(
        image="registry.example/mirror/trainyard/trainer@sha256:00"
    ),
    "restartPolicy Never": with_pod(restartPolicy="Never"),
    "what is not safe, where the job means it": a_job(
        network={"env": [{"name": "NCCL_GRAPH_FILE", "value": "/g.xml"}], "allowUnsafe": True}
    ),
    "environment that is not reserved": with_trainer(
        env=[
            {"name": "NCCL_DEBUG", "value": "INFO"},
            {"name": "RANKS"},
            {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "x"}}},
        ]
    ),
    "a field of the pod that no schema here knows": with_pod(aFieldOfTomorrow={"kept": [1, 2]}),
    "checkpoints at a URL": a_job(checkpoint={"url": "s3://bucket/runs/small"}),
    "an interval in steps": with_spec(with_volume(**CLAIM), checkpoint={"volume": "state", "every": 200}),
    "an interval in time": a_job(checkpoint={"every": "1h30m", "grace": "1.5m", "keep": 1}),
    "everything said": a_job(
        processesPerNode=8,
        suspend=True,
        priorityClassName="research",
        maxRuntime="48h",
        minNodes=2,
        placement={
            "within": {"level": "leaf", "required": True},
            "relax": [{"after": "10m", "level": "spine"}, {"after": "1h", "level": "cluster"}],
            "segments": {"nodes": 2, "level": "leaf", "required": False},
            "podsPerNode": 2,
            "spares": 1,
            "avoidNodes": ["n1", "n2"],
        },
        restart={"failures": 0, "per": "1h"},
        network={"env": [{"name": "NCCL_DEBUG", "value": "INFO"}]},
        trainer={"model": {"preset": "tiny"}, "steps": 20},
        parallelism={"shard": 8, "replicate": 4},
    ),
    "the other axis follows": a_job(processesPerNode=2, parallelism={"shard": 4}),
    "the axes are the planner's": a_job(parallelism={}),
    "tensor groups and stages": a_job(
        processesPerNode=4, parallelism={"tensor": 2, "pipeline": 2, "shard": 2, "replicate": 2}
    ),
    "a script of one's own has its own idea of heads": with_spec(
        with_trainer(image="mine/lm:3", command=["python", "mine.py"]), processesPerNode=8, parallelism={"tensor": 8}
    ),
}
