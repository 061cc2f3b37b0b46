"""Signed requests from the operator to a launcher.

The signature is an HMAC over method, path, body, the pod's uid and an expiry, with the job's key = HMAC(operator's key, job
uid). The key itself never travels: the pod reads it from the job's Secret, the operator derives it again. A request that is
replayed at another pod, after its expiry, or with another body does not verify; of one that is replayed in time at the same pod
a stop and a plan stay as they are, and a save is refused: whoever asks again, his answer lost, signs again.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass

from trainyard.contract.codec import dumps, loads

PATH_STATUS = "/v1/status"
PATH_STOP = "/v1/stop"
PATH_CHECKPOINT = "/v1/checkpoint"
PATH_PLAN = "/v1/plan"

HEADER_SIGNATURE = "X-Trainyard-Signature"
HEADER_EXPIRES = "X-Trainyard-Expires"
HEADER_POD = "X-Trainyard-Pod"

VALID_SECONDS = 30.0
"""How long a request may be on its way: longer than any sane clock skew between operator and node, short for a thief. The
operator signs until now + VALID_SECONDS; the pod accepts up to twice that, since its clock may be as much behind."""

MAX_BODY_BYTES = 1024 * 1024
"""The largest request a launcher reads: a plan of 10,000 members fits."""


@dataclass(frozen=True, slots=True)
class Stop:
    """POST /v1/stop: save and leave before `deadline` (seconds since the epoch). attempt: whom it means."""

    attempt: int
    deadline: float
    reason: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """POST /v1/checkpoint: save at the next step and go on."""

    attempt: int
    reason: str


def encode_stop(stop: Stop) -> bytes:
    """The body of POST /v1/stop."""
    return dumps(stop).encode()


def decode_stop(text: str | bytes) -> Stop:
    """Read the body of POST /v1/stop; ContractError names what is wrong."""
    return loads(Stop, text)


def encode_checkpoint(request: Checkpoint) -> bytes:
    """The body of POST /v1/checkpoint."""
    return dumps(request).encode()


def decode_checkpoint(text: str | bytes) -> Checkpoint:
    """Read the body of POST /v1/checkpoint; ContractError names what is wrong."""
    return loads(Checkpoint, text)


def job_key(operator_key: bytes, job_uid: str) -> bytes:
    """The key of one job, as hex digits (so that a Secret, a file and an HMAC all take it as it is)."""
    return hmac.new(operator_key, job_uid.encode(), hashlib.sha256).hexdigest().encode()


def sign(key: bytes, method: str, path: str, body: bytes, pod_uid: str, expires: float) -> dict[str, str]:
    """The headers that make a request ours. expires: seconds since the epoch, by the operator's clock."""
    stamp = f"{expires:.3f}"
    return {
        HEADER_POD: pod_uid,
        HEADER_EXPIRES: stamp,
        HEADER_SIGNATURE: _signature(key, method, path, body, pod_uid, stamp),
    }


def refusal(
    key: bytes, method: str, path: str, body: bytes, headers: Mapping[str, str], pod_uid: str, now: float
) -> str | None:
    """Why a request is not to be obeyed by the pod `pod_uid` at `now`; None where it is.

    headers: as received, looked up by lower-case name. The signature is compared first and in constant time, so that the
    other answers are given to the key's holder alone.
    """
    given = {name.lower(): value for name, value in headers.items()}
    stamp = given.get(HEADER_EXPIRES.lower(), "")
    addressed = given.get(HEADER_POD.lower(), "")
    expected = _signature(key, method, path, body, addressed, stamp)
    if not hmac.compare_digest(_bytes(expected), _bytes(given.get(HEADER_SIGNATURE.lower(), ""))):
        return "the signature does not verify"
    if addressed != pod_uid:
        return f"signed for pod {addressed}, not for this one"
    try:
        expires = float(stamp)
    except ValueError:
        return f"{HEADER_EXPIRES}: {stamp!r} is not a time"
    if not now <= expires <= now + 2 * VALID_SECONDS:
        return f"expired, or the clocks differ: valid until {stamp}, and it is {now:.3f} here"
    return None


def _signature(key: bytes, method: str, path: str, body: bytes, pod_uid: str, stamp: str) -> str:
    # Each part is preceded by its length: no two different requests share the text that is signed.
    parts = (_bytes(method), _bytes(path), body, _bytes(pod_uid), _bytes(stamp))
    text = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return hmac.new(key, text, hashlib.sha256).hexdigest()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")  # headers may hold any byte
