"""What the user got wrong is said by its path, ends with 78, and is said before any rank waits for another."""

import json
import os

import pytest
from support.processes import TINY, plan_file, run
from trainyard.api.trainer import InvalidTrainerConfig, TrainerConfig, parse
from trainyard.contract import env
from trainyard.contract.exits import Exit
from trainyard.contract.plan import Axis
from trainyard_trainer.report import Failed
from trainyard_trainer.train import main


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({"model": {"width": 100}}, "spec.trainer.model.width: 100 is not a multiple of 2 x heads = 8; use 96 or 104"),
        ({"model": {"kvHeads": 3}}, "spec.trainer.model.kvHeads: 3 does not divide the 4 heads; use one of 1, 2, 4"),
        ({"data": {"globalBatch": 0}}, "spec.trainer.data.globalBatch: 0 is too small; use 1 or more"),
        ({"optimizer": {"learningrate": 1}}, "spec.trainer.optimizer.learningrate: there is no such field"),
        ({"data": {"files": ["a", 3]}}, "spec.trainer.data.files[1]: 3 is not text"),
        (
            {"parallel": {"allReduce": "hierarchical", "compression": {"method": "int8"}}},
            "spec.trainer.parallel.allReduce: hierarchical adds up in parts, which what int8 sends cannot be; use flat, or",
        ),
        ({"model": {"preset": "huge"}}, "spec.trainer.model.preset: \"huge\" is none of the choices; use 'tiny', "),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_with_the_path(document, sentence):
    with pytest.raises(InvalidTrainerConfig) as refused:
        parse(document)
    assert sentence in str(refused.value)


def test_every_problem_is_named_at_once():
    with pytest.raises(InvalidTrainerConfig) as refused:
        parse({"steps": 0, "seed": -1, "model": {"heads": 5}})
    assert len(str(refused.value).splitlines()) == 3


def test_a_configuration_is_read_as_it_is_written():
    config = parse(TINY)
    assert parse(config.to_manifest()) == config
    assert parse({}) == TrainerConfig()


def refused(tmp_path, trainer=TINY, ranks=1, **plan):
    """The sentence of an attempt that ends with 78 on the ranks that start, though not all do."""
    environment = plan_file(tmp_path / "plan.json", tmp_path / "checkpoints", ranks=ranks, trainer=trainer, **plan)
    (ended,) = run(lambda rank: main([]), ranks, tmp_path / "gang", environments={0: environment}, only=[0])
    assert ended.code == Exit.CONFIGURATION, ended.output
    (failed,) = (report for report in ended.reports if isinstance(report, Failed))
    assert failed.configuration
    return failed.message


def test_a_field_that_is_refused_ends_with_78(tmp_path):
    assert refused(tmp_path, {"stepz": 5}, ranks=2).startswith("spec.trainer.stepz: there is no such field")


def test_text_that_is_not_in_the_container_ends_with_78_without_waiting_for_the_others(tmp_path):
    trainer = {**TINY, "data": {"files": ["/nowhere/*.txt"]}}
    assert "data.files: /nowhere/*.txt matches no file" in refused(tmp_path, trainer, ranks=2)


def test_a_mesh_that_the_trainer_cannot_build_ends_with_78(tmp_path):
    environment = plan_file(tmp_path / "plan.json", tmp_path / "checkpoints", mesh=[Axis("context", 2)])
    ended = run(lambda rank: main([]), 2, tmp_path / "gang", environments=dict.fromkeys(range(2), environment))
    assert [end.code for end in ended] == [Exit.CONFIGURATION] * 2
    assert "mesh.context: the built-in trainer shares its work by pipeline, replicate, shard, tensor" in ended[0].output


def test_ranks_that_read_different_text_end_with_78(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the same on all ranks but one " * 50)
    environment = plan_file(
        tmp_path / "plan.json",
        tmp_path / "checkpoints",
        trainer={**TINY, "data": {**TINY["data"], "files": ["/proc/self/cwd/text.txt"]}},
    )
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "text.txt").write_text("something else for the other rank " * 50)

    def work(rank):
        os.chdir(tmp_path / "other" if rank else tmp_path)
        return main([])

    ended = run(work, 2, tmp_path / "gang", environments=dict.fromkeys(range(2), environment))
    assert [end.code for end in ended] == [Exit.CONFIGURATION] * 2, ended[0].output
    assert "and rank 1 reads others" in ended[0].output


@pytest.mark.parametrize("text", ["", "{", '{"format": 1}'])
def test_a_plan_that_cannot_be_read_ends_with_78(tmp_path, text):
    plan = tmp_path / "plan.json"
    plan.write_text(text)
    (ended,) = run(lambda rank: main([]), 1, tmp_path / "gang", environments={0: {env.PLAN: str(plan)}})
    assert ended.code == Exit.CONFIGURATION
    assert f"{env.PLAN}={plan}" in ended.output


def test_a_researcher_needs_neither_plan_nor_cluster(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**TINY, "steps": 3}))
    arguments = ["--config", str(config), "--checkpoints", str(tmp_path / "run")]
    (first,) = run(lambda rank: main(arguments), 1, tmp_path / "first")
    assert first.code == Exit.DONE, first.output
    config.write_text(json.dumps({**TINY, "steps": 5}))
    (second,) = run(lambda rank: main(arguments), 1, tmp_path / "second")
    assert second.code == Exit.DONE, second.output
    history = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert [(line["attempt"], line["step"]) for line in history] == [(1, 1), (1, 2), (1, 3), (2, 4), (2, 5)]
