"""The gradient of a gang is that of one process, whatever the mesh, the precision and the way the samples divide."""

import pytest
from support.gradients import (
    BOUNDS,
    CLIPPED,
    DEEP,
    DEEP_TIED,
    FORMS,
    SHAPE,
    THREES,
    TIED,
    difference,
    of_gangs,
    of_one_process,
    world,
)


@pytest.fixture(scope="module")
def compare(tmp_path_factory):
    """Whether a form's gradients, their norm before and after clipping, and the loss are those of one process.

    A gang of each size is started once and computes every form of that size, one after the other.
    """
    expected = {
        (shape, dtype): of_one_process(shape, dtype)
        for shape in (SHAPE, TIED, DEEP, DEEP_TIED, THREES)
        for dtype in BOUNDS
    }
    gangs = {}

    def gang(ranks):
        if ranks not in gangs:
            gangs[ranks] = of_gangs(ranks, tmp_path_factory.mktemp("gang") / str(ranks))
        return gangs[ranks]

    def one(form, shape, settings):
        worst = {}
        for dtype, bound in BOUNDS.items():
            gradients, mean = expected[shape, dtype]
            squared = sum(float(gradient.double().square().sum()) for gradient in gradients.values())
            seen, worst[dtype] = set(), 0.0
            for before, (norm, loss), clipped in gang(world(form))[form, shape, dtype, str(settings)]:
                assert norm == pytest.approx(squared, rel=max(bound, 1e-9))
                assert loss == pytest.approx(mean, rel=max(bound, 1e-9))
                assert clipped == pytest.approx(CLIPPED, rel=max(bound, 1e-9))
                for name, gradient in before.items():
                    error = difference(gradient, gradients[name])
                    worst[dtype] = max(worst[dtype], error)
                    assert error < bound, name
                    seen.add(name)
            assert seen == set(gradients)
        print(form, "tied" if shape.tie_embeddings else "", settings, *(f"{error:.1e}" for error in worst.values()))

    return one


@pytest.mark.parametrize(
    ("form", "shape", "settings"),
    FORMS,
    ids=["-".join((form, "tied" * shape.tie_embeddings, *map(str, s.values()))) for form, shape, s in FORMS],
)
def test_gradients_equal_those_of_one_process(compare, form, shape, settings):
    compare(form, shape, settings)
