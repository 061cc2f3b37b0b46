"""The commands of the operator's image."""

from __future__ import annotations

import subprocess
import sys

import pytest
import yaml
from trainyard import __version__
from trainyard.cli.main import USAGE_ERROR, main


def test_crds_prints_what_can_be_applied(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crds"]) == 0
    printed = list(yaml.safe_load_all(capsys.readouterr().out))
    assert {d["metadata"]["name"] for d in printed} == {"trainingjobs.trainyard.dev", "fabrics.trainyard.dev"}


def test_version_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out == f"{__version__}\n"


def test_an_operator_without_a_key_says_which_variable_is_missing() -> None:
    command = [sys.executable, "-m", "trainyard.cli.main", "operator"]
    done = subprocess.run(command, env={"PATH": ""}, capture_output=True, text=True, check=False)
    assert done.returncode == USAGE_ERROR
    assert done.stderr == "trainyard: TRAINYARD_KEY_FILE: Field required\n"


def test_stopping_a_deployment_needs_to_know_its_pods(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["release", "--deployment", "a/b"]) == USAGE_ERROR
    assert "together" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["release", "--deployment", "no-namespace", "--operators", "x=y"])
    assert "'no-namespace' is not NAMESPACE/NAME" in capsys.readouterr().err
