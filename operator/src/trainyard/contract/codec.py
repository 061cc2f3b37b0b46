"""Frozen dataclasses to JSON and back, strictly on what we know and tolerant of what a newer peer adds.

Unknown keys are dropped (the peer may be newer), missing keys take the default, a wrong type is an error that names the
field: a plan that is half understood would be worse than none.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, NoReturn, TypeVar

T = TypeVar("T")

MOST_INTEGER: Final = 2**63 - 1
"""Integers are of 64 bits: what the API server, most peers and a Prometheus sample can hold."""


@dataclass(frozen=True, slots=True)
class Within:
    """Bounds of a number, both included, written beside its type: `Annotated[float, Within(0.0, 1.0, "a share")]`."""

    least: float
    most: float
    what: str


@dataclass(frozen=True, slots=True)
class AtMost:
    """How many items a list or a mapping has at most. characters: of a mapping's longest name."""

    items: int
    characters: int = 80


LATEST: Final = 4_102_444_800.0
"""The year 2100 in seconds since the epoch; what lies beyond was counted in a smaller unit."""
Instant = Annotated[float, Within(0.0, LATEST, "seconds since the epoch")]
Seconds = Annotated[float, Within(-1e9, 1e9, "seconds of less than 30 years")]
"""A span of time. Negative where clocks were set between its ends."""
Bytes = Annotated[float, Within(0.0, 2.0**70, "bytes")]
"""A float: it may be an average. A launcher adds up what its workers claim, each 2**62 at most."""


class ContractError(ValueError):
    """A message that does not say what its type promises. The text names the field and what was expected."""


def dumps(message: Any) -> str:
    """Compact JSON with sorted keys: equal messages have equal text, so that a digest of it means something.

    Half of a surrogate pair, which is text that no encoding holds, becomes "?". ValueError for a number that is not finite.
    """
    text = json.dumps(plain(message), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "replace").decode("utf-8")


def plain(value: Any) -> Any:
    """A dataclass as JSON values; fields that are None are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
        return {name: plain(item) for name, item in pairs if item is not None}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


def loads(kind: type[T], text: str | bytes) -> T:
    """Parse JSON into `kind`. Raises ContractError on anything else than an object that fits."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ContractError(f"{kind.__name__}: not JSON: {error}") from None
    return typing.cast(T, build(kind, value, kind.__name__))


@functools.cache  # evaluated once a type: a plan has tens of thousands of records
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _refuse_constant(name: str) -> NoReturn:
    # json reads NaN and Infinity though they are not JSON; a deadline that compares false with everything is no deadline.
    raise ValueError(f"{name} is not a number")


def build(kind: Any, value: Any, where: str) -> Any:
    """`value` (of JSON) as `kind`: a dataclass, a tuple or mapping of such, an optional one, or a scalar."""
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin is Annotated:
        built = build(arguments[0], value, where)
        for bound in arguments[1:]:
            _check(bound, built, where)
        return built
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        (only,) = [a for a in arguments if a is not type(None)]
        return build(only, value, where)
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        types_in_order = tuple(_hints(kind).values())
        return kind(*build(tuple[types_in_order], value, where))  # type: ignore[valid-type]
    if origin is tuple:
        if not isinstance(value, list):
            raise ContractError(f"{where}: expected a list, got {type(value).__name__}")
        if arguments[-1] is Ellipsis:
            return tuple(build(arguments[0], item, f"{where}[{n}]") for n, item in enumerate(value))
        if len(value) != len(arguments):
            raise ContractError(f"{where}: expected {len(arguments)} items, got {len(value)}")
        return tuple(build(a, item, f"{where}[{n}]") for n, (a, item) in enumerate(zip(arguments, value, strict=True)))
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            raise ContractError(f"{where}: expected an object, got {type(value).__name__}")
        return {_text(key, where): build(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(kind):
        return _build_dataclass(kind, value, where)
    return _scalar(kind, value, where)


def _build_dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ContractError(f"{where}: expected an object, got {type(value).__name__}")
    hints = _hints(kind)
    known = {f.name: f for f in dataclasses.fields(kind)}
    given = {name: build(hints[name], value[name], f"{where}.{name}") for name in known if name in value}
    required = dataclasses.MISSING
    for name, field in known.items():
        if name not in given and field.default is required and field.default_factory is required:
            raise ContractError(f"{where}.{name}: missing")
    return kind(**given)


def _scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is Any:
        return value
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return _finite(value, where)
    if kind is int and isinstance(value, int) and not -MOST_INTEGER <= value <= MOST_INTEGER:
        raise ContractError(f"{where}: expected an integer of 64 bits, got one beyond")
    if kind is str and isinstance(value, str):
        return _text(value, where)
    if isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool):
        return value
    raise ContractError(f"{where}: expected {getattr(kind, '__name__', kind)}, got {type(value).__name__}")


def _finite(value: float, where: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ContractError(f"{where}: expected a finite number, got one beyond 1.8e308")
    return number


def _text(value: str, where: str) -> str:
    """JSON can spell half of a surrogate pair, which neither a log nor a metric can write down."""
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise ContractError(f"{where}: expected text, got half of a surrogate pair")
    return value


def _check(bound: Within | AtMost, value: Any, where: str) -> None:
    match bound:
        case Within(least, most, what) if not least <= value <= most:
            raise ContractError(f"{where}: expected {what}, got {value:.6g}")
        case AtMost(items) if len(value) > items:
            raise ContractError(f"{where}: expected at most {items} items, got {len(value)}")
        case AtMost(characters=most) if isinstance(value, Mapping) and any(len(name) > most for name in value):
            raise ContractError(f"{where}: expected names of at most {most} characters")
