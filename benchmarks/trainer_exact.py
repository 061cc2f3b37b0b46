"""How exact the trainer is: gradients against one process, and the ledger against the closed formulas.

The forms, the models and what is compared are those of the tests (tests/support/gradients.py and ledgers.py).
"""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.figures import Figure
from benchmarks.gangs import gradients, ledgers


def gradient_difference(home: Path) -> Figure:
    """Of every synchronous form, in float64."""
    dtype, found = torch.float64, {}
    expected = {shape: gradients.of_one_process(shape, dtype)[0] for _, shape, _ in gradients.FORMS}
    for ranks in sorted({gradients.world(form) for form, _, _ in gradients.FORMS}):
        gangs = gradients.of_gangs(ranks, home / str(ranks), (dtype,))
        for (form, shape, _, settings), of_ranks in gangs.items():
            found[f"{form} {settings}"] = max(
                gradients.difference(gradient, expected[shape][name])
                for mine, _, _ in of_ranks
                for name, gradient in mine.items()
            )
    worst = max(found, key=lambda form: found[form])
    return Figure(
        "gradient_difference",
        found[worst],
        "",
        1e-12,
        against=f"{len(found)} forms on up to 16 ranks, float64; the worst: {worst}",
        details={"by_form": found},
    )


def ledger_difference(home: Path) -> Figure:
    """Largest relative difference between bytes that were counted and those of the formula, over all lines of all forms."""
    found = {}
    for case, of_ranks in ledgers.of_gangs(home).items():
        found[case] = max(
            abs(said.get(line, (0.0, 0.0))[0] - formulas.get(line, (0.0, 0.0))[0])
            / max(said.get(line, (0.0, 0.0))[0], formulas.get(line, (0.0, 0.0))[0])
            for said, formulas, _ in of_ranks
            for line in {*said, *formulas}
        )
    worst = max(found, key=lambda case: found[case])
    return Figure(
        "ledger_difference",
        found[worst],
        "",
        0.0,
        against=f"logical bytes of {len(found)} forms on up to 4 ranks",
        details={"by_form": found},
    )
