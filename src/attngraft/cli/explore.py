"""`attngraft explore`: a page on which one sees where models look."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attngraft.cli.evaluate import Weights


def explore(
    model: Annotated[
        list[str],
        typer.Option(
            "--model",
            "--run",
            help="A run's folder, an exported folder, or a model of timm; a second one stands beside it.",
            metavar="RUN|FOLDER|NAME",
        ),
    ],
    image: Annotated[Path, typer.Option("--image", help="What they look at.", metavar="FILE")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The page. Default: <image>.html here.", metavar="FILE.html")
    ] = None,
    name: Annotated[
        list[str] | None, typer.Option("--name", help="What a model is called, in the order of --model.")
    ] = None,
    weights: Annotated[Weights, typer.Option("--weights", help="Which weights of a run.")] = Weights.last,
    pretrained: Annotated[bool, typer.Option("--pretrained", help="Models of timm with their weights.")] = False,
    host_arg: Annotated[
        list[str] | None, typer.Option("--host-arg", metavar="NAME=VALUE", help="For models of timm; repeatable.")
    ] = None,
    sites: Annotated[str, typer.Option("--sites", help="Which layers, as in a graft specification.")] = "all",
    title: Annotated[str | None, typer.Option("--title", help="Of the page; the image's name if left out.")] = None,
) -> None:
    """Write one file for a browser in which one points at a patch and sees where each layer and head looks.

    It needs no network. Two models stand beside each other: the host and its graft, two grafts, two hosts.

    Examples:

        attngraft explore --model study/runs/baseline/seed0 --model study/runs/cb_s/seed0 --image dog.jpg

        attngraft explore --model vit_small_patch16_224 --pretrained --image dog.jpg --out dog.html

        attngraft explore --model flowers-model --image tulip.jpg --sites last:4
    """
    from attngraft.cli.models import open_models
    from attngraft.cli.values import assignments
    from attngraft.report.explorer import explore_subjects

    arguments = assignments(host_arg or [], option="--host-arg")
    subjects = open_models(model, names=name or [], weights=weights.value, pretrained=pretrained, arguments=arguments)
    page = explore_subjects(subjects, image, out=out or Path(f"{image.stem}.html"), sites=sites, title=title)
    typer.echo(f"{page} ({page.stat().st_size / 1e6:.1f} MB)")
