"""Draws docs/pictures/ring.svg: the worked example of docs/planner.md, as the planner places it and as a draw would.

    python docs/pictures/ring.py > docs/pictures/ring.svg

tests/unit/planner/test_document.py keeps the picture, and the numbers of the page, as the code has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from random import Random
from typing import Final

from trainyard.planner.cost import default_edges
from trainyard.planner.place import Placement, place
from trainyard.planner.placed import placed
from trainyard.planner.request import Request
from trainyard.topology.tree import Level, build
from trainyard.world.records import Node
from trainyard.world.supply import Supply, supply

FREE: Final[Mapping[str, Sequence[int]]] = {"a": (4, 2), "b": (3, 3), "c": (4, 1)}
"""By spine, how many of the four nodes of each leaf are free: the first ones."""

LEAF_NODES: Final = 4
MEMBERS: Final = 8
DRAW: Final = 10
"""The seed of the draw that is shown: its edges and its cost are the medians of `DRAWS`."""
DRAWS: Final = 1000

WIDTH: Final = 920
NODE, GAP, PAD = 26, 6, 7
LEAF_GAP, SPINE_GAP = 10, 17
SPINE_Y, LEAF_Y, NODE_Y = 76, 124, 152
PANEL: Final = 312

_LEAF: Final = LEAF_NODES * NODE + (LEAF_NODES - 1) * GAP + 2 * PAD
_SPINE: Final = 2 * _LEAF + LEAF_GAP
_LEFT: Final = (WIDTH - 3 * _SPINE - 2 * SPINE_GAP) / 2

INK, SOFT, EDGE = "#1c2430", "#5b6673", "#8a94a0"
TAKEN, GANG, WITHIN, LEAVES = "#c9ced5", "#1f5fbf", "#7f9fd0", "#c2410c"


def nodes() -> tuple[Node, ...]:
    """All of them; the first of leaf 1 of spine a is a1-0."""
    return tuple(
        Node(f"{spine}{leaf}-{n}", f"uid-{spine}{leaf}-{n}", {"spine": spine, "leaf": f"leaf-{leaf}"}, {})
        for spine, leaves in FREE.items()
        for leaf in range(1, len(leaves) + 1)
        for n in range(LEAF_NODES)
    )


def free() -> tuple[str, ...]:
    """The nodes on which nothing runs."""
    return tuple(
        f"{spine}{leaf}-{n}"
        for spine, leaves in FREE.items()
        for leaf, number in enumerate(leaves, start=1)
        for n in range(number)
    )


def room() -> Supply:
    """What there is room for."""
    tree = build(nodes(), (Level("spine", "spine"), Level("leaf", "leaf")))
    names, open_ = tree.index.names, frozenset(free())
    return supply(tree, [int(name in open_) for name in names], [1] * len(names), [None] * len(names))


def request() -> Request:
    """The gang."""
    return Request("lm", MEMBERS, {})


def planned() -> Placement:
    """As the planner places it."""
    found = place(room(), request())
    assert isinstance(found, Placement)
    return found


def drawn(seed: int = DRAW) -> Placement:
    """Any free nodes in any order."""
    return placed(room(), request(), Random(seed).sample(free(), MEMBERS))


def units(seconds_per_byte: float) -> float:
    """Seconds per byte as multiples of an edge between nodes of one leaf, as the page counts."""
    return round(seconds_per_byte / default_edges(2).pace(2), 6)


def svg() -> str:
    """The picture."""
    height = 2 * PANEL + 44
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="Helvetica, Arial, sans-serif" role="img">',
        "<title>A gang of eight nodes on a tree of three spines, planned and drawn at random</title>",
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff" stroke="{EDGE}"/>',
        *_panel(0, "Planned", planned()),
        f'<line x1="20" x2="{WIDTH - 20}" y1="{PANEL}" y2="{PANEL}" stroke="{TAKEN}"/>',
        *_panel(PANEL, f"At random, the median of {DRAWS:,} draws", drawn()),
        *_legend(2 * PANEL + 18),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _panel(top: float, title: str, shown: Placement) -> Iterator[str]:
    cost, crossed = units(shown.cost.total), shown.crossings
    said = f"{crossed['leaf']} ring edges leave a leaf, {crossed['spine']} of them a spine; cost {cost:g}"
    yield f'<g transform="translate(0 {top})">'
    yield _text(20, 28, title, size=16, weight="bold", anchor="start")
    yield _text(WIDTH - 20, 28, said, size=14, anchor="end")
    yield from _tree()
    rank = {node: number for number, node in enumerate(shown.nodes)}
    open_ = frozenset(free())
    for node in (one.name for one in nodes()):
        yield from _node(node, rank.get(node), node in open_)
    ring = (*shown.nodes, shown.nodes[0])
    for here, there in sorted(pairwise(ring), key=lambda edge: -abs(_x(edge[0]) - _x(edge[1]))):
        yield _edge(here, there)
    yield "</g>"


def _tree() -> Iterator[str]:
    """Boxes and the links between them."""
    yield _text(WIDTH / 2, 52, "cluster", size=12, fill=SOFT)
    for n, spine in enumerate(FREE):
        left = _LEFT + n * (_SPINE + SPINE_GAP)
        middle = left + _SPINE / 2
        yield _line(WIDTH / 2, 57, middle, SPINE_Y)
        yield _box(middle - 45, SPINE_Y, 90, 20, f"spine {spine}")
        for k in range(len(FREE[spine])):
            x = left + k * (_LEAF + LEAF_GAP)
            yield _line(middle, SPINE_Y + 20, x + _LEAF / 2, LEAF_Y)
            yield f'<rect x="{x:g}" y="{LEAF_Y}" width="{_LEAF}" height="62" rx="5" fill="#f4f6f8" stroke="{EDGE}"/>'
            yield _text(x + _LEAF / 2, LEAF_Y + 18, f"leaf {spine}{k + 1}", size=12, fill=SOFT)


def _node(node: str, rank: int | None, open_: bool) -> Iterator[str]:
    x = _x(node) - NODE / 2
    fill = GANG if rank is not None else "#ffffff" if open_ else TAKEN
    yield (
        f'<rect x="{x:g}" y="{NODE_Y}" width="{NODE}" height="{NODE}" rx="3" fill="{fill}" '
        f'stroke="{GANG if rank is not None else EDGE}"/>'
    )
    if rank is not None:
        yield _text(_x(node), NODE_Y + 18, str(rank), size=14, weight="bold", fill="#ffffff")
    elif not open_:
        yield _line(x + 6, NODE_Y + NODE - 6, x + NODE - 6, NODE_Y + 6, SOFT)


def _edge(here: str, there: str) -> str:
    """An arc below the nodes: the further, the deeper; thick where it leaves a leaf, dashed where it stays in the spine."""
    a, b = sorted((_x(here), _x(there)))
    y = NODE_Y + NODE
    leaf, spine = here[:2] != there[:2], here[0] != there[0]
    depth = 12 + (b - a) ** 0.72 * 1.3
    style = f'stroke="{LEAVES if leaf else WITHIN}" stroke-width="{2.4 if leaf else 1.6}"'
    dashes = ' stroke-dasharray="6 4"' if leaf and not spine else ""
    return f'<path d="M{a:g} {y}C{a:g} {y + depth:.1f} {b:g} {y + depth:.1f} {b:g} {y}" fill="none" {style}{dashes}/>'


def _x(node: str) -> float:
    """Of its middle."""
    leaf, n = node.split("-")
    left = _LEFT + [*FREE].index(leaf[0]) * (_SPINE + SPINE_GAP) + (int(leaf[1]) - 1) * (_LEAF + LEAF_GAP)
    return left + PAD + int(n) * (NODE + GAP) + NODE / 2


def _legend(y: float) -> Iterator[str]:
    x = 20.0
    for fill, stroke, said in (
        (GANG, GANG, "of the gang, with its rank"),
        ("#ffffff", EDGE, "free"),
        (TAKEN, EDGE, "taken"),
    ):
        yield f'<rect x="{x:g}" y="{y - 11}" width="14" height="14" rx="2" fill="{fill}" stroke="{stroke}"/>'
        yield _text(x + 20, y, said, size=12, anchor="start")
        x += 38 + 6.2 * len(said)
    for colour, width, dashes, said in (
        (WITHIN, 1.6, "", "stays in its leaf"),
        (LEAVES, 2.4, ' stroke-dasharray="6 4"', "leaves its leaf"),
        (LEAVES, 2.4, "", "leaves its spine, too"),
    ):
        yield f'<path d="M{x:g} {y - 4}h26" fill="none" stroke="{colour}" stroke-width="{width}"{dashes}/>'
        yield _text(x + 32, y, said, size=12, anchor="start")
        x += 50 + 6.2 * len(said)


def _box(x: float, y: float, width: float, height: float, said: str) -> str:
    box = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" fill="#e6eaef" stroke="{EDGE}"/>'
    return box + _text(x + width / 2, y + height - 6, said, size=12)


def _line(x1: float, y1: float, x2: float, y2: float, stroke: str = EDGE) -> str:
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{stroke}"/>'


def _text(
    x: float, y: float, said: str, size: int, anchor: str = "middle", weight: str = "normal", fill: str = INK
) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" '
        f'fill="{fill}">{said}</text>'
    )


if __name__ == "__main__":
    print(svg(), end="")
