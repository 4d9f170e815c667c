"""Published names: arguments, sizes, and weights that fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import timm
import torch
from torch import Tensor

import attngraft
from attngraft.models.bixt.model import BiXT
from attngraft.models.bixt.registration import NAMES, arguments
from attngraft.tensors import meta_device
from tests.models.bixt.tiny import TINY, images, tiny

#: official names -> parameters
SIZES = {
    15_121_192: [f"bixt_ti_l64_{patch}{size}" for patch in ("p16", "p16s8", "p16s4") for size in ("", "_ft384")],
    16_381_672: [f"bixt_ti_l64_d13_{patch}{size}" for patch in ("p16", "p16s8", "p16s4") for size in ("", "_ft384")],
    15_115_048: ["bixt_ti_l32_p16", "bixt_ti_l32_p16s8"],
    15_133_480: ["bixt_ti_l128_p16", "bixt_ti_l128_p16s8"],
    26_682_088: ["bixt_ed256_l64_p16", "bixt_ed256_l64_p16s8", "bixt_ed256_l64_p16s8_ft384"],
    26_700_008: ["bixt_ed256LS_l64_p16s8", "bixt_ed256LS_l64_p16s8_ft384"],
    15_192_640: ["bixt_ti_cnv_l64_p16", "bixt_conv_ti_l64_p16"],
    16_453_120: ["bixt_ti_cnv_l64_d13_p16", "bixt_conv_ti_l64_d13_p16"],
    16_443_352: ["bixt_ti_cnv_l64_d13_p8", "bixt_conv_ti_l64_d13_p8"],
    16_403_080: ["bixt_ti_cnv_l64_d13_p4"],
}
#: the paper's, with its heads
PAPER = {
    "bixt_ti_h3_l32_p16": 15_115_048,
    "bixt_ti_h3_l64_p16": 15_121_192,
    "bixt_ti_h3_l128_p16": 15_133_480,
    "bixt_sm_h6_l32_p16": 59_572_840,
    "bixt_sm_h6_l64_p16": 59_585_128,
    "bixt_sm_h6_l128_p16": 59_609_704,
    "bixt_ti_h3_l64_p32s16": 15_563_560,
    "bixt_ti_h3_l64_p32s8": 15_563_560,
    "bixt_ti_h3_l64_p16s8": 15_121_192,
    "bixt_ti_h3_l64_p16s4": 15_121_192,
    "bixt_ti_h3_l64_p8": 15_010_600,
    "bixt_ti_h3_l64_p8s4": 15_010_600,
    "bixt_ti_h3_l64_p4": 14_982_952,
    "bixt_ti_h3_l64_p16_ft384": 15_121_192,
    "bixt_ti_h3_l64_p16s8_ft384": 15_121_192,
    "bixt_ti_h3_l64_p16s4_ft384": 15_121_192,
    "bixt_ti_h3_l64_d13_p16": 16_381_672,
    "bixt_ti_h3_cnv_l64_p16": 15_192_640,
    "bixt_ti_h3_lpi_l64_p16": 15_171_880,  # 11 layers of two depthwise convolutions, a batch norm and a layer norm
}
PARAMETERS = {name: count for count, names in SIZES.items() for name in names} | PAPER
#: names in the counts -> ours
COUNTED = {
    "paper_small_l32": "bixt_sm_h6_l32_p16",
    "paper_small_l64": "bixt_sm_h6_l64_p16",
    "paper_small_l128": "bixt_sm_h6_l128_p16",
    "paper_A2_p32_grid14": "bixt_ti_h3_l64_p32s16",
    "paper_A2_p32_grid28": "bixt_ti_h3_l64_p32s8",
    "paper_A2_p8_grid28": "bixt_ti_h3_l64_p8",
    "paper_A2_p8_grid56": "bixt_ti_h3_l64_p8s4",
    "paper_A2_p4_grid56": "bixt_ti_h3_l64_p4",
}


def made(name: str, **changes: Any) -> BiXT:
    with meta_device():
        model: BiXT = timm.create_model(name, **changes)
    return model


# -- names -------------------------------------------------------------------------------------------------------------


def test_timm_knows_them() -> None:
    of_points = [*timm.list_models("bixt_points_*"), *timm.list_models("bixt_parts_*")]
    assert {*timm.list_models("bixt_*")} - {*of_points} == set(NAMES) == set(PARAMETERS)
    assert len(NAMES) == len(set(NAMES))


@pytest.mark.parametrize("name", PARAMETERS)
def test_what_a_name_makes(name: str) -> None:
    model = made(name)
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]
    size, config = model.pretrained_cfg["input_size"][1], arguments(name)
    assert size == (384 if "ft384" in name else 224)
    assert model.grid_size == (size // config.get("stride", config["patch_size"]),) * 2
    heads = {"h3": 3, "h6": 6}.get(name.split("_")[2], model.embed_dim // 32)
    assert model.blocks[0].cross_attention_latents_token.attn.heads == heads
    assert model.blocks[0].self_attention_latents.attn.num_heads == heads
    assert ("fourier_pos_encode.pos" in model.state_dict()) == ("ft384" not in name)
    assert len(model.blocks) == (13 if "d13" in name else 12)
    assert model.blocks[-1].one_sided
    first = model.get_submodule(model.pretrained_cfg["first_conv"])
    assert isinstance(first, torch.nn.Conv2d) and first.in_channels == 3


def test_parameters_are_those_counted(shared: Path) -> None:
    rows = json.loads((shared / "facts/bixt_counts.json").read_text())["rows"]
    found = {row["name"]: row["params"] for row in rows if "params" in row}
    compared = {name: count for name, count in found.items() if COUNTED.get(name, name) in PARAMETERS}
    assert len(compared) >= 20 - 3
    assert {name: PARAMETERS[COUNTED.get(name, name)] for name in compared} == compared


def test_the_aliases_are_the_same_models() -> None:
    for alias in ("bixt_conv_ti_l64_p16", "bixt_conv_ti_l64_d13_p16", "bixt_conv_ti_l64_d13_p8"):
        assert arguments(alias) == arguments(alias.replace("conv_ti", "ti_cnv"))


def test_a_name_of_another_kind() -> None:
    with pytest.raises(ValueError, match="does not follow the pattern of BiXT names"):
        arguments("bixt_huge")


def test_a_stride_follows_other_patches() -> None:
    assert made("bixt_ti_l64_p16", patch_size=32, depth=1).grid_size == (7, 7)
    assert made("bixt_ti_l64_p16s8", patch_size=32, depth=1).grid_size == (28, 28)


def test_arguments_take_precedence() -> None:
    model = made("bixt_ti_l64_p16s8", num_classes=7, in_chans=1, img_size=(64, 128), depth=2, drop_path_rate=0.1)
    assert model.grid_size == (8, 16)
    assert (model.head.out_features, model.patch_embed.proj.in_channels, len(model.blocks)) == (7, 1, 2)


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("bixt_ti_l64_p16", 16),
        ("bixt_ti_l64_p16", 32),
        ("bixt_ti_l64_p16", (8, 24)),
        ("bixt_ti_l64_p16_ft384", (24, 8)),
    ],
)
@pytest.mark.parametrize("way", ["load_state_dict", "checkpoint_path", "pretrained", "weights"])
def test_a_checkpoint_loads_at_any_size(tmp_path: Path, name: str, size: Any, way: str) -> None:
    """Positions of the model's own grid, all else the file's."""
    donor = tiny(seed=3)
    assert "fourier_pos_encode.pos" in donor.state_dict()
    path = tmp_path / "donor.safetensors"
    safetensors.torch.save_file(donor.state_dict(), path)
    given: dict[str, Any] = {**TINY, "img_size": size}
    if way == "load_state_dict":
        model = tiny(name, img_size=size)
        assert not any(model.load_state_dict(donor.state_dict()))
    elif way == "checkpoint_path":
        model = timm.create_model(name, checkpoint_path=str(path), **given)
    elif way == "pretrained":
        overlay = {"file": str(path), "num_classes": 5}
        model = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, **given)
    else:
        model = attngraft.create_model(name, weights=path, **given)
    filled: dict[str, Tensor] = model.state_dict()
    for key, value in donor.state_dict().items():
        if key != "fourier_pos_encode.pos":
            assert torch.equal(filled[key], value), key
    height, width = size if isinstance(size, tuple) else (size, size)
    fresh = tiny(name, img_size=size, seed=4)
    fresh.load_state_dict(filled)
    at = images(height=height, width=width)
    assert torch.equal(model.eval()(at), fresh(at))
    assert torch.equal(
        model.fourier_pos_encode.code((height // 4, width // 4)),
        fresh.fourier_pos_encode.code((height // 4, width // 4)),
    )


@pytest.mark.parametrize(
    ("name", "first"),
    [("bixt_ti_l64_p16", "patch_embed.proj.weight"), ("bixt_ti_cnv_l64_p16", "patch_embed.proj.0.0.weight")],
)
def test_other_channels_and_classes(tmp_path: Path, name: str, first: str) -> None:
    donor = tiny(name, seed=3)
    path = tmp_path / "donor.safetensors"
    safetensors.torch.save_file(donor.state_dict(), path)
    summed = donor.get_parameter(first).sum(1, keepdim=True)  # of red, green and blue
    given = {**TINY, "in_chans": 1, "num_classes": 9}
    model = attngraft.create_model(name, weights=path, **given)
    torch.testing.assert_close(model.get_parameter(first), summed)
    assert model.head.weight.shape == (9, 16) and not model.head.weight.any()
    overlay = {"file": str(path), "num_classes": 5}
    model = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, **given)
    torch.testing.assert_close(model.get_parameter(first), summed)
    assert model(images(channels=1)).shape == (2, 9)


def test_a_model_without_its_last_layer_takes_the_whole_models_file(tmp_path: Path) -> None:
    donor = tiny("bixt_ti_l64_d13_p16", depth=4, seed=3)
    path = tmp_path / "donor.safetensors"
    safetensors.torch.save_file(donor.state_dict(), path)
    given = {**TINY, "depth": 4, "dense": True}
    model = attngraft.create_model("bixt_ti_l64_d13_p16", weights=path, **given).eval()
    assert torch.equal(model.forward_tokens(images()), donor.forward_tokens(images()))
    overlay = {"file": str(path), "num_classes": 5}
    model = timm.create_model("bixt_ti_l64_d13_p16", pretrained=True, pretrained_cfg_overlay=overlay, **given).eval()
    assert torch.equal(model.forward_tokens(images()), donor.forward_tokens(images()))


def test_a_file_of_other_layers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "donor.safetensors"
    safetensors.torch.save_file(tiny(depth=2).state_dict(), path)
    with pytest.raises(attngraft.HostError, match=r"lacks blocks\.1.* unexpected: blocks\.1"):
        attngraft.create_model("bixt_ti_l64_p16", weights=path, **TINY)


def test_there_are_no_weights_to_fetch() -> None:
    with pytest.raises(attngraft.HostError, match="no weights for bixt_ti_l64_p16"):
        attngraft.create_model("bixt_ti_l64_p16", pretrained=True)
