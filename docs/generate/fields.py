"""The fields of a dataclass as a reader needs them: name, type in words, default, and the `#:` comment in its source."""

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
    kind: str  #: the type in words
    default: str  #: as YAML; "required" where there is none
    comment: str
    section: type | None = None  #: the dataclass that the field holds


def fields_of(cls: type) -> Iterator[FieldDoc]:
    """All fields that a file may set, in order; comments of base classes are found too."""
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
            kind=in_words(hint),
            default=_default(field),
            comment=comments.get(field.name, ""),
            section=_section(hint),
        )


def _section(hint: Any) -> type | None:
    """The dataclass that a field holds, be it always or sometimes."""
    return next(
        (arm for arm in (hint, *get_args(hint)) if isinstance(arm, type) and dataclasses.is_dataclass(arm)), None
    )


def comments_of(cls: type) -> dict[str, str]:
    """The `#:` comments of the fields written in `cls` itself: behind a field, inside its parentheses, or above it."""
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


def in_words(hint: Any) -> str:
    """A type as the author of a YAML file thinks of it."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(in_words(arm) for arm in sorted(arguments, key=lambda arm: arm is type(None)))
    if origin in (list, Sequence) or (origin is tuple and arguments[1:] == (Ellipsis,)):
        return "list" if arguments[0] is Any else f"list ({in_words(arguments[0])})"
    if origin is tuple:
        return f"list of {len(arguments)} ({in_words(arguments[0])})"
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
    """A plain value as it would stand behind `field:`."""
    if isinstance(value, list):
        return f"[{', '.join(_as_yaml(entry) for entry in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_as_yaml(entry)}' for key, entry in value.items())}}}"
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else f"{value:.6g}"
    return dump_yaml(value).removesuffix("...\n").strip()
