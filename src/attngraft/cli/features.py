"""`attngraft features`: features of images for captioning."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attngraft.cli.output import counts_displayed, echo
from attngraft.cli.values import DEVICE, HOST_ARG, PRETRAINED, START, assignments
from attngraft.errors import UsageError


def features(
    images: Annotated[Path, typer.Argument(help="Folder of images, at any depth.", metavar="IMAGES")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Output file (HDF5).", metavar="FILE.h5")],
    host: Annotated[str, typer.Option("--host", help="A timm model.", metavar="MODEL")] = "timm:resnet50",
    host_arg: Annotated[list[str] | None, typer.Option("--host-arg", metavar="NAME=VALUE", help=HOST_ARG)] = None,
    pretrained: Annotated[bool, typer.Option("--pretrained", help=PRETRAINED)] = False,
    weights: Annotated[Path | None, typer.Option("--weights", help=START, metavar="FILE")] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, max=2**40, help="Batch size.")] = 32,
    device: Annotated[str | None, typer.Option("--device", help=DEVICE, metavar="NAME")] = None,
) -> None:
    """Compute the features of images that captioning trains on: the grid of a host, one row per position.

    The file has an entry per image, named by its path below IMAGES. Captioning uses FILE.h5 if it is called features.h5 and
    is in the folder of the captions, or with --set task.features=FILE.h5. Requires pip install 'attngraft[captioning]'.

    After an interrupt, the same command computes only what is missing. Without --pretrained or --weights the host is random:
    good enough for tests, and reports say so.

    Examples:

        attngraft features flickr8k/images --pretrained --out flickr8k/features.h5

        attngraft features ./images --host timm:resnet50 --weights resnet50.safetensors --out features.h5

        attngraft features ./images --host vit_small_patch16_224 --host-arg img_size=160 --pretrained --out vit.h5
    """
    from attngraft.devices import accelerator_device, use_device
    from attngraft.files import check_output, shown_size
    from attngraft.tasks.captioning.encoder import EncoderConfig
    from attngraft.tasks.captioning.extraction import write_features
    from attngraft.tasks.images.sources.folder import list_folder
    from attngraft.tasks.images.sources.listing import natural

    if pretrained and weights is not None:
        raise UsageError("--pretrained and --weights both select the weights; use one of them")
    if not images.is_dir():
        raise UsageError(f"{images}: no such folder; give the folder of the images")
    check_output(out)
    use_device(device)
    with counts_displayed():
        files = {name: images / name for name in sorted(list_folder(images).files, key=natural)}
        if not files:
            raise UsageError(f"{images}: no images in this folder or below it")
        config = EncoderConfig(
            name=host,
            args=assignments(host_arg or [], option="--host-arg"),
            pretrained=pretrained,
            weights=None if weights is None else str(weights),
        )
        try:
            new, kept = write_features(config, files, out, batch=batch, device=accelerator_device())
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"finished images are in {out}; run the same command again for the others"
            ) from None
    echo(f"{out}  {new} images new, {kept} kept  {shown_size(out.stat().st_size)}")
    if not config.trained:
        echo("The host has random weights; use --pretrained or --weights FILE for features that help.", err=True)
