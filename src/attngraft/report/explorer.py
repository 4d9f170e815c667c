"""The attention explorer: a self-contained HTML page with attention maps of one or two models."""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from attngraft._version import __version__
from attngraft.analysis.explorer import ExplorerData, ExplorerLayer, QuantizedTensor, explorer_data
from attngraft.errors import UsageError
from attngraft.files import write_atomically
from attngraft.report.templating import render, script
from attngraft.results.wording import shown
from attngraft.targets.handle import ModelHandle, model_handle
from attngraft.targets.images import images_from_files, true_classes, true_label_map
from attngraft.tasks.segmentation.codec import SegmentationCodec, overlay

MOST_BYTES = 48_000_000  #: maximum size of a page; larger pages slow browsers down
_LOSSLESS = 128  #: narrower images are stored as PNG, others as JPEG
MOST_PIXELS = 896  #: longest side of the image; the page shows it with at most 560 CSS pixels


@dataclass(frozen=True, kw_only=True)
class MaskClass:
    """A class that occurs in the masks of an image."""

    name: str
    color: tuple[int, ...]  #: red, green, blue
    shares: dict[str, float]  #: share of the pixels in each mask


@dataclass(frozen=True, kw_only=True)
class ModelView:
    """Input image and attention of a model."""

    name: str
    description: str  #: the model as it was trained
    predicted: str  #: its prediction and the true class; empty if unknown
    picture: Image.Image  #: the part of the image that the model sees, at the image's own resolution
    explored: ExplorerData
    masks: dict[str, Image.Image] = field(default_factory=dict)  #: the predicted and the true mask over the picture
    legend: list[MaskClass] = field(default_factory=list)  #: classes of the masks, the most frequent first


def explore(
    models: Mapping[str, nn.Module],
    image: Path | str,
    *,
    out: Path | str,
    sites: str = "all",
    title: str | None = None,
    expects: Mapping[str, Any] | None = None,
) -> Path:
    """Write a page that shows the attention of one or two models on an image.

        explore({"ViT": host, "with cb_s": grafted}, "dog.jpg", out="dog.html")

    Select a patch with mouse, finger or arrow keys to see which patches it attends to, or which patches attend to it: on
    the image for one layer and head, and in an overview of all layers and heads. The page also plots attention entropy
    and distance per layer. Two models are shown side by side. The page opens at the layer, head and patch whose attention
    is most structured (see `attngraft.analysis.explorer.explorer_data`); with two models, among the layers of both.
    For models that predict masks, the image can be shown with the predicted mask, and with the true one if it is among the
    data of the run. Values are quantized to bytes; the page of a ViT-S at 224 pixels is about 4 MB.

    Args:
        models: one or two models by name. Images are preprocessed as in timm's evaluation, at the model's input size.
        image: the image file.
        out: file of the page, written atomically.
        sites: sites to show, as in a graft specification.
        title: title of the page; the image's file name by default.
        expects: preprocessing, as in timm's configuration (`mean`, `std`, `crop_pct`, `interpolation`); by default the
            model's configuration, or timm's defaults.

    Raises:
        UsageError: there are no models or more than two, a model does not take images, or the page would exceed 48 MB
            (choose fewer `sites`).
        DataError: the file is not an image.
        RecordError: no chosen site attends to image positions, or attention values are not finite.
        HostError, GraftSpecError: see `attngraft.record`.
    """
    handles = [model_handle(name, model, expects=expects) for name, model in models.items()]
    return explore_handles(handles, image, out=out, sites=sites, title=title)


def explore_handles(
    handles: Sequence[ModelHandle], image: Path | str, *, out: Path | str, sites: str = "all", title: str | None = None
) -> Path:
    """Write the page of `explore` for model handles, each with its own preprocessing.

    Raises:
        As `explore`.
    """
    if not 1 <= len(handles) <= 2:
        raise UsageError(f"the explorer page shows one or two models, but {len(handles)} were given")
    picture = images_from_files([str(image)]).open(0)
    views = []
    for handle in handles:
        explored = explorer_data(handle.model, handle.inputs([handle.view(picture)]), sites=sites)
        view = ModelView(
            name=handle.name,
            description=handle.description,
            predicted=_predicted(handle, explored.outputs, image),
            picture=handle.preparation.cropped(picture, most=MOST_PIXELS),
            explored=explored,
        )
        views.append(view if handle.masks is None else _with_masks(view, handle, handle.masks, image))
    layers = [layer for each in views for layer in each.explored.layers]
    size = sum(numbers.bytes.numel() for layer in layers for numbers in layer.numbers if numbers is not None)
    if size * 4 / 3 > MOST_BYTES:  # in base64
        raise UsageError(f"the page would be {size * 4 / 3e6:.0f} MB; choose fewer sites, such as sites='last:4'")
    return write_atomically(Path(out), explorer_html(views, title=title or Path(image).name))


def explorer_html(views: Sequence[ModelView], *, title: str) -> str:
    """Return the HTML page. User strings are escaped, and only the page's own script may run."""
    return render(
        "explorer.html.j2",
        title=shown(title),
        version=__version__,
        models=len(views),
        data={"models": [_plain(view) for view in views], "opening": _opening(views)},
        **script("maps.js", "explorer.js"),
    )


def _predicted(handle: ModelHandle, outputs: Any, image: Path | str) -> str:
    """Return the prediction, and the true class if the image's folder or the run's data name it."""
    serving = handle.serving
    if serving is None:
        return ""
    (scores,) = serving.decode(outputs)
    if serving.numeric:
        return "; ".join(f"predicted {name} {value:.4g}" for name, value in scores.items())
    best = max(scores, key=lambda name: scores[name])
    least = scores[best] if serving.threshold is None else serving.threshold
    chosen = [f"{name} ({score:.0%})" for name, score in scores.items() if score >= least]
    text = f"predicted {', '.join(chosen)}" if chosen else f"no class predicted (highest: {best}, {scores[best]:.0%})"
    true = true_classes(image, classes=serving.classes, record=handle.record)
    return f"{text}; true {'class' if len(true) == 1 else 'classes'} {', '.join(true)}" if true else text


def _with_masks(view: ModelView, handle: ModelHandle, codec: SegmentationCodec, image: Path | str) -> ModelView:
    """Add the predicted mask, and the true mask if the image is among the data of the run."""
    host, logits = handle.preparation.host, view.explored.outputs
    large: Tensor = F.interpolate(logits.float(), (host.height, host.width), mode="bilinear", align_corners=False)
    maps = {"predicted mask": large[0].argmax(0)}
    if (true := true_label_map(image, handle.record)) is not None:
        maps["true mask"] = handle.preparation.label_map(true)
    labels = {name: each.to(torch.uint8).cpu().numpy() for name, each in maps.items()}
    counts = {name: np.bincount(each.ravel(), minlength=256)[: len(codec.classes)] for name, each in labels.items()}
    legend = [
        MaskClass(
            name=codec.classes[index],
            color=codec.colors[index],
            shares={name: float(each[index] / max(1, each.sum())) for name, each in counts.items()},
        )
        for index in np.argsort(-counts["predicted mask"], kind="stable")
        if any(each[index] for each in counts.values())
    ]
    picture = view.picture.convert("RGB")
    masks = {
        name: overlay(
            picture,
            np.asarray(Image.fromarray(each).resize(picture.size, Image.Resampling.NEAREST)),
            codec.colors,
        )
        for name, each in labels.items()
    }
    said = f"image resized and cropped to {host.height} × {host.width} pixels, the padded size of training crops"
    if "true mask" in labels:
        known = labels["true mask"] < len(codec.classes)
        right = (labels["predicted mask"] == labels["true mask"])[known]
        said += f"; {right.mean() if right.size else 0:.0%} of its labeled pixels predicted correctly"
    return replace(view, predicted=said, masks=masks, legend=legend)


def _opening(views: Sequence[ModelView]) -> dict[str, Any] | None:
    """Return model, layer, head and patch that the page opens with; None: the mean of the first layer's heads."""
    sites = [{layer.module for layer in view.explored.layers} for view in views]
    shared = set.intersection(*sites) or set.union(*sites)
    found = [
        (index, opening) for index, view in enumerate(views) if (opening := view.explored.opening(shared)) is not None
    ]
    if not found:
        return None
    index, best = max(found, key=lambda each: each[1].structure)
    rows, columns = views[index].explored.layers[best.layer].token_indices.shape
    query = {"down": (best.row + 0.5) / rows, "across": (best.column + 0.5) / columns}
    return {"model": index, "layer": best.layer, "head": best.head, "query": query}


def _plain(view: ModelView) -> dict[str, Any]:
    return {
        "name": shown(view.name),
        "description": shown(view.description),
        "predicted": shown(view.predicted),
        "image": data_url(view.picture),
        "masks": {name: data_url(each) for name, each in view.masks.items()},
        "legend": [
            {
                "name": shown(each.name),
                "color": f"rgb({', '.join(map(str, each.color))})",
                "shares": ", ".join(f"{name.partition(' ')[0]} {share:.1%}" for name, share in each.shares.items()),
            }
            for each in view.legend
        ],
        "layers": [_plain_layer(layer) for layer in view.explored.layers],
        "skipped": [[shown(site), shown(reason)] for site, reason in view.explored.skipped.items()],
    }


def data_url(picture: Image.Image) -> str:
    """Return an image as a URL that contains it: PNG if it is small, otherwise JPEG."""
    file, form = io.BytesIO(), "PNG" if picture.width < _LOSSLESS else "JPEG"
    picture.save(file, form, quality=90)
    return f"data:image/{form.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def _plain_layer(layer: ExplorerLayer) -> dict[str, Any]:
    return {
        "site": shown(layer.site),
        "kind": layer.kind,
        "heads": layer.heads,
        "rows": layer.token_indices.shape[0],
        "columns": layer.token_indices.shape[1],
        "places": layer.token_indices.flatten().tolist() if layer.kind == "maps" else [],
        "prefix": list(layer.prefix),
        "numbers": [None if each is None else plain_tensor(each) for each in layer.numbers],
        "entropy": [round(each, 4) for each in layer.entropy],
        "ceiling": round(layer.ceiling, 4),
        "distance": [round(each, 4) for each in layer.distance],
    }


def plain_tensor(tensor: QuantizedTensor) -> dict[str, Any]:
    """Return a tensor for the page's script (`decoded` in maps.js)."""
    return {
        "shape": list(tensor.bytes.shape),
        "largest": tensor.largest,
        "bytes": base64.b64encode(np.ascontiguousarray(tensor.bytes.numpy()).tobytes()).decode(),
    }
