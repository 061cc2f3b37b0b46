"""Arithmetic of RDMA over Ethernet and InfiniBand: traffic classes and how long a sender waits for an answer.

NCCL_IB_TC is the traffic class byte of the packets, of which the upper six bits are the DSCP that switches look at and the lower
two the ECN field (RFC 2474, RFC 3168). NCCL_IB_TIMEOUT is an exponent: an adapter waits 4.096 us x 2^timeout for an
acknowledgement (InfiniBand Architecture Specification 1.3, section 9.7.6.1.3) and tries again as often as NCCL_IB_RETRY_CNT says.
"""

from __future__ import annotations

from typing import Final

DEFAULT_TIMEOUT: Final = 20
"""NCCL_IB_TIMEOUT of NCCL since 2.23 (src/transport/net_ib)."""
DEFAULT_RETRIES: Final = 7
"""NCCL_IB_RETRY_CNT, also the most that there can be: it has three bits."""
MAX_TIMEOUT: Final = 31
TICK_SECONDS: Final = 4.096e-6


def traffic_class(dscp: int, ecn: int = 0) -> int:
    """The value of NCCL_IB_TC. ValueError outside 0..63 and 0..3."""
    if not 0 <= dscp <= 63:
        raise ValueError(f"{dscp} is no DSCP; it has six bits, 0 to 63")
    if not 0 <= ecn <= 3:
        raise ValueError(f"{ecn} is no ECN field; it has two bits, 0 to 3")
    return dscp << 2 | ecn


def dscp(traffic_class: int) -> int:
    """The DSCP of a traffic class."""
    return traffic_class >> 2


def ecn(traffic_class: int) -> int:
    """The ECN field of a traffic class: 0 not capable, 1 and 2 capable, 3 congestion experienced."""
    return traffic_class & 3


def gives_up_seconds(timeout: int, retries: int = DEFAULT_RETRIES) -> float:
    """From a lost packet until the operation fails with status 12. timeout: 1 to 31; 0 would wait for ever."""
    if not 1 <= timeout <= MAX_TIMEOUT:
        raise ValueError(f"{timeout} is no timeout; it is an exponent, 1 to {MAX_TIMEOUT}")
    return (retries + 1) * TICK_SECONDS * (1 << timeout)


def longest_timeout(within_seconds: float, retries: int = DEFAULT_RETRIES) -> int:
    """The greatest timeout with which an adapter gives up before so many seconds; at least 1."""
    fitting = (t for t in range(MAX_TIMEOUT, 0, -1) if gives_up_seconds(t, retries) < within_seconds)
    return next(fitting, 1)
