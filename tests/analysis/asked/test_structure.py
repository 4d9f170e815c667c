"""How alike two models' maps look, against pictures that are made here."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import attngraft
from attngraft.analysis.asked import structure
from attngraft.analysis.structure import sharpness
from attngraft.errors import DataError, RecordError, UsageError
from tests.analysis.asked.asking import ask, found, inputs, nest, rows_of, swin, vit


def outputs(model: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
    """What leaves the first attention of a swin, in the block."""
    kept: list[torch.Tensor] = []
    hook = (
        model.layers[0]
        .blocks[0]
        .register_forward_hook(lambda module, given, _: kept.append(module._attn(module.norm1(given[0]))))
    )
    with torch.no_grad():
        model(images)
    hook.remove()
    return kept[0]


def scaled(component: np.ndarray, mean: np.ndarray) -> np.ndarray:
    component = -component if component @ mean < 0 else component
    return (component - component.min()) / (component.max() - component.min())


def test_components_and_edges(tmp_path: Path) -> None:
    given = ask(swin(), swin(), names=("first", "second"), limit=4)
    finding = found(structure.ANALYSIS, given, tmp_path)
    images = inputs(given, [9])
    maps = [outputs(subject.model, images)[0].flatten(0, 1).double().numpy() for subject in given.subjects]
    steep = np.zeros((8, 8))
    gray = torch.nn.functional.avg_pool2d(images.mean(1), 4)[0].double().numpy()
    padded = np.pad(gray, 1, mode="edge")
    for row in range(8):
        for column in range(8):
            part = padded[row : row + 3, column : column + 3]
            weights = np.array([1, 2, 1]) / 8
            steep[row, column] = np.hypot(weights @ (part[:, 2] - part[:, 0]), weights @ (part[2] - part[0]))
    edges = steep / steep.max()
    common, own = finding.panels
    torch.testing.assert_close(
        torch.tensor(own.rows[1].pictures[1].values), torch.tensor(edges), atol=1e-5, rtol=1e-4, check_dtype=False
    )
    for place, pixels in enumerate(maps):
        centred = pixels - pixels.mean(0)
        component = centred @ np.linalg.svd(centred)[2][0]
        expected = scaled(component, centred.mean(1)).reshape(8, 8)
        found_here = np.array(own.rows[1].pictures[2 + place].values)
        np.testing.assert_allclose(found_here, expected, atol=1e-4)
    both = np.concatenate(maps)
    centred = both - both.mean(0)
    expected = scaled(centred @ np.linalg.svd(centred)[2][0], centred.mean(1)).reshape(2, 8, 8)
    for place in range(2):
        np.testing.assert_allclose(np.array(common.rows[1].pictures[2 + place].values), expected[place], atol=1e-4)
    (row,) = rows_of(finding, model="first", image="noise/9", component="own")
    unlike = np.array(own.rows[1].pictures[4].values)
    assert row["dissimilarity"] == pytest.approx(unlike.mean(), rel=1e-4)
    assert row["layer"] == "layers.0.blocks.0.attn"
    assert len(finding.table.rows) == 4 * 2 * 2
    values = [row["dissimilarity"] for row in rows_of(finding, model="second", component="common")]
    assert finding.numbers["of both maps together: dissimilarity"] == pytest.approx(sum(values) / 4)


def test_a_model_is_like_itself_also_where_a_graft_stands_in(tmp_path: Path) -> None:
    model = swin()
    attngraft.graft(model, "elsa(kernel=3)@layers.0.blocks.0")
    finding = found(structure.ANALYSIS, ask(model, model, names=("a", "b")), tmp_path)
    assert finding.numbers["of each map by itself: dissimilarity"] == pytest.approx(0, abs=1e-6)
    with pytest.raises(UsageError, match="takes 2 models, not 1"):
        structure.ANALYSIS(ask(model))


def test_an_image_without_edges_has_no_boundaries(tmp_path: Path) -> None:
    given = ask(vit(), vit(), shown=1, limit=1)
    flat = given.subjects[0].view(given.images.open(0)).new_full((32, 32, 3), 90).numpy()
    given = dataclasses.replace(
        given, album=dataclasses.replace(given.images, open=lambda place: Image.fromarray(flat))
    )
    finding = found(structure.ANALYSIS, given, tmp_path)
    assert {row["correlation with edges"] for row in rows_of(finding)} == {None}


def test_maps_of_unlike_shapes() -> None:
    with pytest.raises(RecordError, match=r"a has a map of 8 x 8 x 24 .* b one of 4 x 4 x 24 .* --sites"):
        structure.ANALYSIS(ask(swin(), vit()))
    with pytest.raises(RecordError, match="no chosen attention layer"):
        structure.ANALYSIS(ask(vit(), vit(), sites="blocks.0.mlp"))


def labelled(folder: Path, changes: dict[str, np.ndarray] | None = None) -> Path:
    """Two halves of 32 x 32, the left one of class 3 and the right one of class 7, for each of ten images."""
    halves = np.where(np.arange(32) < 16, 3, 7).astype(np.uint8)[None].repeat(32, 0)
    for name in (f"noise/{place}" for place in range(10)):
        file = folder / f"{name}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((changes or {}).get(name, halves)).save(file)
    return folder


def test_boundaries_of_label_maps(tmp_path: Path) -> None:
    flat = np.zeros((32, 32), dtype=np.uint8)
    folder = labelled(tmp_path / "labels", {"noise/0": flat})
    given = ask(swin(), swin(), names=("first", "second"), limit=4, batch=3, label_maps=folder)
    subject = given.subjects[0]
    assert subject.preparation.host.crop_pct == 0.9, "the outer pixels are cut away"
    finding = found(structure.ANALYSIS, given, tmp_path)
    own = finding.panels[1]
    assert own.rows[1].pictures[1].caption == "boundaries of its labels"
    expected = np.zeros((8, 8))
    # Of 35 pixels the halves meet at 17, and 2 are cut away before: pixels 13 to 16 are boundary, 3 of them in place 3.
    expected[:, 3], expected[:, 4] = 0.75, 0.25
    np.testing.assert_allclose(np.array(own.rows[1].pictures[1].values), expected)
    np.testing.assert_array_equal(np.array(own.rows[0].pictures[1].values), 0)
    picture = torch.tensor(own.rows[1].pictures[2].values)[None]
    sharp = sharpness(picture, torch.tensor(expected)[None])
    (row,) = rows_of(finding, model="first", image="noise/9", component="own")
    assert row["at boundaries over elsewhere"] == pytest.approx(float(sharp.at_boundaries), rel=1e-3)
    assert row["correlation with boundaries"] == pytest.approx(float(sharp.correlation), rel=1e-3)
    (none,) = rows_of(finding, model="first", image="noise/0", component="own")
    assert none["correlation with boundaries"] is None, "a label map without boundaries"
    assert "of each map by itself: correlation with boundaries, first" in finding.numbers
    assert "at most 2 pixels away" in finding.note


def test_label_maps_are_found_by_their_stems(tmp_path: Path) -> None:
    folder = labelled(tmp_path / "labels")
    given = ask(vit(), vit(), limit=2, label_maps=folder / "noise")
    assert len(structure.ANALYSIS(given).table.rows) == 8
    twice = dataclasses.replace(given.images, names=[f"{place % 2}/{place // 2}" for place in range(10)])
    with pytest.raises(DataError, match=r"noise/0/0.png: there is no label map for 0/0; give one for each"):
        structure.ANALYSIS(dataclasses.replace(given, album=twice))


def test_label_maps_that_do_not_fit(tmp_path: Path) -> None:
    given = ask(vit(), vit(), limit=2)

    def asked(folder: Path) -> None:
        structure.ANALYSIS(dataclasses.replace(given, label_maps=folder))

    with pytest.raises(UsageError, match=r"--label-maps .*nowhere: there is no such folder"):
        asked(tmp_path / "nowhere")
    small, colors = np.zeros((20, 32), dtype=np.uint8), np.zeros((32, 32, 3), dtype=np.uint8)
    with pytest.raises(DataError, match=r"noise/0.png: has 32 x 20 labels, and its image 32 x 32 pixels"):
        asked(labelled(tmp_path / "small", {"noise/0": small}))
    with pytest.raises(DataError, match=r"noise/0.png: is no label map"):
        asked(labelled(tmp_path / "colors", {"noise/0": colors}))
    (tmp_path / "colors" / "noise" / "0.png").write_text("text")
    with pytest.raises(DataError, match=r"noise/0.png: cannot be read as a label map"):
        asked(tmp_path / "colors")


def test_blocks_of_nest_are_compared_as_a_map() -> None:
    finding = structure.ANALYSIS(ask(nest(), nest(), limit=2, sites="levels.1"))
    values = np.array(finding.panels[0].rows[0].pictures[2].values)
    assert values.shape == (8, 8)
