"""YAML configuration: strict reading, merging, and overrides such as `--set a.b=value`.

Scalars follow YAML 1.2 (`1e-3` is a number, `no` is a word), and a repeated key is an error.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from attngraft.errors import ConfigError
from attngraft.opening import read_text
from attngraft.strict import read

ConfigT = TypeVar("ConfigT")

#: PyYAML's implicit scalars without those of YAML 1.1 that surprise: yes/no as booleans, floats only with a dot, dates
_RESOLVERS = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":bool", ":float", ":timestamp"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # PyYAML may lack libyaml
    """SafeLoader with YAML 1.2 scalars that rejects repeated keys."""

    yaml_implicit_resolvers = {first: list(resolvers) for first, resolvers in _RESOLVERS.items()}  # noqa: RUF012

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                problem = f"the key {key.value!r} occurs twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value if isinstance(key.value, str) else id(key))
        return super().construct_mapping(node, deep=deep)


class _Dumper(yaml.SafeDumper):
    """SafeDumper that also quotes strings that `_Loader`, but not YAML 1.1, reads as numbers."""

    yaml_implicit_resolvers = {first: list(all_) for first, all_ in yaml.SafeDumper.yaml_implicit_resolvers.items()}  # noqa: RUF012


_FLOAT = r"^[-+]?(?:(?:\d+\.\d*|\.\d+)(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+|\.(?:inf|nan))$"
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|false|False)$"), list("tTfF"))
for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(_FLOAT), list("-+.0123456789"))


def parse_yaml(text: str, *, source: str) -> Any:
    """Parse YAML to a plain value.

    Raises:
        ConfigError: invalid YAML; the message names `source`, line and column.
    """
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader: plain values only
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{source}{where}: not valid YAML: {getattr(error, 'problem', None) or error}") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in the file at `path`; an empty file is an empty mapping.

    Raises:
        ConfigError: the file cannot be read, is invalid YAML, or does not contain a mapping.
    """
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    value = parse_yaml(text, source=str(path))
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: expected sections such as `host:` and `train:`, found {value!r:.60}")
    return value


def dump_yaml(value: Any) -> str:
    """Return plain values as YAML that `read_yaml` reads back exactly."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def dump_line(value: Any) -> str:
    """Return plain values as one line of YAML with sorted keys: equal values give equal lines."""
    return yaml.dump(value, Dumper=_Dumper, default_flow_style=True, allow_unicode=True, width=float("inf")).strip()


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` updated with `over`: mappings are merged key by key, other values are replaced."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def apply_overrides(config: Mapping[str, Any], overrides: Iterable[str], *, source: str = "--set") -> dict[str, Any]:
    """Return a copy of `config` with overrides such as `a.b=value` applied in order; values are YAML.

    Messages start with `source`.

    Raises:
        ConfigError: a text without `=`, an invalid YAML value, or a path through a value that is not a section.
    """
    result = dict(config)
    for text in overrides:
        path, equals, value = text.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            raise ConfigError(f"{source} {text}: write it as section.field=value, for example optimizer.lr=1e-3")
        result = _with_value(result, keys, parse_yaml(value, source=f"{source} {text}"), f"{source} {text}")
    return result


def _with_value(config: Mapping[str, Any], keys: Sequence[str], value: Any, source: str) -> dict[str, Any]:
    """Return a copy of `config` with `value` at the path `keys`; a mapping replaces the old value."""
    first, *rest = keys
    if rest:
        section = config.get(first)
        if not isinstance(section, Mapping | None):
            raise ConfigError(f"{source}: {first} is {section!r}, not a section with {'.'.join(rest)}")
        value = _with_value(section or {}, rest, value, source)
    return {**config, first: value}


def from_mapping(cls: type[ConfigT], mapping: Any, *, source: str) -> ConfigT:
    """Return an instance of the dataclass `cls` from plain values, read strictly.

    Raises:
        ConfigError: a field or value is invalid; the message names `source` and the dotted field.
    """
    try:
        return read(cls, mapping, where="top")
    except ConfigError as error:
        message = str(error)
        raise ConfigError(f"{source}: {message.removeprefix('top').lstrip('.: ')}") from None


def to_plain(value: Any) -> Any:
    """Convert dataclasses, mappings and sequences to plain dictionaries and lists, for YAML and JSON."""
    if dataclasses.is_dataclass(value):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return value


def differing_values(left: Mapping[str, Any], right: Mapping[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Return the values in `left` and `right` of each dotted field in which two plain mappings differ."""
    found: dict[str, tuple[Any, Any]] = {}
    for key in sorted({*left, *right}):
        a, b = left.get(key), right.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found |= differing_values(a, b, f"{prefix}{key}.")
        elif a != b:
            found[f"{prefix}{key}"] = a, b
    return found


def differing_fields(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[str]:
    """Return `field (left -> right)` for each dotted field in which two plain mappings differ."""
    return [f"{name} ({a!r} -> {b!r})" for name, (a, b) in differing_values(left, right).items()]
