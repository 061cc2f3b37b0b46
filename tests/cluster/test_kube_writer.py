"""The writer beside a real API server: every action may be done twice, by two processes at once, and to what is gone."""

import asyncio
import base64
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from support import kube
from support.api import Api, Object, wait_until
from support.nodes import a_node
from support.pods import a_pod
from trainyard.api import names
from trainyard.api.conditions import Phase
from trainyard.api.fabric import Observed, ObservedBy, ObservedLink
from trainyard.api.training_job import TrainingJobStatus
from trainyard.contract import requests
from trainyard.cycle.actions import (
    Action,
    Announce,
    Create,
    CreateControl,
    DeletePlan,
    DeletePod,
    HoldJob,
    MarkNode,
    Relabel,
    ReleaseJob,
    ReleasePod,
    Turn,
    WriteObserved,
    WriteStatus,
)
from trainyard.kube import decode
from trainyard.kube.client import KubeClient
from trainyard.kube.events import Recorder
from trainyard.kube.launchers import LauncherClient
from trainyard.kube.mirror import Mirror
from trainyard.kube.writer import Performed, Writer
from trainyard.world.records import Degraded, Marks

KEY = b"k" * 32


@dataclass(slots=True)
class Desk:
    """A writer, and the job that it writes for."""

    api: Api
    client: KubeClient
    mirror: Mirror
    writer: Writer
    recorder: Recorder
    namespace: str
    job: Object

    @property
    def uid(self) -> str:
        return self.job["metadata"]["uid"]

    async def perform(self, *actions: Action) -> Performed:
        return await self.writer.perform(Turn(self.uid, actions))

    async def done(self, *actions: Action) -> None:
        performed = await self.perform(*actions)
        assert performed.failure is None, performed.failure.error
        assert performed.done == actions

    def pod(self, member: int) -> Object:
        made = a_pod(f"train-{member}", self.namespace, finalizers=(names.FINALIZER_POD,))
        return kube.as_member(made, self.job, member=member)

    def plan(self, name: str = "train-plan-1") -> Object:
        meta = {"name": name, "namespace": self.namespace, "ownerReferences": kube.owned_by(self.job)}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {}}


@pytest.fixture
async def desk(control_plane, api, namespace) -> AsyncIterator[Desk]:
    async with (
        kube.a_client(control_plane.kubeconfig) as client,
        kube.a_mirror(client) as mirror,
        LauncherClient(KEY) as launchers,
    ):
        recorder = Recorder(client, "test", pause_seconds=0.01)
        job = await kube.a_job(api, namespace)
        mirror.observe(job)
        yield Desk(api, client, mirror, Writer(client, mirror, launchers, recorder), recorder, namespace, job)


async def test_a_gang_is_made_once_however_often_and_by_whomever(desk):
    turn = [Create(desk.plan()), *(Create(desk.pod(member)) for member in range(8))]
    both = await asyncio.gather(desk.perform(*turn), desk.perform(*turn))
    assert [performed.failure for performed in both] == [None, None]
    pods = await desk.api.list("Pod", desk.namespace)
    assert sorted(pod["metadata"]["name"] for pod in pods) == [f"train-{member}" for member in range(8)]


async def test_the_next_world_holds_what_was_written_before_the_watch_tells_of_it(desk):
    await desk.done(Create(desk.pod(0)))
    assert [pod.name for pod in desk.mirror.freeze().pods.values() if pod.membership] == ["train-0"]


async def test_an_object_of_somebody_else_under_the_name_ends_the_turn_and_is_left_alone(desk):
    foreign = {**desk.plan(), "data": {"mine": "yes"}}
    foreign["metadata"] = {"name": "train-plan-1", "namespace": desk.namespace}
    await desk.api.create(foreign)
    performed = await desk.perform(Create(desk.plan()), Create(desk.pod(0)))
    assert performed.done == ()
    assert performed.failure is not None
    assert performed.failure.error.already_exists
    assert "ConfigMap train-plan-1 exists and is not this job's" in performed.failure.error.message
    assert await desk.api.list("Pod", desk.namespace) == []
    await desk.done(DeletePlan(desk.namespace, "train-plan-1"))
    assert (await desk.api.get("ConfigMap", "train-plan-1", desk.namespace))["data"] == {"mine": "yes"}


async def test_a_plan_of_ours_is_deleted_and_one_that_is_gone_is_not_missed(desk):
    await desk.done(Create(desk.plan()))
    await desk.done(DeletePlan(desk.namespace, "train-plan-1"))
    assert await desk.api.find("ConfigMap", "train-plan-1", desk.namespace) is None
    await desk.done(DeletePlan(desk.namespace, "train-plan-1"))


async def test_a_delete_means_one_pod_and_never_its_successor(desk):
    await desk.done(Create(desk.pod(0)))
    await desk.done(DeletePod(desk.namespace, "train-0", "another-uid"))
    kept = await desk.api.get("Pod", "train-0", desk.namespace)
    assert "deletionTimestamp" not in kept["metadata"]
    uid = kept["metadata"]["uid"]
    await desk.done(DeletePod(desk.namespace, "train-0", uid, grace_seconds=0))
    held = await desk.api.get("Pod", "train-0", desk.namespace)  # by our finalizer
    assert "deletionTimestamp" in held["metadata"]
    assert desk.mirror.freeze().pods[uid].deleted is not None
    await desk.done(ReleasePod(desk.namespace, "train-0", "another-uid"))
    assert await desk.api.find("Pod", "train-0", desk.namespace) is not None
    await desk.done(ReleasePod(desk.namespace, "train-0", uid))
    await desk.api.wait_gone("Pod", "train-0", desk.namespace)
    await desk.done(ReleasePod(desk.namespace, "train-0", uid), DeletePod(desk.namespace, "train-0", uid))


async def test_a_pod_that_plays_again_says_so_and_its_successor_under_the_name_does_not(desk):
    await desk.done(Create(desk.pod(0)))
    uid = (await desk.api.get("Pod", "train-0", desk.namespace))["metadata"]["uid"]
    await desk.done(Relabel(desk.namespace, "train-0", uid, attempt=2, rank=5, plan_digest="later"))
    says = desk.mirror.freeze().pods[uid].membership
    assert (says.attempt, says.rank, says.plan_digest, says.member) == (2, 5, "later", 0)
    await desk.done(Relabel(desk.namespace, "train-0", "another-uid", attempt=3, rank=0, plan_digest="wrong"))
    await desk.done(Relabel(desk.namespace, "train-1", "gone", attempt=3, rank=0, plan_digest="wrong"))
    assert (await desk.api.get("Pod", "train-0", desk.namespace))["metadata"]["labels"][names.LABEL_ATTEMPT] == "2"


async def test_other_peoples_finalizers_stay(desk):
    pod = desk.pod(0)
    pod["metadata"]["finalizers"] = ["other.dev/first", names.FINALIZER_POD, "other.dev/last"]
    made = await desk.api.create(pod)
    await desk.done(ReleasePod(desk.namespace, "train-0", made["metadata"]["uid"]))
    left = await desk.api.get("Pod", "train-0", desk.namespace)
    assert left["metadata"]["finalizers"] == ["other.dev/first", "other.dev/last"]


async def test_a_job_is_held_only_as_it_was_read_and_released_only_once(desk):
    where, version = (desk.namespace, "train", desk.uid), desk.job["metadata"]["resourceVersion"]
    await desk.done(HoldJob(*where, version))
    held = await desk.api.get("TrainingJob", "train", desk.namespace)
    assert held["metadata"]["finalizers"] == [names.FINALIZER_JOB]
    assert desk.mirror.freeze().jobs[desk.uid].held
    stale = await desk.perform(HoldJob(*where, version))
    assert stale.failure is not None
    assert stale.failure.error.conflict
    await desk.done(ReleaseJob(*where, version), ReleaseJob(*where, version))
    released = await desk.api.get("TrainingJob", "train", desk.namespace)
    assert "finalizers" not in released["metadata"]


async def test_of_two_writers_of_one_status_one_wins_and_the_other_conflicts(desk):
    version = desk.job["metadata"]["resourceVersion"]

    def wanted(attempt: int) -> WriteStatus:
        status = TrainingJobStatus(phase=Phase.PENDING, attempt=attempt)
        return WriteStatus(desk.namespace, "train", desk.uid, version, status)

    one, other = await asyncio.gather(desk.perform(wanted(1)), desk.perform(wanted(2)))
    (lost,) = [performed.failure for performed in (one, other) if performed.failure is not None]
    assert lost.error.conflict
    won = 1 if one.failure is None else 2
    assert (await desk.api.get("TrainingJob", "train", desk.namespace))["status"]["attempt"] == won
    assert desk.mirror.freeze().jobs[desk.uid].status.attempt == won


async def test_of_two_leaders_that_write_one_fabrics_table_one_wins_and_nothing_else_of_it_changes(desk):
    made = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND_FABRIC,
        "metadata": {"name": desk.namespace},
        "spec": {},
    }
    fabric = await desk.api.create(made)
    try:
        meta = fabric["metadata"]

        def wanted(bandwidth: float, uid: str = meta["uid"]) -> WriteObserved:
            row = ObservedLink(
                level="node", bandwidth=bandwidth, by=ObservedBy.PREFLIGHT, job="team/lm", nodes=2, time=1e9
            )
            return WriteObserved(meta["name"], uid, meta["resourceVersion"], Observed(summary="all", links=(row,)))

        both = await asyncio.gather(desk.perform(wanted(1e9)), desk.perform(wanted(2e9)))
        conflicts = [performed.failure.error.conflict for performed in both if performed.failure]
        assert conflicts == [True]
        now = await desk.api.get("Fabric", desk.namespace)
        assert (now["spec"], now["metadata"]["generation"]) == (fabric["spec"], 1)
        seen = desk.mirror.freeze().fabrics[desk.namespace]
        assert seen.resource_version == now["metadata"]["resourceVersion"]
        assert seen.observed == Observed.model_validate(now["status"]["observed"])
        again = await desk.perform(wanted(3e9, uid="another"))
        assert again.failure is not None
        assert again.failure.error.conflict
    finally:
        await desk.api.delete("Fabric", desk.namespace)


async def test_what_a_status_no_longer_says_is_gone(desk):
    version = desk.job["metadata"]["resourceVersion"]
    said = TrainingJobStatus(phase=Phase.STARTING, started_at=1769860800.0)
    await desk.done(WriteStatus(desk.namespace, "train", desk.uid, version, said))
    version = desk.mirror.freeze().jobs[desk.uid].resource_version
    await desk.done(WriteStatus(desk.namespace, "train", desk.uid, version, said.but(started_at=None)))
    assert "startedAt" not in (await desk.api.get("TrainingJob", "train", desk.namespace))["status"]


async def test_the_status_of_a_job_made_anew_under_the_name_is_not_written(desk):
    await desk.api.delete("TrainingJob", "train", desk.namespace)
    anew = await kube.a_job(desk.api, desk.namespace)
    status = TrainingJobStatus(phase=Phase.FAILED)
    performed = await desk.perform(
        WriteStatus(desk.namespace, "train", desk.uid, anew["metadata"]["resourceVersion"], status)
    )
    assert performed.failure is not None
    assert performed.failure.error.conflict
    assert "status" not in await desk.api.get("TrainingJob", "train", desk.namespace)


async def test_the_control_secret_holds_the_jobs_key(desk):
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "train-control", "namespace": desk.namespace}}
    action = CreateControl(secret, desk.uid)
    await desk.done(action, action)
    made = await desk.api.get("Secret", "train-control", desk.namespace)
    assert base64.b64decode(made["data"][names.CONTROL_KEY]) == requests.job_key(KEY, desk.uid)


async def test_nothing_is_made_in_a_namespace_that_goes_away(desk, api):
    name = f"{desk.namespace}-leaving"
    await api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    held = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "held", "namespace": name}}
    held["metadata"]["finalizers"] = ["test.dev/held"]
    await api.create(held)
    await api.delete("Namespace", name)
    plan = desk.plan()
    plan["metadata"]["namespace"] = name
    performed = await desk.perform(Create(plan))
    assert performed.failure is not None
    assert performed.failure.error.namespace_leaving
    await api.patch("ConfigMap", "held", name, {"metadata": {"finalizers": None}})


async def test_who_does_not_lead_writes_nothing(desk):
    async with LauncherClient(KEY) as launchers:
        idle = Writer(desk.client, desk.mirror, launchers, desk.recorder, leading=lambda: False)
        performed = await idle.perform(Turn(desk.uid, (Create(desk.plan()),)))
    assert performed.failure is not None
    assert performed.failure.error.reason == "NotLeading"
    assert await desk.api.find("ConfigMap", "train-plan-1", desk.namespace) is None


async def test_an_event_that_is_said_often_is_one_event_with_a_count(desk):
    task = asyncio.create_task(desk.recorder.run())
    said = Announce(desk.namespace, "train", desk.uid, "Normal", "GangStarted", "4 members on 1 leaf")

    async def events() -> list[Object]:
        found = await desk.api.list("Event", desk.namespace)
        return [event for event in found if event["involvedObject"].get("uid") == desk.uid]

    await desk.done(said)
    (first,) = await wait_until(events, bool, what="the event")
    assert (first["type"], first["reason"], first["message"]) == ("Normal", "GangStarted", "4 members on 1 leaf")
    for _ in range(4):
        await desk.done(said)

    async def again() -> list[Object]:
        await desk.done(said)
        return await events()

    (counted,) = await wait_until(
        again, lambda found: len(found) == 1 and found[0].get("series", {}).get("count", 0) >= 6, what="the count"
    )
    assert counted["metadata"]["name"] == first["metadata"]["name"]
    for number in range(100):
        await desk.done(Announce(desk.namespace, "train", desk.uid, "Normal", "GangStarted", f"message {number}"))
    assert desk.recorder.dropped >= 70
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_note_that_is_longer_in_bytes_than_in_characters_is_cut_and_not_lost(desk):
    task = asyncio.create_task(desk.recorder.run())
    said = "\u4e2d" * 1000
    await desk.done(Announce(desk.namespace, "train", desk.uid, "Normal", "GangStarted", said))

    async def messages() -> list[str]:
        found = await desk.api.list("Event", desk.namespace)
        return [event["message"] for event in found if event["involvedObject"].get("uid") == desk.uid]

    (cut,) = await wait_until(messages, bool, what="the event")
    assert (len(cut), said.startswith(cut), desk.recorder.dropped) == (341, True, 0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_what_cannot_be_made_for_lack_of_its_namespace_is_an_error_said_as_it_is(desk):
    plan = desk.plan()
    plan["metadata"]["namespace"] = "nowhere"
    performed = await desk.perform(Create(plan))
    assert performed.failure is not None
    assert (performed.failure.error.code, performed.failure.error.conflict) == (404, False)
    assert 'namespaces "nowhere" not found' in performed.failure.error.message


async def test_a_bug_in_one_action_is_raised_when_its_neighbours_are_done(desk, monkeypatch):
    made: list[str] = []

    async def create(_: object, manifest: Object) -> Object:
        await asyncio.sleep(0.05 if manifest["metadata"]["name"] == "train-1" else 0)
        made.append(manifest["metadata"]["name"])
        if made == ["train-0"]:
            raise ZeroDivisionError
        return manifest

    monkeypatch.setattr(desk.client, "create", create)
    with pytest.raises(ZeroDivisionError):
        await desk.perform(Create(desk.pod(0)), Create(desk.pod(1)))
    assert made == ["train-0", "train-1"]


async def test_a_nodes_mark_is_one_condition_among_those_of_others_and_comes_off_again(desk, nodes):
    (name,) = await nodes.add(a_node("marked"))
    uid = (await desk.api.get("Node", name))["metadata"]["uid"]

    async def mark(degraded: bool, reason: str, time: float) -> Object:
        await desk.done(MarkNode(name, uid, degraded, reason, "2 jobs: a/x: slow; b/y: slow", time))
        return await desk.api.get("Node", name)

    first = await mark(True, "PreflightFailed", 1_700_000_000.4)
    await mark(True, "PreflightFailed", 1_700_000_000.4)
    by_type = {condition["type"]: condition for condition in first["status"]["conditions"]}
    assert by_type["Ready"]["status"] == "True"
    own = by_type["TrainyardNetworkDegraded"]
    assert (own["status"], own["reason"], own["lastTransitionTime"]) == (
        "True",
        "PreflightFailed",
        "2023-11-14T22:13:20Z",
    )
    assert decode.node(first).degraded == Degraded(1_700_000_000.0, "PreflightFailed", own["message"])
    assert desk.mirror.freeze().nodes[name].degraded is None  # it is switched off: nobody would take it off again
    async with kube.a_mirror(desk.client, marks=Marks()) as marking:
        assert marking.freeze().nodes[name].degraded == decode.node(first).degraded
    last = await mark(False, "PreflightPassed", 1_700_000_100.0)
    assert [c["type"] for c in last["status"]["conditions"]].count("TrainyardNetworkDegraded") == 1
    assert decode.node(last).degraded is None
    performed = await desk.perform(MarkNode(name, "another", True, "PreflightFailed", "", 1.0))
    assert performed.failure is not None
    assert performed.failure.error.conflict


async def test_a_cluster_that_knows_no_compute_domain_is_told_what_to_install(desk):
    made = {
        "apiVersion": names.COMPUTE_DOMAINS,
        "kind": names.KIND_COMPUTE_DOMAIN,
        "metadata": {"name": "train-nvlink", "namespace": desk.namespace, "ownerReferences": kube.owned_by(desk.job)},
        "spec": {"channel": {"resourceClaimTemplate": {"name": "train-nvlink"}}},
    }
    performed = await desk.perform(Create(made), Create(desk.plan()))
    assert performed.done == ()
    assert performed.failure is not None
    assert not performed.failure.error.conflict  # it would be tried again at once, for ever, and nobody told
    assert "CustomResourceDefinitions of NVIDIA's DRA driver" in performed.failure.error.message
