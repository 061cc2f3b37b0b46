"""kubectl trainyard without a cluster: where it looks for one."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from trainyard.cli import kubectl
from trainyard.cli.reading import namespace_of


def a_kubeconfig(path: Path, current: str = "", **namespaces: str) -> Path:
    contexts = [{"name": name, "context": {"namespace": namespace}} for name, namespace in namespaces.items()]
    path.write_text(yaml.safe_dump({"current-context": current, "contexts": contexts}))
    return path


def test_the_namespace_is_the_current_contexts_over_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = a_kubeconfig(tmp_path / "first", current="b", a="of-a")
    second = a_kubeconfig(tmp_path / "second", current="a", b="of-b")
    monkeypatch.setenv("KUBECONFIG", f"{first}:{second}:{tmp_path / 'missing'}")
    assert namespace_of(None) == "of-b"
    assert namespace_of(second) == "default"


def test_without_a_kubeconfig_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert kubectl.main(["status", "lm", "--kubeconfig", str(tmp_path / "missing")]) == 1
    assert capsys.readouterr().err.startswith("kubectl trainyard: kubeconfig: no answer NoConfiguration:")
