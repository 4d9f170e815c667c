"""`attngraft paper`: a paper's tables next to our numbers."""

from pathlib import Path
from typing import Annotated

import typer

from attngraft.cli.output import output_console, print_json, print_rows
from attngraft.errors import UsageError


def paper(
    name: Annotated[str | None, typer.Argument(metavar="PAPER", help="A paper's id; without it, list papers.")] = None,
    table: Annotated[
        str | None, typer.Argument(metavar="TABLE", help="A table's id; without it, list the paper's tables.")
    ] = None,
    runs: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of a run or study, to add measured accuracies.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print a paper's table with our numbers next to the printed ones.

    Parameters and MACs are counted by the paper's rules, on models without weights; nothing is downloaded. A cell agrees if
    our number rounds to the printed digits; for every other cell the reason is given. Accuracies are shown as printed;
    --runs adds the accuracies of your finished runs of the same model and graft.

    Examples:

        attngraft paper

        attngraft paper cb

        attngraft paper cb table6

        attngraft paper hv table3 --runs runs/imagenet100

        attngraft paper cb table6 --json
    """
    if runs is not None and table is None:
        raise UsageError("--runs requires a table; run attngraft paper PAPER TABLE --runs DIR")
    if name is None:
        _list_papers(as_json)
    elif table is None:
        _list_tables(name, as_json)
    else:
        _show(name, table, runs, as_json)


def _list_papers(as_json: bool) -> None:
    from attngraft.papers.schema import list_papers, load_paper

    papers = [load_paper(name) for name in list_papers()]
    show = print_json if as_json else print_rows
    show([{"id": paper.id, "title": paper.title, "source": paper.source} for paper in papers])


def _list_tables(name: str, as_json: bool) -> None:
    from attngraft.papers.schema import load_paper

    found = load_paper(name)
    if as_json:
        print_json([{"id": table.id, "title": table.title, "rows": len(table.rows)} for table in found.tables])
        return
    from attngraft.papers.table import list_tables

    output_console().print(list_tables(found))


def _show(name: str, table: str, runs: Path | None, as_json: bool) -> None:
    from attngraft.papers.schema import load_paper

    found = load_paper(name)
    wanted = found.table(table)
    from attngraft.papers.compute import compute_table
    from attngraft.papers.runs import find_runs

    result = compute_table(found, wanted, runs=() if runs is None else find_runs(runs))
    if as_json:
        print_json(result.to_dict())
        return
    from attngraft.papers.table import render_table

    console = output_console()
    console.print(render_table(found, result, ascii_only=console.options.ascii_only))
