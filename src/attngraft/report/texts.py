"""Texts of all variants side by side, with the words that differ from the baseline's marked."""

from collections.abc import Sequence
from difflib import SequenceMatcher

from markupsafe import Markup, escape

from attngraft.results.wording import shorten

SHOWN = 10  #: maximum number of rows
_WIDTH = 600  #: maximum number of characters of a text
CAPTION = "Words that differ from the baseline’s are marked."


def marked(text: str, before: str) -> Markup:
    """Return `text` as HTML, with the words that are not in `before` marked."""
    old, new = (shorten(each, _WIDTH).split() for each in (before, text))
    parts = []
    for same, _, _, start, stop in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if words := " ".join(new[start:stop]):
            parts.append(escape(words) if same == "equal" else Markup("<mark>{}</mark>").format(words))
    return Markup(" ").join(parts)


def spread_rows(before: Sequence[str], others: Sequence[Sequence[str]]) -> list[int]:
    """Return at most `SHOWN` rows, evenly spread from those that differ most from `before` to those that differ least."""

    def difference(row: int) -> float:
        old = before[row].split()
        return sum(1 - SequenceMatcher(None, old, texts[row].split(), autojunk=False).ratio() for texts in others)

    order = sorted(range(len(before)), key=difference, reverse=True)
    count = min(SHOWN, len(order))
    return [order[index * (len(order) - 1) // max(count - 1, 1)] for index in range(count)]
