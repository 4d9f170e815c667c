"""The variants of a study: named graft specifications, the host as it is always among them and always first."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from attngraft.errors import ConfigError, UsageError

BASELINE = "baseline"

_LONGEST_SLUG = 60


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One graft specification under the name that tables and plots show."""

    name: str
    spec: str  #: canonical; "none" for the host as it is

    @property
    def is_baseline(self) -> bool:
        return self.spec == "none"

    @property
    def slug(self) -> str:
        return slug(self.name)


def read_variants(entries: Iterable[Any]) -> tuple[Variant, ...]:
    """Variants from what a user gave: a specification (text or list of mappings), or `{name, spec}`.

    The baseline, `none`, is added where it is missing and put first; the others keep their order. A variant without a
    name is called by its specification.

    Raises:
        GraftSpecError: a specification cannot be read.
        ConfigError: an entry of another form.
        UsageError: two variants of one specification or of one name.
    """
    found = [_read_entry(entry, f"grafts[{place}]") for place, entry in enumerate(entries)]
    if not any(variant.is_baseline for variant in found):
        found.insert(0, Variant(name=BASELINE, spec="none"))
    found.sort(key=lambda variant: not variant.is_baseline)
    for place, variant in enumerate(found):
        for earlier in found[:place]:
            if variant.spec == earlier.spec:
                raise UsageError(f"the graft {variant.spec!r} is given twice; a study compares different variants")
            if variant.slug == earlier.slug:
                raise UsageError(f"two variants are called {variant.name!r}; give each a name of its own")
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

    name, given = None, entry
    if isinstance(entry, Mapping):
        unknown = [key for key in entry if key not in ("name", "spec")]
        if unknown or "spec" not in entry:
            what = f"has an unknown key {unknown[0]!r}" if unknown else "has no spec"
            raise ConfigError(f"{field}: {what}; write a specification (cb_s@blocks.6-11), or {{name: ..., spec: ...}}")
        name, given = entry.get("name"), entry["spec"]
    if name is not None and (not isinstance(name, str) or not name.strip()):
        raise ConfigError(f"{field}.name: a text that is not empty is expected, not {name!r}")
    if given is not None and not isinstance(given, str | list | tuple):
        raise ConfigError(f"{field}: a specification is a text or a list, not {given!r}")
    spec = str(parse(given))
    return Variant(name=name.strip() if name else (BASELINE if spec == "none" else spec), spec=spec)
