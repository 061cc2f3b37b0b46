"""What would become of a job, before anything is applied."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.pretend import Pretend
from trainyard.cli.data import planned_data, written
from trainyard.cli.manifests import ManifestError, of_file, read_jobs
from trainyard.cli.planned import WOULD_FAIL, WOULD_WAIT, planned_pages


def a_manifest(name: str = "lm", nodes: Any = 4, **spec: Any) -> str:
    trainer = {"name": "trainer", "image": "trainyard/trainer", "resources": {"limits": {"nvidia.com/gpu": 8}}}
    return yaml.safe_dump(
        {
            "apiVersion": "trainyard.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": name},
            "spec": {"nodes": nodes, "template": {"spec": {"containers": [trainer]}}, **spec},
        }
    )


def a_cluster() -> Pretend:
    return Pretend().with_nodes(spines=2, leaves=2, per_leaf=4)


def planned(cluster: Pretend, *manifests: str) -> tuple[list[str], int]:
    jobs = read_jobs("---\n".join(manifests), "team", cluster.now)
    text, code = planned_pages(cluster.world(), jobs, cluster.now)
    return text.splitlines(), code


def test_a_job_that_would_start_shows_its_plan() -> None:
    lines, code = planned(a_cluster(), a_manifest(nodes=6))
    assert code == 0
    assert lines[0] == "team/lm would start now on 6 nodes."
    ranks = lines.index("RANKS  LEAF            NODES")
    assert lines[ranks + 1 : ranks + 3] == ["0-3    spine-a/leaf-1  a[4-7]", "4-5    spine-a/leaf-0  a[0-1]"]
    assert any(line.startswith("*  shard 48 ") for line in lines)


def test_a_script_of_ones_own_has_no_table_of_meshes() -> None:
    document = yaml.safe_load(a_manifest(nodes=6))
    document["spec"]["template"]["spec"]["containers"][0] |= {"image": "mine", "command": ["train"]}
    lines, code = planned(a_cluster(), yaml.safe_dump(document))
    assert code == 0
    assert lines[-1] == "4-5    spine-a/leaf-0  a[0-1]"


def test_a_job_that_waits_is_shown_its_meshes_where_it_wants_to_be() -> None:
    cluster = a_cluster()
    cluster.submit("there", 16)
    cluster.tick(5)
    lines, _ = planned(cluster, a_manifest(nodes=2))
    at = lines.index("On the nodes that it would have if they were free:")
    assert any(line.startswith("*  shard 16 ") for line in lines[at:])


def test_planning_changes_nothing() -> None:
    cluster = a_cluster()
    cluster.submit("there", 2)
    cluster.tick(5)
    before = cluster.world()
    planned(cluster, a_manifest())
    assert cluster.world() == before


def test_a_job_that_would_wait_says_why_and_ends_with_its_own_exit_code() -> None:
    cluster = a_cluster()
    cluster.submit("there", 16)
    cluster.tick(5)
    lines, code = planned(cluster, a_manifest(nodes=6))
    assert code == WOULD_WAIT == 3
    assert lines[0] == "team/lm would wait: InsufficientNodes"
    assert any("run" in line or "yields" in line for line in lines)


def test_several_jobs_are_planned_each_as_if_it_were_alone() -> None:
    lines, code = planned(a_cluster(), a_manifest("a", 16), a_manifest("b", 16), a_manifest("c", 17))
    assert [line for line in lines if "would" in line][:3] == [
        "team/a would start now on 16 nodes.",
        "team/b would start now on 16 nodes.",
        "team/c would wait: InsufficientNodes",
    ]
    assert code == WOULD_WAIT


def test_a_job_that_waits_already_does_not_stand_before_itself() -> None:
    cluster = a_cluster()
    cluster.submit("lm", 17)
    cluster.tick(5)
    lines, code = planned(cluster, a_manifest(nodes=17))
    assert code == WOULD_WAIT
    assert lines[-1] == "Nobody is ahead of it in the queue."
    assert planned(cluster, a_manifest(nodes=3))[1] == 0


def test_a_job_that_runs_already_is_told_apart() -> None:
    cluster = a_cluster()
    cluster.submit("lm", 2)
    cluster.tick(20)
    lines, _ = planned(cluster, a_manifest(nodes=2))
    assert lines[0] == "There is a team/lm already, which is Running; this is about another like it."


def test_a_suspended_job_would_not_start() -> None:
    assert planned(a_cluster(), a_manifest(suspend=True)) == (
        ["team/lm would not start: spec.suspend is true."],
        WOULD_WAIT,
    )


def test_an_unknown_priority_class_is_told_as_the_operator_would() -> None:
    lines, code = planned(a_cluster(), a_manifest(priorityClassName="nobody"))
    assert code == WOULD_WAIT
    assert lines[0] == "team/lm would wait: PriorityClassNotFound"
    assert "there is no PriorityClass nobody" in lines[1]


def test_errors_name_their_fields() -> None:
    with pytest.raises(ManifestError) as caught:
        read_jobs(a_manifest("Bad_Name", 0), "team", 0.0)
    lines = str(caught.value).splitlines()
    assert lines[0] == "TrainingJob Bad_Name would be refused:"
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["metadata.name", "spec.nodes"]


def test_a_file_that_is_not_there_says_so() -> None:
    with pytest.raises(ManifestError, match=r"^/nowhere/job.yaml: No such file or directory$"):
        of_file("/nowhere/job.yaml", str)


def test_what_is_wrong_with_a_file_begins_with_its_name(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    for text, said in {"kind: Pod": "holds no TrainingJob", "a: [": "is not YAML"}.items():
        file.write_text(text)
        with pytest.raises(ManifestError) as caught:
            of_file(str(file), lambda text: read_jobs(text, "team", 0.0))
        assert str(caught.value).startswith(f"{file}: {said}")


def test_what_apply_would_refuse_is_refused_with_the_better_of_two_sentences() -> None:
    with pytest.raises(ManifestError) as caught:
        read_jobs(a_manifest(nodes="4", priorityClass="x", checkpoint={"grace": 120}), "team", 0.0)
    assert [line.strip() for line in str(caught.value).splitlines()[1:]] == [
        'spec.nodes: "4" is not a whole number; use one such as 4, without quotes',
        "spec.priorityClass: there is no such field; the nearest is priorityClassName",
        "spec.checkpoint.grace: 120 has no unit; write 120s if these are seconds, or numbers with ms, m or h",
    ]


def test_programs_are_told_the_nodes_of_a_plan_what_it_waits_for_and_what_would_start_it() -> None:
    cluster = a_cluster()
    cluster.submit("there", 14)
    cluster.tick(5)
    jobs = read_jobs(
        "---\n".join((a_manifest("fits", 2), a_manifest("waits", 4), a_manifest("off", 2, suspend=True))), "team", 1.0
    )
    (fits, waits, off), code = planned_data(cluster.world(), jobs, cluster.now)
    assert code == WOULD_WAIT
    assert (fits["starts"], len(fits["nodes"]), fits["plan"]["nodes"]) == (True, 2, 2)
    assert (waits["starts"], waits["pending"]["reason"]) == (False, "InsufficientNodes")
    assert waits["wouldStartIt"]
    assert off == {"namespace": "team", "name": "off", "starts": False, "suspended": True}
    assert json.loads(written([fits, waits, off])) == [fits, waits, off]


def test_a_model_that_does_not_fit_is_told_before_anything_is_applied() -> None:
    cluster = a_cluster()
    for name, node in list(cluster.nodes.items()):
        cluster.nodes[name] = replace(node, labels={**node.labels, "nvidia.com/gpu.product": "A10"})
    trainer = {"model": {"preset": "7b", "layers": 512}, "precision": "bfloat16"}
    lines, code = planned(cluster, a_manifest(nodes=2, trainer=trainer))
    assert code == WOULD_FAIL
    assert lines[2] == "Its trainer would refuse to begin:"
    assert lines[3].startswith("  spec.parallelism: with shard 16 a process needs ")
