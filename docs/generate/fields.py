"""Fields of a dataclass for reference tables: name, type as text, default, and the `#:` comment in its source."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import textwrap
import tokenize
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from attngraft.yaml_config import dump_yaml, to_plain

_WORDS = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    type(None): "null",
    Any: "anything",
    dict: "mapping",
    list: "list",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FieldDoc:
    """One row of a reference table."""

    name: str
    kind: str  #: the type as text
    default: str  #: as YAML; "required" if there is none
    comment: str
    section: type | None = None  #: dataclass of the field


def fields_of(cls: type) -> Iterator[FieldDoc]:
    """Return all fields that a file may set, in order, with comments from base classes too."""
    hints = typing.get_type_hints(cls)
    comments: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            comments |= comments_of(base)
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        hint = hints[field.name]
        yield FieldDoc(
            name=field.name,
            kind=type_text(hint),
            default=_default(field),
            comment=comments.get(field.name, ""),
            section=_section(hint),
        )


def _section(hint: Any) -> type | None:
    """Return the dataclass of a field, optional or not."""
    return next(
        (arm for arm in (hint, *get_args(hint)) if isinstance(arm, type) and dataclasses.is_dataclass(arm)), None
    )


def comments_of(cls: type) -> dict[str, str]:
    """Return the `#:` comments of the fields defined in `cls`: after a field, inside its parentheses, or above it."""
    source = textwrap.dedent(inspect.getsource(cls))
    body = typing.cast(ast.ClassDef, ast.parse(source).body[0]).body
    found: dict[int, tuple[str, bool]] = {}  # line -> (comment, alone on its line)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and token.string.startswith("#:"):
            found[token.start[0]] = (token.string[2:].strip(), not token.line[: token.start[1]].strip())
    comments = {}
    for node in body:
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        lines: list[str] = []
        above = node.lineno - 1
        while above in found and found[above][1]:
            lines.insert(0, found[above][0])
            above -= 1
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
            if line in found:
                lines.append(found[line][0])
        if lines:
            comments[node.target.id] = " ".join(lines)
    return comments


def type_text(hint: Any) -> str:
    """Return a type as text, in terms of YAML."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(type_text(arm) for arm in sorted(arguments, key=lambda arm: arm is type(None)))
    if origin in (list, Sequence) or (origin is tuple and arguments[1:] == (Ellipsis,)):
        return "list" if arguments[0] is Any else f"list ({type_text(arguments[0])})"
    if origin is tuple:
        return f"list of {len(arguments)} ({type_text(arguments[0])})"
    if origin in (dict, Mapping):
        return "mapping"
    if dataclasses.is_dataclass(hint):
        return "section"
    return _WORDS.get(hint) or str(getattr(hint, "__name__", hint))


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    elif field.default is not dataclasses.MISSING:
        value = field.default
    else:
        return "required"
    return f"`{_as_yaml(to_plain(value))}`"


def _as_yaml(value: Any) -> str:
    """Return a plain value as YAML for one line."""
    if isinstance(value, list):
        return f"[{', '.join(_as_yaml(entry) for entry in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_as_yaml(entry)}' for key, entry in value.items())}}}"
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else f"{value:.6g}"
    return dump_yaml(value).removesuffix("...\n").strip()
