"""Token labeling as the engine uses it: a VOLO that mixes tokens learns labels of its patches."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from attngraft.errors import ConfigError, DataError, HostError, TrainingError
from attngraft.tasks.token_labeling import TokenLabeling
from attngraft.tasks.token_labeling.maps import LabelMaps, save_label_map
from attngraft.training.build import build_model
from attngraft.training.evaluate import evaluate_run
from attngraft.training.loop import train
from attngraft.training.progress import Silent
from attngraft.training.recipe import recipe_from_dict
from tests.tasks.images.datasets import host_config, make_folder
from tests.training.toys import metric_rows

VOLO = {
    "name": "elsa_volo_d1",
    "args": {
        "img_size": 32,
        "layers": [1, 1, 1, 1],
        "embed_dims": [32, 32, 32, 32],
        "num_heads": [2, 2, 2, 2],
        "stem_hidden_dim": 8,
    },
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "flowers", {"train": {"a": 6, "b": 6}, "val": {"a": 2, "b": 2}}, size=(40, 36))


@pytest.fixture
def maps(tmp_path: Path) -> Path:
    made = LabelMaps(tmp_path / "maps", classes=2)
    for number, name in enumerate("ab"):
        for image in range(6):
            scores = torch.full((2, 3, 4), -2.0)
            scores[number] = 2.0
            save_label_map(scores, made.file(f"train/{name}/{image}.png"))
    return made.folder


def section(source: Path, maps: Path | None = None, **more: Any) -> dict[str, Any]:
    return {
        "data": {"source": str(source)},
        "augment": {"crop": "resized"},
        "token_labels": {"maps": None if maps is None else str(maps)},
        **more,
    }


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"augment": {"mixup": 0.2}}, r"task\.augment: token labeling mixes tokens inside the model; set mixup"),
        ({"loss": {"name": "bce"}}, r"task\.loss: token labeling uses cross entropy without class weights"),
        (
            {"loss": {"class_weights": "balanced"}},
            r"task\.loss: token labeling uses cross entropy without class weights",
        ),
        ({"token_labels": {"dense_weight": -1}}, r"task\.token_labels\.dense_weight: must not be negative; got -1"),
        ({"token_labels": {"with_ground_truth": True}}, r"with_ground_truth: .*requires label maps; add --set task"),
        ({"token_labels": {"map": "x"}}, r"task\.token_labels\.map: unknown field \(did you mean maps\?\)"),
        (
            {"token_labels": {"maps": "x"}, "data": {"source": "digits", "classes": ["1", "2"]}},
            r"task\.data\.classes: cannot be combined with label maps, whose class indices",
        ),
    ],
)
def test_refusals_name_the_field(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TokenLabeling.from_config({"data": {"source": "digits"}, **more}, seed=0)


def test_targets_without_maps_are_the_label_smoothed(folder: Path) -> None:
    task = TokenLabeling.from_config(section(folder), seed=0)
    data = task.load(model_data_config=host_config(32))
    assert data.model_args == {"num_classes": 2, "use_mix_token": True}
    logits, patches, box = torch.randn(4, 2), torch.randn(4, 4, 2), (0, 0, 1, 2)
    target = torch.tensor([0, 1, 1, 0])
    smooth = torch.nn.functional.one_hot(target, 2) * 0.9 + 0.05
    half = (smooth + smooth.flip(0)) / 2
    expected = -(half * logits.log_softmax(-1)).sum(-1).mean()
    expected -= 0.5 * (smooth.unsqueeze(1) * patches.log_softmax(-1)).sum(-1).mean()
    found = task.loss((logits, patches, box), {"target": target})["loss"]
    torch.testing.assert_close(found, expected)


def test_maps_come_with_their_images(folder: Path, maps: Path) -> None:
    task = TokenLabeling.from_config(section(folder, maps), seed=0)
    data = task.load(model_data_config=host_config(32))
    batch = data.train.collate([data.train[(0, index)] for index in (0, 11)])
    assert batch["maps"].shape == (2, 2, 2, 3, 4)  # best two of two classes
    assert batch["crop"].shape == (2, 6)
    batch = task.prepare(batch, epoch=0, step=0)
    patches = torch.zeros(2, 4, 2).log_softmax(-1)
    sure = torch.tensor([2.0, -2.0]).softmax(0)
    assert task._targets(batch, patches.shape[1])[0, :, 3].tolist() == pytest.approx((sure * 0.9 + 0.05).tolist())
    assert torch.isfinite(task.loss((torch.zeros(2, 2), patches, (0, 0, 0, 0)), batch)["loss"])


def test_training_begins_with_all_maps(folder: Path, maps: Path) -> None:
    (maps / "b" / "5.pt").unlink()
    data = TokenLabeling.from_config(section(folder, maps), seed=0).load(model_data_config=host_config(32))
    with pytest.raises(DataError, match=r"1 of 12 training images have no label map \(first: .*b/5\.pt"):
        data.train.order(seed=0, epoch=0)


@pytest.mark.parametrize(
    "augment", [{"crop": "center"}, {"crop": "center", "vflip": 0.5, "grayscale": 0.5}, {"crop": "pad", "erasing": 0.5}]
)
def test_transforms_without_a_random_crop_are_refused(folder: Path, maps: Path, augment: dict[str, Any]) -> None:
    task = TokenLabeling.from_config(section(folder, maps, augment=augment), seed=0)
    with pytest.raises(DataError, match=r"task\.token_labels\.maps: .*set task\.augment\.crop=resized"):
        task.load(model_data_config=host_config(32))


def test_maps_of_different_shapes(folder: Path, maps: Path) -> None:
    save_label_map(torch.zeros(2, 5, 5), maps / "b" / "5.pt")
    data = TokenLabeling.from_config(section(folder, maps), seed=0).load(model_data_config=host_config(32))
    with pytest.raises(
        DataError, match=r"maps: label maps must have the same shape .*, got \(2, 2, 3, 4\), \(2, 2, 5, 5\)"
    ):
        data.train.collate([data.train[(0, index)] for index in (0, 11)])


def test_other_hosts_are_refused() -> None:
    recipe = recipe_from_dict({"host": {"name": "vit_tiny_patch16_224"}})
    with pytest.raises(HostError, match=r"vit_tiny_patch16_224 has no logits for its patches; .*\(volo_\*, elsa_volo_"):
        build_model(recipe, {"num_classes": 2, "use_mix_token": True})


def test_other_outputs_are_refused(folder: Path) -> None:
    task = TokenLabeling.from_config(section(folder), seed=0)
    with pytest.raises(TrainingError, match="token labeling requires a host that returns logits of the class token"):
        task.loss(torch.zeros(2, 2), {"target": torch.tensor([0, 1])})


def test_a_run(folder: Path, maps: Path, tmp_path: Path) -> None:
    """Three epochs with a moving average; the last weights, read again, give the last row's numbers."""
    recipe = recipe_from_dict(
        {
            "host": VOLO,
            "task": {"name": "token_labeling", **section(folder, maps)},
            "optimizer": {"lr": 3e-3},
            "schedule": {"epochs": 3},
            "train": {"batch_size": 4, "ema": 0.5},
        }
    )
    train(recipe, tmp_path / "run", progress=Silent())
    rows = metric_rows(tmp_path / "run")
    assert len(rows) == 3
    assert rows[-1]["train/loss"] < rows[0]["train/loss"]
    shutil.rmtree(maps)  # which nobody needs who evaluates
    again = evaluate_run(tmp_path / "run")
    assert again.metrics["loss"] == pytest.approx(rows[-1]["val/loss"], rel=1e-5)
