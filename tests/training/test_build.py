"""From a recipe to a model and its data: what the host expects of images is what it is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_model_data_config
from timm.layers import DropPath

from attngraft.errors import HostError, UsageError
from attngraft.tasks.classification import Classification
from attngraft.tasks.images.inputs import HostInput, ImageBatches
from attngraft.tasks.task import TaskData
from attngraft.training.build import build_model, build_task, check_task_host, model_data_config, recipe_for_task
from attngraft.training.recipe import Recipe, load_recipe, recipe_from_dict, recipe_to_dict
from tests.tasks.images.datasets import make_folder

#: hosts whose pretrained configurations differ in mean, std, crop, interpolation and size
HOSTS = [
    "vit_tiny_patch16_224.augreg_in21k_ft_in1k",
    "swin_tiny_patch4_window7_224.ms_in1k",
    "resnet18.tv_in1k",
    "deit3_small_patch16_384.fb_in22k_ft_in1k",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    return make_folder(root, {"train": {"a": 2, "b": 2}, "val": {"a": 1, "b": 1}}, size=(500, 400))


def recipe_of(folder: Path, name: str, args: dict[str, Any] | None = None, **augment: Any) -> Recipe:
    task = {"name": "classification", "data": {"source": str(folder)}, "augment": augment}
    return recipe_from_dict({"host": {"name": name, "args": args or {}}, "task": task})


def load(recipe: Recipe) -> TaskData:
    return build_task(recipe).load(model_data_config=model_data_config(recipe))


def shown(data: TaskData, split: str = "val") -> torch.Tensor:
    """What the model is shown of a split, as a batch."""
    part = getattr(data, split)
    keys = [(0, index) for index in range(len(part))]
    told = data.facts["input"]
    host = HostInput.from_model({"input_size": told["size"], "mean": told["mean"], "std": told["std"]})
    images: torch.Tensor = ImageBatches(host).to_model(part.collate([part[key] for key in keys]))[0][0]
    return images


@pytest.mark.parametrize("name", HOSTS)
def test_evaluation_shows_what_timm_would_show(folder: Path, name: str) -> None:
    recipe = recipe_of(folder, name)
    data = load(recipe)
    with torch.device("meta"):
        model = timm.create_model(name)
    transform = create_transform(**resolve_model_data_config(model), is_training=False)
    expected = torch.stack(
        [transform(Image.open(folder / "val" / label / "0.png").convert("RGB")) for label in ("a", "b")]
    )
    torch.testing.assert_close(shown(data), expected, rtol=0, atol=1e-5)


def steps(data: TaskData) -> list[Any]:
    return list(data.train.transform.transforms)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", HOSTS)
def test_training_views_have_the_hosts_size_mean_and_interpolation(tmp_path: Path, name: str) -> None:
    """Whatever is cropped of an image of one color, and however it is turned, has that color."""
    color = (10, 100, 200)
    for place in ("train/a", "train/b", "val/a", "val/b"):
        (tmp_path / place).mkdir(parents=True)
        Image.new("RGB", (500, 400), color).save(tmp_path / place / "0.png")
    config = model_data_config(recipe_of(tmp_path, name))
    data = load(recipe_of(tmp_path, name))
    images = shown(data, "train")
    assert images.shape == (2, *config["input_size"])
    for channel, value in enumerate(color):
        expected = (value / 255 - config["mean"][channel]) / config["std"][channel]
        torch.testing.assert_close(images[:, channel], torch.full_like(images[:, channel], expected))
    assert config["interpolation"] in str(next(step for step in steps(data) if "ResizedCrop" in type(step).__name__))


def test_the_configurations_differ(folder: Path) -> None:
    configs = [model_data_config(recipe_of(folder, name)) for name in HOSTS]
    for field in ("mean", "std", "interpolation", "crop_pct", "input_size"):
        assert len({str(config[field]) for config in configs}) > 1, field


def test_the_recipe_may_say_otherwise(folder: Path) -> None:
    name = HOSTS[0]
    overlay = {"mean": [0.1, 0.2, 0.3], "std": [1.0, 1.0, 1.0], "crop_pct": 1.0}
    plain, other = load(recipe_of(folder, name)), load(recipe_of(folder, name, {"pretrained_cfg_overlay": overlay}))
    size = {"size": [3, 224, 224], "interpolation": "bicubic", "eval_crop_pct": 1.0}
    assert other.facts["input"] == size | {"mean": [0.1, 0.2, 0.3], "std": [1.0, 1.0, 1.0]}
    assert not torch.equal(shown(plain), shown(other))
    bilinear = load(recipe_of(folder, name, interpolation="bilinear"))
    assert "bilinear" in str(next(step for step in steps(bilinear) if "ResizedCrop" in type(step).__name__))
    small = load(recipe_of(folder, name, {"img_size": 64}))
    assert shown(small).shape == (2, 3, 64, 64)
    gray = load(recipe_of(folder, name, {"in_chans": 1}))
    assert shown(gray).shape == (2, 1, 224, 224)


def test_the_model_takes_what_is_shown(folder: Path) -> None:
    recipe = recipe_of(folder, HOSTS[0], {"img_size": 48, "depth": 1})
    data = load(recipe)
    model = build_model(recipe, data.model_args).eval()
    with torch.no_grad():
        assert model(shown(data)).shape == (2, 2)


def test_a_stored_model_keeps_the_default_of_its_release(folder: Path) -> None:
    """`lsa` did not shift windows by default; new models must specify it where the host does."""
    args = {"img_size": 32, "embed_dim": 8, "depths": (2,), "num_heads": (2,), "window_size": 4}
    sections = recipe_to_dict(recipe_of(folder, "swin_tiny_patch4_window7_224", args))
    recipe = recipe_from_dict(sections | {"graft": "lsa(size=4)"})
    with pytest.raises(HostError, match="shift=host to keep this"):
        build_model(recipe, {"num_classes": 2})
    model = build_model(recipe, {"num_classes": 2}, load_weights=False)
    assert [block.grafts.lsa.shift for block in model.layers[0].blocks] == [0, 0]


@pytest.mark.parametrize("graft", [None, "bisa + vertical + cb_s(at=both)"])
@pytest.mark.parametrize(
    ("host", "args", "own"),
    [
        ("vit_tiny_patch16_224", {"img_size": 32, "depth": 3, "embed_dim": 24, "num_heads": 3}, []),
        ("swin_tiny_patch4_window7_224", {"img_size": 28, "depths": (1, 2), "window_size": 7}, [0.05, 0.05, 0.1, 0.1]),
    ],
)
def test_stochastic_depth_is_in_the_model(
    folder: Path, host: str, args: dict[str, Any], own: list[float], graft: str | None
) -> None:
    """Rising from 0 in the first block, as timm has it; a graft leaves it. Null leaves it to the host."""
    rates = [0.2, 0.2, 0.4, 0.4]
    sections = recipe_to_dict(recipe_of(folder, host, args)) | {"graft": graft}
    for train, given, expected in (
        ({"drop_path": 0.4}, {}, rates),
        ({"drop_path": None}, {}, own),
        ({"drop_path": None}, {"drop_path_rate": 0.4}, rates),
        ({"drop_path": 0.0}, {"drop_path_rate": 0.4}, []),
    ):
        recipe = recipe_from_dict(sections | {"host": {"name": host, "args": args | given}, "train": train})
        model = build_model(recipe, {"num_classes": 2})
        found = [module.drop_prob for module in model.modules() if isinstance(module, DropPath)]
        assert [rate for rate in found if rate] == pytest.approx(expected)


def test_a_task_and_its_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("classification", "multilabel", "token_labeling"):
        own = recipe_for_task(name, None)
        assert load_recipe(own).task["name"] == name
    assert recipe_for_task("classification", "deit") == "deit"
    with pytest.raises(UsageError, match=r"recipe deit is for the task classification; use --recipe multilabel, or"):
        recipe_for_task("multilabel", "deit")

    class Mine(Classification):
        name = "mine"
        hosts = ("vit_*",)

    monkeypatch.setattr("attngraft.training.build.load_task", {"mine": Mine, "classification": Classification}.get)
    with pytest.raises(UsageError, match="--task mine: this task has no default recipe"):
        recipe_for_task("mine", None)
    (tmp_path / "mine.yaml").write_text("task: {name: mine}")
    monkeypatch.setattr(Mine, "default_recipe", str(tmp_path / "mine.yaml"))
    assert recipe_for_task("mine", None) == str(tmp_path / "mine.yaml")
    check_task_host(recipe_from_dict({"host": {"name": "vit_tiny_patch16_224"}, "task": {"name": "mine"}}))
    with pytest.raises(UsageError, match=r"task mine: cannot use the host resnet10t: .*use one of vit_\*"):
        check_task_host(recipe_from_dict({"host": {"name": "resnet10t"}, "task": {"name": "mine"}}))
