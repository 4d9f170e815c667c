"""Effective receptive fields: gradients of features with respect to pixels (Luo et al. 2016)."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attngraft.analysis.panels import map_values, table
from attngraft.analysis.request import Analysis, AnalysisRequest, Content, Measured, by_model
from attngraft.analysis.tensors import feature_map, find_tensors, recorded
from attngraft.errors import RecordError, UsageError
from attngraft.recording.attention_maps import check_position
from attngraft.results.analysis import Curves, Line, Picture, PictureRow, Pictures
from attngraft.targets.handle import ModelHandle

_HOOK_POINTS = ("attn.end", "mlp.end")
_SHARES = (0.2, 0.3, 0.5, 0.99)  #: shares of the field, as in Ding et al.
_CURVE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
_LEAST = -4.0  #: lower limit of the color scale (log10)
_BATCH = 8  #: largest batch size for computing gradients


def receptive_field(
    features: Callable[[Tensor], Tensor], images: Tensor, *, place: tuple[int, int] | None = None
) -> Tensor:
    """Return the effect of each pixel on the features at one map position, (H, W), at most 1.

    For each image, the rectified features at `place` are summed over channels, and the gradient of the sum with respect
    to the pixels is computed. Negative values are set to 0, color channels summed, images averaged, and the result is
    scaled to a maximum of 1 (Ding et al. 2022, "Scaling up your kernels to 31x31", Appendix; with an additional ReLU,
    since channels of signed features would cancel).

        def features(images):
            with attngraft.record(model, "mlp.end", detach=False) as recording:
                model(images)
            return recording.on_map("blocks.11.mlp", "mlp.end")

    Args:
        features: function of images (B, channels, H, W) that returns a map (B, rows, columns, C) with gradients.
        images: (B, channels, H, W).
        place: (row, column) on that map; default: the center.

    Raises:
        UsageError: the features are not a map or have no gradient, or `place` is outside of the map.
    """
    field = pixel_gradient(features, images, place=place)
    return field / field.max().clamp_min(torch.finfo(field.dtype).tiny)


def pixel_gradient(
    features: Callable[[Tensor], Tensor], images: Tensor, *, place: tuple[int, int] | None = None
) -> Tensor:
    """Return `receptive_field` before scaling, (H, W), for averaging over several batches.

    Raises:
        UsageError: see `receptive_field`.
    """
    with torch.enable_grad():
        pixels = images.detach().clone().requires_grad_()
        found = features(pixels)
        if found.ndim != 4 or len(found) != len(images):
            raise UsageError(
                f"features must be a map (B, rows, columns, C) of {len(images)} images, got {tuple(found.shape)}"
            )
        rows, columns = found.shape[1:3]
        row, column = check_position(place or (rows // 2, columns // 2), rows, columns)
        if not found.requires_grad:
            raise UsageError("the features have no gradient; record with detach=False, outside of torch.no_grad()")
        (gradient,) = torch.autograd.grad(found[:, row, column].relu().sum(), pixels)
    return gradient.clamp_min(0).sum(1).mean(0)


def area_holding(field: Tensor, share: float) -> float:
    """Return the relative area of the smallest centered rectangle that contains `share` of the field.

    The rectangle grows by a pixel at both ends of its longer side and proportionally along its shorter side. Ding et al.
    (2022) report the area for shares of 20%, 30%, 50% and 99%. A large area means that distant pixels have about as much
    effect as near pixels.

    Raises:
        UsageError: the field is 0 everywhere, or `share` is not between 0 and 1.
    """
    if not 0 < share <= 1:
        raise UsageError(f"share must be between 0 and 1, got {share}")
    field = field.double()
    total = float(field.sum())
    if total <= 0:
        raise UsageError(
            "the field is 0 everywhere: no pixel affects the features; choose other features or another place"
        )
    longer = max(field.shape)
    for radius in range(longer):
        rows, columns = (
            slice(max(0, size // 2 - reach), size // 2 + reach + 1)
            for size, reach in ((size, radius * size // longer) for size in field.shape)
        )
        inside = field[rows, columns]
        if float(inside.sum()) >= share * total * (1 - 1e-12):  # the tolerance covers rounding of the two sums
            return inside.numel() / field.numel()
    return 1.0


@dataclass(frozen=True, kw_only=True)
class _Field:
    """Receptive field of one model."""

    site: str
    hook_point: str
    values: Tensor  #: (H, W), scaled to a maximum of 1
    areas: dict[float, float]  #: share of the field -> fraction of the image that contains it


def _measure(request: AnalysisRequest, model: ModelHandle, left_out: dict[str, str]) -> _Field:
    site, hook_point = _last_map(request, model)

    def features(images: Tensor) -> Tensor:
        return feature_map(recorded(model, images, hook_point, sites=site, detach=False), site, hook_point)

    total, count = torch.zeros(()), 0
    for images in replace(request, batch=min(request.batch, _BATCH)).batches(model):
        total = total + len(images) * pixel_gradient(features, images).double().cpu()
        count += len(images)
    if not bool(total.isfinite().all()) or not bool((total > 0).any()):
        raise RecordError(f"{site}: the gradient of its features is 0 or not finite; choose another layer with --sites")
    values = total / total.max()
    areas = {share: area_holding(values, share) for share in (*_SHARES, *_CURVE)}
    return _Field(site=site, hook_point=hook_point, values=values, areas=areas)


def _last_map(request: AnalysisRequest, model: ModelHandle) -> tuple[str, str]:
    """Return the site and hook point of the last layer whose output is a map."""
    inputs, missing = next(request.pictures(model)).inputs, "no chosen layer has a map of the image"
    hook_points = find_tensors(request, model, _HOOK_POINTS, missing=missing)
    recording = recorded(model, inputs, {name for names in hook_points.values() for name in names}, sites=request.sites)
    reasons = []
    for site, names in reversed(hook_points.items()):
        for hook_point in reversed([name for name in _HOOK_POINTS if name in names]):
            try:
                feature_map(recording, site, hook_point)
            except RecordError as error:
                reasons.append(str(error))
            else:
                return site, hook_point
    raise RecordError(f"{missing}; {reasons[0]}")


def _present(request: AnalysisRequest, models: Measured[_Field]) -> Content:
    pictures = [
        Picture(values=map_values(field.values.log10().clamp_min(_LEAST)), caption=name) for _, name, field in models
    ]
    curves = [
        Line(name=name, subject=index, x=list(_CURVE), y=[field.areas[share] for share in _CURVE])
        for index, name, field in models
    ]
    return Content(
        note="Effect of each pixel on the features at the center of the last layer's map (inside its residual branch): the "
        "gradient of the sum of the rectified channels, with negative values set to 0, summed over colors and averaged over "
        "images, as in Ding et al. except for the rectification. For an even number of rows or columns, the center is the "
        f"position below and right of the middle. Colors: decimal logarithm from {_LEAST:g} to 0, the maximum. Area: the "
        "smallest centered rectangle that contains a share of the field, as a fraction of the image; it is large if distant "
        "pixels have as much effect as near ones. Dotted: a uniform field.",
        panels=[
            Pictures(title="log10 of the field", rows=[PictureRow(name="", pictures=pictures)], low=_LEAST, high=0.0),
            Curves(
                title="area that holds a share of the field",
                x_axis="share of the field",
                y_axis="fraction of the image",
                lines=[*curves, Line(name="uniform", x=list(_CURVE), y=list(_CURVE))],
            ),
        ],
        table=table(
            ["model", "layer", "stage", "share", "area"],
            [
                (name, field.site, field.hook_point, share, field.areas[share])
                for _, name, field in models
                for share in sorted(field.areas)
            ],
        ),
        numbers={
            f"{name}: area that holds {share:.0%}": field.areas[share] for _, name, field in models for share in _SHARES
        },
    )


ANALYSIS = Analysis(
    name="receptive-field",
    title="Effective receptive field",
    summary="effective receptive field of the last layer with a map, and the area that holds shares of it",
    source="Luo et al. 2016; Ding et al. 2022",
    run=by_model(_measure, _present),
)
