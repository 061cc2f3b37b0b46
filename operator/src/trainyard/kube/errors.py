"""What went wrong with a request to the API server, as far as anybody can do something about it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_TEMPORARY: Final = frozenset({0, 408, 429, 500, 502, 503, 504})

LONGEST_REST_SECONDS: Final = 60.0
"""Who is asked again later is asked too late: watches would be taken for dead."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause of a refusal. field: path in the object that was sent, "" where it is no field's fault."""

    reason: str
    message: str
    field: str = ""


class ApiError(Exception):
    """A request that did not succeed.

    code: the HTTP status; 0 where no answer came. reason, message, causes: of the Status object. retry_after_seconds: how long
    the server wants to be left alone, LONGEST_REST_SECONDS at most; None where it does not say.
    """

    def __init__(
        self,
        request: str,
        code: int,
        reason: str = "",
        message: str = "",
        causes: tuple[Cause, ...] = (),
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(f"{request}: {code or 'no answer'}{f' {reason}' if reason else ''}: {message}")
        self.request = request
        self.code = code
        self.reason = reason
        self.message = message
        self.causes = causes
        self.retry_after_seconds = retry_after_seconds

    @property
    def temporary(self) -> bool:
        """The same request may succeed later: the server is busy, in trouble or out of reach."""
        return self.code in _TEMPORARY

    @property
    def not_found(self) -> bool:
        """There is no such object (or namespace, or kind)."""
        return self.code == 404

    @property
    def conflict(self) -> bool:
        """The object is not as the request supposed."""
        return self.code == 409 and self.reason != "AlreadyExists"

    @property
    def already_exists(self) -> bool:
        """The name is taken."""
        return self.code == 409 and self.reason == "AlreadyExists"

    @property
    def expired(self) -> bool:
        """The server no longer knows the resourceVersion or continue token."""
        return self.code == 410

    @property
    def namespace_leaving(self) -> bool:
        """Nothing new may be made in the namespace, for it is being deleted."""
        return self.code == 403 and any(cause.reason == "NamespaceTerminating" for cause in self.causes)


def from_answer(request: str, code: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """The error of an HTTP answer; whatever the body holds, for a proxy's page may stand where a Status should."""
    try:
        parsed = json.loads(body)
    except ValueError:
        parsed = None
    status = parsed if isinstance(parsed, dict) and parsed.get("kind") == "Status" else {}
    message = str(status.get("message") or body[:300].decode(errors="replace").strip())
    return from_status(request, code, {**status, "message": message}, _seconds(headers.get("Retry-After")))


def from_status(
    request: str, code: int, status: Mapping[str, Any], retry_after_seconds: float | None = None
) -> ApiError:
    """The error that a Status object tells of."""
    details = status.get("details")
    details = details if isinstance(details, dict) else {}
    causes = details.get("causes")
    found = tuple(
        Cause(str(c.get("reason") or ""), str(c.get("message") or ""), str(c.get("field") or ""))
        for c in (causes if isinstance(causes, list) else ())
        if isinstance(c, dict)
    )
    wait = retry_after_seconds if retry_after_seconds is not None else _seconds(details.get("retryAfterSeconds"))
    return ApiError(request, code, str(status.get("reason") or ""), str(status.get("message") or ""), found, wait)


def _seconds(text: object) -> float | None:
    """A number of seconds; None for nothing, for nonsense and for a date, which no API server sends."""
    try:
        seconds = float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return min(seconds, LONGEST_REST_SECONDS) if 0 < seconds < math.inf else None
