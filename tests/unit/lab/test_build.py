"""What is built once is not built twice, and what differs is never mistaken for the same."""

import stat
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from trainyard_lab import build

GO = "go1.26.8"


@pytest.fixture
def family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> build.Family:
    """A family with a go.mod and a go.sum of its own, and an empty cache."""
    monkeypatch.setattr(build, "GO_FOLDER", tmp_path / "go")
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "go" / "demo"
    folder.mkdir(parents=True)
    (folder / "go.mod").write_text("module example.dev/demo\n\ngo 1.26.0\n")
    (folder / "go.sum").write_text("")
    (folder / "main.go").write_text('package main\n\nfunc main() { println("hello") }\n')
    return build.Family(name="demo", programs={"example.dev/demo": "greeter"})


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts a `go` first in PATH that writes what it was asked to build into this file, and makes a program of it."""
    log = tmp_path / "calls"
    log.touch()
    program = tmp_path / "bin" / "go"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\n"
        "import pathlib, sys\n"
        "if sys.argv[1] == 'env':\n"
        f"    print('{GO}'); sys.exit()\n"
        f"open('{log}', 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
        "if pathlib.Path('broken').exists():\n"
        "    sys.exit('demo: undefined: nothing')\n"
        "out = pathlib.Path(sys.argv[sys.argv.index('-o') + 1])\n"
        "(out / 'demo').write_text('a program')\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return log


def test_a_family_is_built_once_and_its_programs_have_their_names(family: build.Family, calls: Path):
    first = build.build(family)
    assert first["greeter"].read_text() == "a program"
    assert build.build(family) == first
    assert len(calls.read_text().splitlines()) == 1


def test_callers_at_the_same_time_build_once(family: build.Family, calls: Path):
    callers = [threading.Thread(target=build.build, args=(family,)) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(calls.read_text().splitlines()) == 1


def test_a_build_that_fails_says_what_go_said_and_leaves_nothing_that_looks_built(family: build.Family, calls: Path):
    (family.folder / "broken").touch()
    with pytest.raises(build.BuildError, match="demo: undefined: nothing"):
        build.build(family)
    (family.folder / "broken").unlink()
    assert build.build(family)["greeter"].exists()


@pytest.mark.parametrize("name", ["go.mod", "go.sum", "main.go"])
def test_the_key_changes_with_every_source(family: build.Family, name: str):
    before = build.key(family, GO)
    path = family.folder / name
    path.write_text(path.read_text() + "\n")
    assert build.key(family, GO) != before


def test_the_key_changes_with_go_the_stamp_and_the_names(family: build.Family):
    keys = {
        build.key(family, GO),
        build.key(family, "go1.26.9"),
        build.key(replace(family, stamp={"main.version": "v1"}), GO),
        build.key(replace(family, programs={"example.dev/demo": "other"}), GO),
    }
    assert len(keys) == 4


def test_the_key_does_not_depend_on_where_the_checkout_is(family: build.Family, monkeypatch: pytest.MonkeyPatch):
    before = build.key(family, GO)
    moved = build.GO_FOLDER.with_name("elsewhere")
    build.GO_FOLDER.rename(moved)
    monkeypatch.setattr(build, "GO_FOLDER", moved)
    assert build.key(family, GO) == before


def test_the_committed_families_name_their_programs_and_carry_the_kubernetes_version():
    programs = [name for family in build.FAMILIES for name in family.programs.values()]
    assert len(programs) == len(set(programs))
    assert {"etcd", "kube-apiserver", "kubelet", "kwok"} <= set(programs)
    assert "version.gitVersion=v1.36.3" in build.KUBE.flags[-1]
    requirement = f"k8s.io/kubernetes {build.KUBERNETES_VERSION}"
    assert requirement in (build.KUBE.folder / "go.mod").read_text()


def test_a_go_that_is_too_old_is_not_used(tmp_path: Path):
    old = tmp_path / "go"
    old.write_text("#!/bin/sh\necho go1.19.8\n")
    old.chmod(0o755)
    assert subprocess.run([old], capture_output=True, text=True, check=True).stdout == "go1.19.8\n"
    assert build.release_of(old) is None
