"""docs/checkpoints.md says what the code does, and the command in it works."""

import json
import re
from pathlib import Path

import yaml
from trainyard.api.validate import read_job

from benchmarks import recovery

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "checkpoints.md").read_text()
SOURCE = ROOT / "trainer-image" / "src" / "trainyard_trainer"
SOURCES = (SOURCE / "session.py", SOURCE / "history.py", *(SOURCE / "checkpoint").glob("*.py"))


def test_every_warning_about_checkpoints_is_explained():
    code = "".join(path.read_text() for path in SOURCES)
    reasons = set(re.findall(r'\b_?warn\(\s*"(\w+)"', code))
    assert len(reasons) >= 7
    # Of the training, not of its checkpoints.
    elsewhere = {"DataChanged", "ConfigurationChanged", "StepSkipped", "RolledBack"}
    assert {reason for reason in reasons - elsewhere if f"`{reason}`" not in PAGE} == set()


def test_every_test_that_is_named_is_there():
    named = set(re.findall(r"`(test_\w+\.py)`", PAGE))
    assert named
    assert {name for name in named if not (ROOT / "tests" / "trainer" / name).exists()} == set()


def test_the_benchmark_runs(capsys):
    code = recovery.main(["--json", "--lives", "2", "--seed", "3", "wrong_loads"])
    (figure,) = json.loads(capsys.readouterr().out)
    assert (code, figure["name"], figure["value"], figure["holds"]) == (0, "wrong_loads", 0, True)


def test_the_jobs_on_the_page_are_jobs():
    jobs = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.S)]
    assert len(jobs) == 2
    named = {"apiVersion": "trainyard.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "small-lm"}}
    for job in jobs:
        job["spec"]["nodes"] = 2
        read = read_job({**named, **job})
        assert read.errors == ()
        assert read.spec is not None
        assert read.spec.checkpoint.saves
