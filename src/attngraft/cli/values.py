"""Reading `name=value` options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attngraft.errors import UsageError


def assignments(texts: Sequence[str], *, option: str) -> dict[str, Any]:
    """`["img_size=32", "depth=6"]` as a dictionary; values are read as YAML.

    Raises:
        UsageError: a text without `=`, without a name, given twice, or (ConfigError) whose value is no YAML.
    """
    from attngraft.yaml_config import parse_yaml

    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"{option} takes NAME=VALUE (img_size=32), not {text!r}")
        if name in found:
            raise UsageError(f"{option} {name} is given twice")
        found[name] = parse_yaml(value, source=f"{option} {name}")
    return found
