"""The BiXT paper's counter: real models against exact reference counts, and against closed formulas."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import attngraft
from attngraft.dispatch import ENVIRONMENT
from attngraft.papers.compute import compute_table
from attngraft.papers.counters import FvcoreCounts, count_as_fvcore, count_bixt
from attngraft.papers.schema import load_paper
from attngraft.tensors import meta_device
from attngraft.timing.macs import count_macs, count_parameters

#: rows of the reference counts by the names of ours; the others have the names of the official models
MODELS = {
    **{f"paper_small_l{latents}": f"bixt_sm_h6_l{latents}_p16" for latents in (32, 64, 128)},
    "paper_A2_p32_grid14": "bixt_ti_h3_l64_p32s16",
    "paper_A2_p32_grid28": "bixt_ti_h3_l64_p32s8",
    "paper_A2_p8_grid28": "bixt_ti_h3_l64_p8",
    "paper_A2_p8_grid56": "bixt_ti_h3_l64_p8s4",
    "paper_A2_p4_grid56": "bixt_ti_h3_l64_p4",
    "sequential_d11_with_posenc": "sequential_d11",
    "sequential_d12_with_posenc": "sequential_d12",
}
SMALL: dict[str, Any] = {"in_chans": 2, "num_classes": 5, "embed_dim": 16, "num_latents": 6}


def on_meta(name: str, **args: Any) -> tuple[nn.Module, torch.Tensor]:
    with meta_device():
        model = attngraft.create_model(name, **args)
        size = args.get("img_size", model.default_cfg["input_size"][1])
        return model, torch.empty(1, model.in_chans, size, size)


def reference_rows(shared: Path) -> dict[str, dict[str, Any]]:
    rows = json.loads((shared / "facts" / "bixt_counts.json").read_text())["rows"]
    return {row["name"]: row for row in rows}


def agrees(row: dict[str, Any]) -> None:
    name = row["name"].replace("paper_3heads:bixt_ti_", "bixt_ti_h3_")
    model, image = on_meta(MODELS.get(name, name))
    counts = count_as_fvcore(model, image)
    ours = {
        "params": count_parameters(model),
        "macs_fvcore": counts.flops,
        "macs_torch": counts.macs,
        "activations_fvcore": counts.activations,
    }
    assert {key: ours[key] for key in ours if key in row} == {key: row[key] for key in ours if key in row}, name


@pytest.mark.parametrize(
    "name",
    [
        "bixt_ti_l64_p16s4_ft384",
        "paper_3heads:bixt_ti_l64_d13_p16",
        "iterative_sa6_d7_k1",
        "sequential_d12_with_posenc",
    ],
)
def test_exact_counts(shared: Path, name: str):
    agrees(reference_rows(shared)[name])


@pytest.mark.slow
def test_all_exact_counts(shared: Path):
    rows = reference_rows(shared)
    assert len(rows) >= 39
    for row in rows.values():
        agrees(row)


# -- closed formulas ---------------------------------------------------------------------------------------------------


def formulas(
    *, tokens: int, latents: int, width: int, depth: int, heads: int, patch: int, chans: int, classes: int
) -> dict[str, int]:
    """BiXT's counts as sums over layers: bi-directional ones, the last, self-attentions, what is outside."""
    n, m, d, full = tokens, latents, width, depth - 1
    linear = (full * (11 * n + 23 * m) + 2 * n + 22 * m) * d * d + d * classes
    convolutions = chans * patch * patch * n * d + 64 * n * d
    matmuls = full * 3 * m * n * d + 2 * m * n * d + depth * 2 * m * m * d
    norms = 5 * d * (full * (2 * n + 4 * m) + n + 4 * m + 1)
    activations = full * (8 * n * d + 17 * m * d + heads * m * n + m * d + n * d)
    activations += 2 * n * d + 16 * m * d + heads * m * n + m * d
    activations += depth * (heads * m * m + m * d) + 2 * n * d + classes
    return {"macs": linear + convolutions + matmuls, "norms": norms, "activations": activations}


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize(
    ("rows", "latents", "width", "depth", "heads", "patch"),
    [(4, 6, 16, 3, 2, 4), (2, 9, 24, 2, 3, 8), (8, 3, 32, 4, 1, 2), (1, 2, 16, 1, 4, 8)],
)
def test_bixt_by_formula(rows: int, latents: int, width: int, depth: int, heads: int, patch: int, device: str):
    with torch.device(device):
        model = attngraft.create_model(
            "bixt_ti_l64_p16",
            img_size=rows * patch,
            patch_size=patch,
            stride=patch,
            num_latents=latents,
            embed_dim=width,
            depth=depth,
            num_heads=heads,
            in_chans=2,
            num_classes=5,
        )
        counts = count_as_fvcore(model, torch.zeros(1, 2, rows * patch, rows * patch))
    expected = formulas(
        tokens=rows**2, latents=latents, width=width, depth=depth, heads=heads, patch=patch, chans=2, classes=5
    )
    assert counted(counts) == expected


@pytest.mark.parametrize(("layers", "depth", "sets"), [(2, 3, 1), (2, 3, 2), (1, 4, 1)])
def test_the_iterative_model_by_formula(layers: int, depth: int, sets: int):
    """Per block (2 N + 10 M) D^2 + 2 M N D and 5 D (N + 2 M); per self-attention 12 M D^2 + 2 M^2 D and 10 M D."""
    n, m, d, h = 16, 6, 16, 2
    model, image = on_meta(
        f"iterative_sa5_d8_k{sets}",
        **SMALL,
        img_size=16,
        patch_size=4,
        num_heads=h,
        depth=depth,
        self_layers=layers,
    )
    outside = 2 * 4 * 4 * n * d + 64 * n * d + 5 * d
    block = (2 * n + 10 * m) * d * d + 2 * m * n * d
    self_attention = 12 * m * d * d + 2 * m * m * d
    inner = depth * layers
    assert counted(count_as_fvcore(model, image)) == {
        "macs": outside + depth * block + inner * self_attention,
        "norms": 5 * d + depth * 5 * d * (n + 2 * m) + inner * 10 * m * d,
        "activations": 2 * n * d
        + 5
        + depth * (2 * n * d + 7 * m * d + h * m * n + m * d)
        + inner * (9 * m * d + h * m * m + m * d),
    }


def test_the_sequential_model_by_formula():
    """Against BiXT, each layer but the last: (N + M) D^2 and M N D more, a similarity more, a norm of the latents more."""
    n, m, d, h, full = 16, 6, 16, 2, 2
    args = {**SMALL, "img_size": 16, "patch_size": 4, "num_heads": h, "depth": full + 1}
    ours = count_as_fvcore(*on_meta("sequential_d12", **args))
    bixt = count_as_fvcore(*on_meta("bixt_ti_l64_p16", **args, stride=4))
    assert ours.macs - bixt.macs == full * ((n + m) * d * d + m * n * d)
    assert ours.norms - bixt.norms == full * 5 * m * d
    assert ours.activations - bixt.activations == full * ((n + m) * d + h * m * n)


# -- rules -------------------------------------------------------------------------------------------------------------


def test_the_convolutional_tokenizer_counts_its_norms():
    """2 per element of a batch norm: without it this would be 1.75624."""
    counts = count_as_fvcore(*on_meta("bixt_ti_cnv_l64_p16"))
    assert round(counts.flops / 1e9, 5) == 1.75737
    assert round(counts.macs / 1e9, 5) == 1.74896
    assert round(counts.activations / 1e6, 4) == 8.3914


@pytest.mark.parametrize(
    ("layer", "shape", "norms"),
    [
        (nn.LayerNorm(6), (2, 3, 6), 5 * 36),
        (nn.LayerNorm(6, elementwise_affine=False), (2, 3, 6), 4 * 36),
        (nn.BatchNorm2d(3), (1, 3, 4, 4), 2 * 48),
        (nn.BatchNorm2d(3, affine=False), (1, 3, 4, 4), 48),
        (nn.Sequential(nn.GELU(), nn.Softmax(dim=-1)), (2, 6), 0),
    ],
)
def test_what_norms_cost(layer: nn.Module, shape: tuple[int, ...], norms: int):
    assert counted(count_as_fvcore(layer, torch.zeros(shape))) == {"macs": 0, "norms": norms, "activations": 0}


@pytest.mark.parametrize("backend", [None, "eager", "auto"])
def test_the_equation_is_counted_whatever_would_run(backend: str | None, monkeypatch: pytest.MonkeyPatch):
    if backend is None:
        monkeypatch.delenv(ENVIRONMENT, raising=False)
    else:
        monkeypatch.setenv(ENVIRONMENT, backend)
    model = attngraft.create_model(
        "bixt_ti_l64_p16", **SMALL, img_size=16, patch_size=4, stride=4, num_heads=2, depth=3
    )
    model.train()
    with torch.inference_mode():
        counts = count_as_fvcore(model, torch.zeros(1, 2, 16, 16))
    expected = formulas(tokens=16, latents=6, width=16, depth=3, heads=2, patch=4, chans=2, classes=5)
    assert counted(counts) == expected
    assert model.training
    assert os.environ.get(ENVIRONMENT) == backend


def test_a_vision_transformer_has_timms_numbers():
    """The multiply-adds of our own counter; the activations that timm gives for it, 5.97M."""
    model, image = on_meta("vit_tiny_patch16_224")
    counts = count_as_fvcore(model, image)
    assert counts.macs == count_macs(model, image)
    assert round(counts.activations / 1e6, 2) == 5.97


def test_the_papers_units():
    model, image = on_meta("bixt_ti_h3_l64_p16")
    counts = count_as_fvcore(model, image)
    assert count_bixt(model, (image,)) == {
        "params": 15.121192,
        "macs": counts.flops / 1e9,
        "multiply_adds": counts.macs / 1e9,
        "activations": counts.activations / 1e6,
    }


def test_point_models_are_counted_where_the_paper_prints_nothing():
    paper = load_paper("bixt")
    found = {}
    for name in ("1b", "4"):
        table = paper.table(name)
        naive = tuple(row for row in table.rows if row.variant.startswith(("BiXT, naive", "Perceiver")))
        result = compute_table(paper, replace(table, rows=naive))
        found |= {(name, row.label): row.cells for row in result.rows}
        assert result.summary.startswith("0 cells agree, 0 differ, 0 not computed")
    ours = {row: (cells["params"].ours, cells["macs"].ours) for row, cells in found.items() if "params" in cells}
    assert ours == {
        ("1b", "BiXT, naive"): (14.794408, 5.770059264),
        ("4", "BiXT, naive"): (14.369906, 11.485052928),
        ("4", "BiXT, naive, bi-directional last layer"): (15.185138, 11.636834304),
    }
    assert {found[row]["params"].verdict for row in ours} == {"not printed"}


def test_the_illegible_numbers_follow_from_the_means():
    paper = load_paper("bixt")
    rows = {row.variant: row for row in paper.table("categories").rows}
    assert len(rows) == 16
    for model, variant, expected in (("naive", "BiXT, naive", 80.7), ("encdec", "BiXT, encoder-decoder", 82.7)):
        (mean,) = (row.printed["classes"] for row in paper.table("4").rows if row.variant == variant)
        legible = [float(row.printed[model]) for row in rows.values() if model in row.printed]
        assert len(legible) == 15
        assert 16 * float(mean) - sum(legible) == pytest.approx(expected)
        assert 16 * 0.05 + 15 * 0.05 < 1.6
        assert f"{expected}" in str(rows["skateboard"].note)


def test_table_1_has_seven_rows_of_table_a1():
    paper = load_paper("bixt")
    some, every = paper.table("1").rows, paper.table("A1").rows
    assert (len(some), len(every)) == (7, 14)
    assert all(row in every for row in some)


def counted(counts: FvcoreCounts) -> dict[str, int]:
    return {"macs": counts.macs, "norms": counts.norms, "activations": counts.activations}
