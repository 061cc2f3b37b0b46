"""What a worker reported of a step's traffic, summed up for GET /v1/status. A worker may be anybody's: few names, and short."""

from __future__ import annotations

from collections import defaultdict

from trainyard.contract.sent import MOST_NAMES, Sent

from trainyard_trainer.launch.progress import LONGEST_NAME, Progress


def sent(progress: Progress) -> Sent | None:
    """None before its ledger was heard of."""
    if not progress.sent:
        return None
    data: dict[str, float] = defaultdict(float)
    over: dict[str, float] = defaultdict(float)
    seconds: dict[str, float] = defaultdict(float)
    untimed = {along.level[:LONGEST_NAME] for along, figures in progress.sent.items() if figures.seconds is None}
    for along, figures in sorted(progress.sent.items()):
        data[along.data[:LONGEST_NAME]] += figures.counted
        if not along.level:
            continue  # nothing is sent of it anywhere
        over[along.level[:LONGEST_NAME]] += figures.wire
        if figures.seconds is not None and along.level[:LONGEST_NAME] not in untimed:
            seconds[along.level[:LONGEST_NAME]] += figures.seconds
    overlap = progress.overlap
    return Sent(
        data=dict(sorted(data.items())[:MOST_NAMES]),
        predicted_bytes=sum(figures.predicted for figures in progress.sent.values()),
        wire_bytes=sum(figures.wire for figures in progress.sent.values()),
        predicted_wire_bytes=sum(figures.predicted_wire for figures in progress.sent.values()),
        level_bytes=dict(sorted(over.items())[:MOST_NAMES]),
        level_seconds=dict(sorted(seconds.items())[:MOST_NAMES]),
        communication_seconds=overlap.communication if overlap is not None else None,
        exposed_seconds=overlap.exposed if overlap is not None else None,
        step_seconds=overlap.step if overlap is not None else None,
    )
