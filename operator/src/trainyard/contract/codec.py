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
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


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


_hints = functools.cache(typing.get_type_hints)  # evaluated once a type: a plan has tens of thousands of records


def _refuse_constant(name: str) -> NoReturn:
    # json reads NaN and Infinity though they are not JSON; a deadline that compares false with everything is no deadline.
    raise ValueError(f"{name} is not a number")


def build(kind: Any, value: Any, where: str) -> Any:
    """`value` (of JSON) as `kind`: a dataclass, a tuple or mapping of such, an optional one, or a scalar."""
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
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
        return {key: build(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
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
