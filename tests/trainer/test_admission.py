"""What a mesh asks of a model and of memory is said before anything is allocated."""

import pytest
from trainyard.api.trainer import TrainerConfig
from trainyard.contract.exits import Exit
from trainyard.contract.plan import Axis
from trainyard.planner.memory import memory
from trainyard.planner.model import model_of
from trainyard.planner.traffic import Mesh
from trainyard_trainer import train
from trainyard_trainer.configuration import BadConfiguration
from trainyard_trainer.parallel.admission import admit, memory_of
from trainyard_trainer.parallel.mesh import data_place, dimensions

SEVEN = TrainerConfig.model_validate({"model": {"preset": "7b"}, "precision": "bfloat16", "data": {"microBatch": 1}})


def test_a_model_that_does_not_fit_is_refused_with_numbers():
    axes = dimensions((Axis("replicate", 4), Axis("shard", 2)), 8)
    with pytest.raises(BadConfiguration) as refused:
        admit(SEVEN, axes, 80e9)
    needed = memory(model_of(SEVEN), Mesh(replicate=4, shard=2))
    assert str(refused.value).startswith(
        f"spec.parallelism: with replicate 4 x shard 2 a process needs {needed.total / 1e9:.1f} GB and has 80.0 GB: weights 14 GB"
    )
    admit(SEVEN, dimensions((), 8), 80e9)
    admit(SEVEN, axes, None)


def test_the_trainer_refuses_it_before_ranks_wait_for_each_other(tmp_path, monkeypatch, capsys):
    def meet(*given):
        raise AssertionError("the other rank never comes")

    config = tmp_path / "config.json"
    config.write_text('{"model": {"preset": "tiny"}}')
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(train, "memory_of", lambda local_ranks: 1e6 / local_ranks)
    monkeypatch.setattr(train.Session, "open", meet)
    assert train.main(["--config", str(config)]) == Exit.CONFIGURATION
    assert "spec.parallelism: with shard 2 a process needs 0.0 GB and has 0.0 GB: weights" in capsys.readouterr().out


def test_a_containers_limit_is_shared_by_its_ranks(tmp_path):
    (tmp_path / "memory.max").write_text("8000000000\n")
    assert memory_of(4, tmp_path / "memory.max") == 2e9
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_of(4, tmp_path / "memory.max") is None
    assert memory_of(4, tmp_path / "nothing") is None


@pytest.mark.parametrize(
    ("axes", "ranks", "said"),
    [
        (
            (Axis("tensor", 2), Axis("shard", 2)),
            4,
            "mesh: the axes come as tensor, shard; the trainer has them as pipeline",
        ),
        (
            (Axis("pipeline", 2), Axis("tensor", 2)),
            8,
            "mesh: pipeline 2 x shard 1 x tensor 2 is not the number of ranks, 8",
        ),
        ((Axis("expert", 2), Axis("shard", 2)), 4, "mesh.expert: the built-in trainer shares its work by pipeline"),
    ],
)
def test_a_mesh_that_cannot_be_is_refused(axes, ranks, said):
    with pytest.raises(BadConfiguration, match=said):
        dimensions(axes, ranks)


def test_ranks_that_share_a_copy_take_the_same_samples():
    axes = (Axis("pipeline", 2), Axis("replicate", 2), Axis("shard", 2), Axis("tensor", 2))
    places = [data_place(axes, rank) for rank in range(16)]
    assert places == [(part, 4) for _ in range(2) for part in (0, 0, 1, 1, 2, 2, 3, 3)]
