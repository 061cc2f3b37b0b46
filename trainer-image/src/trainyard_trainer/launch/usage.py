"""What the processes of a worker use, by /proc: known of any program, whether it reports or not."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """resident_bytes: what each process has in memory, summed, so that pages which they share count for each.
    cpu_seconds: so far, with those of processes that have ended and were waited for."""

    resident_bytes: int
    cpu_seconds: float


def usage(groups: Collection[int]) -> dict[int, Usage]:
    """Of process groups, by their number: a worker leads its own. A group without processes is left out.

    One look through /proc at each scrape: some 50 microseconds of CPU for each process of the pod."""
    found: dict[int, Usage] = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            stat = Path(entry.path, "stat").read_bytes()
        except OSError:
            continue
        # After the name, which may hold anything: state ppid pgrp ..., the fields from the third on (proc_pid_stat(5)).
        fields = stat.rpartition(b")")[2].split()
        group = int(fields[2])
        if group in groups:
            so_far = found.get(group, Usage(0, 0.0))
            ticks = sum(map(int, fields[11:15]))  # utime stime cutime cstime
            found[group] = Usage(
                so_far.resident_bytes + int(fields[21]) * PAGE_BYTES, so_far.cpu_seconds + ticks / TICKS_PER_SECOND
            )
    return found
