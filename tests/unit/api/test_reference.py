"""The page of all fields."""

from __future__ import annotations

from pathlib import Path

import pytest
from trainyard.api import reference, rules

ROOT = Path(__file__).resolve().parents[3]


def test_the_page_says_what_the_models_say() -> None:
    assert (ROOT / reference.PAGE).read_text() == reference.page(), "run python -m trainyard.api.reference"


def test_a_difference_is_found_and_mended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = str(tmp_path / "reference" / "api.md")
    assert reference.main(["--check", "--page", page]) == 1
    assert "differs from the models" in capsys.readouterr().err
    assert reference.main(["--page", page]) == 0
    assert reference.main(["--check", "--page", page]) == 0


@pytest.mark.parametrize(
    "line",
    [
        "| `nodes` | integer from 1 to 20000 | *needed* | How many nodes train, all or none of them.",
        '| `checkpoint.every` | integer or string | `"5m"` | Interval between saves:',
        "| `network.env[].name` | string | *needed* | Name of the variable. |",
        f"| `spec.checkpoint.volume` | {rules.NO_SUCH_VOLUME} |",
        f"| `metadata.name` | (the name) {rules.NO_JOB_NAME} |",
    ],
)
def test_a_line_has_type_bounds_default_and_meaning(line: str) -> None:
    assert line in reference.page()
