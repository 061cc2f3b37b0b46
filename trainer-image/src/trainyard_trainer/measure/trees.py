"""All-reduce over two binary trees, by messages between two ranks: what NCCL does by itself and gloo does not have.

Each half of the message goes up one tree, summed on the way, and down again. In the first tree odd ranks are leaves, in the
second even ones, so that every rank sends and receives about as much as any other (NCCL, src/graph/trees.cc; Sanders, Speck and
Traeff 2009). The halves go in pieces: a rank passes one on while it receives the next.
"""

from __future__ import annotations

from typing import Final

import torch
import torch.distributed as dist

PIECE_BYTES: Final = 256 * 1024
MOST_PIECES: Final = 64

Tree = tuple[int, ...]
"""By rank its parent; -1 at the root."""


def parents(ranks: int) -> Tree:
    """A binary tree in which odd ranks are leaves and rank 0 is the root, above a single child."""
    return tuple(_parent(rank, ranks) for rank in range(ranks))


def both(ranks: int) -> tuple[Tree, Tree]:
    """The tree and its counterpart, mirrored where the number of ranks is even, else shifted by one."""
    first = parents(ranks)
    place = [ranks - 1 - rank if ranks % 2 == 0 else (rank - 1) % ranks for rank in range(ranks)]
    back = {at: rank for rank, at in enumerate(place)}
    return first, tuple(back[first[at]] if first[at] >= 0 else -1 for at in place)


def depth(tree: Tree) -> int:
    """Steps from the farthest leaf to the root."""

    def up(rank: int) -> int:
        return 0 if tree[rank] < 0 else 1 + up(tree[rank])

    return max(map(up, range(len(tree))))


def _parent(rank: int, ranks: int) -> int:
    if rank == 0:
        return -1
    bit = rank & -rank
    up = (rank ^ bit) | (bit << 1)
    return up if up < ranks else rank ^ bit


def all_reduce(message: torch.Tensor, rank: int, trees: tuple[Tree, Tree]) -> None:
    """The sum over all ranks, in place. Over a backend that tells messages apart by tag, which is gloo."""
    pieces = max(1, min(MOST_PIECES, -(-message.nbytes // 2 // PIECE_BYTES)))
    halves = [
        _Half(list(half.tensor_split(pieces)), rank, tree, tag)
        for half, tree, tag in zip(message.tensor_split(2), trees, (0, 2), strict=True)
    ]
    behind = 1 + max(map(depth, trees))  # by then the root has the sum of the piece
    for n in range(pieces + behind):
        for half in halves:
            if n < pieces:
                half.up(n)
            if n >= behind:
                half.down(n - behind)
    for half in halves:
        half.end()


class _Half:
    """One rank's part in one tree. All that it will receive is awaited from the start."""

    def __init__(self, pieces: list[torch.Tensor], rank: int, tree: Tree, tag: int) -> None:
        self._pieces, self._parent, self._tag = pieces, tree[rank], tag
        self._children = [child for child, parent in enumerate(tree) if parent == rank]
        self._sent: list[dist.Work | None] = []
        self._room = [[torch.empty_like(piece) for _ in self._children] for piece in pieces]
        self._from_below = [
            [dist.irecv(room, child, tag=tag) for room, child in zip(rooms, self._children, strict=True)]
            for rooms in self._room
        ]
        # What comes down is the sum of what went up before, so its place is free by then.
        self._from_above = [dist.irecv(piece, self._parent, tag=tag + 1) for piece in pieces if self._parent >= 0]

    def up(self, n: int) -> None:
        for received, room in zip(self._from_below[n], self._room[n], strict=True):
            _wait(received)
            self._pieces[n].add_(room)
        if self._parent >= 0:
            self._sent.append(dist.isend(self._pieces[n], self._parent, tag=self._tag))

    def down(self, n: int) -> None:
        if self._parent >= 0:
            _wait(self._from_above[n])
        self._sent += [dist.isend(self._pieces[n], child, tag=self._tag + 1) for child in self._children]

    def end(self) -> None:
        for sent in self._sent:
            _wait(sent)


def _wait(work: dist.Work | None) -> None:
    if work is not None:
        work.wait()
