"""`attngraft predict`: a model on images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from attngraft.cli.evaluate import Weights

if TYPE_CHECKING:
    from attngraft.export.predict import Prediction, Predictor

_NAMED = 20  #: unreadable images that are named on the terminal


class Format(StrEnum):
    """How predictions are written."""

    csv = "csv"
    json = "json"
    jsonl = "jsonl"


def predict(
    model: Annotated[
        Path, typer.Argument(help="An exported folder, a run's folder, a .pt2 or an .onnx.", metavar="MODEL")
    ],
    images: Annotated[
        list[str],
        typer.Argument(help="Files, folders, patterns; - reads names from standard input.", metavar="IMAGES..."),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A file; standard output if left out.", metavar="FILE")
    ] = None,
    form: Annotated[
        Format | None, typer.Option("--format", help="By the file's ending if left out; csv on standard output.")
    ] = None,
    top: Annotated[
        int | None,
        typer.Option("--top", min=1, help="How many classes to name; 1, or all where images have several labels."),
    ] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Images at a time.")] = 32,
    checkpoint: Annotated[Weights, typer.Option("--checkpoint", help="Of a run: which weights.")] = Weights.last,
    device: Annotated[
        str | None, typer.Option("--device", help="cpu, cuda, ...; the accelerator, if there is one.", metavar="NAME")
    ] = None,
) -> None:
    """Say which classes images are of. They are prepared exactly as in the run's evaluation.

    Images that cannot be read are named, and do not stop the others; the exit code is then 1.

    Examples:

        attngraft predict flowers-model photos/ --out labels.csv

        attngraft predict flowers-model/model.onnx "holiday/**/*.jpg" --top 3 --format jsonl

        find . -name "*.png" | attngraft predict runs/flowers -
    """
    import sys

    from attngraft.export.images import find_images
    from attngraft.export.predict import open_model

    chosen = form or _format_of(out)
    found = find_images(images, stdin=sys.stdin.buffer if "-" in images else None)
    predictor = open_model(model, checkpoint=checkpoint.value, device=device)
    unreadable = _write(predictor, found, out=out, form=chosen, top=top, batch=batch)
    if not unreadable:
        return
    for prediction in unreadable[:_NAMED]:
        typer.echo(f"attngraft: {_shown(prediction.image)}: {prediction.error}", err=True)
    if len(unreadable) > _NAMED:
        typer.echo(f"attngraft: and {len(unreadable) - _NAMED} more, which the output names", err=True)
    typer.echo(f"attngraft: {len(unreadable)} of {len(found)} images could not be read", err=True)
    raise typer.Exit(1)


def _format_of(out: Path | None) -> Format:
    """Told by the file's ending."""
    from attngraft.errors import UsageError

    if out is None:
        return Format.csv
    ending = out.suffix.lower().removeprefix(".")
    if ending not in list(Format):
        raise UsageError(f"--out {out}: name a .csv, .json or .jsonl, or say --format")
    return Format(ending)


def _write(
    predictor: Predictor, images: list[str], *, out: Path | None, form: Format, top: int | None, batch: int
) -> list[Prediction]:
    """Write all predictions; those that are none are returned."""
    from attngraft.export.answers import FORMATS

    unreadable = []
    with _target(out) as file:
        answers = FORMATS[form.value](file, predictor.serving, top=top)
        answers.begin()
        for prediction in _with_bar(predictor(images, batch=batch), total=len(images)):
            answers.add(prediction)
            if prediction.error is not None:
                unreadable.append(prediction)
        answers.end()
    return unreadable


@contextmanager
def _target(out: Path | None) -> Iterator[IO[bytes]]:
    import sys

    from attngraft.files import atomic_file

    if out is not None:
        with atomic_file(out) as file:
            yield file
        return
    sys.stdout.flush()
    yield sys.stdout.buffer
    sys.stdout.buffer.flush()


def _with_bar(predictions: Iterable[Prediction], *, total: int) -> Iterator[Prediction]:
    """The same, with a bar on a terminal's standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("images", total=total)
        for prediction in predictions:
            yield prediction
            progress.advance(task)


def _shown(name: str) -> str:
    """`name` as a terminal can show it."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
