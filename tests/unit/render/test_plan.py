"""A placement becomes a plan that the launcher can read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clusters import a_node, a_tree, clusters
from support.rendering import UID, a_job, a_plan
from trainyard.api.training_job import LineageMark, ResumePoint, TrainingJobStatus
from trainyard.contract.plan import Axis, Checkpoints, Lineage, Mark, decode, digest, encode
from trainyard.render.plan import checkpoint_folder, observed

VOLUME = {"volumes": [{"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints"}}]}


def test_members_are_numbered_on_and_stand_in_rank_order():
    plan = a_plan(a_job(processesPerNode=2))
    assert [(member.member, member.node) for member in plan.members] == [
        (4, "a1-0"),
        (5, "a1-1"),
        (6, "a2-0"),
        (7, "a2-1"),
    ]
    assert (plan.attempt, plan.world_size, plan.mesh) == (2, 8, (Axis("shard", 8),))
    assert plan.master_address == "small-lm-4.small-lm"


def test_each_domain_is_written_once_and_members_refer_to_it():
    plan = a_plan(a_job())
    assert plan.levels == ("spine", "leaf")
    assert [domain.name for domain in plan.domains] == ["a", "leaf-1", "leaf-2"]
    assert [plan.path(rank) for rank in range(4)] == [("a", "leaf-1")] * 2 + [("a", "leaf-2")] * 2


def test_what_labels_do_not_say_is_not_in_the_plan():
    tree = a_tree({"x": a_node("x", spine="a"), "y": a_node("y")})
    plan = a_plan(a_job(), nodes=("x", "y", "gone"), tree=tree)
    assert [plan.path(rank) for rank in range(3)] == [("a",), (), ()]


@given(clusters())
def test_the_launcher_reads_what_was_planned(cluster):
    tree = a_tree(cluster)
    plan = a_plan(a_job(), nodes=tuple(tree.paths), tree=tree)
    assert decode(encode(plan)) == plan
    assert [plan.path(rank) for rank in range(len(plan.members))] == [tree.known(node) for node in tree.paths]


@given(st.permutations(["a1-0", "a1-1", "b1-0"]))
def test_another_order_is_another_plan(order):
    assert (digest(a_plan(a_job(), order)) == digest(a_plan(a_job(), ["a1-0", "a1-1", "b1-0"]))) == (
        order == ["a1-0", "a1-1", "b1-0"]
    )


def test_checkpoints_go_into_a_folder_of_the_jobs_own():
    mount = {"name": "checkpoints", "mountPath": "/data/", "subPath": "runs"}
    job = a_job(
        container={"volumeMounts": [mount]},
        pod=VOLUME,
        checkpoint={"volume": "checkpoints", "every": 50, "grace": "3m"},
    )
    assert checkpoint_folder(job) == f"/data/research.small-lm.{UID[:8]}"
    assert a_plan(job).checkpoints == Checkpoints(
        folder=f"/data/research.small-lm.{UID[:8]}", every_steps=50, every_seconds=None, keep=3, grace_seconds=180.0
    )


def test_checkpoints_at_a_url_need_no_volume():
    job = a_job(checkpoint={"url": "s3://bucket/runs/", "every": 50, "memory": "16Gi"})
    assert checkpoint_folder(job) == f"s3://bucket/runs/research.small-lm.{UID[:8]}"
    checkpoints = a_plan(job).checkpoints
    assert checkpoints is not None
    assert checkpoints.folder == f"s3://bucket/runs/research.small-lm.{UID[:8]}"
    assert checkpoints.copies_bytes == 16 * 2**30


def test_a_volume_that_the_template_does_not_mount_is_mounted_for_it():
    job = a_job(pod=VOLUME, checkpoint={"volume": "checkpoints", "every": "90s"})
    checkpoints = a_plan(job).checkpoints
    assert checkpoints is not None
    assert checkpoints.folder == f"/checkpoints/research.small-lm.{UID[:8]}"
    assert (checkpoints.every_steps, checkpoints.every_seconds) == (None, 90.0)


def test_an_interval_left_open_comes_with_how_often_the_job_failed():
    job = a_job(pod=VOLUME, checkpoint={"volume": "checkpoints", "every": "auto"})
    checkpoints = a_plan(job).checkpoints
    assert checkpoints is not None
    assert checkpoints.every_auto
    assert (checkpoints.every_steps, checkpoints.every_seconds, checkpoints.failures) == (None, None, 0)


@pytest.mark.parametrize(
    ("failures", "expected"),
    [((), (0, 0.0)), ((5.0,), (1, 1000.0)), ((0.0, 50.0, 100.0), (3, 150.0)), ((0.0, 900.0), (2, 1000.0))],
)
def test_failures_are_counted_over_the_time_between_them(failures, expected):
    assert observed(failures, 1000.0) == expected


def test_without_a_volume_nothing_is_saved():
    assert checkpoint_folder(a_job()) is None
    assert a_plan(a_job()).checkpoints is None


def test_the_lineage_is_what_the_status_remembers():
    status = TrainingJobStatus(
        lineage=(LineageMark(attempt=1, step=120), LineageMark(attempt=2, step=-1)),
        resume=ResumePoint(attempt=1, step=120, path="/checkpoints/x"),
    )
    assert a_plan(a_job(status=status)).lineage == Lineage((Mark(1, 120), Mark(2, -1)), Mark(1, 120))
    assert a_plan(a_job()).lineage == Lineage()


def test_the_built_in_trainer_gets_its_configuration_and_a_script_gets_none():
    configured = a_plan(a_job(trainer={"steps": 7})).trainer
    assert configured is not None
    assert configured["steps"] == 7
    assert a_plan(a_job()).trainer == {}
    assert a_plan(a_job(container={"command": ["python3", "mine.py"]})).trainer is None


def test_ten_thousand_members_fit_into_a_config_map():
    nodes = [a_node(f"gpu-worker-{n:05d}", spine=f"spine-{n // 512}", leaf=f"leaf-{n // 16}") for n in range(10_000)]
    tree = a_tree({node.name: node for node in nodes})
    plan = a_plan(a_job(nodes=10_000), nodes=tuple(tree.paths), tree=tree)
    assert len(encode(plan).encode()) < 700_000


def test_the_mesh_is_the_one_that_the_job_asks_for():
    asked = a_plan(a_job(processesPerNode=2, parallelism={"shard": 2}))
    assert asked.mesh == (Axis("replicate", 4), Axis("shard", 2))
    assert decode(encode(asked)).mesh == asked.mesh
    assert a_plan(a_job(processesPerNode=2, parallelism={"replicate": 1})).mesh == (Axis("shard", 8),)


def test_tensor_groups_are_neighbours_and_stages_reach_farthest():
    plan = a_plan(a_job(processesPerNode=2, parallelism={"tensor": 2, "pipeline": 2}))
    assert plan.mesh == (Axis("pipeline", 2), Axis("shard", 2), Axis("tensor", 2))
    assert decode(encode(plan)).mesh == plan.mesh
