"""Where-clauses, which select sites: `all`, `first:2`, `last:50%`, or patterns (`blocks.6-11`, `decoder.cross`)."""

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from attngraft.attention import AttentionGeometry
from attngraft.hosts import Site
from attngraft.suggest import quoted

_MAX_DIGITS = 6  #: digits of a number, enough for any host; Python refuses to parse thousands of digits
_MAX_LENGTH = 20_000  #: characters of a where-clause
_RANGE = re.compile(rf"(\d{{1,{_MAX_DIGITS}}})-(\d{{1,{_MAX_DIGITS}}})")
_SEGMENT = re.compile(r"[A-Za-z0-9_*?]+|\d+-\d+")
_ATTENTION = ("self", "cross")  #: last segments that select sites by their kind of attention


@dataclass(frozen=True)
class Where:
    """A parsed where-clause.

    `first` and `last` select `count` sites, or `count` percent of them (rounded up), among those with the hook point.
    A pattern matches a site if it matches the site's path or an ancestor's path, segment by segment: `layers.0` matches
    `layers.0.blocks.1.attn`. `*` and `?` match characters within a segment; `6-11` matches a whole segment in that range.
    If a pattern matches no path, a last segment `self` or `cross` selects the self- or cross-attention sites below the rest
    of the pattern, or of the whole model: `encoder.self`, `decoder.layers.0-1.cross`, `cross`.
    """

    kind: Literal["all", "first", "last", "patterns"] = "all"
    count: int = 0
    percent: bool = False
    patterns: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.kind == "all":
            return "all"
        if self.kind == "patterns":
            return ",".join(self.patterns)
        return f"{self.kind}:{self.count}{'%' if self.percent else ''}"

    def select(self, sites: Sequence[Site]) -> list[int]:
        """Return the indices of the selected sites; `sites` must be in the host's own order."""
        if self.kind == "all":
            return list(range(len(sites)))
        if self.kind == "patterns":
            return sorted({index for pattern in self.patterns for index in _selected(pattern, sites)})
        count = math.ceil(len(sites) * self.count / 100) if self.percent else min(self.count, len(sites))
        return list(range(count)) if self.kind == "first" else list(range(len(sites) - count, len(sites)))

    def unmatched(self, sites: Sequence[Site]) -> list[str]:
        """Return the patterns that select none of `sites`."""
        return [pattern for pattern in self.patterns if not _selected(pattern, sites)]


EVERYWHERE = Where()


def parse_where(text: str) -> Where:
    """Parse a where-clause.

    Raises:
        ValueError: the where-clause is invalid.
    """
    text = text.strip()
    if len(text) > _MAX_LENGTH:
        raise ValueError(f"a where-clause has at most {_MAX_LENGTH:,} characters, not {len(text):,}")
    if text == "all":
        return EVERYWHERE
    kind, colon, amount = map(str.strip, text.partition(":"))
    if colon:
        if kind not in ("first", "last"):
            raise ValueError(f"expected 'first' or 'last' before ':', found {quoted(kind)}")
        number = re.fullmatch(rf"([0-9]{{1,{_MAX_DIGITS}}})\s*(%?)", amount)
        if number is None:
            raise ValueError(
                f"expected a number of sites or a percentage (2, 50%) after '{kind}:', found {quoted(amount)}"
            )
        count, percent = int(number[1]), bool(number[2])
        if count == 0 or (percent and count > 100):
            raise ValueError(f"'{kind}:' must select at least 1 site and at most 100%, not {amount}")
        return Where("first", count, percent) if kind == "first" else Where("last", count, percent)
    patterns = tuple(part.strip() for part in text.split(","))
    for pattern in patterns:
        _check_pattern(pattern)
    return Where("patterns", patterns=patterns)


def _check_pattern(pattern: str) -> None:
    if not pattern:
        raise ValueError("a path pattern is missing (all, first:2, last:50%, blocks.6-11, layers.2.blocks.1.attn)")
    for segment in pattern.split("."):
        if not _SEGMENT.fullmatch(segment):
            raise ValueError(
                f"{quoted(segment)} is not valid in a path pattern (names, numbers, * and ?, or a range such as 6-11)"
            )
        span = _RANGE.fullmatch(segment)
        if "-" in segment and not span:
            raise ValueError(f"numbers of a range (blocks.6-11) have at most {_MAX_DIGITS} digits")
        if span and int(span[1]) > int(span[2]):
            raise ValueError(f"the range {segment} is reversed; write {span[2]}-{span[1]}")


def matches(pattern: str, path: str) -> bool:
    """Return whether `pattern` matches `path` or one of its ancestors."""
    wanted, found = pattern.split("."), path.split(".")
    return len(wanted) <= len(found) and all(map(_segment_matches, wanted, found))


def _selected(pattern: str, sites: Sequence[Site]) -> list[int]:
    found = [index for index, site in enumerate(sites) if matches(pattern, site.path)]
    above, _, last = pattern.rpartition(".")
    if found or last not in _ATTENTION:
        return found
    return [
        index
        for index, site in enumerate(sites)
        if _attention(site) == last and (not above or matches(above, site.path))
    ]


def _attention(site: Site) -> str | None:
    geometry = site.geometry
    return _ATTENTION[geometry.cross] if isinstance(geometry, AttentionGeometry) else None


def _segment_matches(wanted: str, found: str) -> bool:
    span = _RANGE.fullmatch(wanted)
    if span:
        return found.isdecimal() and int(span[1]) <= int(found) <= int(span[2])
    return fnmatchcase(found, wanted)


def unmatched_hint(pattern: str, sites: Sequence[Site]) -> str:
    """Return why `pattern` selects none of `sites`, or up to four similar patterns, best first, or the first paths."""
    above, _, last = pattern.rpartition(".")
    kinds = {_attention(site) for site in sites}
    if last in _ATTENTION and kinds == {None}:
        return f"{last} selects attention sites, but these sites are MLPs; write {above or 'all'}"
    if last == "cross" and "cross" not in kinds:
        return f"this model has no cross-attention; write {above or 'all'}, or use an encoder-decoder"
    known: dict[str, None] = {}
    for site in sites:
        segments = site.path.split(".")
        parts = [".".join(segments[:length]) for length in range(1, len(segments) + 1)]
        known.update(dict.fromkeys(parts))
        if "cross" in kinds and _attention(site) is not None:
            known.update((f"{part}.{_attention(site)}", None) for part in parts[:-1])
    near = difflib.get_close_matches(pattern, list(known), n=4, cutoff=0.5) or [site.path for site in sites[:4]]
    return f"similar paths: {', '.join(near)}"


def covering(wanted: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """Return short patterns that match all paths in `wanted` and none in `others`; neither may be empty."""
    found = _covering([path.split(".") for path in wanted], [path.split(".") for path in others])
    return tuple(".".join(segments) for segments in found)


def _covering(wanted: list[list[str]], others: list[list[str]]) -> list[tuple[str, ...]]:
    if not others or not all(wanted):
        return [()]
    below = {head: _covering(_tails(wanted, head), _tails(others, head)) for head in _heads(wanted)}
    found: list[tuple[str, ...]] = []
    for segment, head in _joined(below, _heads([*wanted, *others])):
        found += [(segment, *tail) for tail in below[head]]
    return found


def _heads(paths: list[list[str]]) -> list[str]:
    return list(dict.fromkeys(path[0] for path in paths if path))


def _tails(paths: list[list[str]], head: str) -> list[list[str]]:
    return [path[1:] for path in paths if path and path[0] == head]


def _joined(below: dict[str, list[tuple[str, ...]]], heads: list[str]) -> list[tuple[str, str]]:
    """Return pairs (segment, name): a name or a range, and one of the names it matches.

    Consecutive numbers that have equal patterns below them are joined into one range.
    """
    runs: list[list[str]] = []
    for head in sorted((each for each in heads if each.isdecimal()), key=int):
        if runs and below.get(head) == below.get(runs[-1][-1]):
            runs[-1].append(head)
        else:
            runs.append([head])
    named = [(head, head) for head in below if not head.isdecimal()]
    return named + [(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}", run[0]) for run in runs if run[0] in below]
