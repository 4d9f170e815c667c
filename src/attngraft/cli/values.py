"""Reading `name=value` options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attngraft.errors import UsageError


def assignments(texts: Sequence[str], *, option: str) -> dict[str, Any]:
    """`["img_size=32", "depth=6"]` as a dictionary; values are read as YAML.

    Raises:
        UsageError: a text without `=`, without a name, given twice, or whose value is no YAML.
    """
    import yaml

    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"{option} takes NAME=VALUE (img_size=32), not {text!r}")
        if name in found:
            raise UsageError(f"{option} {name} is given twice")
        try:
            found[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise UsageError(f"{option} {name}: the value {value!r} cannot be read ({error})") from None
    return found
