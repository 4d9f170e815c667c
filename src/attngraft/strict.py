"""Dataclasses from plain mappings (YAML, JSON): strict keys and types, errors that name the field."""

import dataclasses
import functools
import re
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeGuard, TypeVar, Union, get_args, get_origin

from attngraft.errors import ConfigError
from attngraft.suggest import MOST, cut, did_you_mean, quoted

T = TypeVar("T")

_EXPONENT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+")  # YAML 1.1 reads 1e-3 as a string
_NAMES = {str: "text", int: "a whole number", float: "a finite number", bool: "true or false"}


class FieldError(ValueError):
    """Invalid field value, raised by dataclasses in `__post_init__`; `read` adds the dotted name."""

    def __init__(self, field: str, message: str) -> None:
        self.field, self.message = field, message
        super().__init__(f"{field} {message}")


class OpenSection:
    """Base of dataclasses of JSON values: `read` ignores other keys, and converts no text to a number or a list."""


def require(config: object, field: str, holds: bool, rule: str) -> None:
    """Check a field of a dataclass in its `__post_init__`; `rule` follows the field's name in the message.

    Raises:
        FieldError: `holds` is False; the message includes the field's value.
    """
    if not holds:
        value = getattr(config, field)
        raise FieldError(field, f"{rule}; got {cut(value) if isinstance(value, str) else quoted(value)}")


def read(cls: type[T], values: Any, *, where: str) -> T:
    """Build an instance of the dataclass `cls` from a mapping, and nested dataclasses from nested mappings.

    Supported types: bool, int, float (also from int, and from `1e-3`, which YAML reads as text), str, Literal, unions,
    `tuple[T, ...]`, `tuple[A, B]`, `list[T]`, mappings with text keys, Any, and dataclasses. Numbers must be finite, and
    whole numbers have at most 64 bits. A list of texts may be one text with commas, such as `cat,dog`.

    Args:
        where: dotted name of the section ("task.data"), for messages.

    Raises:
        ConfigError: not a mapping, an unknown, missing or wrongly typed field, or a value that `cls` rejects.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}: expected a section of fields, found {_show(values)}")
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]
    is_open = issubclass(cls, OpenSection)
    if is_open:
        values = {name: values[name] for name in fields if name in values}
    for key in values:
        if key not in fields:
            allowed = ", ".join(fields) or "no field"
            name = cut(str(key)) if isinstance(key, str) else quoted(key)
            raise ConfigError(f"{where}.{name}: unknown field{did_you_mean(name, fields)}; allowed: {allowed}")
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise ConfigError(f"{where}.{name}: missing; set a value")
    hints = type_hints(cls)  # type: ignore[arg-type]
    given = {name: convert(value, hints[name], f"{where}.{name}") for name, value in values.items()}
    if is_open:
        for name, value in given.items():
            if value != values[name] and not dataclasses.is_dataclass(value):
                raise ConfigError(f"{where}.{name}: contains text instead of a number or a list: {_show(values[name])}")
    try:
        return cls(**given)
    except FieldError as error:
        raise ConfigError(f"{where}.{error.field}: {_without_long_texts(error.message, given)}") from None
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{where}: {_without_long_texts(str(error), given)}") from None


@functools.cache
def type_hints(cls: type) -> dict[str, Any]:
    """Return the types of the fields of a dataclass; a study reads thousands of recipes."""
    return typing.get_type_hints(cls)


def convert(value: Any, hint: Any, where: str) -> Any:
    """Return `value` as the type `hint`; see `read`.

    Raises:
        ConfigError: `value` is of another type; the message starts with `where`.
    """
    origin = get_origin(hint)
    if hint is Any:
        return value
    if origin is Literal:
        return _one_of(value, get_args(hint), where)
    if origin in (Union, types.UnionType):
        return _union(value, get_args(hint), where)
    if dataclasses.is_dataclass(hint):
        return value if isinstance(value, typing.cast(type, hint)) else read(hint, value, where=where)  # type: ignore[arg-type]
    if origin in (tuple, list, Sequence):
        return _sequence(value, hint, where)
    if origin in (dict, Mapping) or hint is dict:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise ConfigError(f"{where}: expected a mapping with text keys, found {_show(value)}")
        _, item = get_args(hint) or (str, Any)
        return {key: convert(entry, item, f"{where}.{cut(key)}") for key, entry in value.items()}
    return _scalar(value, hint, where)


def is_number(value: Any) -> bool:
    """Return whether a value from JSON is a number, also NaN, and no integer that is too large for a float."""
    return isinstance(value, float) or (isinstance(value, int) and value.bit_length() < 1024)


def are_numbers(values: Any) -> TypeGuard[dict[str, float]]:
    """Return whether a value from JSON is an object of numbers, such as metrics, of which some may be NaN."""
    return isinstance(values, dict) and all(map(is_number, values.values()))


def _scalar(value: Any, hint: type, where: str) -> Any:
    if hint is float:
        if isinstance(value, str) and _EXPONENT.fullmatch(value.strip()):
            value = float(value)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and abs(value) <= sys.float_info.max:
            return float(value)
    elif hint is int and isinstance(value, int) and value.bit_length() > 64:
        raise ConfigError(f"{where}: expected a whole number of at most 64 bits, found {_show(value)}")
    elif isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise ConfigError(f"{where}: expected {_NAMES.get(hint, hint.__name__)}, found {_show(value)}")


def _one_of(value: Any, choices: tuple[Any, ...], where: str) -> Any:
    for choice in choices:
        if value == choice and type(value) is type(choice):
            return choice
    allowed = ", ".join(map(str, choices))
    near = did_you_mean(value, map(str, choices)) if isinstance(value, str) else ""
    raise ConfigError(f"{where}: {_show(value)} is not a choice{near}; allowed: {allowed}")


def _union(value: Any, members: tuple[Any, ...], where: str) -> Any:
    if value is None and type(None) in members:
        return None
    failures = []
    for member in members:
        if member is type(None):
            continue
        try:
            return convert(value, member, where)
        except ConfigError as error:
            failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    reasons = "; or ".join(str(error).removeprefix(f"{where}: ") for error in failures)
    raise ConfigError(f"{where}: {reasons}")


def _sequence(value: Any, hint: Any, where: str) -> Any:
    kind, items = get_origin(hint), get_args(hint) or (Any,)
    words = isinstance(value, str) and items[0] is str
    if words and "," in value:
        value = [text.strip() for text in value.split(",")]
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{where}: expected a list, found {_show(value)}{f'; write [{value}]' if words else ''}")
    if kind is tuple and not (len(items) == 2 and items[1] is Ellipsis):
        if len(value) != len(items):
            raise ConfigError(f"{where}: expected {len(items)} values, found {len(value)}")
        return tuple(
            convert(entry, item, f"{where}[{i}]") for i, (entry, item) in enumerate(zip(value, items, strict=True))
        )
    entries = [convert(entry, items[0], f"{where}[{i}]") for i, entry in enumerate(value)]
    return tuple(entries) if kind is tuple else entries


def _show(value: Any) -> str:
    return "nothing" if value is None else quoted(value)


def _without_long_texts(message: str, value: Any) -> str:
    """Return `message`, in which a class quotes its fields, with long texts of `value` cut."""
    if isinstance(value, str) and len(value) > MOST:
        return message.replace(repr(value), quoted(value)).replace(value, cut(value))
    if isinstance(value, Mapping):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple) and len(message) > MOST:
        for entry in value:
            message = _without_long_texts(message, entry)
    return message
