"""A queue run on a pretended cluster by the operator's own judgement."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from support.pretend import Pretend
from trainyard.cli.manifests import ManifestError
from trainyard.cli.simulate import (
    ANNOTATION_AT,
    ANNOTATION_FOR,
    Course,
    read_nodes,
    read_submissions,
    simulated,
    simulated_page,
)
from trainyard.world.records import World

BEGIN = 1_000_000.0
DAY = 86400.0


def a_job(
    name: str, nodes: int, at: str | None = None, lasts: str | None = None, saves: bool = True, **spec: Any
) -> str:
    notes = {ANNOTATION_AT: at, ANNOTATION_FOR: lasts}
    trainer: dict[str, Any] = {"name": "trainer", "image": "trainyard/trainer"}
    trainer["resources"] = {"limits": {"nvidia.com/gpu": 8}}
    pod: dict[str, Any] = {"containers": [trainer]}
    if saves:
        trainer["volumeMounts"] = [{"name": "c", "mountPath": "/c"}]
        pod["volumes"] = [{"name": "c", "persistentVolumeClaim": {"claimName": "c"}}]
        spec["checkpoint"] = {"volume": "c"}
    manifest = {
        "apiVersion": "trainyard.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name, "annotations": {key: value for key, value in notes.items() if value}},
        "spec": {"nodes": nodes, "template": {"spec": pod}, **spec},
    }
    return "---\n" + yaml.safe_dump(manifest)


def a_cluster(**sizes: int) -> World:
    return Pretend().with_nodes(**sizes).with_class("urgent", 100).world()


def run(*jobs: str, world: World | None = None, until: float = DAY) -> dict[str, Course]:
    queue = read_submissions("".join(jobs), "team", BEGIN)
    courses, _ = simulated(world or a_cluster(), queue, BEGIN, until)
    return {one.key.removeprefix("team/"): one for one in courses}


def test_a_job_starts_at_once_and_ends_after_its_time() -> None:
    found = run(a_job("a", 4, lasts="2h"))["a"]
    assert (found.submitted, found.started, found.ended, found.yields) == (0.0, 0.0, 7200.0, 0)
    assert set(found.last) == {"a0", "a1", "a2", "a3"}


def test_the_next_waits_until_the_first_has_ended() -> None:
    found = run(a_job("a", 6, lasts="2h"), a_job("b", 6, at="30m", lasts="1h"))
    assert (found["b"].submitted, found["b"].started, found["b"].ended) == (1800.0, 7200.0, 10800.0)


def test_a_job_of_higher_priority_takes_the_nodes_and_the_other_goes_on_where_it_was() -> None:
    urgent = a_job("urgent", 8, at="1h", lasts="1h", priorityClassName="urgent")
    found = run(a_job("a", 8, lasts="2h"), urgent)
    assert found["urgent"].started == 3630.0  # a saves for 30 s
    assert found["urgent"].ended == 7230.0
    assert found["a"].yields == 1
    assert found["a"].ended == 7230.0 + 3600.0


def test_a_job_that_cannot_save_begins_anew() -> None:
    urgent = a_job("urgent", 8, at="1h", lasts="1h", priorityClassName="urgent")
    found = run(a_job("a", 8, lasts="2h", saves=False), urgent)
    assert found["urgent"].started == 3600.0
    assert found["a"].ended == 7200.0 + 7200.0


def test_a_short_job_goes_ahead_where_it_does_not_delay_the_head() -> None:
    holds = a_job("holds", 4, maxRuntime="4h")
    head = a_job("head", 8, at="1m", lasts="1h")
    found = run(holds, head, a_job("short", 2, at="2m", maxRuntime="1h"), a_job("long", 2, at="2m", maxRuntime="9h"))
    assert found["short"].started == 120.0
    assert found["head"].started is not None
    assert found["long"].started is not None
    assert found["head"].started <= 4 * 3600 + 600
    assert found["long"].started > found["head"].started


def test_a_job_without_an_end_trains_until_nobody_looks() -> None:
    found = run(a_job("a", 8), a_job("b", 1, lasts="1h"), until=3600.0)
    assert found["a"].ended is None
    assert found["b"].started is None
    assert found["b"].waits.startswith("InsufficientNodes: needs 1 node")


def test_what_is_on_the_cluster_stays_until_its_limit() -> None:
    cluster = Pretend().with_nodes()
    cluster.now = BEGIN - 3600
    cluster.submit("there", 8, maxRuntime="2h")
    cluster.tick(10)
    cluster.now = BEGIN
    found = run(a_job("a", 8, lasts="1h"), world=cluster.world())["a"]
    assert found.started is not None
    assert 3600 <= found.started <= 3620


def test_the_page_is_a_table_with_what_still_waits_and_sums() -> None:
    jobs = [a_job("a", 4, lasts="2h"), a_job("huge", 99), a_job("b", 8, at="10m", lasts="1h")]
    page = simulated_page(a_cluster(), read_submissions("".join(jobs), "team", BEGIN), BEGIN, DAY)
    assert page.splitlines() == [
        "JOB        NODES  APPLIED  WAITED  STARTED  ENDED  YIELDS  WHERE",
        "team/a         4       0s      0s       0s     2h       0  spine spine-a",
        "team/huge     99       0s      3h        -      -       0  -",
        "team/b         8      10m   1h50m       2h     3h       0  cluster, over 2 spine domains",
        "",
        "team/huge still waits, InsufficientNodes: needs 99 nodes; 8 are eligible, 8 of them are free",
        "",
        "3 jobs over 3h: 2 ended, 0 under way, 1 never started.",
        "Waits of those that started: mean 55m, longest 1h50m.",
        "Of 8 nodes these jobs used 67% of the time.",
    ]


def test_nodes_of_a_file_are_what_kubectl_get_writes() -> None:
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n1", "uid": "u", "labels": {}},
        "status": {"allocatable": {"nvidia.com/gpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]},
    }
    urgent = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"}, "value": 7}
    world = read_nodes(json.dumps({"apiVersion": "v1", "kind": "List", "items": [node, urgent]}))
    assert world.nodes["n1"].allocatable == {"nvidia.com/gpu": 8}
    assert world.priority("urgent") == 7


@pytest.mark.parametrize(
    ("read", "text", "says"),
    [
        (read_nodes, "kind: List\nitems: []\n", "holds no Node"),
        (read_nodes, "apiVersion: v1\nkind: Node\nmetadata: 3\n", "is not what kubectl get writes"),
        (lambda text: read_submissions(text, "n", BEGIN), "a: [", "is not YAML"),
        (lambda text: read_submissions(text, "n", BEGIN), "kind: Pod\n", "holds no TrainingJob"),
        (lambda text: read_submissions(text, "n", BEGIN), a_job("a", 1, at="soon"), "'soon' is not a duration"),
        (lambda text: read_submissions(text, "n", BEGIN), a_job("a", 0), "spec.nodes: 0 is too small"),
    ],
)
def test_files_that_make_no_sense_are_told_apart(read: Any, text: str, says: str) -> None:
    with pytest.raises(ManifestError, match=says):
        read(text)
