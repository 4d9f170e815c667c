"""YAML configuration: strict reading, merging, and overrides such as `--set a.b=value`.

Scalars follow YAML 1.2 (`1e-3` is a number, `no` is a word), and a repeated key is an error. So is a text that would be
large, or nested deeply, once its aliases are replaced with what they stand for.
"""

import copy
import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import yaml

from attngraft.errors import ConfigError
from attngraft.opening import read_text
from attngraft.strict import read
from attngraft.suggest import cut, quoted

ConfigT = TypeVar("ConfigT")

TEXT_LIMIT = 2**20  #: characters of a text, also with each alias replaced with what it stands for
DEPTH_LIMIT = 50  #: sections and lists inside of each other
_SHORT = 2**16  #: characters of a text of which many are kept
_DIGITS_LIMIT = 100  #: length of an integer; Python refuses to parse, or to print, thousands of digits
_PLAIN = ("null", "bool", "int", "float", "str", "seq", "map")  #: supported types; `!!set`, dates and others are not

#: PyYAML's implicit scalars without those of YAML 1.1 that surprise: yes/no as booleans, 010 as 8, 1:30 as 90, floats only
#: with a dot, dates
_RESOLVERS = {
    first: [each for each in resolvers if not each[0].endswith((":bool", ":int", ":float", ":timestamp"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # PyYAML may lack libyaml
    """SafeLoader with YAML 1.2 scalars that rejects repeated keys."""

    yaml_implicit_resolvers = {first: list(resolvers) for first, resolvers in _RESOLVERS.items()}  # noqa: RUF012

    yaml_constructors: ClassVar[dict[str | None, Callable[..., Any]]] = {
        tag: constructor
        for tag, constructor in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.rpartition(":")[2] in _PLAIN
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._checked: set[int] = set()  # mappings; merging adds keys, which may repeat those of the mapping itself

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        seen = set()
        for key, _ in node.value if id(node) not in self._checked else ():
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a word", key.start_mark)
            if key.value in seen:
                problem = f"the key {quoted(key.value)} occurs twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value)
        self._checked.add(id(node))
        super().flatten_mapping(node)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        if len(node.value) > _DIGITS_LIMIT:
            problem = f"an integer has at most {_DIGITS_LIMIT} digits"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return super().construct_yaml_int(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


class _Dumper(yaml.SafeDumper):
    """SafeDumper that also quotes strings that `_Loader`, but not YAML 1.1, reads as numbers."""

    yaml_implicit_resolvers = {first: list(all_) for first, all_ in yaml.SafeDumper.yaml_implicit_resolvers.items()}  # noqa: RUF012


_FLOAT = r"^[-+]?(?:(?:\d+\.\d*|\.\d+)(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+|\.(?:inf|nan))$"
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|false|False)$"), list("tTfF"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$"), list("-+0123456789")
)
for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(_FLOAT), list("-+.0123456789"))


def parse_yaml(text: str, *, source: str) -> Any:
    """Parse YAML into plain values.

    Raises:
        ConfigError: invalid YAML, or a text that exceeds the limits; the message names `source`, line and column.
    """
    source = cut(source, 200)
    if len(text) > TEXT_LIMIT:
        raise ConfigError(f"{source}: has {len(text):,} characters, more than {TEXT_LIMIT:,}; divide it, or shorten it")
    try:
        parsed = _parsed if len(text) < _SHORT else _parsed_last
        return copy.deepcopy(parsed(text))  # callers may change it
    except Exception as error:  # the constructors of PyYAML raise errors of many classes for hostile scalars
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        reason = getattr(error, "problem", None) or (
            str(error) if isinstance(error, yaml.YAMLError) else f"a value does not fit its tag ({error})"
        )
        if "cannot start any token" in reason and "\t" in text:
            reason = "a tab in the indentation; use spaces"
        raise ConfigError(f"{source}{where}: not valid YAML: {cut(' '.join(reason.split()), 200)}") from None


def _parse(text: str) -> Any:
    _check_size(yaml.parse(text, Loader=_Loader))
    return yaml.load(text, Loader=_Loader)  # a SafeLoader: plain values only


# Each text is parsed once: a study reads the recipe of each run many times. Of long ones, only the last is kept.
_parsed, _parsed_last = functools.lru_cache(maxsize=256)(_parse), functools.lru_cache(maxsize=1)(_parse)


def _check_size(events: Iterable[Any]) -> None:
    """Check the depth and the size of a text, given as events, with each alias replaced, in time linear in the text.

    Raises:
        YAMLError: a limit is exceeded, or an alias is inside of the node that it stands for.
    """
    sizes, deepest = [0], [0]  # of the open nodes: characters, and nested nodes below them
    names: list[str | None] = [None]
    anchors: dict[str, tuple[int, int]] = {}
    for event in events:
        anchor: Any = getattr(event, "anchor", None)
        mark: Any = event.start_mark  # PyYAML declares both as optional
        if isinstance(event, yaml.CollectionStartEvent):
            sizes.append(0)
            deepest.append(0)
            names.append(anchor)
            size, below = 0, 0
        elif isinstance(event, yaml.CollectionEndEvent):
            size, below = sizes.pop() + 1, deepest.pop() + 1
            if (name := names.pop()) is not None:
                anchors[name] = size, below
        elif isinstance(event, yaml.ScalarEvent):
            size, below = len(event.value) + 1, 0
            if anchor is not None:
                anchors[anchor] = size, below
        elif isinstance(event, yaml.AliasEvent):
            if anchor in names:
                problem = f"the alias *{cut(anchor)} is inside of what it stands for; write the value instead"
                raise yaml.constructor.ConstructorError(None, None, problem, mark)
            size, below = anchors.get(anchor, (0, 0))  # an unknown name is found when the text is loaded
        else:
            continue
        sizes[-1] += size
        deepest[-1] = max(deepest[-1], below)
        problem = ""
        if sizes[-1] > TEXT_LIMIT:
            problem = f"with its aliases, the text has more than {TEXT_LIMIT:,} characters; use fewer aliases"
        elif len(sizes) - 1 + deepest[-1] > DEPTH_LIMIT:
            problem = f"nested more than {DEPTH_LIMIT} levels deep; use fewer levels"
        if problem:
            raise yaml.constructor.ConstructorError(None, None, problem, mark)


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in the file at `path`; an empty file is an empty mapping.

    Raises:
        ConfigError: the file cannot be read, is invalid YAML, or does not contain a mapping.
    """
    try:
        text = read_text(path, limit=TEXT_LIMIT)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read: {reason}; give a YAML file") from None
    value = parse_yaml(text, source=str(path))
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: expected sections such as `host:` and `train:`, found {quoted(value)}")
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
        keys, where = path.strip().split("."), f"{source} {cut(text)}"
        if not equals or not all(keys) or len(keys) > DEPTH_LIMIT:
            raise ConfigError(f"{where}: write it as section.field=value, for example optimizer.lr=1e-3")
        result = _with_value(result, keys, parse_yaml(value, source=where), where)
    return result


def _with_value(config: Mapping[str, Any], keys: Sequence[str], value: Any, source: str) -> dict[str, Any]:
    """Return a copy of `config` with `value` at the path `keys`; a mapping replaces the old value."""
    first, *rest = keys
    if rest:
        section = config.get(first)
        if not isinstance(section, Mapping | None):
            raise ConfigError(f"{source}: {cut(first)} is {quoted(section)}, not a section with {cut('.'.join(rest))}")
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
    return [f"{name} ({quoted(a)} -> {quoted(b)})" for name, (a, b) in differing_values(left, right).items()]
