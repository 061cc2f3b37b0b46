"""Bandwidths and latencies as an administrator writes them.

A bandwidth is per direction and decimal, in bits (400Gbps) as network hardware is sold, or in bytes (450GB/s) as accelerators
are. Nothing else is accepted for either. A latency is one number with a unit of Go's durations, the small ones included.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import AfterValidator, WithJsonSchema

BANDWIDTH_PATTERN: Final = "^[0-9]+([.][0-9]+)?[kMGT]?(bps|B/s)$"
LATENCY_PATTERN: Final = "^[0-9]+([.][0-9]+)?(ns|us|ms|s)$"

_SCALE: Final = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BITS: Final = {"bps": 8.0, "B/s": 1.0}
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_BANDWIDTH: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kMGT]?)(bps|B/s)")
_LATENCY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|ms|s)")

_NO_BANDWIDTH: Final = (
    "not a bandwidth; write bits as in 400Gbps or bytes as in 50GB/s, per direction and more than nothing"
)
_NO_LATENCY: Final = "not a latency; write one number with ns, us, ms or s, such as 5us"


def bytes_per_second(text: str) -> float:
    """Bytes a second of a bandwidth such as 400Gbps or 50GB/s (the same); ValueError for anything else, and for zero."""
    match = _BANDWIDTH.fullmatch(text)
    if match is None or float(match[1]) == 0.0:
        raise ValueError(f"{text!r} is {_NO_BANDWIDTH}")
    return float(match[1]) * _SCALE[match[2]] / _BITS[match[3]]


def latency_seconds(text: str) -> float:
    """Seconds of a latency such as 5us; ValueError for anything else."""
    match = _LATENCY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is {_NO_LATENCY}")
    return float(match[1]) * _SECONDS[match[2]]


def _bandwidth(text: str) -> str:
    bytes_per_second(text)
    return text


def _latency(text: str) -> str:
    latency_seconds(text)
    return text


def _schema(rule: str, message: str) -> dict[str, Any]:
    return {
        "type": "string",
        "maxLength": 32,
        "x-kubernetes-validations": [{"rule": rule, "message": message}],
    }


Bandwidth = Annotated[
    str,
    AfterValidator(_bandwidth),
    WithJsonSchema(
        _schema(f"self.matches('{BANDWIDTH_PATTERN}') && self.matches('^[0-9.]*[1-9]')", _NO_BANDWIDTH),
    ),
]
"""A bandwidth per direction as it was written; `bytes_per_second` reads it."""

Latency = Annotated[
    str,
    AfterValidator(_latency),
    WithJsonSchema(_schema(f"self.matches('{LATENCY_PATTERN}')", _NO_LATENCY)),
]
"""A latency as it was written; `latency_seconds` reads it."""
