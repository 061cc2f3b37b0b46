"""The table of meshes."""

from __future__ import annotations

from support.clusters import a_cluster, a_tree
from trainyard.api.training_job import TrainingJobSpec
from trainyard.cli.meshes import meshes_lines
from trainyard.planner.links import accelerator_most, links_of
from trainyard.planner.mesh import Site
from trainyard.planner.parallelism import mesh_of, model_of_job

SPEC = TrainingJobSpec.model_validate(
    {
        "nodes": 8,
        "processesPerNode": 8,
        "trainer": {
            "model": {"preset": "7b"},
            "data": {"sequence_length": 4096, "global_batch": 512, "micro_batch": 1},
            "precision": "bfloat16",
        },
        "template": {"spec": {"containers": [{"name": "trainer", "image": "trainyard/trainer"}]}},
    }
)


def lines(*labels: dict[str, str]) -> list[str]:
    nodes = a_cluster()
    tree = a_tree(nodes)
    site = Site(links_of(None, tree.levels, labels), tree, tuple(nodes), 8, accelerator_most(labels))
    model = model_of_job(SPEC)
    assert model is not None
    return list(meshes_lines(model, site, str(mesh_of(SPEC, site))))


def test_the_mesh_of_the_job_is_marked_and_every_other_has_its_memory_step_or_reason() -> None:
    found = lines(*[{"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}] * 8)
    assert found[0].split() == ["MESH", "MEMORY", "STEP", "WAITING"]
    marked = [line for line in found if line.startswith("*  ")]
    assert len(marked) == 1
    assert marked[0].startswith("*  shard 64 ")
    assert " GB of " in marked[0]
    assert marked[0].rstrip().endswith("%")
    assert any("needs " in line and "usable GB" in line for line in found)
    assert any("links: assumed: 8 x 400 Gb/s" in line for line in found)


def test_without_a_known_accelerator_communication_alone_is_compared() -> None:
    found = lines()
    assert found[0].split() == ["MESH", "MEMORY", "COMMUNICATION"]
    assert not any(" of " in line.split("  shard")[0] for line in found if line.startswith("*  "))
    assert any("The accelerator is not known" in line for line in found)
