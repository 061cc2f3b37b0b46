"""docs/checkpoints.md says what the code does, and the command in it works."""

import json
import re
from pathlib import Path

from benchmarks import recovery

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "checkpoints.md").read_text()
SOURCE = ROOT / "trainer-image" / "src" / "trainyard_trainer"
SOURCES = (SOURCE / "session.py", *(SOURCE / "checkpoint").glob("*.py"))


def test_every_warning_about_checkpoints_is_explained():
    code = "".join(path.read_text() for path in SOURCES)
    reasons = set(re.findall(r'\b_?warn\(\s*"(\w+)"', code))
    assert len(reasons) >= 7
    elsewhere = {"DataChanged", "ConfigurationChanged", "HistoryGap", "StepSkipped", "RolledBack"}  # of the training, not of its checkpoints
    assert {reason for reason in reasons - elsewhere if f"`{reason}`" not in PAGE} == set()


def test_every_test_that_is_named_is_there():
    named = set(re.findall(r"`(test_\w+\.py)`", PAGE))
    assert named
    assert {name for name in named if not (ROOT / "tests" / "trainer" / name).exists()} == set()


def test_the_benchmark_runs(capsys):
    code = recovery.main(["--json", "--lives", "2", "--seed", "3", "wrong_loads"])
    (figure,) = json.loads(capsys.readouterr().out)
    assert (code, figure["name"], figure["value"], figure["holds"]) == (0, "wrong_loads", 0, True)
