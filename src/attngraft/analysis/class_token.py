"""Attention of the class token by layer, for single images (CB, Fig. 10)."""

import math
import warnings
from typing import Any

import torch
from torch import Tensor

from attngraft.analysis.panels import image_row, map_values, table
from attngraft.analysis.request import Analysis, AnalysisRequest, Content, Measured, ShownImage, by_model
from attngraft.analysis.tensors import recorded, sites_without_maps
from attngraft.errors import RecordError
from attngraft.recording.recording import Recording
from attngraft.results.analysis import Picture, PictureRow, Pictures
from attngraft.targets.handle import ModelHandle

_LEAST = math.log(1e-8)  #: lower limit of the color scale


def class_token_attention(recording: Recording) -> Tensor:
    """Return the class token's row of every recorded map, averaged over heads, (B, layers, tokens).

    The paper shows the logarithm of these rows for single images:

        with torch.no_grad(), attngraft.record(model, "weights") as recording:
            model(images)
        pictures = class_token_attention(recording).log()

    Raises:
        RecordError: a layer has no class token, or a different number of tokens than the first layer.
    """
    rows = []
    for site in recording:
        prefix = recording.prefix(site)
        if "class" not in prefix:
            raise RecordError(
                f"{site!r} has no class token ({', '.join(prefix) or 'no prefix tokens'}); choose other sites"
            )
        weights = recording[site]["weights"]
        rows.append(weights[:, :, prefix.index("class")].mean(1))
        if rows[-1].shape != rows[0].shape:
            raise RecordError(
                f"{site!r} has {rows[-1].shape[1]} tokens, but earlier layers have {rows[0].shape[1]}; choose sites with "
                "the same number of tokens"
            )
    if not rows:
        raise RecordError("nothing was recorded; run the model inside the with-block")
    return torch.stack(rows, 1)


def __getattr__(name: str) -> Any:
    if name == "class_looks":
        warnings.warn("class_looks is deprecated; use class_token_attention", DeprecationWarning, stacklevel=2)
        return class_token_attention
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_Images = list[tuple[ShownImage, dict[str, list[float]]]]  #: log attention by site


def _measure(request: AnalysisRequest, model: ModelHandle, left_out: dict[str, str]) -> _Images:
    images = []
    for image in request.pictures(model):
        recording = recorded(model, image.inputs, "weights", sites=request.sites)
        logs = map_values(class_token_attention(recording)[0].float().log().clamp_min(_LEAST))
        images.append((image, dict(zip(recording, logs, strict=True))))
        left_out |= sites_without_maps(recording, model)
    return images


def _present(request: AnalysisRequest, models: Measured[_Images]) -> Content:
    rows = [image_row(image for image, _ in models[0][2])]
    rows += [
        PictureRow(name=name, pictures=[Picture(values=list(logs.values())) for _, logs in images])
        for _, name, images in models
    ]
    cells = [
        (name, image.name, site, token, value)
        for _, name, images in models
        for image, logs in images
        for site, row in logs.items()
        for token, value in enumerate(row)
    ]
    low, high = (extreme(value for *_, value in cells) for extreme in (min, max))
    return Content(
        note="One picture per image, layers from top to bottom and tokens from left to right (the class token first): the "
        "natural logarithm of the class token's attention, mean over heads, on one color scale for all.",
        panels=[Pictures(title="log attention of the class token", rows=rows, low=low, high=high)],
        table=table(["model", "image", "layer", "token", "log attention"], cells),
    )


ANALYSIS = Analysis(
    name="class-token",
    title="Attention of the class token",
    summary="log attention of the class token, depth by tokens, for single images",
    source="CB, Fig. 10",
    run=by_model(_measure, _present),
    images="shown",
)
