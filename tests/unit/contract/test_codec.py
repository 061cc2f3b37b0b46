"""Messages survive the way there and back, and whatever else comes is refused with the field's name."""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainyard.contract.codec import MOST_INTEGER, AtMost, ContractError, Instant, dumps, loads
from trainyard.contract.plan import Plan
from trainyard.contract.requests import Checkpoint, Stop
from trainyard.contract.status import LastWords, Status


class Point(NamedTuple):
    x: int
    y: float


@dataclasses.dataclass(frozen=True)
class Inner:
    name: str
    at: float = 0.5


@dataclasses.dataclass(frozen=True)
class Outer:
    number: int
    flag: bool = False
    maybe: Inner | None = None
    many: tuple[Inner, ...] = ()
    points: tuple[Point, ...] = ()
    table: Mapping[str, Inner] = dataclasses.field(default_factory=dict)
    anything: Mapping[str, Any] | None = None
    when: Instant | None = None
    few: Annotated[tuple[int, ...], AtMost(2)] = ()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)
finite = st.floats(allow_nan=False, allow_infinity=False)
integers = st.integers(-MOST_INTEGER, MOST_INTEGER)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
inners = st.builds(Inner, texts, finite)
outers = st.builds(
    Outer,
    integers,
    st.booleans(),
    st.none() | inners,
    st.lists(inners, max_size=3).map(tuple),
    st.lists(st.builds(Point, integers, finite), max_size=3).map(tuple),
    st.dictionaries(texts, inners, max_size=3),
    st.none() | st.dictionaries(texts, st.integers() | texts, max_size=3),
    st.none() | st.floats(0.0, 4e9),
    st.lists(integers, max_size=2).map(tuple),
)


@given(outers)
def test_a_message_arrives_as_it_was_sent(message):
    assert loads(Outer, dumps(message)) == message


@given(outers, st.dictionaries(st.text(min_size=10, max_size=12), json_values, max_size=3))
def test_what_a_newer_peer_adds_is_dropped(message, added):
    assert loads(Outer, json.dumps(added | json.loads(dumps(message)))) == message


@given(st.sampled_from([Outer, Plan, Status, LastWords, Stop, Checkpoint]), json_values)
def test_any_other_json_is_refused_and_named(kind, value):
    if isinstance(value, dict):
        value = {key: value for key, value in value.items() if key in ("", "x")}
    with pytest.raises(ContractError) as refused:
        loads(kind, json.dumps(value))
    assert str(refused.value).startswith(kind.__name__)


@given(st.binary(max_size=100) | st.text(max_size=100))
def test_noise_is_refused(noise):
    with pytest.raises(ContractError):
        loads(Stop, noise)


@given(outers, st.data())
def test_one_field_of_any_value_is_taken_or_refused_by_name(message, data):
    record = json.loads(dumps(message))
    name = data.draw(st.sampled_from(sorted(record)))
    record[name] = data.draw(json_values)
    try:
        problem = ""
        loads(Outer, json.dumps(record))
    except ContractError as refused:
        problem = str(refused)
    assert problem == "" or problem.startswith(f"Outer.{name}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"number": true}', "Outer.number: expected int, got bool"),
        ('{"number": 1.0}', "Outer.number: expected int, got float"),
        ('{"number": 1, "flag": 1}', "Outer.flag: expected bool, got int"),
        ("{}", "Outer.number: missing"),
        ('{"number": 1, "many": [{"name": "a"}, {}]}', "Outer.many[1].name: missing"),
        ('{"number": 1, "points": [[1]]}', "Outer.points[0]: expected 2 items, got 1"),
        ('{"number": 1, "table": {"k": 3}}', "Outer.table.k: expected an object, got int"),
        ('{"number": 1, "maybe": {"name": "a", "at": NaN}}', "Outer: not JSON: NaN is not a number"),
        ('{"number": 1, "maybe": {"name": "a", "at": -Infinity}}', "Outer: not JSON: -Infinity is not a number"),
        ('{"number": 1, "maybe": {"name": "a", "at": 1e999}}', "Outer.maybe.at: expected a finite number"),
        ('{"number": 1, "maybe": {"name": "a", "at": 1' + "0" * 400 + "}}", "Outer.maybe.at: expected a finite number"),
        ('{"number": 9223372036854775808}', "Outer.number: expected an integer of 64 bits"),
        ('{"number": 1' + "0" * 400 + "}", "Outer.number: expected an integer of 64 bits"),
        ('{"number": 1, "when": 1764537173000}', "Outer.when: expected seconds since the epoch, got 1.76454e+12"),
        ('{"number": 1, "when": -1}', "Outer.when: expected seconds since the epoch, got -1"),
        ('{"number": 1, "few": [1, 2, 3]}', "Outer.few: expected at most 2 items, got 3"),
        (
            '{"number": 1, "maybe": {"name": "\\ud800"}}',
            "Outer.maybe.name: expected text, got half of a surrogate pair",
        ),
        ('{"number": 1, "table": {"\\udfff": {"name": ""}}}', "Outer.table: expected text"),
    ],
)
def test_a_refusal_says_where_and_what_was_expected(text, message):
    with pytest.raises(ContractError) as refused:
        loads(Outer, text)
    assert str(refused.value).startswith(message)


def test_nesting_without_end_is_refused():
    with pytest.raises(ContractError):
        loads(Outer, '{"anything":' + "[" * 100_000)


def test_a_number_that_is_not_finite_is_not_sent():
    with pytest.raises(ValueError, match="not JSON compliant"):
        dumps(Inner("a", math.nan))


def test_text_that_no_encoding_holds_is_sent_as_a_question_mark():
    assert loads(Inner, dumps(Inner("a\ud800b")).encode()).name == "a?b"
