"""Griffe extension: `#:` comments of fields as docstrings of attributes."""

from __future__ import annotations

import re
from typing import Any

import griffe


class FieldComments(griffe.Extension):
    """Use the `#:` comment after or above an attribute as its docstring, if it has none."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **others: Any) -> None:
        """Set the docstring of an attribute; griffe calls this for every attribute."""
        if attr.docstring is None and attr.lineno is not None and (text := _comment(attr)):
            attr.docstring = griffe.Docstring(text, parent=attr)


def _comment(attr: griffe.Attribute) -> str:
    if isinstance(attr.filepath, list):
        return ""
    lines = attr.lines_collection[attr.filepath]
    first, last = (attr.lineno or 1) - 1, attr.endlineno or attr.lineno or 1
    found: list[str] = []
    while first - len(found) > 0 and (above := re.match(r"\s*#: ?(.*)", lines[first - len(found) - 1])):
        found.insert(0, above[1])
    found += [trailing[1] for line in lines[first:last] if (trailing := re.search(r"#: ?(.*)", line))]
    return " ".join(found)
