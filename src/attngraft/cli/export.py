"""`attngraft export`: a trained model as a folder for others."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attngraft.cli.evaluate import Weights

if TYPE_CHECKING:
    from attngraft.export.run import Exported


class Target(StrEnum):
    """What the folder is for."""

    torch = "torch"
    pt2 = "pt2"
    onnx = "onnx"
    hf = "hf"


class DType(StrEnum):
    """How numbers are kept."""

    fp32 = "fp32"
    bf16 = "bf16"
    int8 = "int8"


_NAMES = {DType.fp32: "float32", DType.bf16: "bfloat16", DType.int8: "int8"}


def export(
    run: Annotated[Path, typer.Argument(help="A run's folder.", metavar="RUN_DIR")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to make.", metavar="DIR")],
    to: Annotated[
        list[Target] | None,
        typer.Option(
            "--to",
            help="torch: weights that attngraft.load reads, always there; pt2: a torch.export program besides; onnx: an "
            "ONNX file besides; hf: besides, what timm and the Hugging Face Hub read. Repeatable.",
        ),
    ] = None,
    checkpoint: Annotated[Weights, typer.Option("--checkpoint", help="Which weights of the run.")] = Weights.last,
    fold: Annotated[
        bool,
        typer.Option(
            "--fold", help="Move grafts and batch norms into linear layers, where exact; to use, not to train."
        ),
    ] = False,
    dtype: Annotated[
        DType, typer.Option("--dtype", help="bf16: half the size, not for ONNX; int8: a second ONNX file, quantized.")
    ] = DType.fp32,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a model that was exported to DIR.")] = False,
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Take a run that is not finished.")] = False,
    push: Annotated[
        str | None,
        typer.Option("--push", help="Upload DIR to this repository of the Hugging Face Hub.", metavar="USER/NAME"),
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="With --push: a repository made now is private.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make a folder of a trained model that can be taken away, and check that it is still the same model.

    The folder holds the weights, what is needed to use them, and a model card with the numbers of the study, if the run
    is part of one. `attngraft.load(DIR)` and `attngraft predict DIR` use it.

    Examples:

        attngraft export runs/flowers --out flowers-model

        attngraft export study/runs/cb_s/seed0 --out model --to onnx --fold

        attngraft export runs/flowers --out flowers-model --to hf --push jane/flowers-vit
    """
    from attngraft.export.hub import check_name, push_to_hub
    from attngraft.export.run import export_run

    if push is not None:
        check_name(push)
    made = export_run(
        run,
        out,
        to=[target.value for target in to or [Target.torch]],
        checkpoint=checkpoint.value,
        fold=fold,
        dtype=_NAMES[dtype],  # type: ignore[arg-type]
        overwrite=overwrite,
        unfinished=unfinished,
    )
    if not as_json:
        _show(made)
    address = push_to_hub(out, push, private=private or None) if push is not None else None
    if as_json:
        _print_json(made, address)
    elif address is not None:
        typer.echo(f"uploaded to {address}")


def _show(made: Exported) -> None:
    from rich.console import Console
    from rich.table import Table

    from attngraft.export.fold import summary
    from attngraft.files import shown_size
    from attngraft.results import wording

    console = Console(highlight=False)
    for path in sorted(path for path in made.folder.rglob("*") if path.is_file()):
        typer.echo(f"{path}  {shown_size(path.stat().st_size)}")
    checks = Table(title="compared with the trained model (differences relative to the largest output)")
    for column in ("what", "batches", "difference", "allowed"):
        checks.add_column(column, justify="left" if column == "what" else "right")
    for check in made.manifest.checks:
        batches = ", ".join(map(str, check.batches))
        checks.add_row(check.file, batches, f"{check.difference:.2g}", f"{check.tolerance:.2g}")
    console.print(checks)
    for line in summary(made.manifest.folds):
        typer.echo(f"{line.what} ({wording.shorten(', '.join(line.modules), 60)}): {line.happened}")
    if made.plain_difference is not None and made.manifest.grafted:
        typer.echo(
            "timm alone loads the host without its grafts, which is another model: on random images its outputs differ by "
            f"up to {made.plain_difference:.2g}"
        )
    typer.echo(f'use it: attngraft predict {made.folder} IMAGES...   or in Python: attngraft.load("{made.folder}")')


def _print_json(made: Exported, address: str | None) -> None:
    import dataclasses
    import json

    facts = {
        "folder": str(made.folder),
        "checks": [dataclasses.asdict(check) for check in made.manifest.checks],
        "folds": [dataclasses.asdict(entry) for entry in made.manifest.folds],
        "plain_timm_difference": made.plain_difference,
        "uploaded_to": address,
    }
    typer.echo(json.dumps(facts, indent=2, ensure_ascii=False))
