"""`attngraft list`: grafts, hosts, recipes, papers, tasks, analyses and suites."""

from typing import Annotated, Any, Literal

import typer
from rich.markup import escape
from rich.table import Table

from attngraft.cli.output import TerminalConsole, output_console, print_json, print_rows
from attngraft.errors import UsageError


def list_command(
    what: Annotated[
        Literal["grafts", "hosts", "recipes", "papers", "tasks", "analyses", "suites"],
        typer.Argument(help="What to list."),
    ] = "grafts",
    coverage: Annotated[
        bool,
        typer.Option("--coverage", help="With hosts: count the timm models that accept each graft. Takes minutes."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List grafts (with their options), supported hosts, recipes, papers, tasks, analyses or evaluation suites.

    Grafts, hosts and tasks of other installed packages are included.

    Examples:

        attngraft list

        attngraft list hosts

        attngraft list grafts --json

        attngraft list hosts --coverage
    """
    if coverage:
        if what != "hosts":
            raise UsageError(f"--coverage needs hosts: attngraft list hosts --coverage, not list {what}")
        _coverage(as_json=as_json)
        return
    rows = _rows(what)
    if as_json:
        print_json(rows)
        return
    print_rows(rows, f"{what} ({len(rows)})")


def _coverage(*, as_json: bool) -> None:
    import timm
    from rich.progress import track

    from attngraft.models.coverage import COUNTED, by_family, cover, shares, timm_names

    shown = TerminalConsole(stderr=True)
    names = track(timm_names(), "examining timm's models", console=shown, transient=True)
    found = [each for each in map(cover, names) if each.attention]
    rows = by_family(found)
    share = shares(rows)
    if as_json:
        report = {
            "timm": timm.__version__,
            "names": len(found),
            "share": share,
            "families": [r.to_dict() for r in rows],
        }
        print_json(report)
        return
    table = Table(title=f"timm's models that attend over tokens ({len(found)})", title_justify="left")
    for column in ("family", "names", *COUNTED, "supported by", "refused because"):
        table.add_column(column, overflow="fold")
    for row in rows:
        counts = [str(len(row.takes[graft])) for graft in COUNTED]
        cells = [row.family, str(len(row.names)), *counts, ", ".join(row.hosts) or "-", "\n".join(row.why) or "-"]
        table.add_row(*map(escape, cells))
    console = output_console(160)
    console.print(table)
    for graft, value in share.items():
        console.print(f"{graft}: {value:.1%} of {len(found)} names")


def _rows(what: str) -> list[dict[str, Any]]:
    if what == "grafts":
        return _grafts()
    if what == "hosts":
        from attngraft.grafting.catalog import list_hosts

        return [{"name": host.name, "what": host.summary, "package": host.package} for host in list_hosts()]
    if what == "recipes":
        from attngraft.training.recipe import packaged_recipes, recipe_summary

        return [{"name": name, "what": recipe_summary(name)} for name in packaged_recipes()]
    if what == "papers":
        from attngraft.papers.schema import list_papers, load_paper

        return [{"name": name, "what": load_paper(name).title} for name in list_papers()]
    if what == "tasks":
        from attngraft.tasks.task import known_tasks, package_of_task

        return [{"name": name, "package": package_of_task(name)} for name in known_tasks()]
    if what == "analyses":
        from attngraft.analysis.catalog import analyses

        return [
            {"name": each.name, "what": each.summary, "takes": each.requirements, "source": each.source or "-"}
            for each in analyses()
        ]
    from attngraft.evaluation.suites import suites

    return [
        {
            "name": suite.name,
            "what": suite.summary,
            "conditions": str(len(suite.conditions) or ""),
            "images": suite.download or "the run's validation part, or --data",
        }
        for suite in suites().values()
    ]


def _grafts() -> list[dict[str, Any]]:
    from attngraft.grafting.catalog import list_grafts, list_presets
    from attngraft.mechanisms.registry import GRAFT_SETS

    rows: list[dict[str, Any]] = [
        {
            "name": graft.name,
            "stage": list(graft.hook_points),
            "options": {name: f"{value}  [{graft.choices[name]}]" for name, value in graft.options.items()},
            "identity at start": "yes" if graft.identity else "no",
            "what": graft.summary,
            "source": graft.source,
            "package": graft.package,
        }
        for graft in list_grafts()
    ]
    empty: dict[str, Any] = {"stage": [], "options": {}, "identity at start": ""}
    for name, text in list_presets().items():
        what = {"what": f"short for {text}", "source": "preset", "package": "attngraft"}
        rows.append({"name": name, **empty, **what})
    for name, text in GRAFT_SETS.items():
        what = {"what": f"for compare: {text} (attngraft plan HOST {name})", "source": "set", "package": "attngraft"}
        rows.append({"name": name, **empty, **what})
    return rows
