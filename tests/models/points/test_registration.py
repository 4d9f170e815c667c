"""Point models by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch

import attngraft
import attngraft.models  # registers the models
from attngraft.hosts.parts import model_parts
from attngraft.models.host_input import host_input
from attngraft.models.points.registration import MODELS
from attngraft.tensors import meta_device

#: with the default arguments
PARAMETERS = {
    "bixt_points_naive": 14_794_408,
    "bixt_points_group": 16_840_936,
    "bixt_points_hier": 5_454_760,
    "bixt_parts_naive": 14_369_906,
    "bixt_parts_hier": 8_534_770,
    "pointnet": 3_480_049,
    "pointnet2": 1_475_688,
    "pointmlp": 13_238_504,
    "pointmlp_elite": 716_232,
    "pointmlp_parts": 16_755_594,
}


def test_the_table_is_complete() -> None:
    assert set(PARAMETERS) == set(MODELS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_name_makes_a_model(name: str) -> None:
    with meta_device():
        model = timm.create_model(name)
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]
    parts = model_parts(model)
    of_head = {name: value for name, value in model.named_parameters() if parts.of(name) == "head"}
    assert all(value.shape[0] in (40, 50) for value in of_head.values())
    assert len(of_head) in (1, 2)
    shown = host_input(f"attngraft:{name}", {})
    assert shown.pop("least_batch") in (1, 2)
    assert shown == {"kind": "points", "labels": "points" if "parts" in name else "clouds"}


def test_there_are_no_pretrained_weights() -> None:
    with pytest.raises(attngraft.HostError, match="no pretrained weights"):
        attngraft.create_model("attngraft:pointnet", pretrained=True)


@pytest.mark.parametrize("name", ["pointmlp_elite", "pointmlp_parts"])
def test_files_in_the_format_of_pointmlps_authors_load(name: str, tmp_path: Path) -> None:
    """A dictionary with `net`, whose names start with `module.`, and without `decoder.` in the model of parts."""
    small: dict[str, Any] = {"embed_dim": 8, "num_classes": 4}
    small |= {"decoder": (16, 16, 16, 16), "categories": 3} if name == "pointmlp_parts" else {}
    torch.manual_seed(0)
    model = timm.create_model(name, **small)
    net = {f"module.{key.removeprefix('decoder.')}": value for key, value in model.state_dict().items()}
    torch.save({"net": net, "epoch": 3, "best_test_acc": 94.0, "optimizer": {}}, tmp_path / "best.pth")
    loaded = attngraft.create_model(f"attngraft:{name}", weights=tmp_path / "best.pth", **small)
    assert all(torch.equal(value, loaded.state_dict()[key]) for key, value in model.state_dict().items())
