"""`attngraft data check`: what training would find."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from attngraft.tasks.images.config import DataConfig
    from attngraft.tasks.images.inspection import Inspection
    from attngraft.tasks.images.scan import Progress


def check(
    source: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="A folder, .tar, .npz, .csv, .parquet, shards (x-{000..009}.tar), hf:PATH, timm:NAME, digits.",
        ),
    ],
    task: Annotated[
        Literal["classification", "multilabel"] | None,
        typer.Option("--task", help="What is to be learned. Default: what the labels are made for."),
    ] = None,
    val_fraction: Annotated[
        float | None,
        typer.Option("--val-fraction", metavar="SHARE", help="Draw this share of each class for validation."),
    ] = None,
    split_seed: Annotated[
        int | None, typer.Option("--split-seed", metavar="N", help="Of that draw. Default: 0.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="A field of task.data (label_column=kind); repeatable."),
    ] = None,
    save_split: Annotated[
        Path | None,
        typer.Option(
            "--save-split", metavar="FILE", help="Write the drawn split, for --set task.data.split_file=FILE."
        ),
    ] = None,
    contact_sheet: Annotated[
        Path | None, typer.Option("--contact-sheet", metavar="FILE.png", help="Draw some images of every class.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Look at a data set as training would: its parts, classes, sizes, images that cannot be read or are there twice.

    Ends with exit code 1 where training would be refused. What was seen of each image is remembered, so training does not
    look again.

    Examples:

        attngraft data check ./flowers

        attngraft data check ./flowers --contact-sheet flowers.png --val-fraction 0.25 --save-split flowers-split.csv

        attngraft data check labels.csv --set label_column=species --set max_corrupt=5

        attngraft data check "birds-{000..009}.tar" --json

        attngraft data check hf:./saved_dataset --task multilabel
    """
    import json

    from rich.console import Console

    from attngraft.errors import UsageError
    from attngraft.tasks.images.inspection import inspect_images

    if contact_sheet is not None and contact_sheet.suffix.lower() != ".png":
        raise UsageError(f"--contact-sheet {contact_sheet}: give a file that ends in .png")
    config = _config(source, val_fraction, split_seed, set_ or [])
    console = Console(stderr=True)
    with _Bar(console) as progress:
        found = inspect_images(config, task=task, progress=progress)
    if as_json:
        typer.echo(json.dumps(found.as_dict(), indent=2, ensure_ascii=False))
    else:
        _show(found, config)
    if save_split is not None:
        _save_split(found, config, save_split)
    if contact_sheet is not None:
        from attngraft.tasks.images.contact_sheet import save_contact_sheet

        typer.echo(f"Contact sheet: {save_contact_sheet(found, contact_sheet)}", err=True)
    if found.refusals:
        raise typer.Exit(1)


def _config(source: str, val_fraction: float | None, split_seed: int | None, texts: list[str]) -> DataConfig:
    from attngraft.cli.values import assignments
    from attngraft.strict import read
    from attngraft.tasks.images.config import DataConfig

    given = {"source": source, "val_fraction": val_fraction, "split_seed": split_seed}
    fields = assignments([text.removeprefix("task.data.") for text in texts], option="--set")
    found: DataConfig = read(
        DataConfig, {name: value for name, value in given.items() if value is not None} | fields, where="task.data"
    )
    return found


class _Bar:
    """A progress bar on a terminal, nothing elsewhere."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("Looking at images"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)

    def __enter__(self) -> Progress:
        self._bar.start()
        task = self._bar.add_task("", total=None)
        return lambda done, total: self._bar.update(task, completed=done, total=total)

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def _save_split(found: Inspection, config: DataConfig, path: Path) -> None:
    from attngraft.errors import UsageError
    from attngraft.tasks.images.sources.split_file import save_split

    survey = found.survey
    if survey.val is None:
        raise UsageError("--save-split: there is no validation part to save; see what was refused")
    if survey.divided is None:
        raise UsageError(
            "--save-split: these data have a validation part of their own; to draw one out of the training part instead, "
            "add --val-fraction 0.2"
        )
    save_split(path, *survey.divided)
    typer.echo(f"Split: {path} (--set task.data.split_file={path})", err=True)


_CLASSES = 30  #: that are listed


def _show(found: Inspection, config: DataConfig) -> None:
    import sys

    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    parts = found.survey.parts
    console.print(f"[bold]{escape(parts.where)}[/bold]: {parts.kind}, {len(parts.classes)} classes, for {found.task}")
    console.print(f"Split: {escape(parts.origin)}")
    table = Table("part", "images", "sizes: smallest, median, largest", "modes")
    for name, images in found.images().items():
        looks = found.looks(name)
        sizes = ", ".join(f"{w}x{h}" for w, h in looks["sizes"].values()) if looks["sizes"] else "not looked at"
        modes = ", ".join(f"{mode} {count}" for mode, count in looks["modes"].items()) or "not looked at"
        table.add_row(name, f"{len(images):,}", sizes, modes)
    console.print(table)
    _show_classes(console, found)
    problems = found.survey.found.unreadable
    if problems:
        console.print(f"[bold]{len(problems)} unreadable[/bold]")
        for part, name, reason in problems[:20]:
            console.print(f"  {part}: {escape(name)}: {escape(reason)}", soft_wrap=True)
        if len(problems) > 20:
            console.print(f"  and {len(problems) - 20} more (--json lists all)")
    for note in found.notes:
        console.print(f"Note: {escape(note)}", soft_wrap=True)
    for refusal in found.refusals:
        console.print(f"[bold]Training would be refused:[/bold] {escape(refusal)}", soft_wrap=True)
    if not found.refusals:
        console.print(f"Ready: {escape(_command(config, found.task))}", soft_wrap=True)


def _show_classes(console: Any, found: Inspection) -> None:
    from rich.markup import escape
    from rich.table import Table

    classes, counts = found.survey.parts.classes, found.counts()
    table = Table("class", *(f"{part} images" for part in counts))
    for label, name in enumerate(classes[:_CLASSES]):
        table.add_row(escape(name), *(f"{numbers[label]:,}" for numbers in counts.values()))
    if len(classes) > _CLASSES:
        span = (f"{min(numbers)} to {max(numbers)}" for numbers in counts.values())
        table.add_row(f"and {len(classes) - _CLASSES} more; of all", *span)
    console.print(table)


def _command(config: DataConfig, task: str) -> str:
    """How these data are compared on."""
    import json
    import shlex
    from dataclasses import fields

    words = ["attngraft", "compare", "--data", config.source]
    words += ["--recipe", "multilabel"] if task == "multilabel" else []
    for field in fields(config):
        value: Any = getattr(config, field.name)
        value = int(value) if isinstance(value, float) and value.is_integer() else value
        if field.name != "source" and value != field.default:
            words += ["--set", f"task.data.{field.name}={value if isinstance(value, str) else json.dumps(value)}"]
    return f"{shlex.join(words)} --host ... --graft ..."
