"""Importance maps of BiSA's inverse branch, and the magnitude of both branches (BiSA, Fig. 2)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attngraft.analysis.layers import LayerAxis, captions
from attngraft.analysis.panels import Values, cells, head_maps, map_values, mean, png, table
from attngraft.analysis.request import Analysis, AnalysisRequest, Content, Measured, by_model
from attngraft.analysis.tensors import find_tensors, recorded
from attngraft.errors import RecordError, UsageError
from attngraft.recording.attention_maps import tokens_to_map
from attngraft.recording.recording import Recording
from attngraft.results.analysis import Curves, Line, Picture, PictureRow, Pictures
from attngraft.results.sections import Cell
from attngraft.targets.handle import ModelHandle

_BRANCHES = ("self", "inverse")


def importance(inverse_weights: Tensor) -> Tensor:
    """Return the largest inverse attention of each query, max_j L_ij: (..., Nq, Nk) to (..., Nq).

    L sums to 1 over the queries for each key, so the value is large for queries that dominate at least one key.
    """
    return inverse_weights.amax(-1)


def importance_map(recording: Recording, site: str, name: str = "bisa.inverse_weights") -> Tensor:
    """Return the importance map as in Fig. 2, (B, H, rows, columns), from 0 to 1 in each window.

        with torch.no_grad(), attngraft.record(model, "bisa") as recording:
            model(images)
        importance_map(recording, "layers.0.blocks.1.attn")

    Prefix and padding tokens are not on the map and do not affect the scale. If all tokens of a window have the same
    importance, the window is 0.

    Args:
        recording: recording of the model's forward pass.
        site: site of the graft.
        name: name of the recorded weights; `misa.inverse_weights` for `misa`.

    Raises:
        RecordError: no tensor of this name was recorded at the site, or the positions of its tokens are unknown.
    """
    recording.attention_map_for_query(site, (0, 0), name)  # raises an error if these are not the map's tokens
    indices, found = recording.token_indices(site), importance(recording[site][name]).movedim(1, 2)  # (B * W, N, H)
    tokens = found.shape[1]
    windows = int(indices.max()) // tokens + 1
    on_map = torch.zeros(windows * tokens, dtype=torch.bool, device=found.device)
    on_map[indices.flatten()] = True
    on_map = on_map.view(windows, tokens).repeat(len(found) // windows, 1).unsqueeze(2)
    low = found.masked_fill(~on_map, torch.inf).amin(1, keepdim=True)
    high = found.masked_fill(~on_map, -torch.inf).amax(1, keepdim=True)
    width = high - low
    scaled = torch.where(width > 0, (found - low) / torch.where(width > 0, width, 1), 0)
    return tokens_to_map(scaled, indices).movedim(3, 1)


@dataclass(kw_only=True)
class _Model:
    images: dict[str, str] = field(default_factory=dict)  #: name -> PNG
    maps: dict[str, dict[str, dict[str, Values]]] = field(default_factory=dict)  #: maps by site, image and head
    sizes: dict[tuple[str, str], list[float]] = field(default_factory=dict)  #: size by site and branch, one per image

    def size(self, site: str, branch: str) -> float | None:
        return mean(self.sizes.get((site, branch), []))


def _measure(request: AnalysisRequest, model: ModelHandle, left_out: dict[str, str]) -> _Model:
    found = _Model()
    missing = "no chosen layer has an inverse branch; the grafts bisa and misa add one"
    tensors = find_tensors(request, model, ("inverse_weights",), missing=missing)
    grafts = {site: names[0].rpartition(".")[0] for site, names in tensors.items()}
    for image, view, inputs in request.pictures(model):
        found.images[image] = png(view)
        recording = recorded(model, inputs, set(grafts.values()), sites=request.sites)
        for site, graft in grafts.items():
            try:
                maps = importance_map(recording, site, f"{graft}.inverse_weights")[0].float()
            except (RecordError, UsageError) as error:
                left_out[site] = str(error)
                continue
            by_head = head_maps(maps, heads=request.heads)
            found.maps.setdefault(site, {})[image] = {head: map_values(each) for head, each in by_head}
            for branch in _BRANCHES:
                if f"{graft}.{branch}" in recording[site]:
                    size = recording.on_map(site, f"{graft}.{branch}").float().abs().mean()
                    found.sizes.setdefault((site, branch), []).append(float(size))
    if not found.maps:
        raise RecordError(next(iter(left_out.values())))
    return found


def _present(request: AnalysisRequest, models: Measured[_Model]) -> Content:
    panels = _by_head if request.heads else _by_layer
    ratios = {}
    for _, name, model in models:
        for site in model.maps:
            own, inverse = (model.size(site, branch) for branch in _BRANCHES)
            if own and inverse is not None:
                ratios[f"{name}, {site}: mean |inverse| / mean |self|"] = inverse / own
    return Content(
        note="The largest inverse attention of each position as a query (the largest weight of its row after the softmax "
        "over queries), scaled to the range 0 to 1 within each window (without windows: within the image). Light is "
        "important. Shifted windows at the map's border consist of parts that do not attend to each other; weights sum to 1 "
        "over the queries of a part and are therefore larger in small parts. "
        + ("By head. " if request.heads else "Mean over heads; --heads shows them separately. ")
        + "Magnitude of a branch: mean absolute value of its heads before both branches are weighted and added, over the "
        "tokens of the map and the shown images.",
        panels=[*(panel for _, name, model in models for panel in panels(name, model)), *_sizes(models)],
        table=table(["model", "layer", "what", "image", "head", "row", "column", "value"], _rows(models)),
        numbers=ratios,
    )


def _by_layer(name: str, model: _Model) -> Iterator[Pictures]:
    """Yield a panel with one row per image and one column per layer."""
    layers = list(zip(model.maps, captions(list(model.maps)), strict=True))
    rows = []
    for image, pixels in model.images.items():
        maps = [
            Picture(values=model.maps[site][image]["mean"], caption=caption)
            for site, caption in layers
            if image in model.maps[site]
        ]
        rows.append(PictureRow(name=image, pictures=[Picture(image=pixels, caption="image"), *maps]))
    yield Pictures(title=f"{name}: importance by layer", rows=rows, low=0.0, high=1.0)


def _by_head(name: str, model: _Model) -> Iterator[Pictures]:
    """Yield a panel per layer, with one row per image and one column per head."""
    for site, images in model.maps.items():
        rows = []
        for image, by_head in images.items():
            maps = [Picture(values=values, caption=f"head {head}") for head, values in by_head.items()]
            rows.append(PictureRow(name=image, pictures=[Picture(image=model.images[image], caption="image"), *maps]))
        yield Pictures(title=f"{name}: importance in {site}", rows=rows, low=0.0, high=1.0)


def _sizes(models: Sequence[tuple[int, str, _Model]]) -> list[Curves]:
    """Return a panel with the curves of the magnitudes over the layers; empty if none were recorded."""
    axis = LayerAxis.of(list(model.maps) for _, _, model in models)
    lines: list[Line] = []
    for index, name, model in models:
        for branch in _BRANCHES:
            sizes = {site: model.size(site, branch) for site in model.maps}
            if any(size is not None for size in sizes.values()):
                lines.append(axis.line(f"{name}: {branch}", index, sizes, dashed=branch == "inverse"))
    return [axis.curves("magnitude of both branches", lines, y_axis="mean |x|")] if lines else []


def _rows(models: Sequence[tuple[int, str, _Model]]) -> Iterator[list[Cell]]:
    for _, name, model in models:
        for site, branch in model.sizes:
            yield [name, site, f"mean |{branch}|", None, None, None, None, model.size(site, branch)]
    for _, name, model in models:
        for image in model.images:
            for site, images in model.maps.items():
                for head, values in images.get(image, {}).items():
                    for row, column, value in cells(values):
                        yield [name, site, "importance", image, head, row, column, value]


ANALYSIS = Analysis(
    name="importance",
    title="Importance maps of the inverse branch",
    summary="importance maps of the inverse branch (bisa, misa), and the magnitude of both branches",
    source="BiSA, Fig. 2",
    run=by_model(_measure, _present),
    images="shown",
)
