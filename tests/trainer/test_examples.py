"""The examples of trainer-image/examples: each is stopped in the middle, and goes on as if it had never been.

What an example imports is imported here, once, and its ranks are forked from this process.
"""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import sys
from pathlib import Path

import pytest
import yaml
from support.processes import Ended, plan_file, run
from trainyard.api.training_job import TrainingJobSpec
from trainyard.contract import env
from trainyard.contract.exits import Exit
from trainyard_trainer import session
from trainyard_trainer.history import NAME
from trainyard_trainer.report import CheckpointDurable, Failed, ResumedFrom, StepDone, StopAcknowledged

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "trainer-image" / "examples"
PAGE = REPOSITORY / "docs" / "your-own-script.md"
SAMPLE = REPOSITORY / "manifests" / "samples" / "own-script.yaml"
SIGNED = sorted(path.name for path in EXAMPLES.glob("*.py") if path.name != "torchrun_ddp.py")
RANKS = 2
LONG, STEPS = "STEPS = 1000", 12
LEAVES_AFTER = 5


def import_all(script: Path) -> None:
    """What a script imports, once here instead of in each rank."""
    imports = [node for node in ast.parse(script.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
    exec(compile(ast.Module(imports, []), script, "exec"), {})


def shortened(script: str) -> str:
    """The same for a few steps."""
    assert script.count(LONG) == 1
    return script.replace(LONG, f"STEPS = {STEPS}")


def trained(example: str, folder: Path, checkpoints: Path, *, stop: bool, ranks: int = RANKS, **plan) -> list[Ended]:
    """One attempt of an example. stop: the last rank is asked to leave when it has done LEAVES_AFTER steps."""
    folder.mkdir()
    import_all(EXAMPLES / example)
    script = folder / example
    script.write_text(shortened((EXAMPLES / example).read_text()))
    stop_file = folder / "stop"
    reports = session.report

    def and_then_stop(step: int, *arguments, **keywords) -> float:
        if step == LEAVES_AFTER:
            stop_file.write_text("{}")
        return reports(step, *arguments, **keywords)

    def work(rank: int) -> int:
        if stop and rank == ranks - 1:
            session.report = and_then_stop
        os.environ[env.STOP_FILE] = str(stop_file if rank == ranks - 1 else folder / "never")
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    given = plan_file(folder / "plan.json", checkpoints, ranks=ranks, **plan)
    return run(work, ranks, folder / "gang", environments=dict.fromkeys(range(ranks), given))


def losses(checkpoints: Path) -> list[tuple[int, str]]:
    """Step and loss, to the last bit, of what counts."""
    lines = map(json.loads, (checkpoints / NAME).read_text().splitlines())
    return [(line["step"], line["loss"]) for line in lines]


def told(ended: Ended, kind: type) -> list[int]:
    return [report.step for report in ended.reports if isinstance(report, kind)]


@pytest.mark.parametrize("example", SIGNED)
def test_an_example_that_is_stopped_goes_on_as_if_it_had_not_been(tmp_path: Path, example: str) -> None:
    whole = trained(example, tmp_path / "whole", tmp_path / "undisturbed", stop=False)
    assert [end.code for end in whole] == [Exit.DONE] * RANKS, whole[0].output + whole[1].output
    expected = losses(tmp_path / "undisturbed")
    assert [step for step, _ in expected] == list(range(1, STEPS + 1))

    checkpoints = tmp_path / "checkpoints"
    left = trained(example, tmp_path / "left", checkpoints, stop=True, every_steps=3)
    assert [end.code for end in left] == [Exit.YIELDED] * RANKS, left[0].output + left[1].output
    assert [told(end, StopAcknowledged) for end in left] == [[LEAVES_AFTER]] * RANKS
    assert told(left[0], CheckpointDurable)[-1] == LEAVES_AFTER

    history = [(1, LEAVES_AFTER)]
    resumed = trained(example, tmp_path / "resumed", checkpoints, stop=False, attempt=2, history=history)
    assert [end.code for end in resumed] == [Exit.DONE] * RANKS, resumed[0].output
    assert told(resumed[0], StepDone) == list(range(LEAVES_AFTER + 1, STEPS + 1))
    assert losses(checkpoints) == expected


def test_an_example_goes_on_with_fewer_ranks(tmp_path: Path) -> None:
    """And leaves out what an attempt wrote that had been given up."""
    checkpoints = tmp_path / "checkpoints"
    first = trained("fsdp2.py", tmp_path / "first", checkpoints, stop=False, every_steps=4)
    assert [end.code for end in first] == [Exit.DONE] * RANKS
    counts, *given_up = told(first[0], CheckpointDurable)
    assert given_up[-1] == STEPS
    history = [(1, counts)]
    (alone,) = trained("fsdp2.py", tmp_path / "alone", checkpoints, stop=False, ranks=1, attempt=2, history=history)
    assert alone.code == Exit.DONE, alone.output
    assert told(alone, ResumedFrom) == [counts]
    assert told(alone, StepDone) == list(range(counts + 1, STEPS + 1))


def test_the_sample_is_the_example() -> None:
    documents = {document["kind"]: document for document in yaml.safe_load_all(SAMPLE.read_text())}
    assert documents["ConfigMap"]["data"]["train.py"] == (EXAMPLES / "ddp.py").read_text()
    job = TrainingJobSpec.model_validate(documents["TrainingJob"]["spec"])
    assert job.checkpoint.volume is not None


def test_the_page_shows_the_examples_as_they_are() -> None:
    shown = re.findall(r"^```python (\S+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert {name for name, _ in shown} == {path.name for path in EXAMPLES.glob("*.py")}
    for name, text in shown:
        assert text == (EXAMPLES / name).read_text(), f"{PAGE.name} shows another {name}"


def test_an_image_without_numpy_is_told_before_anything_is_trained(tmp_path: Path) -> None:
    def work(rank: int) -> int:
        sys.modules["numpy"] = None  # type: ignore[assignment]  # to import it is an error now, as where it is not there
        try:
            session.join(tmp_path / "checkpoints")
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    (ended,) = run(work, 1, tmp_path / "gang")
    assert ended.code == Exit.CONFIGURATION
    (failed,) = (report for report in ended.reports if isinstance(report, Failed))
    assert failed.configuration
    assert "needs numpy, and the image has none" in failed.message


def test_a_lightning_trainer_for_another_gang_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainyard_trainer.lightning import TrainyardEnvironment, gang

    for name, value in {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    assert gang() == {"devices": 4, "num_nodes": 2}
    TrainyardEnvironment().validate_settings(4, 2)
    with pytest.raises(ValueError, match=r"devices=1 and num_nodes=1, but the gang has 4 processes on each of 2 nodes"):
        TrainyardEnvironment().validate_settings(1, 1)
