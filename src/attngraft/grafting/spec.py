"""The little language of grafts: `cb_s(init=0.5)@blocks.6-11 + horizontal`, or the same as a list of mappings.

    spec   := "none" | term ("+" term)*
    term   := name [ "(" option ("," option)* ")" ] [ "@" where ]
    option := name "=" value            value: number, true, false, none, word, or 'text' in quotes
    where  := "all" | "first:" n["%"] | "last:" n["%"] | pattern ("," pattern)*       (see where.py)

In YAML: `[{graft: cb_s, where: blocks.6-11, options: {init: 0.5}}, {graft: horizontal}]`. `str(spec)` is canonical, and
`parse(str(spec)) == spec`. Whatever cannot be read raises `GraftSpecError`, pointing at the character.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attngraft.errors import GraftSpecError
from attngraft.grafting.spec import build_options, changed_options
from attngraft.grafting.where import EVERYWHERE, Where, parse_where
from attngraft.mechanisms.registry import graft_types
from attngraft.suggest import did_you_mean

#: names for choices that the papers name; each stands for the text beside it
PRESETS = {"cb_deeper_half": "cb@last:50%"}

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?)")
_MOST_DIGITS = 400  #: more than any float has; Python itself refuses thousands
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WHERE = re.compile(r"[^+@()\s][^+@()]*")
_CONSTANTS = {"true": True, "false": False, "none": None, "True": True, "False": False, "None": None}


@dataclass(frozen=True)
class Term:
    """One graft: its registered name, its options (an instance of the type's `Options`), and where it goes."""

    name: str
    options: Any
    where: Where = EVERYWHERE
    text: str | None = field(default=None, compare=False, repr=False)  #: what was parsed, for messages
    position: int | None = field(default=None, compare=False, repr=False)  #: of the where-clause in `text`

    def __str__(self) -> str:
        changed = changed_options(self.options)
        options = ", ".join(f"{name}={_format_value(value)}" for name, value in changed.items())
        where = "" if self.where.kind == "all" else f"@{self.where}"
        return f"{self.name}{f'({options})' if options else ''}{where}"


@dataclass(frozen=True)
class GraftSpec:
    """What to graft: terms in order. Without terms it is `none`, the host as it is."""

    terms: tuple[Term, ...] = ()

    def __str__(self) -> str:
        return " + ".join(map(str, self.terms)) or "none"

    def __bool__(self) -> bool:
        return bool(self.terms)

    def to_list(self) -> list[dict[str, Any]]:
        """The same as plain mappings, for YAML and JSON."""
        return [
            {"graft": term.name, "where": str(term.where), "options": dataclasses.asdict(term.options)}
            for term in self.terms
        ]


Specification = str | Sequence[Mapping[str, Any]] | GraftSpec | None


def parse(spec: Specification) -> GraftSpec:
    """Read a specification in any of its forms; None and "none" mean no graft.

    Raises:
        GraftSpecError: it cannot be read; points at the character (or names the entry), with near matches.
    """
    if isinstance(spec, GraftSpec):
        return spec
    if spec is None:
        return GraftSpec()
    if isinstance(spec, str):
        return _Reader(spec).spec()
    if isinstance(spec, Sequence):
        terms = [_term_of_mapping(entry, f"entry {number}") for number, entry in enumerate(spec, start=1)]
        return GraftSpec(tuple(term for found in terms for term in found))
    raise GraftSpecError(f"a graft specification is a text or a list of mappings, not {type(spec).__name__}")


def _term_of_mapping(entry: Any, label: str) -> tuple[Term, ...]:
    if isinstance(entry, str):
        return parse(entry).terms
    if not isinstance(entry, Mapping) or not isinstance(entry.get("graft"), str):
        raise GraftSpecError(f"{label} of the graft list needs a key 'graft' with a name (and may have where, options)")
    unknown = [key for key in entry if key not in ("graft", "where", "options")]
    if unknown:
        raise GraftSpecError(f"{label} of the graft list: unknown key {unknown[0]!r}; known are graft, where, options")
    name, options, where = entry["graft"], entry.get("options") or {}, entry.get("where", "all")
    if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
        raise GraftSpecError(f"{label} ({name}): options is a mapping of names to values")
    if name in PRESETS:
        if options or "where" in entry:
            raise GraftSpecError(f"{label}: the preset {name} stands for {PRESETS[name]!r} and takes nothing else")
        return parse(PRESETS[name]).terms
    _check_name(name, None, None)
    try:
        return (Term(name, build_options(graft_types()[name], dict(options)), parse_where(str(where))),)
    except ValueError as error:
        raise GraftSpecError(f"{label} ({name}): {error}") from None


def _check_name(name: str, text: str | None, position: int | None) -> None:
    known = [*graft_types(), *PRESETS]
    if name not in known:
        hint = did_you_mean(name, known)
        raise GraftSpecError(
            f"there is no graft {name!r}{hint}; there are {', '.join(known)}", text=text, position=position
        )


def _format_value(value: Any) -> str:
    if isinstance(value, str):
        plain = _WORD.fullmatch(value) and value not in _CONSTANTS
        return value if plain else "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return next((word for word, constant in _CONSTANTS.items() if value is constant), None) or repr(value)


class _Reader:
    """Reads one text from left to right."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def fail(self, message: str, position: int | None = None) -> GraftSpecError:
        return GraftSpecError(message, text=self.text, position=self.at if position is None else position)

    def skip(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def take(self, char: str) -> bool:
        """Move past `char` if it comes next."""
        self.skip()
        if self.text[self.at : self.at + 1] != char:
            return False
        self.at += 1
        return True

    def match(self, pattern: re.Pattern[str], wanted: str) -> str:
        self.skip()
        found = pattern.match(self.text, self.at)
        if found is None:
            what = repr(self.text[self.at]) if self.at < len(self.text) else "the end"
            raise self.fail(f"here stands {what} where {wanted} is expected")
        self.at = found.end()
        return found[0]

    def spec(self) -> GraftSpec:
        if self.text.strip() == "none":
            return GraftSpec()
        terms = list(self.term())
        while self.take("+"):
            terms.extend(self.term())
        self.skip()
        if self.at < len(self.text):
            raise self.fail(f"{self.text[self.at]!r} cannot stand here: after a graft comes '(', '@', '+' or the end")
        return GraftSpec(tuple(terms))

    def term(self) -> tuple[Term, ...]:
        self.skip()
        start = self.at
        name = self.match(_WORD, "a graft's name")
        if name == "none":
            raise self.fail("'none' means no graft and stands alone", start)
        _check_name(name, self.text, start)
        if name in PRESETS:
            if self.take("(") or self.take("@"):
                raise self.fail(f"the preset {name} stands for {PRESETS[name]!r} and takes nothing else", self.at - 1)
            return parse(PRESETS[name]).terms
        options = self.options(name) if self.take("(") else build_options(graft_types()[name], {})
        where, position = self.where() if self.take("@") else (EVERYWHERE, start)
        return (Term(name, options, where, self.text, position),)

    def options(self, name: str) -> Any:
        given: dict[str, Any] = {}
        positions: dict[str, int] = {}
        while not self.take(")"):
            if given and not self.take(","):
                self.skip()
                raise self.fail("between options stands ',' and after the last one ')'")
            self.skip()
            start = self.at
            option = self.match(_WORD, "an option's name")
            if option in given:
                raise self.fail(f"the option {option} is given twice", start)
            if not self.take("="):
                raise self.fail(f"after the option {option} comes '=' and its value")
            self.skip()
            positions[option] = start
            given[option] = self.value()
        try:
            return build_options(graft_types()[name], given)
        except ValueError as error:
            culprit = getattr(error, "option", None)
            raise self.fail(f"{name}: {error}", positions.get(culprit or "", self.at - 1)) from None

    def value(self) -> Any:
        char = self.text[self.at : self.at + 1]
        if char and char in "'\"":
            return self.quoted(char)
        number = _NUMBER.match(self.text, self.at)
        if number:
            return self.number(number)
        word = self.match(_WORD, "a value (a number, true, false, none, a word, or 'text')")
        return _CONSTANTS.get(word, word)

    def number(self, found: re.Match[str]) -> int | float:
        if not re.fullmatch(r"[+-]?\d+", found[0]):
            self.at = found.end()
            return float(found[0])
        if len(found[0]) > _MOST_DIGITS:
            raise self.fail(f"a whole number has at most {_MOST_DIGITS} digits here")
        self.at = found.end()
        return int(found[0])

    def quoted(self, quote: str) -> str:
        start, found = self.at, []
        self.at += 1
        while self.at < len(self.text) and self.text[self.at] != quote:
            if self.text[self.at] == "\\":
                self.at += 1
            found.append(self.text[self.at : self.at + 1])
            self.at += 1
        if self.at >= len(self.text):
            raise self.fail("this quotation is not closed", start)
        self.at += 1
        return "".join(found)

    def where(self) -> tuple[Where, int]:
        self.skip()
        start = self.at
        text = self.match(_WHERE, "a place (all, first:2, last:50%, blocks.6-11)")
        try:
            return parse_where(text), start
        except ValueError as error:
            raise self.fail(str(error), start) from None
