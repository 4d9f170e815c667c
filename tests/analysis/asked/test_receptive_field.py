"""Effective receptive fields, against gradients that are taken here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import attngraft
from attngraft.analysis.asked import receptive_field
from attngraft.errors import RecordError
from attngraft.results.analysis import Curves, Pictures
from tests.analysis.asked.asking import ask, found, inputs, nest, rows_of, swin, vit
from tests.analysis.asked.bixts import bixt


def gradient(model: nn.Module, layer: nn.Module, images: Tensor, at: tuple[int, ...]) -> Tensor:
    """Of what leaves `layer` at one place, one image at a time."""
    kept: list[Tensor] = []
    hook = layer.register_forward_hook(lambda module, given, output: kept.append(output))
    total = torch.zeros(images.shape[-2:])
    for image in images:
        pixels = image[None].clone().requires_grad_()
        model(pixels)
        (moved,) = torch.autograd.grad(kept.pop()[0][at].relu().sum(), pixels)
        total += moved[0].clamp_min(0).sum(0)
    hook.remove()
    return total / total.max()


def area(field: Tensor, share: float) -> float:
    """Of the smallest square around the middle that holds it."""
    for reach in range(len(field)):
        side = slice(max(0, 16 - reach), 16 + reach + 1)
        part = field[side, side]
        if part.sum() >= share * field.sum() * (1 - 1e-6):
            return part.numel() / field.numel()
    return 1.0


def test_against_gradients(tmp_path: Path) -> None:
    given = ask(vit(), swin(), names=("ViT", "Swin"))
    with torch.no_grad():
        finding = found(receptive_field.ANALYSIS, given, tmp_path)
    pictures, curves = finding.panels
    assert isinstance(pictures, Pictures)
    layers = [given.subjects[0].model.blocks[2].mlp, given.subjects[1].model.layers[1].blocks[1].mlp]
    for place, (layer, at) in enumerate(zip(layers, [(1 + 2 * 4 + 2,), (2 * 4 + 2,)], strict=True)):
        subject = given.subjects[place]
        field = gradient(subject.model, layer, inputs(given, [0, 2, 4, 5, 7, 9], place), at)
        expected = np.log10(field.numpy().clip(1e-4))
        np.testing.assert_allclose(np.array(pictures.rows[0].pictures[place].values), expected, atol=1e-3)
        for share in (0.2, 0.3, 0.5, 0.99):
            (row,) = rows_of(finding, model=subject.name, share=share)
            assert row["area"] == pytest.approx(area(field, share))
            assert row["stage"] == "mlp.end"
            assert finding.numbers[f"{subject.name}: area that holds {share:.0%}"] == row["area"]
    assert isinstance(curves, Curves)
    assert [line.subject for line in curves.lines] == [0, 1, None]
    assert all(parameter.grad is None for subject in given.subjects for parameter in subject.model.parameters())


def test_the_last_layer_with_a_map(tmp_path: Path) -> None:
    model = swin()
    attngraft.graft(model, "elsa(kernel=3)@layers.0")
    given = ask(bixt(), model, names=("BiXT", "elsa"), limit=2, sites="all")
    finding = found(receptive_field.ANALYSIS, given, tmp_path)
    layers = {row["model"]: row["layer"] for row in rows_of(finding)}
    assert layers == {
        "BiXT": "blocks.1.cross_attention_latents_token.mlp_pat",
        "elsa": "layers.1.blocks.1.mlp",
    }
    finding = found(receptive_field.ANALYSIS, ask(model, limit=2, sites="layers.0.blocks.0.attn"), tmp_path)
    (row, *_) = rows_of(finding)
    assert (row["layer"], row["stage"]) == ("layers.0.blocks.0.attn", "attn.end")


def test_an_mlp_is_enough_and_what_has_no_map(tmp_path: Path) -> None:
    mixer = attngraft.create_model("small_mixer", num_blocks=2, embed_dim=16).eval()
    finding = found(receptive_field.ANALYSIS, ask(mixer, bixt(), limit=2, sites="all"), tmp_path)
    assert {row["model"] for row in rows_of(finding)} == {"a", "b"}
    with pytest.raises(RecordError, match="no chosen layer has a map"):
        receptive_field.ANALYSIS(ask(bixt(), limit=2, sites="blocks.2"))


def test_blocks_of_nest_are_put_back() -> None:
    """The middle of its last map but one is in the last of four blocks."""
    model = nest()
    given = ask(model, limit=2, sites="levels.1")
    finding = receptive_field.ANALYSIS(given)
    (row, *_) = rows_of(finding)
    assert (row["layer"], row["stage"]) == ("levels.1.transformer_encoder.0.mlp", "mlp.end")
    field = gradient(model, model.levels[1].transformer_encoder[0].mlp, inputs(given, [0, 9]), (3, 0))
    (picture,) = finding.panels[0].rows[0].pictures
    np.testing.assert_allclose(np.array(picture.values), np.log10(field.numpy().clip(1e-4)), atol=1e-3)
