"""Variants of a study: grafts, hosts and recipe changes. The baseline, the plain host, is first.

    grafts:
      - cb_s                                                           # on the study's host
      - {host: {name: deit_tiny_patch16_224, args: {img_size: 32}}}    # another host, without graft
      - {name: ViT with cb_s, host: deit_tiny_patch16_224, graft: cb_s}
      - {graft: cb_s, set: {schedule.warmup_epochs: 10}}               # changes the recipe, after the study's `set`
      - {set: [schedule.warmup_epochs=10]}                             # the plain host under the changed recipe
      - shortlist                                                      # a set of grafts; `graft_sets` expands it

On the command line, `--against` accepts a host's name, `NAME: {argument: value}`, or an entry as above; `--graft` accepts a
specification or an entry. The key `spec` is an alias of `graft`.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from attngraft.errors import ConfigError, UsageError
from attngraft.grafting.spec import parse
from attngraft.mechanisms.registry import GRAFT_SETS
from attngraft.results.wording import host_label
from attngraft.strict import read
from attngraft.suggest import CONTROL, quoted
from attngraft.training.recipe import HARMLESS
from attngraft.yaml_config import dump_line, parse_yaml

BASELINE = "baseline"
ENTRY = "{name: ..., host: {name: ..., args: {...}}, graft: ...}"

_MACHINE = "does not change what is trained; set it for all variants (`set:` of the study, or --set)"
#: recipe fields that a variant's `set` must not change -> the reason
_COMMON = {
    "seed": "a study trains every variant with the same seeds; use `seeds:` of the study (--seeds)",
    "graft": "write the graft next to `set:`, as in {graft: cb_s, set: {...}}",
    "host": f"write the host next to `set:`, as in {ENTRY}",
    "task.name": "variants that solve different tasks cannot be compared; make a second study",
    "task.data": "variants trained or evaluated on different data cannot be compared; set the data for all (--data)",
    "task.metrics": "variants measured differently cannot be compared; set it for all (--metric, or `set:` of the study)",
    **dict.fromkeys((*HARMLESS, "train.threads"), _MACHINE),
}

_LONGEST_SLUG = 60
_WINDOWS_DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))}


@dataclass(frozen=True, kw_only=True)
class StudyHost:
    """Host of a study or a variant. Without a name, it is the recipe's host with additional `args`."""

    name: str | None = None
    args: Mapping[str, Any] = field(default_factory=dict)
    pretrained: bool | None = None
    weights: str | None = None  #: file of initial weights

    def over(self, host: Mapping[str, Any]) -> dict[str, Any]:
        """Return the recipe's `host` section, updated with the fields that are set.

        Arguments and weights of the recipe are kept if they are for this host.
        """
        section = dict(host)
        if self.name is not None and self.name != section["name"]:
            section |= {"name": self.name, "args": {}, "weights": None}  # drop the values of the recipe's host
        if self.pretrained or self.weights is not None:  # a recipe must not set both
            section |= {"pretrained": bool(self.pretrained), "weights": self.weights}
        elif self.pretrained is not None:
            section["pretrained"] = False
        return {**section, "args": {**section["args"], **self.args}}

    def beside(self, host: Mapping[str, Any]) -> dict[str, Any]:
        """Return the recipe's `host` section for a variant's host, given the section of the study's host.

        `pretrained: true` is inherited from the study's host; arguments and a weights file are not.

        Raises:
            ConfigError: the study's host starts from a file, and this host sets neither `weights` nor `pretrained`.
        """
        if host.get("weights") is not None and self.weights is None and self.pretrained is None:
            raise ConfigError(
                f"the host {self.name}: the study's host starts from {host['weights']}, which does not fit {self.name}; "
                "give this host its own `weights:`, `pretrained: true`, or `pretrained: false` for random values"
            )
        return self.over({**host, "args": {}, "weights": None})

    def plain(self) -> dict[str, Any]:
        """Return the fields that are set, in the format of a study file."""
        given = {"name": self.name, "args": dict(self.args), "pretrained": self.pretrained, "weights": self.weights}
        return {key: value for key, value in given.items() if value not in (None, {})}


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A named combination of a graft specification, a host and recipe changes."""

    name: str
    spec: (
        str  #: canonical graft specification; "none" for the plain host, or the name of a set that is not expanded yet
    )
    host: StudyHost | None = None  #: the variant's host; None: the study's host
    overrides: tuple[str, ...] = ()  #: `field=value` texts that change the study's recipe
    where: str = field(default="", compare=False)  #: location in the study file, for messages

    @property
    def is_baseline(self) -> bool:
        return self.spec == "none" and self.host is None and not self.overrides

    @property
    def is_set(self) -> bool:
        """Whether this stands for a set of grafts, which `graft_sets.with_expanded_sets` replaces."""
        return self.spec in GRAFT_SETS

    @property
    def key(self) -> str:
        """Host (if not the study's), specification and recipe changes on one line; unique within a study."""
        return _label(None if self.host is None else host_label(self.host.plain()), self.spec, self.overrides)

    def sets(self, name: str) -> bool:
        """Return whether the variant overrides the recipe field `name`, or a part of it."""
        return any(_overlap(text.partition("=")[0], name) for text in self.overrides)

    @property
    def slug(self) -> str:
        return slug(self.name)

    def with_graft(self, spec: str) -> "Variant":
        """Return the variant with another graft, named after it."""
        return replace(self, name=_name(self.host, spec, self.overrides), spec=spec)

    def plain(self) -> dict[str, Any]:
        """Return the variant as an entry of a study file."""
        host = {} if self.host is None else {"host": self.host.plain()}
        changes = {"set": list(self.overrides)} if self.overrides else {}
        return {"name": self.name, "spec": self.spec, **host, **changes}


def _label(host: str | None, spec: str, overrides: tuple[str, ...]) -> str:
    parts = [part for part in (host, None if host and spec == "none" else spec) if part]
    return " + ".join(parts) + (f" with {', '.join(overrides)}" if overrides else "")


def _name(host: StudyHost | None, spec: str, overrides: tuple[str, ...]) -> str:
    """Return the default name of a variant."""
    if host is None and spec == "none" and not overrides:
        return BASELINE
    return _label(None if host is None else host.name, spec, overrides)


def _overlap(one: str, other: str) -> bool:
    """Return whether two dotted fields are equal, or either contains the other."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def read_variants(entries: Iterable[Any], *, where: str = "grafts") -> tuple[Variant, ...]:
    """Parse variants: graft specifications, or mappings with any of `name`, `host`, `graft`, `set`.

    The baseline, `none`, is added if missing and moved to the front; other variants keep their order. By default, a variant
    is named after its host (if not the study's), its specification, and its recipe changes. Messages start with `where`.

    Raises:
        GraftSpecError: a specification cannot be parsed.
        ConfigError: an entry has a different form, or a `set` makes results incomparable.
        UsageError: two variants have the same specification, host and `set`, or the same name.
    """
    variants = [_read_entry(entry, f"{where}[{number}]") for number, entry in enumerate(entries)]
    if not any(variant.is_baseline for variant in variants):
        variants.insert(0, Variant(name=BASELINE, spec="none"))
    variants.sort(key=lambda variant: not variant.is_baseline)
    refuse_repeated(variants)
    return tuple(variants)


def refuse_repeated(variants: Sequence[Variant]) -> None:
    """Check that all variants and their names differ.

    Raises:
        UsageError: two variants have the same specification, host and `set`, or the same name.
    """
    for number, variant in enumerate(variants):
        for earlier in variants[:number]:
            if variant.key == earlier.key:
                kind = "graft" if variant.host is None else "host"
                raise UsageError(f"the {kind} {variant.key!r} is given twice; remove one of them")
            if variant.slug == earlier.slug:
                example = "" if variant.host is None else f", as in {ENTRY}"
                raise UsageError(f"two variants are called {variant.name!r}; give them different names{example}")


def _read_entry(entry: Any, where: str) -> Variant:
    name, host, given = None, None, entry
    overrides: tuple[str, ...] = ()
    if isinstance(entry, Mapping):
        unknown = [key for key in entry if key not in ("name", "host", "spec", "graft", "set")]
        if unknown or not entry.keys() & {"host", "spec", "graft", "set"}:
            problem = f"unknown key {unknown[0]!r}" if unknown else "no graft"
            raise ConfigError(
                f"{where}: {problem}; write a specification (cb_s@blocks.6-11), or "
                "{name: ..., graft: ..., set: {schedule.warmup_epochs: 10}}"
            )
        if {"spec", "graft"} <= entry.keys():
            raise ConfigError(f"{where}: spec and graft are the same; remove one of them")
        name, given = entry.get("name"), entry.get("graft", entry.get("spec"))
        host = None if entry.get("host") is None else _read_host(entry["host"], f"{where}.host")
        overrides = _read_overrides(entry.get("set"), f"{where}.set")
    if name is not None and (not isinstance(name, str) or not name.strip()):
        raise ConfigError(f"{where}.name: expected non-empty text, found {name!r}")
    if name is not None and CONTROL.search(name):
        raise ConfigError(f"{where}.name: {quoted(name)} contains a control character; choose another name")
    if given is not None and not isinstance(given, str | list | tuple):
        raise ConfigError(f"{where}: expected a graft specification (text or list), found {given!r}")
    if isinstance(given, str) and given.strip() in GRAFT_SETS:
        spec = given.strip()
        if name:
            raise ConfigError(f"{where}.name: {spec} is a set of grafts, each a variant of its own; remove the name")
    else:
        spec = str(parse(given))
    name = name.strip() if name else _name(host, spec, overrides)
    return Variant(name=name, spec=spec, host=host, overrides=overrides, where=where)


def _read_overrides(given: Any, where: str) -> tuple[str, ...]:
    """Return the `set` of an entry as `field=value` texts, one per field, sorted."""
    values: dict[str, Any] = {}
    if isinstance(given, Mapping):
        values = dict(_fields(given))
    elif isinstance(given, list | tuple):
        for number, text in enumerate(given):
            name, equals, value = text.partition("=") if isinstance(text, str) else ("", "", "")
            if not equals:
                raise ConfigError(f"{where}[{number}]: write it as schedule.warmup_epochs=10; found {text!r}")
            values[name.strip()] = parse_yaml(value, source=f"{where}.{name.strip()}")
    elif given is not None:
        raise ConfigError(
            f"{where}: expected fields of the recipe, as in {{schedule.warmup_epochs: 10}} or [schedule.warmup_epochs=10], "
            f"found {given!r}"
        )
    for name in values:
        for common, reason in _COMMON.items():
            if _overlap(name, common):
                inside = "" if f"{name}.".startswith(f"{common}.") else f"set its fields one by one; {common}: "
                raise ConfigError(f"{where}.{name}: {inside}{reason}")
    # sections before their fields; equal values give equal text
    ordered = sorted(values, key=lambda name: name.split("."))
    return tuple(f"{name}={dump_line([values[name]])[1:-1]}" for name in ordered)


def _fields(section: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted field, value) pairs, recursing into non-empty sections."""
    for key, value in section.items():
        if isinstance(value, Mapping) and value:
            yield from _fields(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _read_host(given: Any, where: str) -> StudyHost:
    host = StudyHost(name=given) if isinstance(given, str) else read(StudyHost, given, where=where)
    if host.name is None or not host.name.strip():
        raise ConfigError(f"{where}: name the host, as in {ENTRY}")
    return replace(host, name=host.name.strip().removeprefix("timm:"))


def entry_graft(text: str) -> Any:
    """Convert `--graft`, a specification or an entry in braces, to an entry of `grafts` in a study file.

    Raises:
        ConfigError: the YAML is invalid.
    """
    return parse_yaml(text, source=f"--graft {text}") if text.lstrip().startswith("{") else text


def entry_against(text: str) -> dict[str, Any]:
    """Convert the value of `--against` to an entry of `grafts` in a study file.

    Raises:
        ConfigError: the YAML is invalid.
        UsageError: the YAML has a different form.
    """
    given = parse_yaml(text, source=f"--against {text}")
    if isinstance(given, Mapping) and "host" in given:
        return dict(given)
    if isinstance(given, str) and given.strip():
        return {"host": {"name": given.strip()}}
    if isinstance(given, Mapping) and len(given) == 1:
        (name, args), *_ = given.items()
        if isinstance(name, str) and isinstance(args, Mapping | None):
            return {"host": {"name": name, "args": dict(args or {})}}
    raise UsageError(f'--against {text}: write HOST, "HOST: {{argument: value}}", or "{ENTRY}"')


def slug(name: str) -> str:
    """Convert `name` to a folder name that is valid on any system and unique for each name.

    Names of lower-case letters, digits, `_`, `-` and inner `.` are unchanged. In all other names, the remaining characters
    are replaced, and a hash is appended.
    """
    plain = re.sub(r"[^a-z0-9_.]+", "-", name.lower()).strip("-.")[:_LONGEST_SLUG].rstrip("-.")
    if plain == name and plain.partition(".")[0] not in _WINDOWS_DEVICES:
        return plain
    digest = hashlib.blake2b(name.encode(), digest_size=4).hexdigest()
    return f"{plain}-{digest}" if plain else digest
