"""Each paper's counter against the reference counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import nn

import attngraft
from attngraft.papers.counters import (
    COUNTERS,
    GI,
    MI,
    count_bisa,
    count_bisa_two_maps,
    count_cb,
    count_cb_multiplications,
    count_hv,
)
from attngraft.tensors import meta_device
from tests.slow import slow_but

IMAGE = (torch.empty(1, 3, 224, 224, device="meta"),)
HV_SPECS = {"baseline": None, "hor": "horizontal", "ver": "vertical", "hor+ver": "horizontal + vertical"}


def on_meta(name: str, graft: str | None = None, **args: int) -> nn.Module:
    with meta_device():
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


@pytest.mark.parametrize("variant", slow_but(HV_SPECS, "hor+ver"))
def test_hv_swin(shared: Path, variant: str):
    expected = hv_row(shared, "swin_t_in100", variant)
    counted = count_hv(on_meta("swin_tiny_patch4_window7_224", HV_SPECS[variant], num_classes=100), IMAGE)
    assert counted["params"] * MI == expected["params_counter"]
    assert counted["macs"] * GI == expected["macs_linear_only"]


@pytest.mark.parametrize("variant", slow_but(HV_SPECS, "hor+ver"))
def test_hv_t2t(shared: Path, variant: str):
    expected = hv_row(shared, "t2t_vit_14_in100", variant)
    model = on_meta("t2t_vit_14", HV_SPECS[variant], num_classes=100)
    counted = count_hv(model, IMAGE)
    assert sum(p.numel() for p in model.parameters()) == expected["params"]
    assert counted["params"] * MI == expected["params"] - 384  # the class token is in no leaf module
    assert counted["macs"] * GI == expected["macs_linear_only"]


@pytest.mark.parametrize("variant", slow_but(HV_SPECS, "hor+ver"))
@pytest.mark.parametrize(("model", "vocabulary"), [("transformer_wmt16", 9521), ("transformer_wmt17", 28138)])
def test_hv_translation(shared: Path, model: str, vocabulary: int, variant: str):
    expected = hv_row(shared, model, variant)
    built = on_meta("mt_transformer", HV_SPECS[variant], vocab_size=vocabulary)
    sentence = torch.zeros(1, 64, dtype=torch.int64, device="meta")
    counted = count_hv(built, (sentence, None, sentence))
    assert counted["params"] * MI == expected["params_counter"] == sum(p.numel() for p in built.parameters())
    assert counted["macs"] * GI == expected["macs_linear_only"]


def test_hv_in_theory():
    """The notes of Table 1."""
    sizes = [(on_meta("mt_transformer"), "vertical", 197_120), (on_meta("mt_transformer"), "horizontal", 36_929)]
    one_head = {"dim": 32, "heads": 1, "hidden": 32, "depth": 1}
    sizes.append((on_meta("mt_transformer", **one_head), "vertical(reduction=1)", 3 * 32**2 + 32))
    sizes.append((on_meta("mt_transformer", **one_head), "horizontal", 2 * 32**2 + 32 + 1))
    for model, spec, expected in sizes:
        assert {entry.parameters for entry in attngraft.plan(model, spec).entries} == {expected}


BISA_LEVIT = {None: 0, "misa@first:1": 1, "bisa@first:1": 2, "misa@first:2": 3, "bisa@first:2": 4}  # row of Table 4


@pytest.mark.parametrize("spec", slow_but(BISA_LEVIT, "bisa@first:2"))
def test_bisa_levit(shared: Path, spec: str | None):
    expected = bisa_counts(shared)["table4"][BISA_LEVIT[spec]]
    model = on_meta("levit_128s", spec)
    for reading, counter in (("formula", count_bisa), ("two_extra_maps", count_bisa_two_maps)):
        counts, found = expected["readings"][reading] if spec else expected, counter(model, IMAGE)
        assert round(found["params"] * 1e6) == counts["params"]
        assert round(found["macs"] * 1e9) == counts["macs"]
        # the reference has six elements more, all of them in the host
        assert round(found["flops_m"] * 1e6) == counts["paper_counter"] - 6


def test_bisa_with_a_branch_of_its_own(shared: Path):
    """`separate` has the printed parameters; its own scores, 2 x 196 x 196 x 64, are not in the printed FLOPs."""
    modules = [each for name, each in bisa_counts(shared)["alternatives"].items() if "complete module" in name]
    found = count_bisa(on_meta("levit_128s", "bisa(separate=true)@first:2"), IMAGE)
    maps = count_bisa_two_maps(on_meta("levit_128s", "bisa@first:2"), IMAGE)
    assert found["params"] == maps["params"] == modules[0]["levit"]["bisa-2"]["params"] / 1e6
    assert round(found["flops_m"] * 1e6) == modules[0]["levit"]["bisa-2"]["paper_counter"] - 6
    assert found["flops_m"] - maps["flops_m"] == pytest.approx(2 * 196 * 196 * 64 / 1e6)


@pytest.mark.parametrize(
    ("stage", "spec"), [(0, "bisa@first:2"), (1, "bisa@layers.1"), (2, "bisa@layers.2"), (3, "bisa@layers.3")]
)
def test_bisa_swin(shared: Path, stage: int, spec: str):
    expected = bisa_counts(shared)["table3"][stage]
    found = count_bisa(on_meta("swin_tiny_patch4_window7_224", spec, num_classes=100), IMAGE)
    assert round(found["params"] * 1e6) == expected["params"]
    assert found["macs"] * 1e9 == pytest.approx(expected["macs"], abs=1000)  # the reference is rounded to thousands
    if stage == 0:
        assert round(found["added_percent"], 3) == bisa_counts(shared)["table1"][1]["params_added_percent"]


@pytest.mark.parametrize(
    ("spec", "softmaxes"),
    [
        (None, 1),
        ("misa@blocks.0", 1),
        ("bisa@blocks.0", 2),
        ("bisa(norm=true, learned=true)@blocks.0", 2),
        ("bisa(separate=true)@blocks.0", 2),
        ("bisa(transform=mlp)@blocks.0", 2),
        ("bisa(order=self_then_inverse)@blocks.0", 2),
    ],
)
@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_softmaxes_are_those_of_the_equations_not_of_the_kernel(spec: str | None, softmaxes: int, device: str):
    """A ViT has no batch norm: beyond the multiply-adds there is one FLOP per attention weight, 5 x 5 x 3 per softmax."""
    with torch.device(device):
        model = attngraft.create_model("vit_tiny_patch16_224", graft=spec, img_size=32, depth=2)
        found = count_bisa(model, (torch.zeros(1, 3, 32, 32),))
    assert round(found["flops_m"] * 1e6 - found["macs"] * 1e9) == (softmaxes + 1) * 5 * 5 * 3


def bisa_counts(shared: Path) -> dict[str, Any]:
    counts: dict[str, Any] = json.loads((shared / "facts" / "bisa_counts.json").read_text())
    return counts


def test_counting_leaves_no_hooks_and_changes_nothing():
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2).train()
    attngraft.graft(model, "cb + horizontal + bisa@blocks.0")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for counter in COUNTERS.values():
        assert all(value >= 0 for value in counter(model, (torch.randn(1, 3, 32, 32),)).values())
    assert model.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def hv_row(shared: Path, model: str, variant: str) -> dict[str, int]:
    rows = json.loads((shared / "facts" / "hv_counts.json").read_text())["rows"]
    return next(row for row in rows if (row["model"], row["variant"]) == (model, variant))
