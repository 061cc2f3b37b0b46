"""The worked example of docs/planner.md is what the planner does, and its picture is drawn from that."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from statistics import median
from types import ModuleType

import pytest
from trainyard.lifecycle import deadlines
from trainyard.planner import cost, loss, repair_cost
from trainyard.planner.advice import ways
from trainyard.planner.search import bound, branch
from trainyard.planner.search.ground import Ground
from trainyard.planner.victims import cover

DOCS = Path(__file__).parents[3] / "docs"
PAGE = " ".join((DOCS / "planner.md").read_text().split())


@pytest.fixture(scope="module")
def ring() -> ModuleType:
    """docs/pictures/ring.py: the example."""
    spec = importlib.util.spec_from_file_location("ring", DOCS / "pictures" / "ring.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_is_drawn_from_what_the_planner_does(ring: ModuleType) -> None:
    assert (DOCS / "pictures" / "ring.svg").read_text() == ring.svg()


def test_the_costs_of_the_example(ring: ModuleType) -> None:
    planned, drawn = ring.planned(), ring.drawn()
    assert planned.quality == "optimal"
    assert ring.units(planned.cost.total) == 96
    assert "| a1 and c1 whole, depth first (planned) | 8 x 9 | 2 x 9 | 2 x 3 | 96 |" in PAGE
    assert planned.crossings == {"spine": 2, "leaf": 2}
    assert {node[:2] for node in planned.nodes} == {"a1", "c1"}
    assert ring.units(drawn.cost.total) == 147
    assert drawn.crossings == {"spine": 6, "leaf": 7}


def test_the_draw_is_the_median_one(ring: ModuleType) -> None:
    drawn = [ring.drawn(seed) for seed in range(ring.DRAWS)]
    assert median(ring.units(one.cost.total) for one in drawn) == 147
    assert median(one.crossings["spine"] for one in drawn) == 6
    assert median(one.crossings["leaf"] for one in drawn) == 7


def test_the_three_steps_of_the_bound(ring: ModuleType) -> None:
    room = ring.room()
    problem = bound.problem(Ground(room.index, 2, room.free_in, room.slots), 0, ring.MEMBERS, [0, 9, 3])
    relaxed = bound.bound(problem)
    assert (relaxed.price, relaxed.value) == pytest.approx((2.5, 20))
    assert bound.round_up(relaxed.value, problem.unit) == 21
    assert bound.by_number(problem, 99) == 24


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("cost {:g} times as much as the one below", cost.TIER),
        ("After {:,} pairs", branch.MOST_STATES),
        ("second with up to {}", branch.MOST_LABELS),
        ("to the next one for {:g} s", deadlines.RESERVATION),
        ("within {:g} h", deadlines.DOUBTFUL / 3600),
        ("After {:g} s of training", deadlines.GROW),
        ("stop + {:.0f} s x", repair_cost.HORIZON_SECONDS),
        ("make the step {:g} times as long", 1 + repair_cost.COMMUNICATION_SHARE * 2),
        ("restart + {:g} s of queueing", loss.REQUEUE_SECONDS),
        ("else {:g} s and", loss.SAVE_SECONDS),
        ("at most {:,} cells", cover.MOST_CELLS),
        ("At most {} plans", ways.MOST_PLANS),
    ],
)
def test_what_the_page_says_of_a_constant_is_so(said: str, value: float) -> None:
    assert said.format(value) in PAGE


def test_modules_that_the_page_names_exist() -> None:
    planner = Path(cost.__file__).parent
    rows = re.findall(r"^\| [^|]+ \| ([^|]*`[^|]+`[^|]*) \| ", (DOCS / "planner.md").read_text(), re.MULTILINE)
    named = [name for row in rows[:8] for name in re.findall(r"`([a-z_/]+)`", row)]
    assert len(named) > 15
    assert not [name for name in named if not any((root / f"{name}.py").exists() for root in (planner, planner.parent))]
