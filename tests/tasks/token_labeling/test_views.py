"""Views that know which part of the image they show: the same pixels as without, and the right part."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from attngraft.tasks.images.config import AugmentConfig
from attngraft.tasks.images.inputs import HostInput
from attngraft.tasks.images.views import ViewPlan, random_view
from attngraft.tasks.seeding import seeded
from attngraft.tasks.token_labeling.views import TrackedView
from tests.tasks.images.making import host_config, picture

HOST = HostInput.from_model(host_config(16))


def view(**augment: object) -> tuple[object, TrackedView]:
    """As it is without tracking, and with."""
    config = AugmentConfig(crop="resized", **augment)  # type: ignore[arg-type]
    plan = ViewPlan.decide(config, HOST, image_size=(60, 40), mirrored=True)
    plain = random_view(config, plan, HOST)
    return plain, TrackedView(plain)


@pytest.mark.parametrize(
    "augment",
    [{}, {"interpolation": "random", "vflip": 0.5}, {"auto_augment": "rand-m9-mstd0.5-inc1", "erasing": 0.5}],
)
def test_pixels_are_those_of_the_untracked_view(augment: dict[str, object]) -> None:
    plain, tracked = view(**augment)
    image = picture(1, size=(60, 40))
    for seed in range(8):
        with seeded("augment", seed):
            expected = plain(image)  # type: ignore[operator]
        with seeded("augment", seed):
            assert torch.equal(tracked(image)[0], expected)


def test_the_part_is_the_one_that_is_shown() -> None:
    """In a picture whose red and green are the place, the corners of a view show where it was cut out."""
    rows, columns = 120, 200
    ramp = np.zeros((rows, columns, 3), dtype=np.uint8)
    ramp[..., 0], ramp[..., 1] = np.linspace(0, 255, columns)[None], np.linspace(0, 255, rows)[:, None]
    _, tracked = view(vflip=0.5)
    seen = set()
    for seed in range(30):
        with seeded("augment", seed):
            pixels, shown = tracked(Image.fromarray(ramp))
        left, top, right, bottom, mirrored, upside_down = shown.tensor().tolist()
        red, green = pixels[0].float() / 255, pixels[1].float() / 255
        ends = [red[:, 0].mean(), red[:, -1].mean()], [green[0].mean(), green[-1].mean()]
        first = (ends[0][::-1] if mirrored else ends[0]), (ends[1][::-1] if upside_down else ends[1])
        assert first[0][0] == pytest.approx(left, abs=0.04)
        assert first[0][1] == pytest.approx(right, abs=0.04)
        assert first[1][0] == pytest.approx(top, abs=0.04)
        assert first[1][1] == pytest.approx(bottom, abs=0.04)
        seen.add((mirrored, upside_down))
    assert len(seen) == 4
