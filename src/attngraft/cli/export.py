"""`attngraft export`: a trained model in a folder, for use without the run."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table

from attngraft.cli.evaluate import Weights
from attngraft.cli.output import TerminalConsole, echo, print_json
from attngraft.cli.values import ALLOW_DOWNLOAD, TRUST_CODE, limit_downloads

if TYPE_CHECKING:
    from attngraft.export.run import Exported


class Target(StrEnum):
    """Export formats, as an enum because typer does not support lists of literals."""

    torch = "torch"
    pt2 = "pt2"
    onnx = "onnx"
    hf = "hf"


_DTYPES: dict[str, Literal["float32", "bfloat16", "int8"]] = {"fp32": "float32", "bf16": "bfloat16", "int8": "int8"}


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run.", metavar="RUN_DIR")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to create.", metavar="DIR")],
    to: Annotated[
        list[Target] | None,
        typer.Option(
            "--to",
            help="torch: weights for attngraft.load, always written; pt2: also a torch.export program; onnx: also an ONNX "
            "file; hf: also a config.json for timm and the Hugging Face Hub. Repeatable.",
        ),
    ] = None,
    checkpoint: Annotated[Weights, typer.Option("--checkpoint", help="Weights of the run to export.")] = "last",
    fold: Annotated[
        bool,
        typer.Option(
            "--fold", help="Fold grafts and batch norms into linear layers where that is exact; for inference only."
        ),
    ] = False,
    dtype: Annotated[
        Literal["fp32", "bf16", "int8"],
        typer.Option("--dtype", help="bf16: half the size, not for ONNX; int8: a second, quantized ONNX file."),
    ] = "fp32",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an exported model in DIR.")] = False,
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Accept a run that is not finished.")] = False,
    push: Annotated[
        str | None,
        typer.Option("--push", help="Upload DIR to this repository of the Hugging Face Hub.", metavar="USER/NAME"),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="With --push: make the repository private if it is new.")
    ] = False,
    trust_code: Annotated[bool, typer.Option("--trust-code", help=TRUST_CODE)] = False,
    allow_download: Annotated[
        bool, typer.Option("--allow-download", help=ALLOW_DOWNLOAD, callback=limit_downloads)
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Export a trained model to a folder, and check that its outputs match.

    The folder contains the weights, everything needed to use them, and a model card with the study's numbers if the run is
    part of a study. `attngraft.load(DIR)` and `attngraft predict DIR` read it.

    Examples:

        attngraft export runs/flowers --out flowers-model

        attngraft export study/runs/cb_s/seed0 --out model --to onnx --fold

        attngraft export runs/flowers --out flowers-model --to hf --push jane/flowers-vit
    """
    from attngraft.export.hub import check_name, push_to_hub
    from attngraft.export.run import export_run

    if push is not None:
        check_name(push)
    exported = export_run(
        run,
        out,
        to=[target.value for target in to or [Target.torch]],
        checkpoint=checkpoint,
        fold=fold,
        dtype=_DTYPES[dtype],
        overwrite=overwrite,
        unfinished=unfinished,
        trust_code=trust_code,
    )
    if not as_json:
        _show(exported)
    url = push_to_hub(out, push, private=private or None) if push is not None else None
    if as_json:
        result = {
            "folder": str(exported.folder),
            "checks": [dataclasses.asdict(check) for check in exported.manifest.checks],
            "folds": [dataclasses.asdict(entry) for entry in exported.manifest.folds],
            "plain_timm_difference": exported.plain_difference,
            "uploaded_to": url,
        }
        print_json(result)
    elif url is not None:
        echo(f"uploaded to {url}")


def _show(exported: Exported) -> None:
    from attngraft.export.fold import summary
    from attngraft.files import shown_size
    from attngraft.results import wording

    console = TerminalConsole(highlight=False)
    for path in sorted(path for path in exported.folder.rglob("*") if path.is_file()):
        echo(f"{path}  {shown_size(path.stat().st_size)}")
    checks = Table(title="compared with the trained model (differences relative to the largest output)")
    for column in ("file or step", "batches", "difference", "allowed"):
        checks.add_column(column, justify="left" if column == "file or step" else "right")
    for check in exported.manifest.checks:
        batches = ", ".join(map(str, check.batches))
        checks.add_row(check.file, batches, f"{check.difference:.2g}", f"{check.tolerance:.2g}")
    console.print(checks)
    for line in summary(exported.manifest.folds):
        echo(f"{line.graft} ({wording.shorten(', '.join(line.modules), 60)}): {line.outcome}")
    if exported.plain_difference is not None and exported.manifest.grafted:
        echo(
            "plain timm loads the host without its grafts, which is a different model: on random images its outputs differ "
            f"by up to {exported.plain_difference:.2g}"
        )
    inputs = {"images": "IMAGES...", "text": "TEXTS..."}.get(exported.manifest.serving.kind, "INPUTS...")
    echo(f'use it: attngraft predict {exported.folder} {inputs}   or in Python: attngraft.load("{exported.folder}")')
