"""Names in messages: suggestions of similar names, and shortened lists."""

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean cb_s?)` with the most similar of `known`; empty if none is similar."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean {near[0]}?)" if near else ""


def shortened(names: Iterable[object], most: int) -> str:
    """Return `a, b, c and 5 more`, with at most `most` of the names."""
    listed = [str(name) for name in names]
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")
