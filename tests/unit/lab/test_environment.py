"""uv is told what pip is told, and what the user told uv stands."""

import sys
from pathlib import Path

import pytest
from trainyard_lab import environment


def test_uv_uses_the_index_the_wheels_and_the_certificates_that_pip_uses(tmp_path: Path):
    pip = {
        "index-url": "https://mirror.test/simple",
        "extra-index-url": "https://one.test/simple https://two.test/simple",
        "find-links": f"{tmp_path} {tmp_path}/missing https://wheels.test/",
        "cert": "/etc/ssl/mirror.pem",
        "default-timeout": "180",
    }
    assert environment.uv_settings(pip, {}) == {
        "UV_DEFAULT_INDEX": "https://mirror.test/simple",
        "UV_INDEX": "https://one.test/simple https://two.test/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": f"{tmp_path},https://wheels.test/",
        "UV_HTTP_TIMEOUT": "180",
        "SSL_CERT_FILE": "/etc/ssl/mirror.pem",
    }


def test_a_setting_that_uv_has_already_is_left_alone():
    assert environment.uv_settings({"index-url": "https://mirror.test/simple"}, {"UV_DEFAULT_INDEX": "x"}) == {}


def test_where_pip_is_told_nothing_uv_is_told_nothing():
    assert environment.uv_settings({}, {}) == {}


def test_pips_configuration_is_read_from_its_files_and_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = https://file.test/simple\ntimeout = 5\n[install]\ntimeout = 7\n")
    for name in ("PIP_INDEX_URL", "PIP_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    assert environment.pip_configuration(sys.executable)["index-url"] == "https://file.test/simple"
    assert environment.pip_configuration(sys.executable)["timeout"] == "7"
    monkeypatch.setenv("PIP_INDEX_URL", "https://variable.test/simple")
    assert environment.pip_configuration(sys.executable)["index-url"] == "https://variable.test/simple"
