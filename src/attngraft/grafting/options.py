"""Options of a graft: plain values, checked against the annotations of the type's `Options` dataclass."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from typing import Any, Literal, Union, get_args, get_origin

from attngraft.attention import GraftType
from attngraft.suggest import did_you_mean

_LARGEST = 3.4028234663852886e38  #: that float32 holds; options become values of parameters


class OptionError(ValueError):
    """A wrong option; `option` is its name, where one is to blame."""

    def __init__(self, message: str, option: str | None = None) -> None:
        self.option = option
        super().__init__(message)


def build_options(graft_type: GraftType[Any], given: dict[str, Any]) -> Any:
    """An instance of `graft_type.Options` from plain values.

    Raises:
        OptionError: an unknown name (with the near match and all names), or a value of the wrong type or range.
    """
    fields = {field.name: field for field in dataclasses.fields(graft_type.Options)}
    hints = typing.get_type_hints(graft_type.Options)
    values = {}
    for name, value in given.items():
        if name not in fields:
            known = ", ".join(fields) or "none"
            raise OptionError(f"there is no option {name!r}{did_you_mean(name, fields)}; there are: {known}", name)
        try:
            values[name] = _convert(value, hints[name])
        except ValueError as error:
            raise OptionError(f"{name} {error}", name) from None
    try:
        return graft_type.Options(**values)
    except ValueError as error:
        raise OptionError(str(error), next((name for name in values if str(error).startswith(name)), None)) from None


def changed_options(options: Any) -> dict[str, Any]:
    """The options that differ from their defaults, in the order of their definition."""
    return {
        field.name: getattr(options, field.name)
        for field in dataclasses.fields(options)
        if getattr(options, field.name) != field.default
    }


def _convert(value: Any, hint: Any) -> Any:
    origin = get_origin(hint)
    if origin is Literal:
        if value not in get_args(hint):
            raise ValueError(f"is one of {', '.join(map(str, get_args(hint)))}, not {value!r}")
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in get_args(hint):
            return None
        return _convert(value, next(arm for arm in get_args(hint) if arm is not type(None)))
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number) or abs(number) > _LARGEST:
            raise ValueError(f"is a finite number (of float32), not {value!r}")
        return number
    if isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise ValueError(f"is of type {hint.__name__}, not {value!r}")
