"""Entropies on the image, against maps that are recorded here."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch

import attngraft
from attngraft.analysis.asked import entropy_maps
from attngraft.errors import RecordError
from tests.analysis.asked.asking import ask, found, inputs, rows_of, sharp, swin, vit
from tests.analysis.asked.bixts import bixt


def test_of_patches_without_the_class_token(tmp_path: Path) -> None:
    given = ask(vit(), vit(class_token=False, global_pool="avg"), names=("class", "none"))
    finding = found(entropy_maps.ANALYSIS, given, tmp_path)
    for subject, prefix in zip(given.subjects, (1, 0), strict=True):
        with torch.no_grad(), attngraft.record(subject.model, "weights") as recording:
            subject.model(inputs(given, [9], subject=given.subjects.index(subject)))
        for layer in range(3):
            among = recording[f"blocks.{layer}.attn"]["weights"][0, :, prefix:, prefix:].double()
            among = among / among.sum(-1, keepdim=True)
            expected = -(among * among.log()).sum(-1).mean(0)
            rows = rows_of(finding, model=subject.name, image="noise/9", layer=f"blocks.{layer}.attn", head="mean")
            assert [row["entropy"] for row in rows] == pytest.approx(expected.tolist(), rel=1e-4)
            assert [(row["row"], row["column"]) for row in rows] == [(i // 4, i % 4) for i in range(16)]
    first = finding.panels[0]
    assert [row.name for row in first.rows] == ["image", "entropy"]
    assert [picture.caption for picture in first.rows[1].pictures] == ["layer 0", "layer 1", "layer 2"]
    every = [row["entropy"] for row in rows_of(finding)]
    assert {(panel.low, panel.high) for panel in finding.panels} == {(min(every), max(every))}


def test_shifted_windows_stand_in_their_places() -> None:
    given = ask(swin(), shown=1, heads=True)
    finding = entropy_maps.ANALYSIS(given)
    model = given.subjects[0].model
    with torch.no_grad(), attngraft.record(model, "weights") as recording:
        model(inputs(given, [0]))
    for site in recording:
        whole = recording.full_attention_map(site)[0].double()
        expected = torch.special.entr(whole).sum(-1)
        for head, values in enumerate(expected):
            rows = rows_of(finding, layer=site, head=str(head))
            assert [row["entropy"] for row in rows] == pytest.approx(values.tolist(), rel=1e-4)
    (panel,) = finding.panels
    assert [len(row.pictures) for row in panel.rows] == [1, 1, 1, 2, 2]


def test_layers_without_places_are_named() -> None:
    model = sharp(
        timm.create_model("levit_128s", img_size=64, embed_dim=(16, 24), key_dim=4, depth=(1, 1), num_heads=(2, 3))
    )
    finding = entropy_maps.ANALYSIS(ask(model, shown=1))
    assert {key.partition(", ")[0] for key in finding.left_out} == {"a"}
    assert any("downsample" in key for key in finding.left_out)


def test_a_model_without_such_maps() -> None:
    with pytest.raises(RecordError, match="they have no grid"):
        entropy_maps.ANALYSIS(ask(bixt(), shown=1, sites="blocks.0"))
