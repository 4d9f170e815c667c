"""`attngraft explore`: an interactive page of the attention of one or two models on an image, a text or a point cloud."""

from pathlib import Path
from typing import Annotated

import typer

from attngraft.cli.evaluate import Weights
from attngraft.cli.models import host_options, open_cloud_models, open_models, open_text_models
from attngraft.cli.output import echo
from attngraft.cli.values import (
    ALLOW_DOWNLOAD,
    DEVICE,
    HOST_ARG,
    HOST_WEIGHTS,
    MODEL,
    TRUST_CODE,
    check_text,
    limit_downloads,
)
from attngraft.errors import UsageError


def explore(
    model: Annotated[
        list[str],
        typer.Option(
            "--model",
            "--run",
            help=f"{MODEL} A second model is shown next to the first.",
            metavar="RUN|FOLDER|HOST|FILE",
        ),
    ],
    image: Annotated[
        Path | None,
        typer.Option("--image", help="Image file; for captioning also its features (.npy).", metavar="FILE"),
    ] = None,
    text: Annotated[
        str | None, typer.Option("--text", help="Instead of an image: a text, for models of texts.")
    ] = None,
    cloud: Annotated[
        str | None,
        typer.Option(
            "--cloud",
            help="Instead of an image: a file, for models of point clouds; CATEGORY=FILE for models of parts.",
            metavar="[CATEGORY=]FILE",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            help="With --text, or --image in captioning: the output's text. Default: what each model generates.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Output file. Default: IMAGE.html, text.html or CLOUD.html in the current folder.",
            metavar="FILE.html",
        ),
    ] = None,
    name: Annotated[list[str] | None, typer.Option("--name", help="Display names, in the order of --model.")] = None,
    weights: Annotated[Weights, typer.Option("--weights", help="Weights of a run to use.")] = "last",
    pretrained: Annotated[bool, typer.Option("--pretrained", help="Load the pretrained weights of hosts.")] = False,
    host_weights: Annotated[Path | None, typer.Option("--host-weights", metavar="FILE", help=HOST_WEIGHTS)] = None,
    host_arg: Annotated[list[str] | None, typer.Option("--host-arg", metavar="NAME=VALUE", help=HOST_ARG)] = None,
    device: Annotated[str | None, typer.Option("--device", metavar="NAME", help=DEVICE)] = None,
    trust_code: Annotated[bool, typer.Option("--trust-code", help=TRUST_CODE)] = False,
    allow_download: Annotated[
        bool, typer.Option("--allow-download", help=ALLOW_DOWNLOAD, callback=limit_downloads)
    ] = False,
    sites: Annotated[str, typer.Option("--sites", help="Layers to show, as in a graft specification.")] = "all",
    title: Annotated[
        str | None, typer.Option("--title", help="Title of the page. Default: the file's name, or the text.")
    ] = None,
) -> None:
    """Write a page that shows the attention of each layer and head: for any patch of an image, between tokens of a text, or
    between the points of a cloud and latents.

    The page is a single file and needs no network. Two models are shown side by side: a host and its graft, two grafts, or
    two hosts. For models of texts, attention is a matrix with tokens at both sides; in an encoder-decoder's
    cross-attention, the rows are the output's tokens. In captioning, the columns are the positions of the image's features;
    if these are a grid, the attention of a word is shown on the image. Point clouds are rotated with the mouse or the arrow
    keys, and their points are colored by attention or by predicted part.

    Examples:

        attngraft explore --model study/runs/baseline/seed0 --model study/runs/cb_s/seed0 --image dog.jpg

        attngraft explore --model vit_small_patch16_224 --pretrained --image dog.jpg --out dog.html

        attngraft explore --model bixt.safetensors --image dog.jpg

        attngraft explore --model flowers-model --image tulip.jpg --sites last:4

        attngraft explore --model mt/runs/baseline/seed0 --model mt/runs/vertical/seed0 --text "A dog runs."

        attngraft explore --model cap/runs/baseline/seed0 --model cap/runs/vertical/seed0 --image dog.jpg

        attngraft explore --model cap/runs/baseline/seed0 --image dog.jpg --target "a dog runs"

        attngraft explore --model points/runs/baseline/seed0 --model points/runs/vertical/seed0 --cloud chair.ply
    """
    from attngraft.devices import use_device
    from attngraft.files import check_output
    from attngraft.report.cloud_explorer import cloud_file, explore_cloud
    from attngraft.report.explorer import explore_handles
    from attngraft.report.text_explorer import explore_text
    from attngraft.targets.judged import HostOptions
    from attngraft.targets.texts import writes_captions

    host = host_options(pretrained, host_weights, host_arg)
    if [image, text, cloud].count(None) != 2:
        raise UsageError(
            "give either --image FILE, or for models of texts --text TEXT, or for models of point clouds --cloud FILE"
        )
    for option, given in {"--text": text, "--target": target}.items():
        check_text(given or "", option=option)
    captions = image is not None and any(map(writes_captions, model))
    if target is not None and text is None and not captions:
        what = "a point cloud" if image is None else "an image, except with models that caption images"
        raise UsageError(f"--target belongs to --text TEXT, not to {what}")
    if (image is None or captions) and host != HostOptions():
        option = "captioning" if captions else "--text" if cloud is None else "--cloud"
        raise UsageError(
            f"--pretrained, --host-weights and --host-arg are for hosts; {option} takes runs and exported folders"
        )
    file = image if cloud is None else cloud_file(cloud)
    page = out or Path("text.html" if file is None else f"{file.stem}.html")
    check_output(page, inputs=[each for each in (file, *model) if each is not None])
    use_device(device)
    if text is not None or captions:
        given = str(image) if text is None else text
        texts = open_text_models(model, names=name or [], captions=captions, weights=weights, trust_code=trust_code)
        shown = title or (image.name if image else None)
        page = explore_text(texts, given, target=target, out=page, sites=sites, title=shown)
    elif cloud is not None:
        clouds = open_cloud_models(model, names=name or [], weights=weights, trust_code=trust_code)
        page = explore_cloud(clouds, cloud, out=page, sites=sites, title=title)
    elif image is not None:
        images = open_models(
            model, names=name or [], weights=weights, host=host, trust_code=trust_code, purpose="explorer"
        )
        page = explore_handles(images, image, out=page, sites=sites, title=title)
    echo(f"{page} ({page.stat().st_size / 1e6:.1f} MB)")
