"""The cheapest way to make up for a lack, when each of many groups offers several amounts at several prices.

From each group at most one offer is taken, and together they must give at least what is lacking: a knapsack to be covered, with
choices (Martello and Toth, "Knapsack Problems", 1990, chapters 2 and 3). The table over groups and what is lacking is exact;
where it would have too many cells only the groups that give most for their price are in it, and the answer is not worse than
the greedy one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

Offer = tuple[int, int]
"""An amount, at least 1, and its price, at least 0."""

MOST_CELLS: Final = 2_000_000
"""The largest table: about 0.2 s and 16 MB. Counted work: the answer does not depend on how busy the machine is."""

_NEVER: Final = 1 << 200


def cover(lack: int, groups: Sequence[Sequence[Offer]]) -> Mapping[int, int] | None:
    """By number of the group the number of its offer, for the groups that are needed; None where all together are not enough.

    Exact where the table has room for all groups that can be part of a cheapest answer; of equal answers always the same.
    """
    if sum(max((gain for gain, _ in offers), default=0) for offers in groups) < lack:
        return None
    if lack <= 0:
        return {}
    ordered = sorted(_useful(lack, groups), key=lambda number: (_ratio(groups[number]), number))
    greedy = _greedy(lack, groups, ordered)
    exact = _exact(lack, groups, ordered[: MOST_CELLS // lack])
    answers = (greedy,) if exact is None else (exact, greedy)
    return min(answers, key=lambda answer: price(groups, answer))


def price(groups: Sequence[Sequence[Offer]], answer: Mapping[int, int]) -> int:
    """Of all offers taken together."""
    return sum(groups[number][offer][1] for number, offer in answer.items())


def least_price(lack: int, groups: Sequence[Sequence[Offer]]) -> float:
    """What no answer is cheaper than: the price if parts of offers could be taken; infinite where nothing is enough."""
    bound = 0.0
    for ratio, gain in sorted((_ratio(offers), max(gain for gain, _ in offers)) for offers in groups if offers):
        if lack <= 0:
            break
        bound += ratio * min(gain, lack)
        lack -= gain
    return bound if lack <= 0 else float("inf")


def _ratio(offers: Sequence[Offer]) -> float:
    return min(price / gain for gain, price in offers)


def _useful(lack: int, groups: Sequence[Sequence[Offer]]) -> Collection[int]:
    """The groups that may be part of a cheapest answer: of those that have one offer, and the same amount, only as many as are
    enough by themselves, the cheapest."""
    several = [number for number, offers in enumerate(groups) if len(offers) > 1]
    single: dict[int, list[tuple[int, int]]] = {}
    for number, offers in enumerate(groups):
        if len(offers) == 1:
            gain, amount = offers[0]
            single.setdefault(min(gain, lack), []).append((amount, number))
    for gain, alike in single.items():
        several += [number for _, number in sorted(alike)[: -(-lack // gain)]]
    return several


def _greedy(lack: int, groups: Sequence[Sequence[Offer]], ordered: Sequence[int]) -> Mapping[int, int]:
    """What gives most for its price is taken first; the last may be the cheapest that is enough by itself instead. Where that is
    not enough with all groups, the largest offers are taken in the same order."""
    taken: dict[int, int] = {}
    best: tuple[int, Mapping[int, int]] | None = None
    spent, left = 0, lack
    for number in ordered:
        for last in ordered if len(taken) < len(_LOOKS) else ():
            for n, (gain, amount) in enumerate(groups[last] if last not in taken else ()):
                if gain >= left and (best is None or spent + amount < best[0]):
                    best = spent + amount, {**taken, last: n}
        offers = groups[number]
        taken[number] = min(range(len(offers)), key=lambda n: (offers[n][1] / offers[n][0], -offers[n][0]))
        spent += offers[taken[number]][1]
        left -= offers[taken[number]][0]
        if left <= 0:
            return taken if best is None or spent < best[0] else best[1]
    if best is not None:
        return best[1]
    for number in ordered:
        offers = groups[number]
        largest = max(range(len(offers)), key=lambda n: (offers[n][0], -offers[n][1]))
        left -= offers[largest][0] - offers[taken[number]][0]
        taken[number] = largest
        if left <= 0:
            break
    return taken


_LOOKS: Final = range(32)
"""For how many of the first steps a last one is looked for."""


def _exact(lack: int, groups: Sequence[Sequence[Offer]], some: Sequence[int]) -> Mapping[int, int] | None:
    row = [0] + [_NEVER] * lack
    rows = [row]
    for number in some:
        before = row
        for gain, amount in groups[number]:
            offered = [amount] * min(gain, lack) + [cell + amount for cell in before[1 : max(1, lack - gain + 1)]]
            row = [0, *(a if a <= b else b for a, b in zip(row[1:], offered, strict=True))]
        rows.append(row)
    if row[lack] >= _NEVER:
        return None
    answer: dict[int, int] = {}
    for n in range(len(some) - 1, -1, -1):
        if lack > 0 and rows[n + 1][lack] != rows[n][lack]:
            offers = groups[some[n]]
            answer[some[n]] = next(
                k
                for k, (gain, amount) in enumerate(offers)
                if rows[n][max(0, lack - gain)] + amount == rows[n + 1][lack]
            )
            lack -= offers[answer[some[n]]][0]
    return answer
