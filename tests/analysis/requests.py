"""Small models and images to ask about, and what must hold of every result."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image
from timm.models.nest import Nest
from torch import nn

import attngraft.models  # noqa: F401 - registers BiXT
from attngraft.analysis.catalog import load_analysis, save_analysis
from attngraft.analysis.request import Analysis, AnalysisRequest
from attngraft.drawing.panels import analysis_plots, panel_drawing
from attngraft.models.dense import segmenter
from attngraft.report.analyses import analyses_html, analysis_csv
from attngraft.results.analysis import AnalysisResult
from attngraft.targets.handle import ModelHandle, model_handle
from attngraft.targets.images import ImageSet
from attngraft.tasks.images.inputs import HostInput
from attngraft.tasks.segmentation.codec import SegmentationCodec
from attngraft.tasks.segmentation.config import InferenceConfig
from tests.tasks.segmentation.drawings import CLASSES

SIDE = 32


def vit(**changes: Any) -> nn.Module:
    """A ViT whose heads do not look everywhere alike."""
    shape = {"img_size": SIDE, "patch_size": 8, "depth": 3, "embed_dim": 24, "num_heads": 2, "num_classes": 5}
    return sharp(timm.create_model("vit_tiny_patch16_224", **shape | changes))


def swin(**changes: Any) -> nn.Module:
    shape = {"img_size": SIDE, "window_size": 4, "depths": (2, 2), "embed_dim": 24, "num_heads": (1, 2)}
    return sharp(timm.create_model("swin_tiny_patch4_window7_224", **shape | changes))


def nest() -> nn.Module:
    """As many blocks of as many tokens as its first map has rows and columns, 16 each."""
    shape = {"img_size": 2 * SIDE, "embed_dims": (16, 24, 32), "num_heads": (1, 2, 2), "depths": (1, 1, 1)}
    return sharp(Nest(**shape, num_classes=5))


def bixt(name: str = "bixt_ti_l64_p16", **changes: Any) -> nn.Module:
    """Three layers and 8 latents, on a map of 4 x 4."""
    shape = {"img_size": SIDE, "patch_size": 8, "num_latents": 8, "embed_dim": 24, "depth": 3, "num_heads": 2}
    return sharp(timm.create_model(name, **shape | changes))


def predicting_masks(host: nn.Module, name: str = "a") -> ModelHandle:
    """A segmentation model of three classes around the host, for inputs of 32 x 64."""
    torch.manual_seed(0)
    expects = HostInput.from_model(timm.data.resolve_model_data_config(host))
    colors = [(200, 0, 0), (0, 200, 0), (0, 0, 200)]
    codec = SegmentationCodec(expects, InferenceConfig(), crop=(30, 60), classes=CLASSES, colors=colors)
    model = sharp(segmenter(host, classes=3, head="semantic_fpn", width=16))
    return ModelHandle(name=name, model=model, preparation=codec.preprocessor(), description="", masks=codec)


def sharp(model: nn.Module) -> nn.Module:
    """With larger weights, in evaluation mode."""
    for parameter in model.parameters():
        parameter.data.mul_(3 if parameter.ndim > 1 else 1)
    return model.eval()


def image_set(count: int = 10) -> ImageSet:
    """Images of noise, class by class."""
    pixels = np.random.default_rng(0).integers(0, 255, (count, SIDE, SIDE, 3), dtype=np.uint8)
    return ImageSet(
        source="noise",
        names=[f"noise/{place}" for place in range(count)],
        open=lambda place: Image.fromarray(pixels[place]),
        labels=np.arange(count) % 2,
        classes=("even", "odd"),
    )


def make_request(
    *models: nn.Module | ModelHandle, names: Sequence[str] = "abcdefgh", **changes: Any
) -> AnalysisRequest:
    subjects = tuple(
        model if isinstance(model, ModelHandle) else model_handle(name, model)
        for name, model in zip(names, models, strict=False)
    )
    return replace(AnalysisRequest(models=subjects, image_set=image_set(), limit=6, shown=2, batch=4), **changes)


def inputs(given: AnalysisRequest, places: Sequence[int], subject: int = 0) -> torch.Tensor:
    """Images as the model takes them."""
    model = given.models[subject]
    return model.inputs([model.view(given.images.open(place)) for place in places])


def run_and_check(analysis: Analysis, given: AnalysisRequest, folder: Path) -> AnalysisResult:
    """What it finds, once it has been written, read back, drawn and put on a page."""
    seen = []
    result = analysis(replace(given, progress=seen.append))
    if given.image_set is not None and analysis.images != "none":
        assert sum(seen) > 0, "it says how far it is"
    again = load_analysis(save_analysis(result, folder))
    assert again == replace(result, made=dict(result.made))
    files = analysis_plots(result)
    assert {f"{result.name}.png", f"{result.name}.svg", f"{result.name}-dark.png"} <= files.keys()
    assert files[f"{result.name}.png"].startswith(b"\x89PNG")
    rows = list(csv.reader(io.StringIO(analysis_csv(result))))
    assert len(rows) == 1 + len(result.table.rows) > 1
    assert all(len(row) == len(result.table.columns) for row in rows)
    page = analyses_html([result], title="<b>a page</b>")
    assert "<b>a page" not in page
    assert f'id="analysis-{result.name}"' in page
    assert all(panel_drawing(result, panel).alt for panel in result.panels)
    return result


def rows_of(result: AnalysisResult, **wanted: Any) -> list[dict[str, Any]]:
    """The table's rows with these cells, as mappings."""
    names = [column.name for column in result.table.columns]
    rows = [dict(zip(names, row, strict=True)) for row in result.table.rows]
    return [row for row in rows if all(row[name.replace("_", " ")] == value for name, value in wanted.items())]
