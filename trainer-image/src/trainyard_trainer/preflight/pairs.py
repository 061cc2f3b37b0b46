"""Who exchanges with whom: neighbours first, then each suspect with a good node. Pure.

A round is a list of turns, and in a turn each node stands in one pair at most, so that pairs measure side by side without sharing
an interface. Two rounds name a slow node, as DLRover does it (network check, rdzv_manager.py): one slow pair leaves open which of
the two it was.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from trainyard.contract.plan import Plan

Pair = tuple[int, int]
Turns = tuple[tuple[Pair, ...], ...]

MAX_TURNS: Final = 3
"""Of a round with good nodes. Suspects for whom that is not enough are not measured again, and not named."""


def neighbours(nodes: int) -> Turns:
    """0 with 1, 2 with 3...; where the number is odd, the last three each with each."""
    if nodes < 2:
        return ()
    even = nodes if nodes % 2 == 0 else nodes - 3
    first = [(n, n + 1) for n in range(0, even, 2)]
    if even == nodes:
        return (tuple(first),)
    a, b, c = nodes - 3, nodes - 2, nodes - 1
    return ((*first, (a, b)), ((b, c),), ((a, c),))


def with_good(plan: Plan, suspects: Sequence[int], good: Collection[int], before: Collection[Pair] = ()) -> Turns:
    """Each suspect with a good node near to it, and not the one that it was with before unless there is no other."""
    left = list(suspects)
    turns: list[tuple[Pair, ...]] = []
    seen = {frozenset(pair) for pair in before}
    while left and good and len(turns) < MAX_TURNS:
        free, turn = set(good), []
        for suspect in list(left):
            if not free:
                break
            partner = min(free, key=lambda node: _unsuited(plan, suspect, node, seen))
            free.discard(partner)
            turn.append((suspect, partner))
            left.remove(suspect)
        turns.append(tuple(turn))
    return tuple(turns)


def among_good(plan: Plan, turn: Sequence[Pair], good: Collection[int]) -> tuple[Pair, ...]:
    """Good nodes of a turn with each other, as a measure for their suspects: each with one that is as far from it as its suspect,
    or further. What is near would make a suspect behind a slower way look slow."""
    free, found = set(good), list[Pair]()
    for suspect, node in turn:
        depth = common_depth(plan, suspect, node)
        others = [other for other in free if other != node and common_depth(plan, node, other) <= depth]
        if node in free and others:
            other = min(others, key=lambda one: (-common_depth(plan, node, one), abs(one - node), one))
            free -= {node, other}
            found.append((node, other))
    return tuple(found)


def common_depth(plan: Plan, a: int, b: int) -> int:
    """How many domains two nodes share, from the top."""
    depth = 0
    for ours, theirs in zip(plan.path(a), plan.path(b), strict=False):
        if ours != theirs:
            break
        depth += 1
    return depth


def partner(turn: Sequence[Pair], node: int) -> int | None:
    """Whom a node exchanges with in a turn."""
    for a, b in turn:
        if node in (a, b):
            return b if node == a else a
    return None


def _unsuited(plan: Plan, suspect: int, node: int, seen: Collection[frozenset[int]]) -> tuple[bool, int, int, int]:
    return (frozenset((suspect, node)) in seen, -common_depth(plan, suspect, node), abs(node - suspect), node)
