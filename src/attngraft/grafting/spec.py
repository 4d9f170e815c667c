"""Graft specifications: `cb_s(init=0.5)@blocks.6-11 + horizontal`, or the same as a list of mappings.

    spec   := "none" | term ("+" term)*
    term   := name [ "(" option ("," option)* ")" ] [ "@" where ]
    option := name "=" value            value: number, true, false, none, word, or 'text' in quotes
    where  := "all" | "first:" n["%"] | "last:" n["%"] | pattern ("," pattern)*       (see where.py)

In YAML: `[{graft: cb_s, where: blocks.6-11, options: {init: 0.5}}, {graft: horizontal}]`. `str(spec)` is canonical, and
`parse(str(spec)) == spec`. Invalid text raises `GraftSpecError`, which points at the character.
"""

import dataclasses
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from attngraft.attention import GraftType
from attngraft.errors import ConfigError, GraftSpecError
from attngraft.grafting.where import EVERYWHERE, Where, parse_where
from attngraft.mechanisms.registry import GRAFT_SETS, graft_types
from attngraft.strict import convert
from attngraft.suggest import cut, did_you_mean, quoted

#: preset (short name of a configuration from the papers) -> specification
PRESETS = {"cb_deeper_half": "cb@last:50%"}

MAX_LENGTH, MAX_TERMS = 20_000, 100  #: characters and terms of a specification
_SPACE = re.compile(r"\s*")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?)")
_MAX_DIGITS = 400  #: largest length of an integer; Python refuses to parse thousands of digits
_QUOTED = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WHERE = re.compile(r"[^+@()\s][^+@()]*")
_CONSTANTS = {"true": True, "false": False, "none": None, "True": True, "False": False, "None": None}
_MAX_FLOAT32 = 3.4028234663852886e38  #: largest float32, the type of most parameters; options become parameter values


class OptionError(ValueError):
    """An invalid option; `option` is its name, if a single option is invalid."""

    def __init__(self, message: str, option: str | None = None) -> None:
        self.option = option
        super().__init__(message)


def build_options(graft_type: GraftType[Any], given: dict[str, Any]) -> Any:
    """Build `graft_type.Options` from plain values, which are checked against its annotations.

    Raises:
        OptionError: an unknown name (the message gives the nearest match and all names), or a value of the wrong type or
            out of range.
    """
    fields = {field.name: field for field in dataclasses.fields(graft_type.Options)}
    hints = typing.get_type_hints(graft_type.Options)
    values = {}
    for name, value in given.items():
        if name not in fields:
            known = ", ".join(fields) or "none"
            raise OptionError(f"unknown option {quoted(name)}{did_you_mean(name, fields)}; options: {known}", name)
        try:
            values[name] = convert(value, hints[name], name)
        except ConfigError as error:
            raise OptionError(str(error), name) from None
        if isinstance(values[name], float) and abs(values[name]) > _MAX_FLOAT32:
            raise OptionError(
                f"{name}: {quoted(value)} exceeds the largest float32; choose a value within +-3.4e38", name
            )
    try:
        return graft_type.Options(**values)
    except ValueError as error:
        raise OptionError(str(error), next((name for name in values if str(error).startswith(name)), None)) from None


#: graft -> options without a default, which had one in earlier releases
_FORMER_DEFAULTS: Mapping[str, Mapping[str, Any]] = {"lsa": {"shift": 0}}


@dataclass(frozen=True)
class Term:
    """One graft: its registered name, its options (an instance of the type's `Options`), and its sites."""

    name: str
    options: Any
    where: Where = EVERYWHERE
    text: str | None = field(default=None, compare=False, repr=False)  #: the parsed text, for messages
    position: int | None = field(default=None, compare=False, repr=False)  #: position of the where-clause in `text`

    def __str__(self) -> str:
        given = {
            field.name: value
            for field in dataclasses.fields(self.options)
            if (value := getattr(self.options, field.name)) != field.default
        }
        options = ", ".join(
            f"{name}={_format_value(value)}" for name, value in given.items() if not self._is_implied(name, given)
        )
        where = "" if self.where.kind == "all" else f"@{self.where}"
        return f"{self.name}{f'({options})' if options else ''}{where}"

    def _is_implied(self, name: str, given: Mapping[str, Any]) -> bool:
        """Return whether the other options imply this one."""
        others = {other: value for other, value in given.items() if other != name}
        try:
            return bool(type(self.options)(**others) == self.options)
        except ValueError:
            return False


@dataclass(frozen=True)
class GraftSpec:
    """A parsed specification: terms in order. Without terms it means `none`, the plain host."""

    terms: tuple[Term, ...] = ()

    def __str__(self) -> str:
        return " + ".join(map(str, self.terms)) or "none"

    def __bool__(self) -> bool:
        return bool(self.terms)

    def to_list(self) -> list[dict[str, Any]]:
        """Return the specification as plain mappings, for YAML and JSON."""
        return [
            {"graft": term.name, "where": str(term.where), "options": dataclasses.asdict(term.options)}
            for term in self.terms
        ]


Specification = str | Sequence[Mapping[str, Any]] | GraftSpec | None


def parse(spec: Specification) -> GraftSpec:
    """Parse a specification in any of its forms; None and "none" mean no graft.

    Raises:
        GraftSpecError: the specification is invalid; the message points at the character (or names the entry) and lists
            near matches.
    """
    if isinstance(spec, GraftSpec):
        return spec
    if spec is None:
        return GraftSpec()
    if isinstance(spec, str):
        return _Parser(spec).spec()
    if isinstance(spec, Sequence):
        terms: list[Term] = []
        for number, entry in enumerate(spec, start=1):
            terms.extend(_terms_of_mapping(entry, f"entry {number}"))
            if len(terms) > MAX_TERMS:
                raise GraftSpecError(f"a specification has at most {MAX_TERMS} grafts; entry {number} is one too many")
        return GraftSpec(tuple(terms))
    raise GraftSpecError(f"a graft specification must be text or a list of mappings, not {type(spec).__name__}")


def with_former_defaults(spec: Specification) -> GraftSpec:
    """Parse the specification of a stored model, which may have been written when an option had another default.

    Raises:
        GraftSpecError: see `parse`.
    """
    terms = []
    for term in parse(spec).terms:
        former = _FORMER_DEFAULTS.get(term.name, {})
        unset = {name: value for name, value in former.items() if getattr(term.options, name) is None}
        terms.append(replace(term, options=replace(term.options, **unset)))
    return GraftSpec(tuple(terms))


def _terms_of_mapping(entry: Any, label: str) -> tuple[Term, ...]:
    if isinstance(entry, str):
        return parse(entry).terms
    if not isinstance(entry, Mapping) or not isinstance(entry.get("graft"), str):
        raise GraftSpecError(f"{label} of the graft list needs a key 'graft' with a name (optional: where, options)")
    unknown = [key for key in entry if key not in ("graft", "where", "options")]
    if unknown:
        raise GraftSpecError(
            f"{label} of the graft list: unknown key {quoted(unknown[0])}; keys: graft, where, options"
        )
    name, options, where = entry["graft"], entry.get("options") or {}, entry.get("where", "all")
    if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
        raise GraftSpecError(f"{label} ({name}): options must be a mapping of names to values")
    if name in PRESETS:
        if options or "where" in entry:
            raise GraftSpecError(f"{label}: {_preset_message(name)}")
        return parse(PRESETS[name]).terms
    _check_name(name, None, None)
    try:
        return (Term(name, build_options(graft_types()[name], dict(options)), parse_where(_text_of(where))),)
    except ValueError as error:
        raise GraftSpecError(f"{label} ({name}): {error}") from None


def _text_of(where: Any) -> str:
    if isinstance(where, int | float):  # YAML reads `where: 0.1` as a number
        return quoted(where)
    if not isinstance(where, str):
        raise ValueError(f"a where-clause must be text, found {quoted(where)}")
    return where


def _preset_message(name: str) -> str:
    return f"the preset {name} is short for {PRESETS[name]!r} and takes neither options nor a where-clause"


def _check_name(name: str, text: str | None, position: int | None) -> None:
    if name in GRAFT_SETS:
        raise GraftSpecError(
            f"{name} is a set of grafts, not a graft; use it alone, as --graft {name} of attngraft compare, or list its "
            f"grafts with attngraft plan HOST {name}",
            text=text,
            position=position,
        )
    known = [*graft_types(), *PRESETS]
    if name not in known:
        hint = did_you_mean(name, known)
        raise GraftSpecError(
            f"unknown graft {quoted(name)}{hint}; grafts: {', '.join(known)}", text=text, position=position
        )


def _format_value(value: Any) -> str:
    if isinstance(value, str):
        plain = _WORD.fullmatch(value) and value not in _CONSTANTS
        return value if plain else "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return next((word for word, constant in _CONSTANTS.items() if value is constant), None) or repr(value)


class _Parser:
    """Recursive-descent parser of one text; spaces are skipped after every token."""

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text) > MAX_LENGTH:
            raise self.error(f"a specification has at most {MAX_LENGTH:,} characters, not {len(text):,}", MAX_LENGTH)
        self.advance(0)

    def error(self, message: str, position: int | None = None) -> GraftSpecError:
        return GraftSpecError(message, text=self.text, position=self.at if position is None else position)

    def advance(self, end: int) -> None:
        """Move to the first token at or after position `end`."""
        found = _SPACE.match(self.text, end)
        self.at = end if found is None else found.end()

    def next_is(self, *chars: str) -> bool:
        return self.text[self.at : self.at + 1] in chars

    def take(self, char: str) -> bool:
        """Advance past `char` if it comes next; return whether it did."""
        if not self.next_is(char):
            return False
        self.advance(self.at + 1)
        return True

    def match(self, pattern: re.Pattern[str], expected: str) -> str:
        found = pattern.match(self.text, self.at)
        if found is None:
            here = repr(self.text[self.at]) if self.at < len(self.text) else "the end of the specification"
            raise self.error(f"expected {expected}, found {here}")
        self.advance(found.end())
        return found[0]

    def spec(self) -> GraftSpec:
        if self.text.strip() == "none":
            return GraftSpec()
        terms = list(self.term())
        while self.take("+"):
            if len(terms) >= MAX_TERMS:
                raise self.error(f"a specification has at most {MAX_TERMS} grafts")
            terms.extend(self.term())
        if self.at < len(self.text):
            raise self.error(f"unexpected {self.text[self.at]!r}: after a graft, expected '(', '@', '+' or the end")
        return GraftSpec(tuple(terms))

    def term(self) -> tuple[Term, ...]:
        start = self.at
        name = self.match(_WORD, "a graft name")
        if name == "none":
            raise self.error("'none' means no graft and cannot be combined with grafts", start)
        _check_name(name, self.text, start)
        if name in PRESETS:
            if self.next_is("(", "@"):
                raise self.error(_preset_message(name))
            return parse(PRESETS[name]).terms
        options = self.options(name) if self.take("(") else build_options(graft_types()[name], {})
        where, position = self.where() if self.take("@") else (EVERYWHERE, start)
        return (Term(name, options, where, self.text, position),)

    def options(self, name: str) -> Any:
        first = self.at
        given: dict[str, Any] = {}
        positions: dict[str, int] = {}
        while not self.take(")"):
            if given and not self.take(","):
                raise self.error("expected ',' between options or ')' after the last option")
            start = self.at
            option = self.match(_WORD, "an option name")
            if option in given:
                raise self.error(f"the option {cut(option)} is given twice; remove one of them", start)
            if not self.take("="):
                raise self.error(f"expected '=' and a value after the option {cut(option)}")
            positions[option] = start
            given[option] = self.value()
        try:
            return build_options(graft_types()[name], given)
        except OptionError as error:
            raise self.error(f"{name}: {error}", positions.get(error.option or "", first)) from None

    def value(self) -> Any:
        if self.next_is("'", '"'):
            quoted = _QUOTED.match(self.text, self.at)
            if quoted is None:
                raise self.error("the quoted text has no closing quote")
            self.advance(quoted.end())
            return re.sub(r"\\(.)", r"\1", quoted[0][1:-1], flags=re.DOTALL)
        number = _NUMBER.match(self.text, self.at)
        if number is None:
            word = self.match(_WORD, "a value (a number, true, false, none, a word, or 'text')")
            return _CONSTANTS.get(word, word)
        whole = re.fullmatch(r"[+-]?\d+", number[0])
        if whole and len(number[0]) > _MAX_DIGITS:
            raise self.error(f"an integer has at most {_MAX_DIGITS} digits")
        self.advance(number.end())
        return int(number[0]) if whole else float(number[0])

    def where(self) -> tuple[Where, int]:
        start = self.at
        text = self.match(_WHERE, "a where-clause (all, first:2, last:50%, blocks.6-11)")
        try:
            return parse_where(text), start
        except ValueError as error:
            raise self.error(str(error), start) from None
