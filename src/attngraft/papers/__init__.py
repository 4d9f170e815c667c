"""The papers' tables as data, and the means to set our numbers beside them.

A paper is one YAML file in this folder (`schema.py` says what it holds); it is listed by being there. `counters` are the
papers' own ways of counting, `compute` builds each row's model without weights and compares to the printed digit.
"""

from __future__ import annotations

from pathlib import Path

from attngraft.errors import UsageError
from attngraft.papers.schema import Column, Paper, Row, Table, read_paper
from attngraft.suggest import did_you_mean

__all__ = ["Column", "Paper", "Row", "Table", "list_papers", "load_paper", "read_paper"]

_FOLDER = Path(__file__).parent


def list_papers() -> list[str]:
    """The ids of all papers, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def load_paper(name: str) -> Paper:
    """The paper with the id `name`.

    Raises:
        UsageError: no such paper; lists those there are.
        ConfigError: its file is wrong; names the field.
    """
    known = list_papers()
    if name.lower() not in known:
        raise UsageError(f"there is no paper {name!r}{did_you_mean(name.lower(), known)}; there are {', '.join(known)}")
    return read_paper(_FOLDER / f"{name.lower()}.yaml")
