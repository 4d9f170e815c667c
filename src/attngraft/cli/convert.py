"""`attngraft convert`: a training script's checkpoint to safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attngraft.cli.output import echo, print_json
from attngraft.cli.values import assignments
from attngraft.errors import UsageError

if TYPE_CHECKING:
    from attngraft.models.convert import Converted


def convert(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            help="Checkpoint: a .pth.tar, .pth, .pt, .bin, .safetensors, or a .zip with one of these.",
            metavar="CHECKPOINT",
        ),
    ],
    out: Annotated[Path, typer.Argument(help="Output file.", metavar="OUT.safetensors")],
    host: Annotated[
        str | None,
        typer.Option(
            "--host",
            help="Name of the model. Default: from the checkpoint, else its file name up to the first dot.",
            metavar="MODEL",
        ),
    ] = None,
    host_arg: Annotated[
        list[str] | None,
        typer.Option(
            "--host-arg", metavar="NAME=VALUE", help="With --host: argument of the host's factory; repeatable."
        ),
    ] = None,
    ema: Annotated[
        bool | None,
        typer.Option(
            "--ema/--no-ema",
            help="Use the moving average of the weights, or the weights themselves. Default: the average, if any.",
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT.safetensors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Extract the weights from a training script's checkpoint, check them, and write them as safetensors.

    The checkpoint may be a state dict, a dictionary with a state dict under state_dict, model, state_dict_ema or model_ema,
    or a zip with such a file (`model_best.pth.tar` if there are several). Parameter names may start with `module.` and
    `_orig_mod.`. No code in the checkpoint is run: anything but tensors, plain values and argparse.Namespace is rejected. If
    the model is known, names and shapes are checked, and the model's name is written into the file.

    Examples:

        attngraft convert bixt_ti_l64_p16.pth.tar bixt.safetensors

        attngraft convert model_best.pth.tar bixt.safetensors --host bixt_ti_l64_p16 --no-ema

        attngraft convert checkpoint.pth vit.safetensors --host vit_tiny_patch16_224 --host-arg img_size=32 --json
    """
    from attngraft.models.convert import convert_checkpoint

    if host_arg and host is None:
        raise UsageError("--host-arg requires --host; use --host MODEL --host-arg NAME=VALUE")
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
        "model": made.architecture or "unknown, so names and shapes were not checked (--host MODEL)",
        "tensors": f"{len(found.tensors)}, {made.numbers:,} values",
        "removed prefixes": ", ".join(found.stripped) or "nothing",
        "ignored": ", ".join(found.left) or "nothing",
    }
    if made.fitted is not None:
        checks = ["names and shapes match the model"]
        checks += ["except those of the head, which has other classes or is incomplete"] if made.fitted.new else []
        checks += [f"after resizing {', '.join(made.fitted.resized)}"] if made.fitted.resized else []
        lines["checked"] = ", ".join(checks)
    echo(str(found.path))
    for name, value in lines.items():
        echo(f"  {name:<18}{value}")
    echo(f"{made.out}  {shown_size(made.size)}")
    if made.architecture is not None:
        echo(f"use it: attngraft train --host {made.architecture} --weights {made.out} ...")


def _print_json(made: Converted) -> None:
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
    print_json(facts)
