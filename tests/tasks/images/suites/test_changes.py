"""What conditions do to images, against plain ways to the same; real images where they are at hand."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from attngraft.evaluation.suites import suites
from attngraft.tasks.images.suites import changes
from attngraft.tasks.images.suites.changes import (
    CenterHidden,
    Corrupted,
    ManySteps,
    PatchesDropped,
    PatchSalience,
    SalientDropped,
    UnsupportedCondition,
    noise_generator,
    patch_side,
)
from attngraft.tasks.images.suites.corruptions import CORRUPTIONS, corruption
from tests.tasks.images.suites.making import MEAN, attack_target
from tests.tasks.images.suites.plain import MOST_APART, differences


@pytest.fixture
def photograph(shared: Path) -> Tensor:
    """One of the real images, 224 x 224, between 0 and 1."""
    folder = shared / "data" / "imagenet_samples" / "images"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not at hand")
    with Image.open(sorted(folder.iterdir())[0]) as image:
        pixels = np.asarray(image.convert("RGB").resize((224, 224)), dtype=np.float32) / 255
    return torch.from_numpy(pixels).movedim(-1, 0)


def test_noise_is_of_the_seed_and_the_example() -> None:
    draws = {
        (seed, number): torch.rand(4, generator=noise_generator(seed, number))
        for seed in range(3)
        for number in range(3)
    }
    assert len({tuple(each.tolist()) for each in draws.values()}) == 9
    assert torch.equal(draws[1, 2], torch.rand(4, generator=noise_generator(1, 2)))


@pytest.mark.parametrize(
    ("size", "side"), [((224, 224), 16), ((64, 64), 8), ((32, 32), 4), ((8, 8), 1), ((16, 24), 2), ((384, 384), 32)]
)
def test_patches_are_those_of_16_of_224_pixels(size: tuple[int, int], side: int) -> None:
    assert patch_side(*size) == side


def test_sides_without_a_common_patch() -> None:
    with pytest.raises(UnsupportedCondition, match="223 x 224 cannot be divided into square patches with at most 14"):
        patch_side(223, 224)


@pytest.mark.parametrize(
    ("size", "patches", "possible"),
    [((37, 37), "1 patch", ()), ((17, 34), "2 patches", (0.5,)), ((17, 51), "3 patches", (0.25, 0.5, 0.75))],
)
def test_too_few_patches_to_drop_a_share_of(
    size: tuple[int, int], patches: str, possible: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At random, or by a map of as many places."""
    pixels, model = torch.rand(2, 3, *size), attack_target(nn.Identity(), torch.zeros(2), [0, 1])
    side = patch_side(*size)
    scores = torch.rand(2, size[0] // side * (size[1] // side))
    monkeypatch.setattr(changes, "patch_salience", lambda *_, **__: PatchSalience(scores=scores, patch=side, by=""))
    for share in (0.25, 0.5, 0.75):
        ways: list[Callable[[], Tensor]] = [
            partial(PatchesDropped(share), pixels[0], noise_generator(0, 0), color=(9.0,) * 3),
            partial(SalientDropped(share), pixels, dataclasses.replace(model, color=(9.0,) * 3), noise_seed=0),
        ]
        for drop in ways:
            if share in possible:
                assert 0 < (drop() == 9).float().mean() < 1
            else:
                with pytest.raises(
                    UnsupportedCondition,
                    match=rf"{size[0]} x {size[1]} have {patches} .* {share:.0%} of them, rounded, is (all|none)$",
                ):
                    drop()


def test_a_real_image_without_its_center(photograph: Tensor) -> None:
    """The papers' 112 of 224 pixels, by numpy; normalization makes the rest 0."""
    hidden = CenterHidden(0.5)(photograph, noise_generator(0, 0), color=MEAN).numpy()
    expected = photograph.numpy().copy()
    expected[:, 56:168, 56:168] = np.array(MEAN, dtype=np.float32)[:, None, None]
    np.testing.assert_array_equal(hidden, expected)


def test_a_real_image_with_patches_dropped(photograph: Tensor) -> None:
    dropped = PatchesDropped(0.25)(photograph, noise_generator(3, 7), color=MEAN)
    blocks = (dropped != photograph).any(0).unflatten(0, (14, 16)).unflatten(2, (14, 16)).float().mean((1, 3))
    scores = torch.rand(14 * 14, generator=noise_generator(3, 7))
    gone = torch.zeros(196).index_fill_(0, scores.argsort(descending=True)[:49], 1).view(14, 14)
    assert torch.equal(blocks > 0.5, gone > 0.5)
    assert ((blocks == 0) == (gone == 0)).all()


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corruptions_of_a_real_image_are_those_of_the_function(photograph: Tensor, name: str) -> None:
    level = CORRUPTIONS[name].levels[2]
    found = Corrupted(name, level)(photograph, noise_generator(1, 5), color=MEAN)
    assert torch.equal(found, corruption(name)(photograph, 3, noise_generator(1, 5)))
    harm = float((found - photograph).square().mean())
    assert 0 < harm < 0.3
    if name in MOST_APART:
        mean, most = differences(name, photograph.numpy(), level, found.numpy())
        assert mean < MOST_APART[name][0] and most < MOST_APART[name][1]


def test_attacks_do_not_depend_on_the_batch() -> None:
    """PGD's start is each example's own."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 4, 5)).double()
    pixels, labels = torch.rand(4, 3, 4, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 3])
    whole = ManySteps(4 / 255)(pixels, attack_target(model, labels, [10, 11, 12, 13]), noise_seed=0)
    part = ManySteps(4 / 255)(pixels[2:], attack_target(model, labels[2:], [12, 13]), noise_seed=0)
    torch.testing.assert_close(whole[2:], part, atol=1e-12, rtol=0)
    flat = dataclasses.replace(attack_target(model, labels, [7, 8, 9, 10]), losses=lambda x: 0 * x.sum((1, 2, 3)))
    start = torch.stack([2 * torch.rand(3, 4, 4, generator=noise_generator(1, number)) - 1 for number in (7, 8, 9, 10)])
    moved = ManySteps(4 / 255)(pixels, flat, noise_seed=1)  # without a gradient it stays where it starts
    torch.testing.assert_close(moved, (pixels + 4 / 255 * start).clamp(0, 1), atol=1e-7, rtol=0, check_dtype=False)
    assert (whole - pixels).abs().max() <= 4 / 255 + 1e-12


def test_conditions_have_names_of_their_own_and_go_to_loading_processes() -> None:
    for suite in suites().values():
        names = [condition.name for condition in suite.conditions]
        assert len(set(names)) == len(names)
        assert pickle.loads(pickle.dumps(suite)) == suite
        for condition in suite.conditions:
            assert condition.example is None or condition.batch is None
    corruptions = suites()["corruptions"].conditions
    assert len(corruptions) == 5 * sum(5 if each.random else 1 for each in CORRUPTIONS.values())
    noise = {condition.group: condition.settings["level"] for condition in suites()["noise"].conditions}
    assert noise["gaussian_noise-5"] == 5 / 255
    assert noise["gaussian_noise-10"] == 10 / 255
    assert (noise["gaussian_blur-1"], noise["gaussian_blur-2"]) == (1, 2)
    seeds = [each.noise_seed for each in suites()["noise"].conditions if each.group == "gaussian_noise-5"]
    assert seeds == [0, 1, 2, 3, 4]
