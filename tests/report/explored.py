"""What tests of the explorer's page look at: models of each kind, what they see, and what the page's own code finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image
from torch import Tensor, nn

import attngraft
import attngraft.models  # registers BiXT
from attngraft.hosts import find_host
from tests.analysis.test_explorer import swin, vit


def models(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "vit":
        model = vit(reg_tokens=1)
    elif kind == "bixt":
        model = timm.create_model("bixt_ti_l64_p16", img_size=64, depth=2)
    elif kind == "elsa":
        model = swin(56)
        attngraft.graft(model, "elsa@layers.0 + elsa(kernel=3)@layers.1.blocks.0")
    else:
        model = swin(56)  # shifted, filled up
        attngraft.graft(model, "elsa(kernel=3)@layers.0.blocks.0 + bisa@layers.1.blocks.1")
    for parameter in model.parameters():
        parameter.data.mul_(3 if parameter.ndim > 1 else 1)  # so that heads do not look everywhere alike
    return model.eval()


def seen(model: nn.Module, picture: Path) -> Tensor:
    """The image as the model takes it."""
    (example,) = find_host(model).adapter.example_inputs(model, batch=1)
    config = timm.data.resolve_model_data_config(model) | {"input_size": tuple(example.shape[1:])}
    with Image.open(picture) as image:  # timm's own transform, where the page has ours
        pixels: Tensor = timm.data.create_transform(**config, is_training=False)(image.convert("RGB"))
    return pixels.unsqueeze(0)


def page_attention(driver: Any, layer: int, query: dict[str, Any], head: int, direction: str) -> dict[str, Any]:
    """What the page's own code finds."""
    script = "return views[0].model.layers[arguments[0]].attention(arguments[1], arguments[2], arguments[3])"
    found: dict[str, Any] = driver.execute_script(script, layer, query, head, direction)
    return found


def close(found: Any, expected: Tensor, among: Tensor) -> bool:
    """As close as bytes keep numbers `among` all of the layer."""
    numbers = torch.as_tensor(found, dtype=torch.float32).reshape(expected.shape)
    return bool((numbers - expected).abs().max() <= 0.01 * among.abs().max())


def place(row: int, column: int, grid: tuple[int, int]) -> dict[str, float]:
    return {"down": (row + 0.5) / grid[0], "across": (column + 0.5) / grid[1]}


def pixels(driver: Any, canvas: Any) -> np.ndarray[Any, Any]:
    """What stands on a canvas, (rows, columns, 4)."""
    script = """const from = arguments[0], copy = new OffscreenCanvas(from.width, from.height);
        const context = copy.getContext("2d", { willReadFrequently: true }); // or Chromium warns
        context.drawImage(from, 0, 0);
        return [copy.height, copy.width, [...context.getImageData(0, 0, copy.width, copy.height).data]]"""
    rows, columns, numbers = driver.execute_script(script, canvas)
    return np.array(numbers).reshape(rows, columns, 4)
