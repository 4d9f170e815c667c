"""Small models and images to ask about, and what must hold of every finding."""

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

from attngraft.analysis.ask import Analysis, Ask
from attngraft.analysis.storage import load_finding, save_finding
from attngraft.report.analyses import analyses_html
from attngraft.report.findings import finding_csv, finding_plots, in_words
from attngraft.results.analysis import Finding
from attngraft.targets.handle import ModelHandle, model_handle
from attngraft.targets.images import ImageSet

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


def sharp(model: nn.Module) -> nn.Module:
    """With larger weights, in evaluation mode."""
    for parameter in model.parameters():
        parameter.data.mul_(3 if parameter.ndim > 1 else 1)
    return model.eval()


def album(count: int = 10) -> ImageSet:
    """Images of noise, class by class."""
    pixels = np.random.default_rng(0).integers(0, 255, (count, SIDE, SIDE, 3), dtype=np.uint8)
    return ImageSet(
        source="noise",
        names=[f"noise/{place}" for place in range(count)],
        open=lambda place: Image.fromarray(pixels[place]),
        labels=np.arange(count) % 2,
        classes=("even", "odd"),
    )


def ask(*models: nn.Module | ModelHandle, names: Sequence[str] = "abcdefgh", **changes: Any) -> Ask:
    subjects = tuple(
        model if isinstance(model, ModelHandle) else model_handle(name, model)
        for name, model in zip(names, models, strict=False)
    )
    return replace(Ask(subjects=subjects, album=album(), limit=6, shown=2, batch=4), **changes)


def inputs(given: Ask, places: Sequence[int], subject: int = 0) -> torch.Tensor:
    """Images as the model takes them."""
    model = given.subjects[subject]
    return model.inputs([model.view(given.images.open(place)) for place in places])


def found(analysis: Analysis, given: Ask, folder: Path) -> Finding:
    """What it finds, once it has been written, read back, drawn and put on a page."""
    seen = []
    finding = analysis(replace(given, progress=seen.append))
    if given.album is not None and analysis.images != "none":
        assert sum(seen) > 0, "it says how far it is"
    again = load_finding(save_finding(finding, folder))
    assert again == replace(finding, made=dict(finding.made))
    files = finding_plots(finding)
    assert {f"{finding.name}.png", f"{finding.name}.svg", f"{finding.name}-dark.png"} <= files.keys()
    assert files[f"{finding.name}.png"].startswith(b"\x89PNG")
    rows = list(csv.reader(io.StringIO(finding_csv(finding))))
    assert len(rows) == 1 + len(finding.table.rows) > 1
    assert all(len(row) == len(finding.table.columns) for row in rows)
    page = analyses_html([finding], title="<b>a page</b>")
    assert "<b>a page" not in page
    assert f'id="analysis-{finding.name}"' in page
    assert all(in_words(finding, panel) for panel in finding.panels)
    return finding


def rows_of(finding: Finding, **wanted: Any) -> list[dict[str, Any]]:
    """The table's rows with these cells, as mappings."""
    names = [column.name for column in finding.table.columns]
    rows = [dict(zip(names, row, strict=True)) for row in finding.table.rows]
    return [row for row in rows if all(row[name.replace("_", " ")] == value for name, value in wanted.items())]
