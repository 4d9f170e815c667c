"""Maps of the attention entropy of each patch, layer by layer (the entropy of CB, Fig. 3a)."""

import torch
from torch import Tensor

from attngraft.analysis.layers import captions
from attngraft.analysis.panels import Values, backdrop, cells, head_maps, map_values, png, table
from attngraft.analysis.request import Analysis, AnalysisRequest, Content, Measured, ShownImage, by_model
from attngraft.analysis.tensors import recorded, sites_without_maps
from attngraft.errors import RecordError
from attngraft.recording.attention_maps import tokens_to_map
from attngraft.recording.measures import entropy, without_prefix
from attngraft.recording.recording import Recording
from attngraft.results.analysis import Picture, PictureRow, Pictures
from attngraft.targets.handle import ModelHandle

_Image = tuple[ShownImage, dict[str, dict[str, Values]]]  #: entropy in nats by site and head (or "mean")


def _measure(request: AnalysisRequest, model: ModelHandle, left_out: dict[str, str]) -> list[_Image]:
    images = []
    for image in request.pictures(model):
        recording = recorded(model, image.inputs, "weights", sites=request.sites)
        maps = {
            site: {head: map_values(each) for head, each in head_maps(by_head, heads=request.heads)}
            for site, by_head in entropies_on_maps(recording, left_out).items()
        }
        left_out |= sites_without_maps(recording, model)
        images.append((image, maps))
    return images


def entropies_on_maps(recording: Recording, left_out: dict[str, str]) -> dict[str, Tensor]:
    """Return `entropy_on_map` of each recorded site; a site without a map is added to `left_out` with the reason.

    Raises:
        RecordError: no site has a map.
    """
    entropies = {}
    for site in recording:
        try:
            entropies[site] = entropy_on_map(recording, site)
        except RecordError as error:
            left_out[site] = str(error)
    if not entropies:
        raise RecordError(next(iter(left_out.values())))
    return entropies


def entropy_on_map(recording: Recording, site: str) -> Tensor:
    """Return the entropy of each row among the spatial tokens of an image, (H, rows, columns).

    The windows of an image are merged into one map.

    Raises:
        RecordError: the positions of the tokens are unknown, or their number does not match the map.
    """
    indices, prefix = recording.token_indices(site), len(recording.prefix(site))
    weights = recording[site]["weights"].float()
    windows, _, queries, keys = weights.shape
    if queries != keys or (windows == 1 and queries != prefix + indices.numel()):
        raise RecordError(
            f"{site!r} has maps of {queries} x {keys} tokens for {indices.numel()} positions of the image; entropy maps "
            "require that all tokens attend to each other"
        )
    rows = entropy(without_prefix(weights, prefix) if prefix else weights)  # (W, H, N), without prefix tokens
    tokens = torch.nn.functional.pad(rows, (prefix, 0)).transpose(1, 2)  # token indices count prefix tokens
    return tokens_to_map(tokens, indices.to(tokens.device))[0].movedim(2, 0).cpu()


def _present(request: AnalysisRequest, models: Measured[list[_Image]]) -> Content:
    rows = [
        (name, image.name, site, head, row, column, value)
        for _, name, images in models
        for image, maps in images
        for site, by_head in maps.items()
        for head, values in by_head.items()
        for row, column, value in cells(values)
    ]
    low, high = (extreme(row[-1] for row in rows) for extreme in (min, max))
    return Content(
        note="Entropy -sum a ln a of each patch's row of the attention map, in nats, "
        + ("by head" if request.heads else "mean over heads (--heads shows them separately)")
        + ". Light is spread attention, dark is focused attention. Prefix tokens are excluded, and rows normalized to "
        "sum to 1. All pictures share one color scale, from the smallest value to the largest. In a window of N tokens, the "
        "entropy of a row is at most ln N.",
        panels=[_panel(name, *image, low, high) for _, name, images in models for image in images],
        table=table(["model", "image", "layer", "head", "row", "column", "entropy"], rows),
    )


def _panel(name: str, image: ShownImage, maps: dict[str, dict[str, Values]], low: float, high: float) -> Pictures:
    """Return a panel with the image and a row of all layers, or, with separate heads, one row per layer."""
    under, means, by_layer = backdrop(image.view), [], []
    for caption, by_head in zip(captions(list(maps)), maps.values(), strict=True):
        if "mean" in by_head:
            means.append(Picture(image=under, values=by_head["mean"], caption=caption))
        else:
            heads = [Picture(image=under, values=each, caption=f"head {head}") for head, each in by_head.items()]
            by_layer.append(PictureRow(name=caption, pictures=heads))
    rows = [PictureRow(name="image", pictures=[Picture(image=png(image.view))])]
    rows += by_layer or [PictureRow(name="entropy", pictures=means)]
    return Pictures(title=f"{name}: entropy by patch, {image.name}", rows=rows, low=low, high=high)


ANALYSIS = Analysis(
    name="entropy-maps",
    title="Attention entropy on the image",
    summary="entropy of each patch's attention, drawn on single images, layer by layer",
    source="CB, Fig. 3a",
    run=by_model(_measure, _present),
    images="shown",
)
