"""The whole way of published weights: a checkpoint, `attngraft convert`, `load_official`, and the published model's logits.

The weights and logits are the conformance vectors' (tests/conformance): of the authors' code, and for ELSA-VOLO, of which
there is none, of their blocks in VOLO.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor

import attngraft.models  # noqa: F401 - registers the models
from attngraft.cli import main
from attngraft.models.weights import load_official
from tests.conformance.vector import load
from tests.conformance.weights import input_value, weight
from tests.slow import slow_but

#: vector -> the model as timm makes it
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "elsa_swin_micro_img64": (
        "elsa_swin_tiny",
        {
            "img_size": 64,
            "num_classes": 10,
            "embed_dim": 24,
            "depths": [1, 1, 1, 1],
            "num_heads": [3, 6, 12, 24],
            "group_width": 8,
        },
    ),
    "elsa_volo_micro_img64": (
        "elsa_volo_d1",
        {
            "img_size": 64,
            "layers": [1, 1, 1, 1],
            "embed_dims": [48, 96, 96, 96],
            "num_heads": [3, 6, 6, 6],
            "kernel_size": 5,
            "group_width": 8,
            "lam": 1,
        },
    ),
    "elsa_swin_tiny_224": ("elsa_swin_tiny", {}),
    "volo_d1_224": ("volo_d1_224", {}),
}


@pytest.fixture
def vector(shared: Path, name: str) -> Path:
    path = shared / f"conformance/vectors/elsa/{name}.json"
    if not path.exists():
        pytest.skip(f"no vector at {path}")
    return path


def published(vector: Path, model: str, folder: Path) -> Path:
    """As the authors' training scripts save it, with the buffers that their code saves."""
    state: dict[str, Tensor] = {
        key: torch.from_numpy(weight(key, shape)) for key, shape in load(vector).state_shapes.items()
    }
    for key, shape in json.loads(vector.read_text()).get("computed_buffers", {}).items():
        state[key] = torch.zeros(shape, dtype=torch.int64)
    torch.save({"epoch": 309, "arch": model, "state_dict": state}, folder / "published.pth")
    return folder / "published.pth"


@pytest.mark.parametrize("name", slow_but(MODELS, "elsa_swin_micro_img64", "elsa_volo_micro_img64"))
def test_converted_or_as_it_is_a_published_file_gives_the_published_logits(
    vector: Path, name: str, tmp_path: Path
) -> None:
    model, arguments = MODELS[name]
    path, converted = published(vector, model, tmp_path), tmp_path / "converted.safetensors"
    options = [f"--host={model}", *(f"--host-arg={key}={value}" for key, value in arguments.items())]
    with pytest.raises(SystemExit) as stop:
        main(["convert", str(path), str(converted), *(options if arguments else [])])  # else as the file's `arch` says
    assert not stop.value.code
    facts = load(vector)
    (image,) = (torch.from_numpy(input_value(key, shape)) for key, shape in facts.inputs.items())
    expected = facts.expected["logits"]
    for file in (path, converted):
        made = timm.create_model(model, **arguments).eval()
        assert load_official(made, file).new == ()
        with torch.no_grad():
            logits = made(image).flatten()[:: expected.get("stride") or 1]
        torch.testing.assert_close(logits, torch.tensor(expected["values"]), atol=1e-5, rtol=1e-5)
