"""Tracked transforms: the same pixels as untracked ones, and the right crop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from attngraft.tasks.images.config import AugmentConfig
from attngraft.tasks.images.inputs import HostInput
from attngraft.tasks.images.transforms import TransformPlan, train_transform
from attngraft.tasks.seeding import seeded
from attngraft.tasks.token_labeling.maps import TrackedTransform
from tests.tasks.images.datasets import host_config, picture

HOST = HostInput.from_model(host_config(16))


def transforms(**augment: object) -> tuple[object, TrackedTransform]:
    """An untracked and a tracked transform."""
    config = AugmentConfig(crop="resized", **augment)  # type: ignore[arg-type]
    plan = TransformPlan.decide(config, HOST, image_size=(60, 40), mirrored=True)
    plain = train_transform(config, plan, HOST)
    return plain, TrackedTransform(plain)


@pytest.mark.parametrize(
    "augment",
    [{}, {"interpolation": "random", "vflip": 0.5}, {"auto_augment": "rand-m9-mstd0.5-inc1", "erasing": 0.5}],
)
def test_pixels_are_those_of_the_untracked_transform(augment: dict[str, object]) -> None:
    plain, tracked = transforms(**augment)
    image = picture(1, size=(60, 40))
    for seed in range(8):
        with seeded("augment", seed):
            expected = plain(image)  # type: ignore[operator]
        with seeded("augment", seed):
            assert torch.equal(tracked(image)[0], expected)


def test_the_crop_is_the_one_that_is_shown() -> None:
    """Red and green encode the position, so the corners of an image show its crop."""
    rows, columns = 120, 200
    ramp = np.zeros((rows, columns, 3), dtype=np.uint8)
    ramp[..., 0], ramp[..., 1] = np.linspace(0, 255, columns)[None], np.linspace(0, 255, rows)[:, None]
    _, tracked = transforms(vflip=0.5)
    seen = set()
    for seed in range(30):
        with seeded("augment", seed):
            pixels, crop = tracked(Image.fromarray(ramp))
        left, top, right, bottom, mirrored, upside_down = crop.tensor().tolist()
        red, green = pixels[0].float() / 255, pixels[1].float() / 255
        ends = [red[:, 0].mean(), red[:, -1].mean()], [green[0].mean(), green[-1].mean()]
        first = (ends[0][::-1] if mirrored else ends[0]), (ends[1][::-1] if upside_down else ends[1])
        assert first[0][0] == pytest.approx(left, abs=0.04)
        assert first[0][1] == pytest.approx(right, abs=0.04)
        assert first[1][0] == pytest.approx(top, abs=0.04)
        assert first[1][1] == pytest.approx(bottom, abs=0.04)
        seen.add((mirrored, upside_down))
    assert len(seen) == 4
