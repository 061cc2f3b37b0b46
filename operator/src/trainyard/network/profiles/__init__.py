"""What Trainyard knows of networks without being told: one file for each, read once.

A profile is data. To add one, add a file; its fields are those of `model.Profile`, and the tests look at every file that is here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType

import yaml

from trainyard.network.profiles.model import Profile


@cache
def profiles() -> Mapping[str, Profile]:
    """All profiles by name, in the order of their names. ValueError where a file makes no sense; the tests see to that."""
    found: dict[str, Profile] = {}
    for file in sorted(files(__package__).iterdir(), key=lambda file: file.name):
        if file.name.endswith(".yaml"):
            name = file.name.removesuffix(".yaml")
            found[name] = Profile.model_validate({"name": name, **yaml.safe_load(file.read_text(encoding="utf-8"))})
    return MappingProxyType(found)
