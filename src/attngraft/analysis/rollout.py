"""Attention rollout: attention of output tokens to input tokens, accumulated over all layers."""

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

from attngraft.analysis.panels import Values, cells, image_row, map_values, png, table
from attngraft.analysis.request import Analysis, AnalysisRequest, Content, Measured, ShownImage, by_model
from attngraft.analysis.tensors import recorded, sites_without_maps
from attngraft.errors import RecordError, UsageError
from attngraft.recording.recording import Recording
from attngraft.results.analysis import Picture, PictureRow, Pictures
from attngraft.targets.handle import ModelHandle

Fuse = Literal["mean", "max", "min"]


def rollout(maps: Iterable[Tensor], *, fuse: Fuse = "mean", residual: float = 0.5, discard: float = 0.0) -> Tensor:
    """Return the product of the layers' maps, each with its skip connection: (B, N, N), rows sum to 1.

    Attention rollout (Abnar and Zuidema 2020) of layers l with heads h:

        A_l = (1 - residual) fuse_h(A_lh) + residual I, rows normalized to sum to 1; rollout = A_L ... A_2 A_1

    Args:
        maps: map of each layer, (B, H, N, N), from first to last.
        fuse: how heads are combined: their "mean", "max" or "min".
        residual: weight of the skip connection.
        discard: fraction of each image's entries of the fused map to set to 0, smallest first. Attention to the first
            token (the class token) is kept.

    Raises:
        UsageError: there are no maps, or their sizes differ.
    """
    product: Tensor | None = None
    for weights in maps:
        fused = weights.mean(1) if fuse == "mean" else getattr(weights, f"a{fuse}")(1)
        if discard:
            fused = _without_smallest(fused, discard)
        if product is not None and fused.shape != product.shape:
            raise UsageError(
                f"all maps must have the same shape, got {tuple(fused.shape)} after {tuple(product.shape)}"
            )
        mixed = (1 - residual) * fused + residual * torch.eye(fused.shape[-1], dtype=fused.dtype, device=fused.device)
        mixed = mixed / mixed.sum(-1, keepdim=True)
        product = mixed if product is None else mixed @ product
    if product is None:
        raise UsageError("maps must not be empty")
    return product


def _without_smallest(fused: Tensor, share: float) -> Tensor:
    flat = fused.flatten(1)
    count = int(flat.shape[1] * share)
    smallest = flat.topk(count, dim=1, largest=False).indices
    kept = torch.ones_like(flat).scatter_(1, smallest, 0).view_as(fused)
    kept[:, :, 0] = 1
    return fused * kept


def _measure(request: AnalysisRequest, model: ModelHandle, left_out: dict[str, str]) -> list[tuple[ShownImage, Values]]:
    images = []
    for image in request.pictures(model):
        recording = recorded(model, image.inputs, "weights", sites=request.sites)
        images.append((image, map_values(_rollout_on_map(recording, model))))
    return images


def _rollout_on_map(recording: Recording, model: ModelHandle) -> Tensor:
    """Return the share of each patch in the class token, (rows, columns).

    In a model without a class token, return the share in the mean of all tokens.
    """
    if missing := sites_without_maps(recording, model):
        raise RecordError(
            f"{', '.join(missing)}: no attention map, but rollout requires maps of all layers; use --sites to choose "
            "layers with maps"
        )
    sites = [site for site in recording if "weights" in recording.available(site)]
    maps = [recording[site]["weights"] for site in sites]
    for site, weights in zip(sites, maps, strict=True):
        if len(weights) != 1 or weights.shape[-1] != weights.shape[-2]:
            raise RecordError(
                f"{site}: rollout requires self-attention among all tokens in each layer, without windows; choose "
                "such layers with --sites"
            )
        if weights.shape[-1] != maps[0].shape[-1]:
            raise RecordError(
                f"{site}: rollout requires the same tokens in all layers; choose such layers with --sites"
            )
    product, last = rollout(maps)[0], sites[-1]
    prefix = recording.prefix(last)
    row = product[prefix.index("class")] if "class" in prefix else product.mean(0)
    return row[recording.token_indices(last).to(row.device)].float()


def _present(request: AnalysisRequest, models: Measured[list[tuple[ShownImage, Values]]]) -> Content:
    rows = [image_row(image for image, _ in models[0][2])]
    for _, name, images in models:
        maps = [Picture(image=png(image.view), values=values) for image, values in images]
        rows.append(PictureRow(name=name, pictures=maps))
    return Content(
        note="Share of each patch in the class token (without one: in the mean of all tokens) in the product of the layers' "
        "maps, each averaged over heads and then averaged with the identity for the skip connection. Each picture has its "
        "own color scale. Rollout takes only attention into account, not MLPs and values.",
        panels=[Pictures(title="rollout through all layers", rows=rows)],
        table=table(
            ["model", "image", "row", "column", "share"],
            [
                (name, image.name, *cell)
                for _, name, images in models
                for image, values in images
                for cell in cells(values)
            ],
        ),
    )


ANALYSIS = Analysis(
    name="rollout",
    title="Attention rollout",
    summary="attention through all layers, for single images",
    source="Abnar and Zuidema 2020",
    run=by_model(_measure, _present),
    images="shown",
)
