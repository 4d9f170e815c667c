"""Suites of images with masks: masks stay, noise repeats with its seed, and changed images are normalized."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from attngraft.tasks.segmentation.split import Example
from attngraft.tasks.suites import Condition, noise_generator
from attngraft.training.recipe import recipe_from_dict
from tests.contract.task_contract import Loaded
from tests.tasks.segmentation.drawings import HOST, section


@pytest.fixture
def found(tmp_path: Path) -> Loaded:
    return Loaded(recipe_from_dict({"host": HOST, "task": section(tmp_path)}))


def changed(found: Loaded, condition: Condition, index: int) -> Example:
    example = found.data.val[0, index]
    generator = noise_generator(condition.noise_seed or 0, index)
    return found.task.suite_support().access.change_example(example, condition.example, generator)


def test_conditions_of_table_12(found: Loaded) -> None:
    suites = found.task.suites()
    groups = {condition.group: 0 for condition in suites["noise"].conditions}
    for condition in suites["noise"].conditions:
        groups[condition.group] += 1
    assert groups == {
        "gaussian_noise-5": 5, "gaussian_noise-10": 5, "shot_noise-60": 5, "gaussian_blur-1": 1, "gaussian_blur-2": 1,
    }  # fmt: skip
    assert all(condition.batch is None for suite in suites.values() for condition in suite.conditions)


def test_noise_repeats_with_its_seed_and_keeps_the_mask(found: Loaded) -> None:
    conditions = {each.name: each for each in found.task.suites()["noise"].conditions}
    first, again, other = (changed(found, conditions[f"gaussian_noise-10-seed{seed}"], 0)[0] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    image, label = found.data.val[0, 0]
    assert first.shape == image.shape
    assert torch.equal(changed(found, conditions["gaussian_noise-10-seed0"], 0)[1], label)


def test_severities_scale_the_same_noise(found: Loaded) -> None:
    """Of pixels that no noise brings to 0 or 255, the change by 10 of 255 is twice that by 5."""
    access, gray = found.task.suite_support().access, torch.full((3, 9, 7), 128, dtype=torch.uint8)
    conditions = {each.name: each for each in found.task.suites()["noise"].conditions}
    label = torch.zeros(9, 7, dtype=torch.uint8)
    plain = found.task._normalized(gray)
    weak, strong = (
        access.change_example((gray, label), conditions[f"gaussian_noise-{level}-seed3"].example, noise_generator(3, 0))
        for level in (5, 10)
    )
    torch.testing.assert_close(strong[0] - plain, 2 * (weak[0] - plain), atol=1e-5, rtol=1e-4)
    deviation = (access.from_example(weak) - 128 / 255).std().item() * 255
    assert 3.5 < deviation < 6.5


def test_an_unchanged_image_is_the_normalized_one(found: Loaded) -> None:
    access, (image, label) = found.task.suite_support().access, found.data.val[0, 0]
    same = access.to_example((image, label), access.from_example((image, label)))
    torch.testing.assert_close(same[0], found.task._normalized(image), atol=1e-5, rtol=1e-5)


def test_all_conditions_apply_to_images_of_any_size(found: Loaded) -> None:
    """Each condition gives finite pixels of the size of the mask; the model takes such images."""
    for suite in found.task.suites().values():
        for condition in suite.conditions:
            if condition.example is None or condition.noise_seed not in (None, 0):
                continue
            image, label = changed(found, condition, 1)
            assert image.shape[-2:] == label.shape
            assert torch.isfinite(image).all()
    condition = found.task.suites()["noise"].conditions[0]
    examples = [changed(found, condition, index) for index in range(3)]
    records = found.task.infer(found.model, found.data.val.collate(examples))
    assert [mask.shape for mask in records.outputs["mask"]] == [label.shape for _, label in examples]
