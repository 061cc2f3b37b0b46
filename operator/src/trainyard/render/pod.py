"""A member of a gang as a pod: the user's template, pinned to its node, started by the launcher, told who it is.

What the template says and nothing here needs is kept as it is, also what this version of Trainyard does not know.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import Any, Final

from trainyard.api import names
from trainyard.api.template import mount_path, pod_spec, trainer_container
from trainyard.api.training_job import TrainingJobSpec
from trainyard.contract.plan import Plan, digest
from trainyard.network.settings import Setting, Settings
from trainyard.render import channel, launcher
from trainyard.render.env import environment
from trainyard.render.objects import metadata
from trainyard.render.plan import CHECKPOINTS_FOLDER
from trainyard.world.records import Job, Manifest

GRACE_MARGIN_SECONDS: Final = 30
"""Beyond checkpoint.grace: the step that is under way when SIGTERM comes, last words, and the kubelet's own delays."""

PLAN_VOLUME: Final = "trainyard-plan"
CONTROL_VOLUME: Final = "trainyard-control"
SHM_VOLUME: Final = "trainyard-shm"
SHM_FOLDER: Final = "/dev/shm"

_KEY_MODE: Final = 0o444
"""Readable for whoever the trainer runs as: the files belong to root, and a template without fsGroup may run as anybody. The
volume is mounted into the trainer container alone, so nobody else in the pod sees it."""

_STAY: Final = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}
"""Autoscalers leave the pod's node alone: to them a member of a gang looks like a pod that could be had anywhere."""


def pods(
    job: Job, plan: Plan, ranks: Iterable[int], settings: Settings, launcher_image: str = ""
) -> Iterator[Manifest]:
    """The pods that play these node ranks of an attempt, in the order given. The job's spec must make sense.

    launcher_image: of what puts the launcher beside an image that has none; "": every image is to have it.

    kube-scheduler binds each, to the one node that its affinity leaves: so quota, taints and room are checked once more by
    whom everybody else asks.
    """
    made_from = digest(plan)  # of the whole plan, so once for all of them
    plan_map, form = names.plan_name(job.name, plan.attempt), forms(job, settings, launcher_image)
    for rank in ranks:
        member = plan.members[rank]
        labels = {
            names.LABEL_ATTEMPT: str(plan.attempt),
            names.LABEL_MEMBER: str(member.member),
            names.LABEL_RANK: str(rank),
        }
        annotations = {
            names.ANNOTATION_NODE: member.node,
            names.ANNOTATION_PLAN: made_from,
            names.ANNOTATION_MADE: str(plan.attempt),
            names.ANNOTATION_FORM: form(member.node),
        }
        made = _pod(job, plan.pod(rank), plan_map, settings.on(member.node), labels, annotations, launcher_image)
        spec = {**made["spec"], "affinity": pinned(made["spec"].get("affinity"), member.node)}
        yield {**made, "metadata": {**made["metadata"], "finalizers": [names.FINALIZER_POD]}, "spec": spec}


def forms(job: Job, settings: Settings, launcher_image: str = "") -> Callable[[str], str]:
    """By node, a digest of all of a member's pod that is not its identity: a pod of another form is not kept.

    Made once for all nodes that need the same settings, which most often are all there are.
    """
    known: dict[tuple[Setting, ...], str] = {}

    def form(node: str) -> str:
        own = settings.by_node.get(node, ())
        if own not in known:
            made = _pod(job, job.name, names.plan_name(job.name, 0), settings.on(node), {}, {}, launcher_image)
            known[own] = hashlib.sha256(json.dumps(made, sort_keys=True, default=str).encode()).hexdigest()[:16]
        return known[own]

    return form


def pod(job: Job, plan: Plan, rank: int, settings: Settings, launcher_image: str = "") -> Manifest:
    """The pod that plays one node rank of an attempt."""
    return next(pods(job, plan, [rank], settings, launcher_image))


def trial_pod(job: Job, settings: Settings, launcher_image: str = "") -> Manifest:
    """The pod that a dry run shows to the API server before anything is made: like any member, but on no node.

    No member can have its name, so the trial never fails because a pod is there. It holds no finalizer, so it would go like
    any pod if a server took the trial for real.
    """
    return _pod(job, f"{job.name}-trial", names.plan_name(job.name, 0), settings, {}, {}, launcher_image)


def pinned(affinity: object, node: str) -> dict[str, Any]:
    """An affinity that leaves one node of those it left before.

    Terms are alternatives, so the node is demanded in each: a term of its own would unpin the pod. A term without any
    demand matches no node, and stays so.
    """
    before = affinity if isinstance(affinity, Mapping) else {}
    of_nodes = before.get("nodeAffinity") or {}
    required = of_nodes.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = required.get("nodeSelectorTerms")
    pinned_terms = (
        [{"matchFields": [here]}]
        if terms is None
        else [
            {**term, "matchFields": [*(term.get("matchFields") or ()), here]} if any(term.values()) else term
            for term in terms
        ]
    )
    return {
        **before,
        "nodeAffinity": {
            **of_nodes,
            "requiredDuringSchedulingIgnoredDuringExecution": {**required, "nodeSelectorTerms": pinned_terms},
        },
    }


def _pod(
    job: Job,
    name: str,
    plan_map: str,
    settings: Settings,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    launcher_image: str,
) -> dict[str, Any]:
    spec = job.spec
    if spec is None:
        raise ValueError(f"{job.key}: nothing can be made of a job whose specification makes no sense")
    of_template = spec.template.get("metadata") or {}
    ours = metadata(job, name, labels)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **ours,
            "labels": {**(of_template.get("labels") or {}), **ours["labels"]},
            "annotations": {
                **_STAY,
                **settings.additions.annotations,
                **(of_template.get("annotations") or {}),
                **annotations,
            },
        },
        "spec": _pod_spec(job, spec, name, plan_map, settings, launcher_image),
    }


def _pod_spec(
    job: Job, spec: TrainingJobSpec, name: str, plan_map: str, settings: Settings, launcher_image: str
) -> dict[str, Any]:
    template = pod_spec(spec.template)
    trains = trainer_container(spec.template)
    priority = {} if spec.priority_class_name is None else {"priorityClassName": spec.priority_class_name}
    grace = ceil(spec.checkpoint.grace_seconds) + GRACE_MARGIN_SECONDS
    volumes = _by_name([*settings.additions.volumes, *(template.get("volumes") or ())])
    shm = trains is not None and SHM_FOLDER not in _mount_paths(trains, settings)
    on_host = template.get("hostNetwork", settings.host_network)
    before = _by_name([*settings.additions.init_containers, *(template.get("initContainers") or ())])
    beside = bool(launcher_image) and trains is not None and launcher.is_put_beside(trains)
    if beside and trains is not None:
        before = [launcher.init_container(launcher_image, template, trains), *before]
    return {
        "enableServiceLinks": False,  # a Service named master would set MASTER_PORT
        # On the host's network a pod asks the host's name server unless told otherwise, and that knows no Service.
        **({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if on_host else {}),
        **template,
        **channel.of_pod(job, settings),
        **({"initContainers": before} if before else {}),
        **priority,
        "hostname": name,
        "subdomain": names.service_name(job.name),
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": max(grace, template.get("terminationGracePeriodSeconds") or 0),
        "containers": [
            c if c is not trains else _trainer(trains, spec, settings, shm=shm, beside=beside)
            for c in template.get("containers") or ()
        ],
        "volumes": [*volumes, *_volumes(plan_map, names.control_name(job.name, job.uid), shm=shm, beside=beside)],
    }


def _volumes(plan_map: str, control: str, *, shm: bool, beside: bool) -> Iterable[Mapping[str, Any]]:
    yield {"name": PLAN_VOLUME, "configMap": {"name": plan_map}}
    yield {"name": CONTROL_VOLUME, "secret": {"secretName": control, "defaultMode": _KEY_MODE}}
    if shm:  # the runtime's own is 64 MiB, too small for data loaders and for NCCL
        yield {"name": SHM_VOLUME, "emptyDir": {"medium": "Memory"}}
    if beside:
        yield launcher.volume()


def _trainer(
    container: Mapping[str, Any], spec: TrainingJobSpec, settings: Settings, *, shm: bool, beside: bool
) -> dict[str, Any]:
    """The container that trains. A mount of the job's wins over one of the fabric's at the same path."""
    own = [*(container.get("volumeMounts") or ()), *_checkpoints_mount(container, spec)]
    taken = {_path(mount) for mount in own}
    added = [mount for mount in settings.additions.volume_mounts if _path(mount) not in taken]
    ours = [
        {"name": PLAN_VOLUME, "mountPath": names.PLAN_FOLDER, "readOnly": True},
        {"name": CONTROL_VOLUME, "mountPath": names.CONTROL_FOLDER, "readOnly": True},
        *([{"name": SHM_VOLUME, "mountPath": SHM_FOLDER}] if shm else []),
        *([launcher.mount()] if beside else []),
    ]
    port = {"name": names.LAUNCHER_PORT_NAME, "containerPort": names.LAUNCHER_PORT}
    others = [p for p in container.get("ports") or () if p.get("containerPort") != names.LAUNCHER_PORT]
    rest = {key: value for key, value in container.items() if key not in ("command", "args")}
    return {
        **rest,
        **_devices(container, settings),
        **_rights(container, settings),
        **launcher.command(container, spec.processes, beside=beside),
        "env": environment(settings, container.get("env") or ()),
        "ports": [*others, port],
        "volumeMounts": [*own, *added, *ours],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
    }


def _devices(container: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """The resources of the container with those that the network adds; what the container asks for itself stays as it is."""
    added = settings.additions.resources
    if not added and not settings.channel:
        return {}
    resources = container.get("resources") or {}
    limits = {"limits": {**added, **(resources.get("limits") or {})}} if added else {}
    return {"resources": {**resources, **limits, **channel.of_container(settings)}}


def _rights(container: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """The security context with what the network needs. What the container refuses to have itself is not forced on it."""
    own = container.get("securityContext") or {}
    capabilities = own.get("capabilities") or {}
    had = capabilities.get("add") or ()
    wanted = () if "ALL" in had else [name for name in settings.additions.capabilities if name not in had]
    privileged = {"privileged": True} if settings.privileged else {}
    if not wanted and not privileged:
        return {}
    added = {"capabilities": {**capabilities, "add": [*had, *wanted]}} if wanted else {}
    return {"securityContext": {**privileged, **own, **added}}


def _checkpoints_mount(container: Mapping[str, Any], spec: TrainingJobSpec) -> Iterable[Mapping[str, Any]]:
    """The volume for checkpoints, where the job names one and the container does not mount it to write."""
    volume = spec.checkpoint.volume
    if volume is not None and mount_path(container, volume) is None:
        yield {"name": volume, "mountPath": CHECKPOINTS_FOLDER}


def _mount_paths(container: Mapping[str, Any], settings: Settings) -> set[str]:
    return {_path(mount) for mount in (*(container.get("volumeMounts") or ()), *settings.additions.volume_mounts)}


def _path(mount: Mapping[str, Any]) -> str:
    return str(mount.get("mountPath")).rstrip("/")


def _by_name(named: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Each name once; the later one counts, which is the job's where the fabric has one of the same name."""
    return list({one.get("name"): one for one in named}.values())
