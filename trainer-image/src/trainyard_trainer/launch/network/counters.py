"""Counters of RDMA adapters: congestion and loss that show nowhere else, since a collective only gets slower by them.

Files are those of the drivers of Linux 6: mlx5 and mlx4 (hw_counters and counters), bnxt_re, irdma, efa. One kind of event has
one name here, whatever a driver calls it; where a driver counts it in several files they are added.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainyard_trainer.launch.network.tree import MAX_ADAPTERS, names, text

KINDS: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    (
        "cnp_sent",
        "Congestion notifications sent: packets came in marked by a switch.",
        ("np_cnp_sent", "tx_cnp", "cnpSent", "tx_cnp_pkts"),
    ),
    (
        "cnp_handled",
        "Congestion notifications received: this adapter was told to slow down.",
        ("rp_cnp_handled", "rx_cnp", "cnpHandled", "rx_cnp_pkts"),
    ),
    (
        "ecn_marked",
        "Packets that came in marked by a switch.",
        ("np_ecn_marked_roce_packets", "rx_ecn_marked_pkts", "RxECNMrkd"),
    ),
    (
        "out_of_sequence",
        "Packets that came out of order, or after a loss.",
        ("out_of_sequence", "packet_seq_err", "oos_drop_count", "seq_err_naks_rcvd"),
    ),
    (
        "retransmits",
        "Packets sent again.",
        ("roce_adp_retrans", "to_retransmits", "retrans_pkts", "RetransSegs"),
    ),
    (
        "timeouts",
        "Waits for an acknowledgement that did not come in time.",
        ("local_ack_timeout_err", "roce_adp_retrans_to", "retrans_timeout_events", "max_retry_exceeded"),
    ),
    (
        "pause",
        "Time in which there was something to send and the other end had no room, in the adapter's ticks; on Ethernet, pauses.",
        ("port_xmit_wait", "rx_pause", "rx_pause_ctrl_phy", "tx_pause", "tx_pause_ctrl_phy"),
    ),
    ("discards", "Packets thrown away.", ("port_xmit_discards", "out_of_buffer", "rx_discard_pkts", "rx_drops")),
    ("link_downs", "How often the link was lost.", ("link_downed",)),
    (
        "errors",
        "Packets that came in damaged, and links that were recovered.",
        ("port_rcv_errors", "symbol_error", "link_error_recovery"),
    ),
)
"""Name, meaning, and the files that are added up."""
WORDS: Final = (
    ("sent_bytes", "Bytes sent.", ("port_xmit_data",)),
    ("received_bytes", "Bytes received.", ("port_rcv_data",)),
)
"""Counted in words of 4 bytes (IBTA)."""
WORD_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Counted:
    """One counter of one port. rail: place among the adapters that collectives use, None for the others."""

    kind: str
    device: str
    port: str
    rail: int | None
    value: float


def count(root: Path, rails: Sequence[str] = ()) -> Iterator[Counted]:
    """All counters that there are. rails: the adapters that collectives use, in order."""
    folder = root / "sys/class/infiniband"
    place = {name: rail for rail, name in enumerate(rails)}
    for device in names(folder)[:MAX_ADAPTERS]:
        for port in names(folder / device / "ports"):
            for kind, value in _port(folder / device / "ports" / port).items():
                yield Counted(kind, device, port, place.get(device), value)


def meaning(kind: str) -> str:
    """What a counter counts."""
    return next(about for name, about, _ in (*KINDS, *WORDS) if name == kind)


def _port(folder: Path) -> dict[str, float]:
    there = {name: folder / part / name for part in ("counters", "hw_counters") for name in names(folder / part)}
    found: dict[str, float] = defaultdict(float)
    for kinds, unit in ((KINDS, 1), (WORDS, WORD_BYTES)):
        for kind, _, files in kinds:
            for name in files:
                said = text(there[name]) if name in there else ""
                if said.isdigit():
                    found[kind] += int(said) * unit
    return found
