"""Names and values in messages: suggestions of similar names, shortened lists and values, visible control characters."""

import difflib
import io
import re
import reprlib
from collections.abc import Iterable
from typing import Any

MOST = 80  #: characters of a value in a message
_MOST_BITS = 4000  #: Python refuses to print integers of thousands of digits
_LONGEST_WORD = 200  #: characters; comparing longer words takes too long
#: control characters except newline and tab, Unicode's separators of lines and changes of direction, lone surrogates
_INVISIBLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")  #: characters that break lines, tables or terminals


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean cb_s?)` with the most similar of `known`; empty if none is similar."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6) if len(word) <= _LONGEST_WORD else []
    return f" (did you mean {near[0]}?)" if near else ""


def shortened(names: Iterable[object], most: int) -> str:
    """Return `a, b, c and 5 more`, with at most `most` of the names."""
    listed = [str(name) for name in names]
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")


def repeated(names: Iterable[str]) -> str | None:
    """Return the first name that occurs twice, or None."""
    seen = set[str]()
    return next((name for name in names if name in seen or seen.add(name)), None)  # type: ignore[func-returns-value]


def text_lines(text: str) -> list[str]:
    """Return the lines of `text`, which end at \\n, \\r\\n or \\r; `str.splitlines` also splits at form feeds and others."""
    return [line.removesuffix("\n") for line in io.StringIO(text, newline=None)]


def cut(text: str, most: int = MOST) -> str:
    """Return `text` with at most `most` characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def quoted(value: Any, most: int = MOST) -> str:
    """Return the representation of `value` with at most `most` characters, in little time whatever its size."""
    return cut(_REPR.repr(value), most)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, with the second if the first ends with a colon."""
    lines = (str(error).strip() or type(error).__name__).splitlines()
    return " ".join(line.strip() for line in lines[: 2 if lines[0].endswith(":") else 1])


def one_line(error: BaseException) -> str:
    """Return the class and the start of the first line of an error."""
    name = type(error).__name__
    return f"{name}: {cut(first_line(error), 200)}" if str(error).strip() else name


class _Repr(reprlib.Repr):
    """`repr` of the start of a value."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = 12

    def repr_str(self, value: str, level: int) -> str:
        return repr(value[: MOST + 1])

    def repr_dict(self, value: dict[Any, Any], level: int) -> str:  # in their order, which reprlib sorts
        if level <= 0 and value:
            return "{...}"
        shown = [
            f"{self.repr1(key, level - 1)}: {self.repr1(value[key], level - 1)}" for key in [*value][: self.maxdict]
        ]
        return f"{{{', '.join(shown)}{', ...' if len(value) > self.maxdict else ''}}}"

    def repr_int(self, value: int, level: int) -> str:
        bits = value.bit_length()
        return repr(value) if bits < _MOST_BITS else f"an integer of {bits} bits"

    def repr_instance(self, value: Any, level: int) -> str:
        return repr(value)


_REPR = _Repr()


def visible(text: str) -> str:
    """Return `text` with control characters except newline and tab as `\\u001b`, so that it cannot control a terminal.

    Lone surrogates (bytes of a file name that are not UTF-8), and marks that change the direction of text, are also
    escaped. In JSON the value stays the same.
    """
    return _INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
