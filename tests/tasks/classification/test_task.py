"""The task as the engine uses it: load, batches, loss, predictions, a host that learns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

from attngraft.errors import TrainingError
from tests.tasks.images.datasets import host_config, make_folder, make_task, normalized


def _batch(split: Any, size: int = 8, epoch: int = 0) -> dict[str, torch.Tensor]:
    return split.collate([split[(epoch, i)] for i in range(size)])


def test_the_model_is_called_with_images() -> None:
    task = make_task("digits")
    batch = _batch(task.load(model_data_config=host_config(8)).train)
    arguments, keywords = task.to_model(batch)
    assert torch.equal(arguments[0], normalized(batch["image"], host_config(8)))
    assert len(arguments) == 1
    assert keywords == {}


def test_facts_are_json_and_say_what_was_decided(tmp_path: Path) -> None:
    make_folder(tmp_path, {"train": {"日本": 2, "b": 2}, "val": {"日本": 1, "b": 1}}, size=(20, 10))
    data = make_task(tmp_path).load(model_data_config=host_config(16))
    facts = json.loads(json.dumps(dict(data.facts)))
    assert facts["classes"] == ["b", "日本"]
    assert facts["image"] == {"first_size": [20, 10], "first_mode": "RGB"}
    assert facts["input"]["size"] == [3, 16, 16]
    assert facts["input"]["eval_crop_pct"] == 0.9
    assert facts["augment"] == {"crop": "resized", "padding": 0, "hflip": 0.5, "vflip": 0.0}
    assert facts["source"] == str(tmp_path)


@pytest.mark.parametrize("sections", [{}, {"augment": {"mixup": 0.8, "cutmix": 1.0}}, {"loss": {"name": "bce"}}])
def test_a_host_learns(sections: dict[str, Any]) -> None:
    task = make_task("digits", **sections)
    host = timm.create_model(
        "vit_tiny_patch16_224", img_size=8, patch_size=4, embed_dim=24, depth=1, num_heads=2, num_classes=10
    )
    config = timm.data.resolve_model_data_config(host) | {"input_size": (3, 8, 8)}
    data = task.load(model_data_config=config)
    optimizer = torch.optim.Adam(host.parameters(), lr=3e-3)
    batch = task.prepare(_batch(data.train, 64), epoch=0, step=0)
    losses = []
    for _ in range(15):
        arguments, keywords = task.to_model(batch)
        loss = task.loss(host(*arguments, **keywords), batch)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


def test_class_weights_of_these_data_reach_the_loss(tmp_path: Path) -> None:
    """`balanced` is one over the class's training images, of mean 1 over the images: 6 and 2 of 8 have 2/3 and 2."""
    make_folder(tmp_path, {"train": {"a": 6, "b": 2}, "val": {"a": 1, "b": 5}})
    logits, target = torch.randn(8, 2, dtype=torch.float64), torch.tensor([0, 1, 1, 0, 0, 1, 0, 0])
    entropies = -logits.log_softmax(-1).gather(1, target[:, None])[:, 0]
    for wanted, weights in (
        (None, [1.0, 1.0]),
        ("balanced", [2 / 3, 2.0]),
        ({"b": 5.0}, [1.0, 5.0]),
    ):
        task = make_task(tmp_path, loss={"class_weights": wanted, "smoothing": 0.0})
        task.load(model_data_config=host_config(8))
        expected = (torch.tensor(weights, dtype=torch.float64)[target] * entropies).mean()
        assert task.loss(logits, {"target": target})["loss"].item() == pytest.approx(expected.item())


def test_distilled_hosts_return_two_heads() -> None:
    task = make_task("digits")
    batch = _batch(task.load(model_data_config=host_config(8)).train)
    one, two = torch.randn(2, 8, 10).unbind()
    both = task.loss((one, two), batch)["loss"]
    assert both.item() == pytest.approx((task.loss(one, batch)["loss"] + task.loss(two, batch)["loss"]).item() / 2)
    assert torch.allclose(task.predict((one, two), batch)["logits"], (one + two) / 2)


def test_a_head_of_another_width_is_named() -> None:
    task = make_task("digits")
    batch = _batch(task.load(model_data_config=host_config(8)).train)
    with pytest.raises(TrainingError, match=r"logits of shape \(8, 1000\), but the data have 10 classes"):
        task.loss(torch.zeros(8, 1000), batch)
