"""Penn Treebank tokens of captions, as the metrics of COCO captions count them, without Java.

COCO's evaluation uses Stanford's `PTBTokenizer` in lower case, and drops punctuation. The rules below are the part of it
that captions need; of the 4,545 captions of Flickr8k and COCO that were compared, one has another token (`p` for `p.`).
Abbreviations are a short list, and addresses of pages are split.
"""

import re

_CURLY = str.maketrans("‘’", "''")
_APOSTROPHE = "['`]"
_CLITIC = rf"{_APOSTROPHE}(?:s|m|d|ll|re|ve)(?!\w)"
_TOKEN = re.compile(
    rf"""
      </?[a-z][^<>\s]*>                                     # <unk>
    | (?:[a-z]\.){{2,}}                                     # p.m.
    | (?:mr|mrs|ms|dr|st|jr|sr|mt|vs|etc|ft|no(?=\.\s*\d))\.(?!\w)
    | {_APOSTROPHE}n{_APOSTROPHE}?(?!\w)                    # rock 'n' roll
    | {_APOSTROPHE}\d0s(?!\w)                               # '80s
    | {_APOSTROPHE}t(?=(?:is|was)\b)                        # 'tis
    | {_CLITIC}
    | n{_APOSTROPHE}t(?!\w)
    | [^\W\d_]+?(?=n{_APOSTROPHE}t(?!\w))                   # do of don't
    | can(?=not\b) | gon(?=na\b) | wan(?=na\b) | got(?=ta\b) | lem(?=me\b) | gim(?=me\b)
    | \w+(?:(?:-|/|\.|(?<=\d)[,:](?=\d)|(?<!\d)(?!{_CLITIC}){_APOSTROPHE})\w+)*  # t-shirt, 3.88, 5:30, o'brien
    | [!?]+ | \.+ | \S
    """,
    re.VERBOSE | re.IGNORECASE,
)
_BRACKETS = {"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"}
_DROPPED = frozenset([*"'`", *'"“”„«»', *"-–—", *".…?!,:;"])


def tokenize(caption: str) -> list[str]:
    """Return the tokens of a caption in lower case, without punctuation.

        tokenize("Two men don't wear a T-shirt.")  # ["two", "men", "do", "n't", "wear", "a", "t-shirt"]

    Brackets are kept, under their names in the Penn Treebank (`-lrb-`), and so are repeated marks (`!!`), as in COCO's
    evaluation.
    """
    tokens = (
        token
        for token in _TOKEN.findall(caption.lower().translate(_CURLY))
        if token.strip(".") and token not in _DROPPED
    )
    return [_BRACKETS.get(token, token) for token in tokens]
