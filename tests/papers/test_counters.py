"""Each paper's counter against the reference counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import timm
import torch
from torch import nn

import attngraft
from attngraft.grafting.spec import parse
from attngraft.papers.counters import COUNTERS, GI, MI, count_cb, count_cb_multiplications, count_hv
from attngraft.papers.skeletons import SKELETONS

IMAGE = (torch.empty(1, 3, 224, 224, device="meta"),)
HV_SPECS = {"baseline": None, "hor": "horizontal", "ver": "vertical", "hor+ver": "horizontal + vertical"}


def on_meta(name: str, graft: str | None = None, **args: int) -> nn.Module:
    with torch.device("meta"):
        return attngraft.create_model(name, graft=graft, **args)


def test_cb_models(shared: Path):
    counts = json.loads((shared / "facts" / "cb_counts.json").read_text())["models"]
    for name in ("vit_tiny_patch16_224", "deit_base_distilled_patch16_224", "swin_tiny_patch4_window7_224"):
        expected = counts[name]
        plain, scaled = count_cb(on_meta(name), IMAGE), count_cb(on_meta(name, "cb_s"), IMAGE)
        assert plain["params"] == expected["params"] / 1e6
        assert plain["macs"] == scaled["macs"] == expected["macs"] / 1e9
        assert scaled["params"] * 1e6 == pytest.approx(expected["params"] + expected["cb_s_params"], abs=0.5)
        assert round(scaled["added_percent"], 4) == pytest.approx(expected["cb_s_percent"], abs=1e-4)
        assert plain["added_percent"] == 0


@pytest.mark.parametrize(
    ("spec", "times"),
    [
        ("cb", 1),
        ("cb_gate(position=front)", 1),
        ("cb(position=mid)", 4),
        ("cb_hybrid", 2),
        ("cb_hybrid(position=mid)", 8),
        ("cb(at=both)", 2),
        ("cb_hybrid(at=both)", 4),
        ("cb@last:50%", 0.5),
        ("horizontal", 0),
    ],
)
def test_elementwise_multiplications(spec: str, times: float):
    counted = count_cb_multiplications(on_meta("vit_small_patch16_224", spec), IMAGE)
    assert counted["multiplications"] == pytest.approx(times * 197 * 384 * 12 / 1e6)


@pytest.mark.parametrize("variant", list(HV_SPECS))
def test_hv_swin(shared: Path, variant: str):
    expected = hv_row(shared, "swin_t_in100", variant)
    counted = count_hv(on_meta("swin_tiny_patch4_window7_224", HV_SPECS[variant], num_classes=100), IMAGE)
    assert counted["params"] * MI == expected["params_counter"]
    assert counted["macs"] * GI == expected["macs_linear_only"]


@pytest.mark.parametrize("variant", list(HV_SPECS))
@pytest.mark.parametrize(("model", "vocabulary"), [("transformer_wmt16", 9521), ("transformer_wmt17", 28138)])
def test_hv_translation(shared: Path, model: str, vocabulary: int, variant: str):
    expected = hv_row(shared, model, variant)
    built, example = SKELETONS["translation_transformer"](parse(HV_SPECS[variant]), vocabulary=vocabulary)
    counted = count_hv(built, example)
    assert counted["params"] * MI == expected["params_counter"] == sum(p.numel() for p in built.parameters())
    assert counted["macs"] * GI == expected["macs_linear_only"]


def test_counting_leaves_no_hooks_and_changes_nothing():
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2).train()
    attngraft.graft(model, "cb + horizontal")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for counter in COUNTERS.values():
        assert all(value >= 0 for value in counter(model, (torch.randn(1, 3, 32, 32),)).values())
    assert model.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def hv_row(shared: Path, model: str, variant: str) -> dict[str, int]:
    rows = json.loads((shared / "facts" / "hv_counts.json").read_text())["rows"]
    return next(row for row in rows if (row["model"], row["variant"]) == (model, variant))
