"""Arguments that are one of a few words."""

from __future__ import annotations

from typing import TypeVar

from attngraft.errors import UsageError

Word = TypeVar("Word", bound=str)


def known(name: str, word: Word, words: tuple[str, ...]) -> Word:
    """`word`, given for the argument `name`.

    Raises:
        UsageError: it is none of the `words`.
    """
    if word not in words:
        raise UsageError(f"{name} of BiXT is {' or '.join(map(repr, words))}, not {word!r}")
    return word
