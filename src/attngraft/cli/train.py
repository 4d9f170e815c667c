"""`attngraft train`: one run."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attngraft.cli.output import echo, is_first_process, print_json, progress_display
from attngraft.cli.values import (
    ALLOW_DOWNLOAD,
    AUTO_BATCH,
    CACHE,
    DEVICE,
    HOST,
    HOST_ARG,
    PRETRAINED,
    START,
    TASK,
    TRACK,
    TRUST_CODE,
    choose_recipe,
    limit_downloads_of_file,
    refuse_untyped_hosts,
)
from attngraft.errors import UsageError

if TYPE_CHECKING:
    from attngraft.training.run_folder import RunRecord


def train(
    out: Annotated[Path, typer.Option("--out", "-o", help="The run's folder.", metavar="DIR")],
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe", help="A packaged recipe's name, or a YAML file. Default: default.", metavar="NAME|FILE"
        ),
    ] = None,
    task: Annotated[str | None, typer.Option("--task", metavar="NAME", help=TASK)] = None,
    host: Annotated[str | None, typer.Option("--host", help=HOST, metavar="NAME")] = None,
    host_arg: Annotated[list[str] | None, typer.Option("--host-arg", metavar="NAME=VALUE", help=HOST_ARG)] = None,
    pretrained: Annotated[bool, typer.Option("--pretrained", help=PRETRAINED)] = False,
    weights: Annotated[str | None, typer.Option("--weights", metavar="FILE", help=START)] = None,
    graft: Annotated[
        str | None, typer.Option("--graft", help="A graft specification; none: the plain host.", metavar="SPEC")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", help="A folder, .tar, .npz, .csv, hf:PATH, timm:NAME, digits, ...", metavar="DATA"),
    ] = None,
    parameters: Annotated[
        str | None,
        typer.Option("--train", help="Parameters to train: all, grafts, grafts+head, or head.", metavar="WHAT"),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Change a field of the recipe; repeatable.")
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            "--epochs", min=1, help="Train for N epochs; if the recipe's warm-up does not fit, it is shortened."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Same as --set seed=N.")] = None,
    save_every: Annotated[
        int | None,
        typer.Option("--save-every", min=1, help="Save a checkpoint every N updates, in addition to every epoch."),
    ] = None,
    cache: Annotated[str, typer.Option("--cache", metavar="auto|off|SIZE", help=CACHE, show_default=False)] = "auto",
    auto_batch: Annotated[bool, typer.Option("--auto-batch", help=AUTO_BATCH)] = False,
    track: Annotated[list[str] | None, typer.Option("--track", metavar="NAME", help=TRACK)] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume/--no-resume", help="Resume the run in DIR, if any; --no-resume: fail if there is one."),
    ] = True,
    device: Annotated[str | None, typer.Option("--device", metavar="NAME", help=DEVICE)] = None,
    trust_code: Annotated[bool, typer.Option("--trust-code", help=TRUST_CODE)] = False,
    allow_download: Annotated[
        bool, typer.Option("--allow-download", help=ALLOW_DOWNLOAD, callback=limit_downloads_of_file)
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the run's metrics as JSON.")] = False,
) -> None:
    """Train one model, or resume a run that was stopped.

    DIR receives the recipe, environment, metrics, TensorBoard events, checkpoints, and predictions. Ctrl-C saves the
    run; rerun the same command to resume it. A run uses one device; to use several, start the command with
    `accelerate launch -m attngraft train ...` or `torchrun -m attngraft train ...`.

    Examples:

        attngraft train --data digits --recipe digits --out runs/digits

        attngraft train --host vit_tiny_patch16_224 --graft "cb_s@blocks.6-11" --data ./flowers --epochs 30 --out runs/cb_s

        attngraft train --host vit_small_patch16_224 --host-arg img_size=64 --host-arg patch_size=8 --data ./birds
        --set optimizer.lr=5e-4 --set task.augment.mixup=0.2 --out runs/birds

        attngraft train --recipe finetune --host vit_small_patch16_224 --pretrained --data ./birds --out runs/tuned

        attngraft train --recipe graft-only --host vit_small_patch16_224 --weights vit_small.safetensors --graft cb_s
        --data ./birds --out runs/grafts

        attngraft train --host levit_128s --data ./birds --set distill.teacher.weights=runs/tuned --out runs/taught
    """
    from accelerate import PartialState

    from attngraft.devices import use_device
    from attngraft.training.loop import train as run
    from attngraft.training.progress import LiveBars, LogLines, Silent
    from attngraft.training.recipe import host_name, load_recipe, load_schedule
    from attngraft.training.stopping import Interrupted

    use_device(device)
    given: dict[str, Any] = {"graft": graft, "seed": seed, "train.save_every": save_every}
    given["task.data"] = data and {"source": data}  # options of the recipe's data do not apply to other data
    given["train.parameters"] = parameters
    given["train.auto_batch"] = auto_batch or None
    given["train.track"] = track
    given = {field: value for field, value in given.items() if value is not None}
    for field in given:
        if any(setting.partition("=")[0].strip() == field for setting in set_ or []):
            raise UsageError(f"--set {field}: another option sets it too; give one of them")
    recipe = choose_recipe(task, recipe, data, set_ or []) or "default"
    given |= _host(host, pretrained=pretrained, weights=weights, of_recipe=host_name(recipe))
    overrides = [f"{field}={json.dumps(value, ensure_ascii=False)}" for field, value in given.items()]
    overrides += [f"host.args.{text}" for text in host_arg or []]
    changes, note = ({}, None) if epochs is None else load_schedule(recipe).over(epochs)
    overrides += [f"schedule.{field}={json.dumps(value)}" for field, value in changes.items()]
    resolved = load_recipe(recipe, [*overrides, *(set_ or [])])
    if note and resolved.schedule.warmup_epochs is None and is_first_process():
        echo(f"attngraft: {note}", err=True)
    if not trust_code:
        refuse_untyped_hosts(resolved.host_names, typed=[host, *(set_ or [])])
    try:
        with progress_display(LiveBars, LogLines, Silent) as progress:
            record = run(resolved, out, resume=resume, progress=progress, trust_code=trust_code, cache=cache)
    except Interrupted as stop:
        echo(f"attngraft: interrupted: {stop}", err=True)
        raise typer.Exit(130) from None
    gc.collect()  # models in reference cycles keep the group's threads alive, which abort the process when it exits
    PartialState().destroy_process_group()
    if as_json and is_first_process():
        _print_json(record)


def _host(name: str | None, *, pretrained: bool, weights: str | None, of_recipe: str) -> dict[str, Any]:
    """Return overrides of the recipe's host, which is called `of_recipe`.

    Another name drops the recipe's host arguments and weights; `pretrained` and `weights` replace each other.
    """
    other = name not in (None, of_recipe)
    given: dict[str, Any] = {"host.name": name, "host.args": {}, "host.weights": None} if other else {}
    if pretrained or weights is not None:
        given |= {"host.pretrained": pretrained, "host.weights": weights}  # the recipe rejects both together
    return given


def _print_json(record: RunRecord) -> None:
    from dataclasses import asdict

    facts: dict[str, Any] = {"folder": str(record.folder), "finished": record.finished, "seconds": record.seconds}
    if record.judged is not None:
        facts["judged"] = asdict(record.judged)
    print_json(facts | {"metrics": record.epochs[-1], "epochs": record.epochs})
