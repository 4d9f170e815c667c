"""The papers' printed tables, from `papers/*.yaml`, as Markdown."""

from __future__ import annotations

from attngraft.papers.schema import Paper, PaperTable, list_papers, load_paper
from docs.generate.markdown import table

_OPENING = """# The papers' numbers

This page reproduces the tables as printed in the papers. The numbers are the papers' claims, not our measurements; known
errors are noted. `attngraft paper ID TABLE` shows our own counts next to them, and with `--runs DIR` your own accuracies.
"""


def paper_tables() -> str:
    """Return the page."""
    parts = [_OPENING]
    for name in list_papers():
        paper = load_paper(name)
        parts += [f"## {paper.title}\n", f"{paper.source}. {paper.counting}\n"]
        parts += [_table(paper, each) for each in paper.tables]
    return "\n".join(parts)


def _table(paper: Paper, printed: PaperTable) -> str:
    header = ["variant", *(column.title for column in printed.columns)]
    rows = [[row.variant, *(row.printed.get(column.id, "") for column in printed.columns)] for row in printed.rows]
    labeled = list(zip(printed.labels(), printed.rows, strict=True))
    notes = [*printed.notes, *(f"{label}: {row.note}" for label, row in labeled if row.note)]
    reasons: dict[str, list[str]] = {}
    for label, row in labeled:
        for why in dict.fromkeys(row.errata.values()):
            reasons.setdefault(why, []).append(label)
    notes += [f"{'; '.join(labels)}: {why}" for why, labels in reasons.items()]
    text = "".join(f"- {note}\n" for note in dict.fromkeys(notes))
    return f"### {paper.id} {printed.id}: {printed.title}\n\n{table(header, rows)}\n{text}"
