"""What the model sees: fixed views, random views, and the choices that depend on the data."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import create_transform

from attngraft.errors import ConfigError, ExportError
from attngraft.tasks.images.config import AugmentConfig
from attngraft.tasks.images.inputs import HostInput
from attngraft.tasks.images.transforms import (
    Preprocessor,
    TransformPlan,
    eval_transform,
    only_shifts_and_flips,
    train_transform,
)
from attngraft.tasks.seeding import seeded
from attngraft.tasks.task import Serving
from tests.tasks.images.datasets import host_config, picture

HOST = HostInput.from_model(host_config(32))


def _plan(config: AugmentConfig, *, size: tuple[int, int] = (32, 32), mirrored: bool = True) -> TransformPlan:
    return TransformPlan.decide(config, HOST, image_size=size, mirrored=mirrored)


@pytest.mark.parametrize(
    ("size", "crop", "pct"), [((8, 8), "pad", 1.0), ((32, 32), "pad", 1.0), ((33, 20), "resized", 0.9)]
)
def test_small_images_keep_every_pixel(size: tuple[int, int], crop: str, pct: float) -> None:
    plan = _plan(AugmentConfig(), size=size)
    assert (plan.crop, plan.eval_crop_pct, plan.padding) == (crop, pct, 4 if crop == "pad" else 0)


def test_given_values_win() -> None:
    plan = _plan(AugmentConfig(crop="center", padding=3, hflip=0.25), mirrored=False)
    assert (plan.crop, plan.padding, plan.hflip) == ("center", 0, 0.25)
    assert _plan(AugmentConfig(crop="pad", padding=3), size=(99, 99)).padding == 3
    assert (_plan(AugmentConfig()).hflip, _plan(AugmentConfig(), mirrored=False).hflip) == (0.5, 0.0)
    with pytest.raises(
        ConfigError, match=r"task\.augment\.padding: shifts of 33 pixels leave nothing of 32; use fewer"
    ):
        _plan(AugmentConfig(padding=33))


@pytest.mark.parametrize("size", [(32, 32), (64, 48), (8, 8)])
def test_the_fixed_view_is_timms(size: tuple[int, int]) -> None:
    image = picture(1, size=size)
    timms = create_transform((3, 32, 32), interpolation="bicubic", mean=HOST.mean, std=HOST.std, crop_pct=0.9)
    ours = HOST.normalize(eval_transform(HOST, crop_pct=0.9)(image)[None])[0]
    assert torch.equal(ours, timms(image))


def test_an_image_of_the_hosts_size_is_left_as_it_is() -> None:
    image = picture(2, size=(32, 32))
    assert np.array_equal(eval_transform(HOST, crop_pct=1.0)(image).permute(1, 2, 0).numpy(), np.asarray(image))


VIEWS = [
    AugmentConfig(),
    AugmentConfig(crop="resized", interpolation="random"),
    AugmentConfig(crop="pad", vflip=0.5, erasing=1.0),
    AugmentConfig(auto_augment="rand-m9-mstd0.5-inc1"),
    AugmentConfig(auto_augment="3a", color_jitter=0.3),
    AugmentConfig(auto_augment="augmix-m5-w4-d2", crop="resized"),
    AugmentConfig(auto_augment="original", erasing=0.5, erasing_mode="rand", erasing_count=3),
    AugmentConfig(color_jitter=(0.4, 0.4, 0.4, 0.1), color_jitter_prob=0.8, grayscale=0.2, blur=0.2),
]


@pytest.mark.parametrize("config", VIEWS)
def test_random_views_are_functions_of_the_seed_and_picklable(config: AugmentConfig) -> None:
    plan = _plan(config)
    view = train_transform(config, plan, HOST)
    copy = pickle.loads(pickle.dumps(view))
    seen = []
    for index in range(6):
        image = picture(index, size=(40, 36))
        with seeded("t", index):
            first = view(image)
        with seeded("t", index):
            assert torch.equal(copy(image), first)
        with seeded("t", index + 100):
            seen.append(not torch.equal(view(image), first))
        assert first.shape == (3, 32, 32)
        assert first.dtype == (torch.float32 if config.erasing else torch.uint8)
    assert any(seen), "another seed must give another view"


@pytest.mark.parametrize("auto_augment", [None, "3a", "rand-m9", "original"])
def test_gray_hosts_take_the_same_views(auto_augment: str | None) -> None:
    host = HostInput.from_model(host_config(32, channels=1))
    config = AugmentConfig(auto_augment=auto_augment, erasing=0.5)
    view = train_transform(config, TransformPlan.decide(config, host, image_size=(8, 8), mirrored=True), host)
    for index in range(20):
        with seeded("t", index):
            assert view(picture(index, mode="L")).shape == (1, 32, 32)


def test_which_views_are_only_moves() -> None:
    assert only_shifts_and_flips(AugmentConfig(), _plan(AugmentConfig()))
    assert not only_shifts_and_flips(AugmentConfig(), _plan(AugmentConfig(), size=(99, 99)))
    for config in VIEWS[1:]:
        assert not only_shifts_and_flips(config, _plan(config))


def test_the_hosts_numbers_are_fitted_to_its_channels() -> None:
    gray = HostInput.from_model({"input_size": (1, 8, 8), "mean": (0.1, 0.2, 0.3), "std": (0.5, 0.5, 0.5)})
    assert gray.mean == pytest.approx((0.2,))
    assert gray.mode == "L"
    assert HostInput.from_model({}).crop_pct == 0.875
    with pytest.raises(ConfigError, match=r"has 4 input channels.*in_chans"):
        HostInput.from_model({"input_size": (4, 8, 8)})


@pytest.mark.parametrize("erasing", [0.0, 1.0])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_training_view_ends_with_timms_numbers(mode: str, erasing: float) -> None:
    """Bit for bit, where it is normalized here and where that is left to the model's side."""
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)).convert(mode)
    channels = len(image.getbands())
    host = HostInput.from_model({"input_size": (channels, 32, 32), "mean": (0.4,) * channels, "std": (0.2,) * channels})
    config = AugmentConfig(crop="resized", erasing=erasing)
    plan = TransformPlan.decide(config, host, image_size=image.size, mirrored=True)
    expected = create_transform(
        (channels, 32, 32),
        is_training=True,
        color_jitter=None,
        interpolation=host.interpolation,
        mean=host.mean,
        std=host.std,
        re_prob=erasing,
        re_mode=config.erasing_mode,
    )
    with seeded("t", 1):
        found = train_transform(config, plan, host)(image)
    with seeded("t", 1):
        assert torch.equal(found if erasing else host.normalize(found), expected(image))
    assert found.is_contiguous()


@pytest.mark.parametrize(
    "wrong", [{"size": [3, None, 8]}, {"interpolation": [[]]}, {"crop_pct": {"x": 1}}, {"mean": ""}]
)
def test_a_damaged_preprocessing_is_an_error(wrong: dict[str, Any]) -> None:
    serving = Serving(kind="images", input={"size": [3, 8, 8], **wrong}, activation="softmax", classes=("a", "b"))
    with pytest.raises(ExportError, match="is not a valid preprocessing"):
        Preprocessor.from_serving(serving)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"auto_augment": "rand-m9-n999999"}, "has a number of operations above 99; use fewer"),
        ({"auto_augment": "augmix-m5-w4-d100"}, "has a number of operations above 99; use fewer"),
        ({"repeats": 10**9}, "repeats must lie between 1 and 1000"),
        ({"erasing_count": 10**9}, "erasing_count must lie between 1 and 1000"),
    ],
)
def test_augmentation_that_never_ends_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AugmentConfig(**settings)
