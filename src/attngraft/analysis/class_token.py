"""Attention of the class token by layer, for single images (CB, Fig. 10)."""

import math
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attngraft.analysis.panels import Values, image_row, map_values, png, table
from attngraft.analysis.request import Analysis, AnalysisRequest, measure_models, recorded, sites_without_maps
from attngraft.errors import RecordError
from attngraft.recording.recording import Recording
from attngraft.results.analysis import AnalysisResult, Picture, PictureRow, Pictures
from attngraft.targets.handle import ModelHandle

_LEAST = math.log(1e-8)  #: lower limit of the color scale


def class_token_attention(recording: Recording) -> Tensor:
    """Return the class token's row of every recorded map, averaged over heads, (B, layers, tokens).

    The paper shows its logarithm for single images:

        with torch.no_grad(), attngraft.record(model, "weights") as recording:
            model(images)
        pictures = class_token_attention(recording).log()

    Raises:
        RecordError: a layer has no class token, or a different number of tokens than the layer before it.
    """
    rows = []
    for site in recording:
        prefix = recording.prefix(site)
        if "class" not in prefix:
            raise RecordError(f"{site!r} has no class token ({', '.join(prefix) or 'no prefix tokens'})")
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


class _Image(NamedTuple):
    name: str
    pixels: str
    sites: list[str]
    logs: Values  #: log attention, one row per site


def _measure(request: AnalysisRequest, model: ModelHandle, left_out: dict[str, str]) -> list[_Image]:
    images = []
    for name, view, inputs in request.pictures(model):
        recording = recorded(model, inputs, "weights", sites=request.sites)
        logs = class_token_attention(recording)[0].float().log().clamp_min(_LEAST)
        images.append(_Image(name, png(view), list(recording), map_values(logs)))
        left_out |= sites_without_maps(recording, model)
    return images


def run(request: AnalysisRequest) -> AnalysisResult:
    models, left_out = measure_models(request, _measure)
    rows = [image_row((image.name, image.pixels) for image in models[0][2])]
    rows += [
        PictureRow(name=name, pictures=[Picture(values=image.logs) for image in images]) for _, name, images in models
    ]
    every = [value for _, _, images in models for image in images for row in image.logs for value in row]
    return ANALYSIS.result(
        request,
        note="One picture per image, layers from top to bottom and tokens from left to right (the class token first): the "
        "natural logarithm of the class token's attention, mean over heads, on one color scale for all.",
        panels=[Pictures(title="log attention of the class token", rows=rows, low=min(every), high=max(every))],
        table=table(
            ["model", "image", "layer", "token", "log attention"],
            3,
            [
                (name, image.name, site, token, value)
                for _, name, images in models
                for image in images
                for site, row in zip(image.sites, image.logs, strict=True)
                for token, value in enumerate(row)
            ],
        ),
        left_out=left_out,
    )


ANALYSIS = Analysis(
    name="class-token",
    title="Attention of the class token",
    summary="log attention of the class token, depth by tokens, for single images",
    source="CB, Fig. 10",
    run=run,
    images="shown",
)
