"""`attngraft convert`: a training script's checkpoint as a file of safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from attngraft.models.convert import Converted
    from attngraft.models.weights import Fitted


def convert(
    checkpoint: Annotated[
        Path,
        typer.Argument(help="A .pth.tar, .pth, .pt, .bin or .safetensors, or a .zip around one.", metavar="CHECKPOINT"),
    ],
    out: Annotated[Path, typer.Argument(help="The file to write.", metavar="OUT.safetensors")],
    host: Annotated[
        str | None,
        typer.Option(
            "--host",
            help="The model that the weights are of. Default: as the checkpoint says, or what its name begins with.",
            metavar="MODEL",
        ),
    ] = None,
    host_arg: Annotated[
        list[str] | None,
        typer.Option("--host-arg", metavar="NAME=VALUE", help="With --host, for the host's factory; repeatable."),
    ] = None,
    ema: Annotated[
        bool | None,
        typer.Option(
            "--ema/--no-ema", help="The moving average, or the weights. Default: the average where there is one."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT.safetensors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Take the weights out of a checkpoint of a training script, check them, and write them as safetensors.

    The checkpoint may be a zip around `model_best.pth.tar`, hold a bare state dict, or keep one under state_dict, model,
    state_dict_ema or model_ema; names may begin with `module.` and `_orig_mod.`. Nothing in it is run: one that holds more
    than tensors, plain values and argparse.Namespace is refused. Where its model is known, names and shapes are checked, and
    the model's name is written into the file.

    Examples:

        attngraft convert bixt_ti_l64_p16.pth.tar bixt.safetensors

        attngraft convert model_best.pth.tar bixt.safetensors --host bixt_ti_l64_p16 --no-ema

        attngraft convert checkpoint.pth vit.safetensors --host vit_tiny_patch16_224 --host-arg img_size=32 --json
    """
    from attngraft.cli.values import assignments
    from attngraft.errors import UsageError
    from attngraft.models.convert import convert_checkpoint

    if host_arg and host is None:
        raise UsageError("--host-arg is for the model of --host; name it: --host MODEL --host-arg NAME=VALUE")
    arguments = assignments(host_arg or [], option="--host-arg")
    made = convert_checkpoint(checkpoint, out, host=host, host_args=arguments, average=ema, overwrite=overwrite)
    if as_json:
        _print_json(made)
    else:
        _show(made)


def _show(made: Converted) -> None:
    from attngraft.files import shown_size

    found = made.checkpoint
    lines = {
        "weights from": found.layout + (f", epoch {found.epoch}" if found.epoch is not None else ""),
        "model": made.architecture or "not known, so names and shapes were not checked (--host MODEL)",
        "tensors": f"{len(found.tensors)}, {made.numbers:,} numbers",
        "taken off names": ", ".join(found.stripped) or "nothing",
        "left out": ", ".join(found.left) or "nothing",
    }
    if made.fitted is not None:
        lines["checked"] = _checked(made.fitted)
    typer.echo(str(found.path))
    for name, value in lines.items():
        typer.echo(f"  {name:<16}{value}")
    typer.echo(f"{made.out}  {shown_size(made.size)}")
    if made.architecture is not None:
        typer.echo(f"use it: attngraft train --host {made.architecture} --weights {made.out} ...")


def _checked(fitted: Fitted) -> str:
    """What the weights are to their model."""
    said = ["names and shapes are the model's"]
    said += ["but for the head, which is for other classes"] if fitted.new else []
    said += [f"once made to fit: {', '.join(fitted.resized)}"] if fitted.resized else []
    return ", ".join(said)


def _print_json(made: Converted) -> None:
    import json

    found = made.checkpoint
    facts = {
        "checkpoint": str(found.path),
        "layout": found.layout,
        "epoch": found.epoch,
        "model": made.architecture,
        "tensors": len(found.tensors),
        "numbers": made.numbers,
        "taken_off": list(found.stripped),
        "left_out": list(found.left),
        "checked": made.fitted is not None,
        "new_head": list(made.fitted.new) if made.fitted else [],
        "out": str(made.out),
        "bytes": made.size,
    }
    typer.echo(json.dumps(facts, indent=2, ensure_ascii=False))
