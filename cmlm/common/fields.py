"""Configuration values: fields declare their ranges, and one function checks them.

    @dataclasses.dataclass
    class Settings:
        steps: int = fields.ranged(100, at_least=1)
        form: str = fields.one_of("paper", ("paper", "released"))

    fields.check(settings, "trainer.")

A value outside its range raises a UserError. All messages have one form: "trainer.steps
is 0; allowed: at least 1".
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from cmlm.errors import UserError, shown

_RANGE = "range"
_KINDS = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "text",
    tuple: "a list",
    list: "a list",
    type(None): "null",
}


@dataclasses.dataclass(frozen=True)
class Range:
    """The numbers that a field allows; None leaves a side open.

    Attributes:
        at_least: the lowest allowed number.
        above: an excluded lower bound.
        at_most: the highest allowed number.
        below: an excluded upper bound.
        also: one more allowed number, with its meaning: `(-1, "all")`.
    """

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    also: tuple[float, str] | None = None

    def __contains__(self, value: float) -> bool:
        if self.also is not None and value == self.also[0]:
            return True
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        low = self.at_least if self.above is None else f"above {self.above}"
        high = self.at_most if self.below is None else f"below {self.below}"
        if low is not None and high is not None:
            text = f"{low} to {high}"
        elif low is not None:
            text = f"{low}" if self.above is not None else f"at least {low}"
        else:
            text = f"{high}" if self.below is not None else f"at most {high}"
        return f"{self.also[0]} ({self.also[1]}), or {text}" if self.also else text


@dataclasses.dataclass(frozen=True)
class Choice:
    """The list of texts that a field allows."""

    values: tuple[str, ...]

    def __contains__(self, value: Any) -> bool:
        return value in self.values

    def __str__(self) -> str:
        # Without quotes, an empty text would be invisible.
        return ", ".join(value or "''" for value in self.values)


def ranged(
    default: Any,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    also: tuple[float, str] | None = None,
) -> Any:
    """Returns a dataclass field for a number, or a tuple of numbers, within a range.

    The range does not apply to None: the annotation says whether a field may be None.

    Args:
        default: the field's default.
        at_least, above, at_most, below, also: see `Range`.
    """
    allowed = Range(at_least, above, at_most, below, also)
    return dataclasses.field(default=default, metadata={_RANGE: allowed})


def one_of(default: str, values: Iterable[str]) -> Any:
    """Returns a dataclass field that allows only the given texts."""
    return dataclasses.field(default=default, metadata={_RANGE: Choice(tuple(values))})


def range_in_words(field: dataclasses.Field) -> str:
    """Returns the allowed values of a field in words; "" for any of its type."""
    found = field.metadata.get(_RANGE)
    return "" if found is None else str(found)


def check(config: Any, prefix: str = "") -> None:
    """Checks a configuration and all its parts.

    The function checks types first, then ranges, and then rules between several fields:
    it calls `config.fill_in()`, which may set fields that other fields determine, and
    `config.check_together(prefix)`, if the class has these methods. In a part whose
    `is_enabled` is false, it checks only types. Every number must be finite.

    A value that YAML has read as another type is converted in place: text to a number
    (`1e-3` has no dot), a list to a tuple, null to an empty text.

    Args:
        config: a dataclass.
        prefix: text before the names of the fields in messages: `trainer.`, or `--` if
            the fields are flags.

    Raises:
        UserError: a value is not allowed. The message has one line, with the value and
            the allowed values.
    """
    check_types(config, prefix)
    check_ranges(config, prefix)


def check_types(config: Any, prefix: str = "") -> None:
    """Does the first half of `check`: types, and finite numbers."""
    for field in dataclasses.fields(config):
        value, path = getattr(config, field.name), f"{prefix}{field.name}"
        allowed_types, kinds = _types(type(config))[field.name]
        if dataclasses.is_dataclass(value) and isinstance(value, allowed_types):
            check_types(value, f"{path}.")
            continue
        fitted = _fitted(value, allowed_types, path)
        if kinds and isinstance(fitted, tuple):
            place = f"an item of {path}"
            fitted = tuple(_fitted(item, kinds, place) for item in fitted)
        if fitted is not value:
            setattr(config, field.name, fitted)
        for number in fitted if isinstance(fitted, tuple) else (fitted,):
            if isinstance(number, float) and not math.isfinite(number):
                allowed = field.metadata.get(_RANGE, "a finite number")
                raise refused(path, fitted, allowed)


def check_ranges(config: Any, prefix: str = "") -> None:
    """Does the second half of `check`: ranges, and rules between several fields."""
    if not getattr(config, "is_enabled", True):
        return
    for field in dataclasses.fields(config):
        value, path = getattr(config, field.name), f"{prefix}{field.name}"
        if dataclasses.is_dataclass(value):
            check_ranges(value, f"{path}.")
        allowed = field.metadata.get(_RANGE)
        if allowed is None or value is None:
            continue
        for each in value if isinstance(value, tuple) else (value,):
            if each not in allowed:
                raise refused(path, value, allowed)
    if hasattr(config, "fill_in"):
        config.fill_in()
    if hasattr(config, "check_together"):
        config.check_together(prefix)


def refused(path: str, value: Any, allowed: Any) -> UserError:
    """Returns the error for a value: "PATH is VALUE; allowed: ALLOWED"."""
    if isinstance(value, tuple):
        value = list(value)
    # Model Garden makes a configuration of a mapping.
    if hasattr(value, "as_dict"):
        value = value.as_dict()
    return UserError(f"{path} is {shown(value)}; allowed: {allowed}")


def _fitted(value: Any, allowed: tuple[type, ...], path: str) -> Any:
    """Returns the value as one of the allowed types, converted if necessary."""
    if isinstance(value, list) and tuple in allowed:
        value = tuple(value)
    if value is None and str in allowed and type(None) not in allowed:
        value = ""  # from an override `a.b.c=`
    if isinstance(value, str) and float in allowed and str not in allowed:
        with contextlib.suppress(ValueError):
            value = float(value)
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if is_integer and abs(value) >= 2**63:
        raise refused(path, value, "below 2**63")
    if is_integer and float in allowed and int not in allowed:
        value = float(value)
    wants_integer = int in allowed and float not in allowed
    if wants_integer and isinstance(value, float) and value.is_integer():
        value = int(value)
    for kind in allowed:
        if isinstance(value, kind) and not (isinstance(value, bool) and kind is int):
            return value
    raise refused(path, value, " or ".join(_kind(kind, path) for kind in allowed))


def _kind(kind: type, path: str) -> str:
    """Names a type in a message."""
    if dataclasses.is_dataclass(kind):
        return f"settings, such as {path}.{dataclasses.fields(kind)[0].name}"
    return _KINDS.get(kind, kind.__name__)


def check_sections(config: Any, values: Mapping, prefix: str = "") -> None:
    """Refuses a value in the place of settings, such as `trainer: 5`.

    Args:
        config: a dataclass.
        values: values by the names of its fields, nested as its parts are.
        prefix: as for `check`.

    Raises:
        UserError: see `check`.
    """
    for name, value in values.items():
        part, path = getattr(config, str(name), None), f"{prefix}{name}"
        if not dataclasses.is_dataclass(part):
            continue
        if not isinstance(value, Mapping):
            raise refused(path, value, _kind(type(part), path))
        check_sections(part, value, f"{path}.")


@functools.cache
def _types(config_class: type) -> dict[str, tuple[tuple[type, ...], tuple[type, ...]]]:
    """Returns the types of each field, and those of its items, which tuples have."""
    hints = typing.get_type_hints(config_class)
    found = {}
    for field in dataclasses.fields(config_class):
        hint = hints[field.name]
        is_tuple = typing.get_origin(hint) is tuple
        items = _kinds(typing.get_args(hint)[0]) if is_tuple else ()
        found[field.name] = _kinds(hint), items
    return found


def _kinds(hint: Any) -> tuple[type, ...]:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return tuple(kind for part in typing.get_args(hint) for kind in _kinds(part))
    return (origin or hint,)
