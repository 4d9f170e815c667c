"""The estimated memory of evaluation is close to what it takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from attngraft.tasks.segmentation.config import InferenceConfig
from attngraft.tasks.segmentation.inference import predict_labels
from attngraft.tasks.segmentation.memory import inference_memory
from attngraft.tasks.segmentation.metrics import mask_statistics
from attngraft.tensors import meta_device
from attngraft.timing.memory import LiveStorages
from attngraft.training.build import build_model, model_data_config
from attngraft.training.recipe import load_recipe
from tests.tasks.segmentation.drawings import HOST

CLASSES, WINDOW = 20, (128, 160)


def model(*, meta: bool, graft: str | None = None) -> Any:
    recipe = load_recipe("small-segmentation")
    host = replace(recipe.host, name=HOST["name"], args=HOST["args"])
    recipe = replace(recipe, host=host, graft=graft, task={**recipe.task, "data": {"source": "x"}})
    args = {"num_classes": 0, **model_data_config(recipe)["any_size"]}
    facts = {"classes": [str(number) for number in range(CLASSES)]}
    if not meta:
        return build_model(recipe, args, load_weights=False, facts=facts).eval()
    with meta_device():
        return build_model(recipe, args, load_weights=False, facts=facts).eval()


@pytest.mark.parametrize(
    "test",
    [InferenceConfig(), InferenceConfig(mode="slide"), InferenceConfig(scales=(0.5, 1.0), flip=True)],
    ids=["whole", "slide", "scales"],
)
def test_the_estimate_is_close_to_the_memory_that_evaluation_takes(test: InferenceConfig) -> None:
    size = (400, 300)
    found = inference_memory(model(meta=True), size, test, window=WINDOW, channels=3)
    real, image = model(meta=False), torch.rand(3, *size[::-1])
    label = torch.zeros(size[::-1], dtype=torch.uint8)

    @torch.inference_mode()
    def evaluate() -> None:
        mask_statistics(predict_labels(real, image, test, window=WINDOW), label, CLASSES)

    with LiveStorages() as storages:
        evaluate()
    weights = sum(each.numel() * each.element_size() for each in real.state_dict().values())
    assert found.bytes == pytest.approx(storages.peak + weights, rel=0.1)


def test_the_statistics_count_if_logits_are_small() -> None:
    predicted, label = torch.zeros(300, 400, dtype=torch.long), torch.randint(2, (300, 400), dtype=torch.uint8)
    with LiveStorages() as storages:
        mask_statistics(predicted, label, 2)
    assert 25 < storages.peak / label.numel() < 75


def test_other_settings_need_less() -> None:
    test = InferenceConfig(scales=(1.0, 1.5), flip=True)
    found = inference_memory(model(meta=True), (700, 600), test, window=WINDOW, channels=3)
    light = "task.test.scales=[1] --set task.test.flip=false"
    assert list(found.smaller) == [light, f"{light} --set task.test.mode=slide", f"{light} --set task.test.size=512"]
    assert max(count() for count in found.smaller.values()) < found.bytes
    assert found.described().startswith("evaluating the largest image, 700 x 600, takes about ")


def test_grafts_count() -> None:
    test = InferenceConfig()
    plain, grafted = (
        inference_memory(model(meta=True, graft=graft), (500, 400), test, window=WINDOW, channels=3).bytes
        for graft in (None, "bisa@first:1")
    )
    assert grafted >= plain
