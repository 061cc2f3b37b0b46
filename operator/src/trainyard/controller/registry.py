"""What kopf does here: it wakes the loop, and it is set up so that it does nothing else.

Only `on.event` on our own two kinds: no index, daemon, timer or state-keeping handler. Those put a finalizer or annotations on
objects, and an index goes stale after a 410. An event that kopf loses costs nothing, since the loop lives from informers of its
own; what kopf adds is a second, independent watch that notices if one of them hangs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import kopf

from trainyard.api import names

_EXIT_SECONDS: Final = 25.0
"""Less than the pod's grace of 30 s."""


class _Backoffs:
    """0.2 s, doubling up to 30 s, without end: with kopf's own sequence, a minute without API server ends a watch for good."""

    def __iter__(self) -> Iterator[float]:
        seconds = 0.2
        while True:
            yield seconds
            seconds = min(seconds * 2, 30.0)


def operator_settings() -> kopf.OperatorSettings:
    """kopf's settings, each of which differs from its default for a reason."""
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True  # neither CRDs nor namespaces are watched: no rights for that
    settings.peering.standalone = True  # the Lease is ours: two of kopf's peers of one priority pause both
    settings.posting.enabled = False  # our events come from the cycle
    settings.persistence.finalizer = f"{names.GROUP}/kopf"  # never put on; if ever, under our own name
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=names.GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=names.GROUP)
    settings.networking.error_backoffs = _Backoffs()
    settings.networking.enforce_retry_after = True
    settings.networking.request_timeout = 30.0
    settings.networking.connect_timeout = 5.0
    settings.watching.inactivity_timeout = 70.0
    settings.watching.chunk_size = 500
    settings.queueing.idle_timeout = 2.0
    settings.queueing.exit_timeout = 1.0
    settings.execution.max_workers = 1  # for the login; no handler is synchronous
    settings.process.ultimate_exiting_timeout = _EXIT_SECONDS
    return settings


def registry(wake: Callable[[], None]) -> kopf.OperatorRegistry:
    """Handlers that call `wake` at every event of a TrainingJob or a Fabric, and the login."""
    handlers = kopf.OperatorRegistry()

    async def woken(**_: Any) -> None:
        wake()

    for plural in (names.JOBS, names.FABRICS):
        kopf.on.event(group=names.GROUP, version=names.VERSION, plural=plural, registry=handlers)(woken)

    # By the same library as our own client, so that both reach the same API server under the same name.
    kopf.on.login(registry=handlers)(kopf.login_via_client)

    return handlers
