"""`attngraft predict`: predictions for images and texts, masks, and translations."""

import io
import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Literal, cast

import typer

from attngraft.cli.evaluate import Weights
from attngraft.cli.output import echo, progress_bars
from attngraft.cli.values import (
    ALLOW_DOWNLOAD,
    DEVICE,
    TRUST_CODE,
    check_text,
    find_files,
    find_images,
    find_lines,
    find_texts,
    limit_downloads,
)
from attngraft.errors import UsageError
from attngraft.suggest import visible

if TYPE_CHECKING:
    from attngraft.export.predict import Predictor

_EXTENSIONS = (".csv", ".json", ".jsonl")
_SHOWN = 20  #: maximum number of unreadable images named on the terminal


Format = Literal["csv", "json", "jsonl", "text"]


def predict(
    model: Annotated[
        Path, typer.Argument(help="An exported folder, a run's folder, a .pt2 or an .onnx.", metavar="MODEL")
    ],
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Images: files, folders, patterns; - reads names from standard input. Texts: tables (.csv, .tsv, "
            ".parquet), or files with one text per line; - reads texts. Translation: files with one sentence per line; "
            "default: standard input. Point clouds: files, folders, patterns; for parts, CATEGORY=FILE.",
            metavar="INPUTS...",
        ),
    ] = None,
    more: Annotated[
        list[str] | None, typer.Option("--input", help="The same as INPUTS; repeatable.", metavar="FILE")
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option("--text", help="A text, for a text model; repeatable.", metavar="TEXT"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "--output",
            "-o",
            help="Output file; for a segmentation model, a folder of masks and overlays. Default: standard output.",
            metavar="FILE",
        ),
    ] = None,
    form: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="Default: from the output file's extension; csv on standard output. Translation: text, one line per input.",
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            "--top", min=1, help="Number of classes per input. Default: 1; all if an input can have several labels."
        ),
    ] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, max=2**40, help="Batch size.")] = 32,
    checkpoint: Annotated[Weights, typer.Option("--checkpoint", help="Weights to use, if MODEL is a run.")] = "last",
    trust_code: Annotated[bool, typer.Option("--trust-code", help=TRUST_CODE)] = False,
    allow_download: Annotated[
        bool, typer.Option("--allow-download", help=ALLOW_DOWNLOAD, callback=limit_downloads)
    ] = False,
    device: Annotated[str | None, typer.Option("--device", help=DEVICE, metavar="NAME")] = None,
) -> None:
    """Predict classes, numbers, masks or parts from images, texts or point clouds, or translate, as in the run's evaluation.

    Unreadable images and sentences that are too long are listed and do not stop the command; the exit code is then 1.

    Translations are written while standard input is read, --batch lines at a time; blank lines stay blank.

    Examples:

        attngraft predict flowers-model photos/ --out labels.csv

        attngraft predict flowers-model/model.onnx "holiday/**/*.jpg" --top 3 --format jsonl

        find . -name "*.png" | attngraft predict runs/flowers -

        attngraft predict reviews-model new-reviews.csv --top 2 --out labels.csv

        attngraft predict reviews-model --text "A wonderful film."

        attngraft predict mt/runs/vertical/seed0 < sentences.en > sentences.de

        attngraft predict seg/runs/baseline/seed0 street.png --out masks

        attngraft predict points/runs/baseline/seed0 chair.off scans/ --top 3
    """
    from attngraft.export.predict import WRITERS, open_model
    from attngraft.files import check_output, printable

    given = [*(inputs or []), *(more or [])]
    nothing = "nothing to predict: give images, or for a text model a table or --text TEXT"
    for each in text or []:
        check_text(each, option="--text")
    if not given and not text and sys.stdin.isatty():
        raise UsageError(nothing)
    if out is None or not out.is_dir():
        check_output(out)
    predictor = open_model(model, checkpoint=checkpoint, device=device, trust_code=trust_code)
    serving, images = predictor.serving, predictor.codec is not None and predictor.codec.images
    if images and form is None and out is not None and out.suffix.lower() not in _EXTENSIONS:
        predictor.folder, out = out, None
    check_output(predictor.folder or out, folder=predictor.folder is not None)
    chosen = form or _format_of(out, lines=predictor.lines)
    if chosen == "text" and not predictor.lines:
        raise UsageError(f"--format text: {model} does not write text; use csv, json or jsonl")
    if not given and not text:
        if not predictor.lines:
            raise UsageError(nothing)
        given = ["-"]
    stdin = sys.stdin.buffer if "-" in given else None
    files: Iterable[str]
    if predictor.lines:
        files = itertools.chain(find_lines(given, stdin=stdin), text or [])
    elif predictor.codec is not None and predictor.codec.extensions:
        files = find_files(given, predictor.codec.extensions)
    elif serving.kind == "other" and not images:
        files = [*given, *(text or [])]
    elif serving.kind == "text":
        files = [*find_texts(given, column=serving.input["column"], stdin=stdin), *(text or [])]
    elif text:
        raise UsageError(f"--text: {model} takes images; give image files, folders or patterns")
    else:
        files = find_images(given, stdin=stdin)
    paths = images or (predictor.codec is not None and bool(predictor.codec.extensions))
    check_output(out, inputs=files if paths else given)
    if predictor.folder is not None and isinstance(files, list):
        _refuse_same_names(predictor, files)
    total = len(files) if isinstance(files, list) else None
    unreadable = []
    with io.BytesIO() if predictor.folder else _output(out) as file, progress_bars(described=False) as bar:
        noun = {"text": "texts", "other": "images" if images else "inputs"}.get(serving.kind, "images")
        progress = bar.add_task(noun, total=total)
        writer = WRITERS[chosen](file, serving, top=top)
        writer.begin()
        for number, prediction in enumerate(predictor(files, batch=batch), start=1):
            writer.add(prediction)
            if prediction.error is not None:
                name = f"line {number}" if predictor.lines else prediction.image
                unreadable.append((name, prediction.error))
            if predictor.lines:
                file.flush()
            bar.advance(progress)
        writer.end()
    if not unreadable:
        return
    for name, error in unreadable[:_SHOWN]:
        echo(f"attngraft: {error if error.startswith(f'{name}:') else f'{printable(name)}: {error}'}", err=True)
    if len(unreadable) > _SHOWN:
        echo(f"attngraft: and {len(unreadable) - _SHOWN} more, listed in the output", err=True)
    what = f"{noun} could not be read"
    if predictor.lines:
        what = "lines could not be translated; they are empty in the output"
    echo(f"attngraft: {len(unreadable)} of {number} {what}", err=True)
    raise typer.Exit(1)


def _format_of(out: Path | None, *, lines: bool) -> Format:
    """Return the format of the output; `lines`: whether outputs are lines of text."""
    if out is None:
        return "text" if lines else "csv"
    extension = out.suffix.lower().removeprefix(".")
    if out.suffix.lower() in _EXTENSIONS:
        return cast(Format, extension)
    if not lines:
        raise UsageError(f"--out {out}: unknown extension; use .csv, .json or .jsonl, or add --format")
    return "text"


def _refuse_same_names(predictor: "Predictor", files: Sequence[str]) -> None:
    """Check that the files of two images do not have the same name, and that no image would be replaced."""
    codec, folder = predictor.codec, predictor.folder
    sources = {os.path.realpath(file) for file in files}
    written: dict[str, str] = {}
    if codec is None or folder is None:
        return
    for file in files:
        for name in codec.files(file):
            path = os.path.realpath(folder / name)
            if path in sources:
                raise UsageError(f"--out {folder}: {name} would replace an image; use another folder")
            if written.setdefault(path, file) != file:
                raise UsageError(
                    f"--out {folder}: {written[path]} and {file} would both write {name}; predict them into two folders"
                )


@contextmanager
def _output(out: Path | None) -> Iterator[IO[bytes]]:
    from attngraft.files import atomic_file

    if out is not None:
        with atomic_file(out) as file:
            yield file
        return
    if sys.stdout.isatty():
        yield cast(IO[bytes], _Terminal())
        return
    sys.stdout.flush()
    yield sys.stdout.buffer
    sys.stdout.buffer.flush()


class _Terminal:
    """Binary output on the terminal, in which control characters of names and texts are visible."""

    def write(self, data: bytes) -> int:
        sys.stdout.write(visible(data.decode("utf-8", "replace")))
        return len(data)

    def flush(self) -> None:
        sys.stdout.flush()
