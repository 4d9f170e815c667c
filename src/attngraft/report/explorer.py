"""A page on which one sees where models look: one self-contained file, nothing from a network."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import nn

from attngraft._version import __version__
from attngraft.analysis.exploring import Explored, Layer, explored
from attngraft.errors import UsageError
from attngraft.files import write_atomically
from attngraft.report.templating import css_themes, environment
from attngraft.results.wording import shown
from attngraft.targets.handle import ModelHandle, model_handle
from attngraft.targets.images import images_from_files

MOST_BYTES = 48_000_000  #: of a page; browsers become slow beyond

_ALIKE = 2  #: models beside each other


@dataclass(frozen=True, kw_only=True)
class View:
    """A model, and what it does with an image."""

    name: str
    picture: Image.Image  #: what it sees, before normalization
    explored: Explored


def explore(
    models: Mapping[str, nn.Module],
    image: Path | str,
    *,
    out: Path | str,
    sites: str = "all",
    title: str | None = None,
    expects: Mapping[str, Any] | None = None,
) -> Path:
    """Write a page that shows where each model looks in an image.

        explore({"ViT": host, "with cb_s": grafted}, "dog.jpg", out="dog.html")

    A patch is chosen with the mouse, a finger or the arrow keys; then the page shows where it looks in a layer and a head,
    or who looks at it, in all layers and heads at once, and entropy and distance by layer. Two models stand beside each
    other. Numbers are kept as bytes, so that a page of a ViT-S at 224 pixels has about 4 MB.

    Args:
        models: one or two, by name; each sees the image as timm evaluates it, in the size that the model was built for.
        image: a file.
        out: the page, written whole or not at all.
        sites: which of their sites, as in a graft specification.
        title: of the page; the image's name by default.
        expects: what the models expect of an image, as in timm's configuration (`mean`, `std`, `crop_pct`, `interpolation`);
            by default what their own says, or timm's defaults.

    Raises:
        UsageError: no models, or more than two, or one that takes no images; a page of more than 48 MB (choose fewer
            `sites`).
        DataError: the file is no image.
        RecordError: no chosen site looks at places of the image, or its numbers are not finite.
        HostError, GraftSpecError: as `attngraft.record`.
    """
    subjects = [model_handle(name, model, expects=expects) for name, model in models.items()]
    return explore_subjects(subjects, image, out=out, sites=sites, title=title)


def explore_subjects(
    subjects: Sequence[ModelHandle], image: Path | str, *, out: Path | str, sites: str = "all", title: str | None = None
) -> Path:
    """The same of models that were opened from runs, exported folders or timm (`analysis.subjects`), each of which sees the
    image as its own evaluation does.

    Raises:
        As `explore`.
    """
    if not 1 <= len(subjects) <= _ALIKE:
        raise UsageError(f"{len(subjects)} models: a page shows one, or two beside each other")
    picture = images_from_files([str(image)]).open(0)
    views = [_view(subject, picture, sites) for subject in subjects]
    layers = [layer for each in views for layer in each.explored.layers]
    size = sum(numbers.bytes.numel() for layer in layers for numbers in layer.numbers if numbers is not None)
    if size * 4 / 3 > MOST_BYTES:
        raise UsageError(f"the page would have {size * 4 / 3e6:.0f} MB; choose fewer sites, as in sites='last:4'")
    write_atomically(Path(out), explorer_html(views, title=title or Path(image).name))
    return Path(out)


def explorer_html(views: Sequence[View], *, title: str) -> str:
    """The whole page. What comes from users is escaped; the page may run its own script and no other."""
    templates = environment()
    script = templates.loader.get_source(templates, "explorer.js")[0] if templates.loader else ""
    return templates.get_template("explorer.html.j2").render(
        title=shown(title),
        version=__version__,
        views=views,
        data={"models": [_plain(view) for view in views]},
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        themes=css_themes(),
    )


def _view(subject: ModelHandle, image: Image.Image, sites: str) -> View:
    """What the model sees of the image, and does with it."""
    view = subject.view(image)
    return View(
        name=subject.name,
        picture=Image.fromarray(view.movedim(0, -1).squeeze(-1).numpy()),
        explored=explored(subject.model, subject.inputs([view]), sites=sites),
    )


def _plain(view: View) -> dict[str, Any]:
    file = io.BytesIO()
    view.picture.save(file, "PNG")
    return {
        "name": shown(view.name),
        "image": f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}",
        "layers": [_plain_layer(layer) for layer in view.explored.layers],
        "skipped": [[shown(site), shown(why)] for site, why in view.explored.skipped.items()],
    }


def _plain_layer(layer: Layer) -> dict[str, Any]:
    return {
        "site": shown(layer.site),
        "kind": layer.kind,
        "heads": layer.heads,
        "rows": layer.places.shape[0],
        "columns": layer.places.shape[1],
        "places": layer.places.flatten().tolist() if layer.kind == "maps" else [],
        "prefix": list(layer.prefix),
        "numbers": [
            {
                "shape": list(each.bytes.shape),
                "largest": each.largest,
                "bytes": base64.b64encode(np.ascontiguousarray(each.bytes.numpy()).tobytes()).decode(),
            }
            if each is not None
            else None
            for each in layer.numbers
        ],
        "entropy": [round(each, 4) for each in layer.entropy],
        "ceiling": round(layer.ceiling, 4),
        "distance": [round(each, 4) for each in layer.distance],
    }
