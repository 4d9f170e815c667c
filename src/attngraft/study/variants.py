"""The variants of a study: named graft specifications, the host as it is always among them and always first.

A variant may stand on a host of its own (`study.host`); it is compared with the study's host as it is, like all others.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from attngraft.errors import ConfigError, UsageError
from attngraft.results.wording import host_label
from attngraft.study.host import ENTRY, StudyHost, read_host

BASELINE = "baseline"

_LONGEST_SLUG = 60


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One graft specification under the name that tables and plots show."""

    name: str
    spec: str  #: canonical; "none" for the host as it is
    host: StudyHost | None = None  #: another host than the study's

    @property
    def is_baseline(self) -> bool:
        return self.spec == "none" and self.host is None

    @property
    def key(self) -> str:
        """What it is, in one line; no other variant of the study is the same."""
        if self.host is None:
            return self.spec
        label = host_label(self.host.plain())
        return label if self.spec == "none" else f"{label} + {self.spec}"

    def plain(self) -> dict[str, Any]:
        """As a study file has it."""
        own = {} if self.host is None else {"host": self.host.plain()}
        return {"name": self.name, "spec": self.spec, **own}

    @property
    def slug(self) -> str:
        return slug(self.name)


def read_variants(entries: Iterable[Any]) -> tuple[Variant, ...]:
    """Variants from what a user gave: a specification (text or list of mappings), `{name, spec}`, or `{name, host, spec}`
    for another host.

    The baseline, `none`, is added where it is missing and put first; the others keep their order. A variant without a
    name is called by its host, if it has one of its own, and its specification.

    Raises:
        GraftSpecError: a specification cannot be read.
        ConfigError: an entry of another form.
        UsageError: two variants of one specification and host, or of one name.
    """
    found = [_read_entry(entry, f"grafts[{place}]") for place, entry in enumerate(entries)]
    if not any(variant.is_baseline for variant in found):
        found.insert(0, Variant(name=BASELINE, spec="none"))
    found.sort(key=lambda variant: not variant.is_baseline)
    for place, variant in enumerate(found):
        for earlier in found[:place]:
            if variant.key == earlier.key:
                what = "graft" if variant.host is None else "host"
                raise UsageError(f"the {what} {variant.key!r} is given twice; a study compares different variants")
            if variant.slug == earlier.slug:
                how = "" if variant.host is None else f", as in {ENTRY}"
                raise UsageError(f"two variants are called {variant.name!r}; give each a name of its own{how}")
    return tuple(found)


def slug(name: str) -> str:
    """`name` as a folder's name on any system; different names give different ones, whatever other variants there are.

    Names of lower-case letters, digits, `_`, `-` and inner `.` stay as they are; others lose the rest and get a hash.
    """
    plain = re.sub(r"[^a-z0-9_.]+", "-", name.lower()).strip("-.")[:_LONGEST_SLUG].rstrip("-.")
    if plain == name and plain.partition(".")[0] not in _WINDOWS_DEVICES:
        return plain
    digest = hashlib.blake2b(name.encode(), digest_size=4).hexdigest()
    return f"{plain}-{digest}" if plain else digest


_WINDOWS_DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))}


def _read_entry(entry: Any, field: str) -> Variant:
    from attngraft.grafting.spec import parse

    name, host, given = None, None, entry
    if isinstance(entry, Mapping):
        unknown = [key for key in entry if key not in ("name", "host", "spec")]
        if unknown or not entry.keys() & {"host", "spec"}:
            what = f"has an unknown key {unknown[0]!r}" if unknown else "has no spec"
            raise ConfigError(f"{field}: {what}; write a specification (cb_s@blocks.6-11), or {{name: ..., spec: ...}}")
        name, given = entry.get("name"), entry.get("spec")
        host = None if entry.get("host") is None else read_host(entry["host"], f"{field}.host")
    if name is not None and (not isinstance(name, str) or not name.strip()):
        raise ConfigError(f"{field}.name: a text that is not empty is expected, not {name!r}")
    if given is not None and not isinstance(given, str | list | tuple):
        raise ConfigError(f"{field}: a specification is a text or a list, not {given!r}")
    spec = str(parse(given))
    return Variant(name=name.strip() if name else _own_name(spec, host), spec=spec, host=host)


def _own_name(spec: str, host: StudyHost | None) -> str:
    if host is None:
        return BASELINE if spec == "none" else spec
    return str(host.name) if spec == "none" else f"{host.name} + {spec}"
