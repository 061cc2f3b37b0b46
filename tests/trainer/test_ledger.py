"""What the process groups send in a step is what the planner's formulas say: byte by byte, for every kind of mesh."""

import pytest
from support.ledgers import CASES, of_gangs


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory):
    return of_gangs(tmp_path_factory.mktemp("gangs"))


@pytest.mark.parametrize("case", CASES)
def test_bytes_counted_are_the_bytes_of_the_closed_formulas(ledgers, case):
    assert ledgers[case]
    for said, formulas, _ in ledgers[case]:
        assert formulas.keys() == said.keys()
        for line, sent in formulas.items():
            assert sent == pytest.approx(said[line], rel=1e-12), line


@pytest.mark.parametrize("case", CASES)
def test_every_line_was_on_its_way_for_a_time_of_which_no_more_than_all_is_exposed(ledgers, case):
    for said, _, (timed, communication, exposed) in ledgers[case]:
        assert {tuple(line) for line in timed} == said.keys()
        assert communication > 0
        assert 0 <= exposed <= communication
