"""kopf is set up so that it only wakes the loop."""

from __future__ import annotations

from itertools import islice

from trainyard.controller.registry import operator_settings, registry


def test_kopf_has_no_handler_that_would_keep_state_on_objects() -> None:
    handlers = registry(lambda: None)
    watched = handlers._watching.get_all_handlers()
    assert {str(handler.selector.plural) for handler in watched if handler.selector} == {"trainingjobs", "fabrics"}
    assert not handlers._changing.get_all_handlers()
    assert not handlers._spawning.get_all_handlers()
    assert not handlers._indexing.get_all_handlers()


def test_kopf_needs_no_rights_on_crds_namespaces_events_or_peerings() -> None:
    settings = operator_settings()
    assert settings.scanning.disabled
    assert settings.peering.standalone
    assert not settings.posting.enabled


def test_an_api_server_that_is_away_for_long_ends_no_watch() -> None:
    backoffs = operator_settings().networking.error_backoffs
    assert not isinstance(backoffs, float)
    for _ in range(2):  # each failure of each stream begins anew
        assert list(islice(backoffs, 10)) == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]
