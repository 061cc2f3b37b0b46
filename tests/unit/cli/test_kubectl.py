"""kubectl trainyard without a cluster: where it looks for one."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from trainyard.cli import kubectl
from trainyard.cli.reading import namespace_of
from trainyard.kube.errors import ApiError


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


def test_another_context_may_be_named_and_has_its_own_namespace(tmp_path: Path) -> None:
    assert namespace_of(a_kubeconfig(tmp_path / "config", current="b", a="of-a", b="of-b"), "a") == "of-a"


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("command", [["status", "lm"], ["topology"], ["fabric"]], ids=str)
def test_cluster_and_namespace_are_named_before_the_command_or_after_it(command: list[str], before: bool) -> None:
    where = ["-n", "team", "--context", "other", "--kubeconfig", "file"]
    options = kubectl._parser().parse_args([*where, *command] if before else [*command, *where])
    assert (options.namespace, options.context, options.kubeconfig) == ("team", "other", Path("file"))


def test_what_is_said_after_the_command_wins() -> None:
    options = kubectl._parser().parse_args(["-n", "first", "--context", "c", "status", "lm", "-n", "second"])
    assert (options.namespace, options.context) == ("second", "c")


def test_a_context_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = a_kubeconfig(tmp_path / "config", current="a", a="of-a")
    assert kubectl.main(["--kubeconfig", str(config), "--context", "other", "status", "lm"]) == 1
    assert "other" in capsys.readouterr().err


def test_who_may_not_see_the_cluster_is_told_which_role_may(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def refused(options: object) -> None:
        raise ApiError("list nodes", 403, "Forbidden", 'User "u" cannot list resource "nodes" at the cluster scope')

    monkeypatch.setattr(kubectl, "_client", refused)
    assert kubectl.main(["topology"]) == 1
    assert capsys.readouterr().err.rstrip().endswith(kubectl.PLANNER)


def test_a_plot_that_could_not_be_written_is_told_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file, said in {tmp_path / "no" / "plot.svg": "there is no folder", tmp_path: "is a folder"}.items():
        asked = ["measure", "--gang", "2", "--plot", str(file), "-n", "n", "--kubeconfig", str(tmp_path / "missing")]
        assert kubectl.main(asked) == 1
        assert said in capsys.readouterr().err


def test_a_measurement_on_no_nodes_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        kubectl.main(["measure", "--nodes", ""])
    assert ended.value.code == 2
    assert "names no node" in capsys.readouterr().err


def test_without_a_kubeconfig_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert kubectl.main(["status", "lm", "--kubeconfig", str(tmp_path / "missing")]) == 1
    assert capsys.readouterr().err.startswith("kubectl trainyard: kubeconfig: no answer NoConfiguration:")
