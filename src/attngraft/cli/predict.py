"""`attngraft predict`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Literal, cast, get_args

import typer

from attngraft.cli.evaluate import Weights
from attngraft.cli.output import progress_bars
from attngraft.cli.values import find_images
from attngraft.errors import UsageError

_SHOWN = 20  #: most unreadable images named on the terminal


Format = Literal["csv", "json", "jsonl"]


def predict(
    model: Annotated[
        Path, typer.Argument(help="An exported folder, a run's folder, a .pt2 or an .onnx.", metavar="MODEL")
    ],
    images: Annotated[
        list[str],
        typer.Argument(help="Files, folders, patterns; - reads names from standard input.", metavar="IMAGES..."),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Output file. Default: standard output.", metavar="FILE")
    ] = None,
    form: Annotated[
        Format | None, typer.Option("--format", help="Default: by the output file's extension; csv on standard output.")
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            "--top", min=1, help="Number of classes per image. Default: 1; for several labels per image: all."
        ),
    ] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Batch size.")] = 32,
    checkpoint: Annotated[
        Weights, typer.Option("--checkpoint", help="Which weights to use, if MODEL is a run.")
    ] = "last",
    device: Annotated[
        str | None, typer.Option("--device", help="cpu, cuda, ... Default: the accelerator, if any.", metavar="NAME")
    ] = None,
) -> None:
    """Predict the classes of images, or their numbers (regression), preprocessed exactly as in the run's evaluation.

    Images that cannot be read are listed and do not stop the others; the exit code is then 1.

    Examples:

        attngraft predict flowers-model photos/ --out labels.csv

        attngraft predict flowers-model/model.onnx "holiday/**/*.jpg" --top 3 --format jsonl

        find . -name "*.png" | attngraft predict runs/flowers -
    """
    from attngraft.export.predict import WRITERS, open_model
    from attngraft.files import printable

    chosen = form or _format_of(out)
    files = find_images(images, stdin=sys.stdin.buffer if "-" in images else None)
    predictor = open_model(model, checkpoint=checkpoint, device=device)
    unreadable = []
    with _output(out) as file, progress_bars(described=False) as bar:
        progress = bar.add_task("images", total=len(files))
        writer = WRITERS[chosen](file, predictor.serving, top=top)
        writer.begin()
        for prediction in predictor(files, batch=batch):
            writer.add(prediction)
            if prediction.error is not None:
                unreadable.append(prediction)
            bar.advance(progress)
        writer.end()
    if not unreadable:
        return
    for prediction in unreadable[:_SHOWN]:
        typer.echo(f"attngraft: {printable(prediction.image)}: {prediction.error}", err=True)
    if len(unreadable) > _SHOWN:
        typer.echo(f"attngraft: and {len(unreadable) - _SHOWN} more, listed in the output", err=True)
    typer.echo(f"attngraft: {len(unreadable)} of {len(files)} images could not be read", err=True)
    raise typer.Exit(1)


def _format_of(out: Path | None) -> Format:
    if out is None:
        return "csv"
    extension = out.suffix.lower().removeprefix(".")
    if extension not in get_args(Format):
        raise UsageError(f"--out {out}: unknown extension; use .csv, .json or .jsonl, or add --format")
    return cast(Format, extension)


@contextmanager
def _output(out: Path | None) -> Iterator[IO[bytes]]:
    from attngraft.files import atomic_file

    if out is not None:
        with atomic_file(out) as file:
            yield file
        return
    sys.stdout.flush()
    yield sys.stdout.buffer
    sys.stdout.buffer.flush()
