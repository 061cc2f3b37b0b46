"""Taking one finalizer off, and only that."""

from __future__ import annotations

from typing import Any

from trainyard.controller.release import without


def held_by(*finalizers: str) -> dict[str, Any]:
    return {"metadata": {"name": "p", "namespace": "n", "uid": "u", "finalizers": list(finalizers)}}


def test_only_ours_goes_and_only_while_it_is_where_it_was() -> None:
    assert without("trainyard.dev/last-words", held_by("other/one", "trainyard.dev/last-words")) == (
        {"op": "test", "path": "/metadata/uid", "value": "u"},
        {"op": "test", "path": "/metadata/finalizers/1", "value": "trainyard.dev/last-words"},
        {"op": "remove", "path": "/metadata/finalizers/1"},
    )


def test_an_object_that_we_do_not_hold_is_left_alone() -> None:
    assert without("trainyard.dev/last-words", held_by("other/one")) == ()
    assert without("trainyard.dev/last-words", {"metadata": {"name": "p", "uid": "u"}}) == ()
