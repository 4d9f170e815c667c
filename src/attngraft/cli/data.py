"""`attngraft data check`: checks of a data set before training."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from attngraft.cli.output import counts_displayed, echo, output_console, print_json
from attngraft.cli.proposal import compare_command, default_recipe
from attngraft.cli.values import assignments
from attngraft.errors import ConfigError, DataError, UsageError

if TYPE_CHECKING:
    from attngraft.tasks.images.config import DataConfig
    from attngraft.tasks.images.inspection import Inspection
    from attngraft.tasks.text.config import TextDataConfig
    from attngraft.tasks.text.source import TextSource
    from attngraft.tasks.translation.config import TranslationConfig
    from attngraft.tasks.translation.source import PairSource
    from attngraft.training.recipe import Recipe

_CLASSES = 30  #: most classes listed
_UNREADABLE = 20  #: maximum number of unreadable images to list


def check(
    source: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="A folder, .tar, .npz, .csv, .jsonl, .parquet, shards (x-{000..009}.tar), hf:PATH, timm:NAME, digits.",
        ),
    ],
    task: Annotated[
        str | None,
        typer.Option("--task", metavar="NAME", help="The task to train. Default: the one that fits the labels."),
    ] = None,
    val_fraction: Annotated[
        float | None,
        typer.Option("--val-fraction", metavar="SHARE", help="Use a random share of each class for validation."),
    ] = None,
    split_seed: Annotated[
        int | None, typer.Option("--split-seed", metavar="N", help="Seed of the random split. Default: 0.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="Set a field of task.data (label_column=kind) or of the task (task.source=en); repeatable.",
        ),
    ] = None,
    save_split: Annotated[
        Path | None,
        typer.Option(
            "--save-split", metavar="FILE", help="Save the random split, for --set task.data.split_file=FILE."
        ),
    ] = None,
    contact_sheet: Annotated[
        Path | None,
        typer.Option("--contact-sheet", metavar="FILE.png", help="Save a picture with images of every class."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Check a data set as training would: splits, classes, image sizes, unreadable images and duplicates.

    Without --task, the task follows from the data, as in `attngraft compare`. The exit code is 2 if training would
    reject the data. Results are cached, so training does not scan the images again.

    Examples:

        attngraft data check ./flowers

        attngraft data check ./flowers --contact-sheet flowers.png --val-fraction 0.25 --save-split flowers-split.csv

        attngraft data check labels.csv --set label_column=species --set max_corrupt=5

        attngraft data check "birds-{000..009}.tar" --json

        attngraft data check hf:./saved_dataset --task multilabel

        attngraft data check ages.csv --task regression --set label_column=age

        attngraft data check reviews.csv --task text_classification

        attngraft data check ./multi30k --set task.source=en --set task.target=de

        attngraft data check ./camvid --contact-sheet masks.png

        attngraft data check ./nuclei --task detection --contact-sheet objects.png

        attngraft data check ./flickr8k --set task.features=features.h5 --contact-sheet captions.png

        attngraft data check ./modelnet40 --set task.points=1024 --contact-sheet clouds.png
    """
    from attngraft.files import check_output
    from attngraft.strict import read
    from attngraft.tasks.capabilities import require
    from attngraft.tasks.fitting import fitting_task
    from attngraft.tasks.images.inspection import inspect_images
    from attngraft.tasks.images.opening import data_config, survey_known
    from attngraft.tasks.task import load_task

    if task is not None:
        require(load_task(task), "data_check")
    if contact_sheet is not None and contact_sheet.suffix.lower() != ".png":
        raise UsageError(f"--contact-sheet {contact_sheet}: give a file that ends in .png")
    for output in (save_split, contact_sheet):
        check_output(output, inputs=[source])
        if output is not None and output.exists() and output.resolve().is_relative_to(os.path.realpath(source)):
            raise UsageError(f"{output}: is a file of the data, which would be replaced; choose another path")
    if save_split is not None and save_split.suffix.lower() != ".csv":  # an image of the data could be replaced
        raise UsageError(f"--save-split {save_split}: give a file that ends in .csv")
    given = {"source": source, "val_fraction": val_fraction, "split_seed": split_seed}
    settings = {name: value for name, value in given.items() if value is not None}
    texts = [text.removeprefix("task.data.") for text in set_ or []]
    others = [text.removeprefix("task.") for text in texts if text.startswith("task.")]
    settings |= assignments([text for text in texts if not text.startswith("task.")], option="--set")
    found = fitting_task(settings)[0]
    if task is None and found in (
        "text_classification",
        "regression",
        "translation",
        "segmentation",
        "detection",
        "captioning",
        "points",
        "point_parts",
    ):
        task = found  # of other labels, the images themselves show the task
    if task in ("points", "point_parts"):
        from attngraft.cli.data_points import check_points

        check_points(task, settings, others, save_split, contact_sheet, as_json=as_json)
        return
    if task == "captioning":
        from attngraft.cli.data_captions import check_captions

        check_captions(settings, others, save_split, contact_sheet, as_json=as_json)
        return
    if others and task != "translation":
        raise UsageError(f"--set task.{others[0]}: only fields of task.data can be set for these data")
    if task == "segmentation":
        from attngraft.cli.data_masks import check_masks

        check_masks(settings, save_split, contact_sheet, as_json=as_json)
        return
    if task == "detection":
        from attngraft.cli.data_objects import check_objects

        check_objects(settings, save_split, contact_sheet, as_json=as_json)
        return
    if task in ("text_classification", "translation"):
        if contact_sheet is not None:
            raise UsageError("--contact-sheet: only for image data; remove it")
        _check_texts(task, settings, assignments(others, option="--set"), save_split, as_json=as_json)
        return
    config: DataConfig = read(data_config(task), settings, where="task.data")
    with counts_displayed():
        result = inspect_images(config, task=task)
        if not result.refusals:
            with survey_known(config, result.survey):
                result = _loaded(result, settings)
    if as_json:
        print_json(result.as_dict())
    else:
        _show(result, config)
    if save_split is not None:
        _save_split(result, save_split)
    if contact_sheet is not None:
        from attngraft.tasks.images.inspection import save_contact_sheet

        echo(f"Contact sheet: {save_contact_sheet(result, contact_sheet)}", err=True)
    if result.refusals:
        raise typer.Exit(DataError.exit_code)


def _loaded(result: Inspection, settings: dict[str, Any]) -> Inspection:
    """Load the data as training with the task's default recipe would, and return the result with what that finds."""
    from attngraft.training.build import build_task, model_data_config

    recipe = default_recipe(result.task, settings)
    logging.disable(logging.WARNING)  # of notes that the result has already
    try:
        data = build_task(recipe).load(model_data_config=model_data_config(recipe))
    except (ConfigError, DataError) as error:
        return replace(result, refusals=[str(error)])
    finally:
        logging.disable(logging.NOTSET)
    return replace(result, notes=[*result.notes, *_batch_note(recipe, len(data.train), "images")])


def _batch_note(recipe: Recipe, examples: int, noun: str) -> list[str]:
    size = recipe.train.batch_size
    return [f"Batches of {size} are cut to the {examples} training {noun}."] if size > examples else []


def _check_texts(
    task: str, settings: dict[str, Any], section: dict[str, Any], split: Path | None, *, as_json: bool
) -> None:
    """Check the data of a task of texts; `section` has the fields of the task besides `data`."""
    from attngraft.strict import read
    from attngraft.tasks.images.sources.splitting import save_split
    from attngraft.tasks.text.config import TextDataConfig
    from attngraft.tasks.text.source import open_texts
    from attngraft.tasks.translation.config import TranslationConfig
    from attngraft.tasks.translation.source import open_pairs

    noun = "pairs" if task == "translation" else "texts"
    config: TextDataConfig | TranslationConfig
    source: TextSource | PairSource
    if task == "translation":
        config = read(TranslationConfig, {**section, "data": settings}, where="task")
    else:
        config = read(TextDataConfig, settings, where="task.data")
    try:
        source = open_pairs(config) if isinstance(config, TranslationConfig) else open_texts(config)
    except DataError as error:
        if as_json:
            print_json({"task": task, "refusals": [str(error)]})
        else:
            _show_outcome((), [str(error)], config, task)
        raise typer.Exit(DataError.exit_code) from None
    if split is not None:
        save_split(split, {"train": source.train, "val": source.val})
        echo(f"Split: {split} (--set task.data.split_file={split})", err=True)
    refusals, notes = [source.refusal] if source.refusal else [], list(source.notes)
    if noun == "texts":
        notes += _batch_note(default_recipe(task, settings), len(source.train), noun)
    sizes = {name: len(texts) for name, texts in source.parts().items()}
    title, details, table = _described(source)
    if as_json:
        shared = {"task": task, "where": source.where, "split": source.origin, "sizes": sizes}
        print_json({**shared, **details, "notes": notes, "refusals": refusals})
    else:
        console = output_console()
        console.print(f"[bold]{escape(source.where)}[/bold]: {escape(title)}")
        numbers = ", ".join(f"{size:,} {part} {noun}" for part, size in sizes.items())
        console.print(f"Split: {escape(source.origin)}; {numbers}")
        console.print(table)
        _show_outcome(notes, refusals, config, task)
    if refusals:
        raise typer.Exit(DataError.exit_code)


def _described(source: TextSource | PairSource) -> tuple[str, dict[str, Any], Table]:
    """Return a title, JSON-ready details, and a table: texts of each class, or numbers of words in sentences."""
    from attngraft.tasks.translation.source import PairSource

    if not isinstance(source, PairSource):
        counts = source.counts()
        table = _class_table(source.classes, {part: list(by.values()) for part, by in counts.items()}, "texts")
        title = f"texts in column {source.column!r}, {len(source.classes)} classes"
        return title, {"column": source.column, "classes": list(source.classes), "counts": counts}, table
    words = source.words()
    table = Table("words", *(f"{part}: median, longest" for part in source.parts()))
    for side, name in zip(("source", "target"), source.columns, strict=True):
        table.add_row(escape(name), *(f"{by[side]['median']}, {by[side]['longest']}" for by in words.values()))
    return (
        f"sentences in {source.columns[0]} and {source.columns[1]}",
        {"columns": source.columns, "words": words},
        table,
    )


def _save_split(result: Inspection, path: Path) -> None:
    from attngraft.tasks.images.sources.splitting import save_split

    survey = result.survey
    if survey.val is None:
        raise UsageError(
            "--save-split: there is no validation split to save; see above why training would reject the data"
        )
    if survey.split is None:
        raise UsageError(
            "--save-split: these data already have a validation split; to use a random share of the training split "
            "instead, add --val-fraction 0.2"
        )
    save_split(path, survey.split)
    echo(f"Split: {path} (--set task.data.split_file={path})", err=True)


def _show(result: Inspection, config: DataConfig) -> None:
    console = output_console()
    source, counts = result.survey.source, result.counts()
    labels = f"numbers: {', '.join(source.classes)}" if source.numeric else f"{len(source.classes)} classes"
    console.print(f"[bold]{escape(source.where)}[/bold]: {source.kind}, {escape(labels)}, for {result.task}")
    console.print(f"Split: {escape(source.origin)}")
    table = Table("split", "images", "sizes: smallest, median, largest", "modes")
    for name, images in result.images().items():
        scanned = result.sizes_and_modes(name)
        sizes = ", ".join(f"{w}x{h}" for w, h in scanned["sizes"].values()) if scanned["sizes"] else "not scanned"
        modes = ", ".join(f"{mode} {count}" for mode, count in scanned["modes"].items()) or "not scanned"
        table.add_row(name, f"{len(images):,}", sizes, modes)
    console.print(table)
    if source.numeric:
        ranges = result.ranges()
        table = Table("number", *(f"{name}: lowest, mean, highest" for name in ranges))
        for index, name in enumerate(source.classes):
            table.add_row(escape(name), *(", ".join(f"{v:.4g}" for v in values[index]) for values in ranges.values()))
    else:
        table = _class_table(source.classes, counts, "images")
    console.print(table)
    unreadable = result.survey.issues.unreadable
    if unreadable:
        console.print(f"[bold]{len(unreadable)} unreadable[/bold]")
        for name, image, reason in unreadable[:_UNREADABLE]:
            console.print(f"  {name}: {escape(image)}: {escape(reason)}", soft_wrap=True)
        if len(unreadable) > _UNREADABLE:
            console.print(f"  and {len(unreadable) - _UNREADABLE} more (--json lists all)")
    _show_outcome(result.notes, result.refusals, config, result.task)


def _show_outcome(
    notes: Sequence[str], refusals: Sequence[str], config: DataConfig | TextDataConfig | TranslationConfig, task: str
) -> None:
    console = output_console()
    for note in notes:
        console.print(f"Note: {escape(note)}", soft_wrap=True)
    for refusal in refusals:
        console.print(f"[bold]Training would be refused:[/bold] {escape(refusal)}", soft_wrap=True)
    if not refusals:
        console.print(f"Ready: {escape(compare_command(config, task))}", soft_wrap=True)


def _class_table(classes: Sequence[str], counts: Mapping[str, Sequence[int]], noun: str) -> Table:
    """Return a table of the number of images or texts per class and split."""

    table = Table("class", *(f"{name} {noun}" for name in counts))
    for label, name in enumerate(classes[:_CLASSES]):
        table.add_row(escape(name), *(f"{numbers[label]:,}" for numbers in counts.values()))
    if len(classes) > _CLASSES:
        span = (f"{min(numbers)} to {max(numbers)}" for numbers in counts.values())
        table.add_row(f"and {len(classes) - _CLASSES} more; range of all", *span)
    return table
