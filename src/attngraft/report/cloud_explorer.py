"""The explorer of point clouds: a self-contained HTML page with the attention between points and latents."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attngraft._version import __version__
from attngraft.analysis.cloud_attention import CloudLayer, cloud_attention
from attngraft.errors import UsageError
from attngraft.files import write_atomically
from attngraft.report.explorer import MOST_BYTES, plain_tensor
from attngraft.report.templating import render, script
from attngraft.results.wording import shown
from attngraft.targets.clouds import CloudHandle
from attngraft.tasks.points.clouds import normalize

_CLASSES = 5  #: most probabilities that are shown
_COLORS = 6  #: of parts; the colors of more could not be told apart


def explore_cloud(
    handles: Sequence[CloudHandle], cloud: str, *, out: Path | str, sites: str = "all", title: str | None = None
) -> Path:
    """Write a page that shows a point cloud and the attention of one or two models.

    The points are colored by the attention between points and latents in one layer and head, for one latent or for all,
    or by the predicted part. Both models' clouds are rotated together. Below the names are the most probable classes.

    Args:
        handles: one or two models (`targets.clouds.open_cloud_handle`).
        cloud: the file; `CATEGORY=FILE` for models of parts.
        out: file of the page, written atomically.
        sites: sites to show, as in a graft specification.
        title: title of the page; the file's name by default.

    Raises:
        UsageError: there are no models or more than two, or the page would exceed 48 MB (choose fewer `sites`).
        DataError: the file cannot be used.
        RecordError: no chosen site has a map of points and latents, or attention values are not finite.
        HostError, GraftSpecError: see `attngraft.record`.
    """
    if not 1 <= len(handles) <= 2:
        raise UsageError(f"the explorer page shows one or two models, but {len(handles)} were given")
    models, size, parts = [], 0, Counter[int]()
    for handle in handles:
        inputs = handle.inputs(cloud)
        found, predicted = cloud_attention(handle.model, inputs, sites=sites), handle.predict(inputs)
        size += sum(weights.bytes.numel() for layer in found.layers for weights in layer.maps.values())
        own = [] if isinstance(predicted, Mapping) else predicted
        parts.update(own)
        models.append(
            {
                "name": shown(handle.name),
                "description": shown(handle.description),
                "predicted": shown(_predicted(predicted)),
                "points": normalize(inputs[0][0, :, :3].cpu().numpy()).round(4).flatten().tolist(),
                "parts": own,
                "layers": [_plain(layer) for layer in found.layers],
                "missing": shown(found.missing),
            }
        )
    if size * 4 / 3 > MOST_BYTES:  # in base64
        raise UsageError(f"the page would be {size * 4 / 3e6:.0f} MB; choose fewer sites, such as sites='blocks.0-3'")
    page = render(
        "cloud_explorer.html.j2",
        title=shown(title or cloud_file(cloud).name),
        version=__version__,
        models=len(models),
        data={"models": models, "colored": [part for part, _ in parts.most_common(_COLORS)]},
        **script("maps.js", "cloud_explorer.js"),
    )
    return write_atomically(Path(out), page)


def cloud_file(cloud: str) -> Path:
    """Return the file of `FILE` or `CATEGORY=FILE`."""
    return Path(cloud.rpartition("=")[2])


def _predicted(found: Mapping[str, float] | list[int]) -> str:
    if isinstance(found, Mapping):
        best = sorted(found.items(), key=lambda each: -each[1])[:_CLASSES]
        (name, share), *others = best
        then = ", ".join(f"{other} ({part:.0%})" for other, part in others)
        return f"predicted {name} ({share:.0%})" + (f"; then {then}" if then else "")
    counts = Counter(found).most_common()
    return "predicted parts of the points: " + ", ".join(f"{part} ({count / len(found):.1%})" for part, count in counts)


def _plain(layer: CloudLayer) -> dict[str, Any]:
    return {
        "site": shown(layer.site),
        "points": None if layer.points is None else layer.points.tolist(),
        "maps": {way: plain_tensor(weights) for way, weights in layer.maps.items()},
    }
