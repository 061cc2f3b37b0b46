"""What the environment says an operator should do."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.chart import RELEASE, one, render
from trainyard.controller.settings import SettingsError, read, variable
from trainyard.world.records import Marks

KEY = {"TRAINYARD_KEY_FILE": "/key"}


def test_flags_win_over_the_environment_and_that_over_the_defaults() -> None:
    settings = read({**KEY, "TRAINYARD_PORT": "9000", "TRAINYARD_LEASE": "a"}, {"lease": "b", "namespace": None})
    assert (settings.port, settings.lease, settings.namespace) == (9000, "b", "trainyard-system")


def test_what_is_wrong_is_named_all_at_once() -> None:
    with pytest.raises(SettingsError) as refused:
        read({"TRAINYARD_PORT": "http", "TRAINYARD_LOG_LEVEL": "chatty"})
    for name in ("TRAINYARD_PORT", "TRAINYARD_LOG_LEVEL", "TRAINYARD_KEY_FILE"):
        assert name in str(refused.value)


def test_a_leader_that_gives_up_too_late_is_refused() -> None:
    with pytest.raises(SettingsError, match="two processes lead at once"):
        read({**KEY, "TRAINYARD_RENEW_SECONDS": "15"})


def test_a_key_that_is_missing_or_too_short_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "key"
    settings = read({"TRAINYARD_KEY_FILE": str(file)})
    with pytest.raises(SettingsError, match="cannot be read: No such file"):
        settings.key()
    file.write_bytes(b"k" * 31)
    with pytest.raises(SettingsError, match="has 31 bytes; it must have 32 or more"):
        settings.key()
    file.write_bytes(b"k" * 32)
    assert settings.key() == b"k" * 32


def test_nodes_are_marked_by_whose_verdict_where_it_is_switched_on() -> None:
    assert read({**KEY, "TRAINYARD_ADMINISTRATORS": "a"}).marks() is None
    assert read({**KEY, "TRAINYARD_MARK_NODES": "true"}).marks() == Marks()
    both = {"TRAINYARD_MARK_NODES": "true", "TRAINYARD_ADMINISTRATORS": "ops, infra,"}
    assert read({**KEY, **both}).marks() == Marks(frozenset({"ops", "infra"}))


def test_the_chart_sets_what_the_operator_reads() -> None:
    (container,) = one(render(), "Deployment", RELEASE)["spec"]["template"]["spec"]["containers"]
    given = {entry["name"]: str(entry.get("value", "from-a-field")) for entry in container["env"]}
    assert set(given) <= {variable(name) for name in type(read(KEY)).model_fields}
    settings = read(given)
    assert settings.key_file.parent == Path(container["volumeMounts"][0]["mountPath"])
    assert settings.port == container["ports"][0]["containerPort"]
    assert settings.lease == RELEASE
