"""Folders of transformers' `save_pretrained` as initial weights."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import timm
import torch
from torch import nn

import attngraft
from attngraft.cli import main
from attngraft.errors import UsageError
from attngraft.models.create import create_host
from attngraft.models.transformers_folder import HOST, folder_arguments, folder_tensors
from attngraft.study.config import study_from_dict
from attngraft.training.build import build_initial_model, check_start, model_data_config
from attngraft.training.recipe import HostConfig, Recipe, recipe_from_dict, recipe_to_dict

transformers = pytest.importorskip("transformers", reason="needs the extra hf")

SIZES: dict[str, dict[str, Any]] = {
    "vit": {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 48},
    "dinov2": {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3},
    "swin": {"embed_dim": 12, "depths": [1, 1], "num_heads": [2, 2], "window_size": 2},
}
PROCESSOR = {
    "image_processor_type": "ViTImageProcessor",
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "rescale_factor": 1 / 255,
    "image_mean": [0.1, 0.2, 0.3],
    "image_std": [0.4, 0.5, 0.6],
    "resample": 3,
    "size": {"height": 16, "width": 16},
}


def saved(folder: Path, kind: str = "vit", *, processor: dict[str, Any] | None = PROCESSOR, **config: Any) -> Any:
    """A model of transformers, evaluating, and its folder."""
    torch.manual_seed(3)
    settings = {"image_size": 16, "patch_size": 4, "num_labels": 5, "layer_norm_eps": 1e-3, **SIZES[kind], **config}
    model = transformers.AutoModelForImageClassification.from_config(
        transformers.AutoConfig.for_model(kind, **settings)
    )
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)
    if processor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return model.eval()


def recipe(folder: Path, **host: Any) -> Recipe:
    return Recipe(host=HostConfig(name="transformers_classifier", weights=str(folder), **host))


IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", SIZES)
def test_outputs_before_training_equal_transformers_own(tmp_path: Path, kind: str) -> None:
    """With all that the configuration says (here another epsilon), through a recipe and through create_model."""
    saved(tmp_path, kind)
    own = transformers.AutoModelForImageClassification.from_pretrained(tmp_path).eval()(IMAGES).logits
    model, start = build_initial_model(recipe(tmp_path), {"num_classes": 5})
    assert torch.equal(model.eval()(IMAGES), own)
    assert start.whole and start.path == tmp_path / "model.safetensors"
    model = attngraft.create_model("transformers_classifier", weights=tmp_path)
    assert model.num_classes == 5 and torch.equal(model.eval()(IMAGES), own)


def test_the_recipe_contains_all_arguments(tmp_path: Path) -> None:
    saved(tmp_path)
    first = recipe(tmp_path)
    assert first.host.args["hidden_size"] == 24 and first.host.args["layer_norm_eps"] == 1e-3
    expected = model_data_config(first)
    (tmp_path / "config.json").unlink()
    (tmp_path / "preprocessor_config.json").unlink()
    again = recipe_from_dict(recipe_to_dict(first))
    assert again == first and model_data_config(again) == expected
    model, _ = build_initial_model(again, {"num_classes": 5}, load_weights=False)
    assert len(model.model.vit.layers) == 2


def test_another_number_of_classes_gets_a_new_head(tmp_path: Path) -> None:
    host = saved(tmp_path)
    model, start = build_initial_model(recipe(tmp_path), {"num_classes": 3})
    assert not start.whole and "a new head: model.classifier.bias, model.classifier.weight" in start.origin
    assert model.get_classifier().weight.shape == (3, 24)
    assert torch.equal(model.model.vit.embeddings.cls_token, host.vit.embeddings.cls_token)


def test_a_backbone_without_a_head(tmp_path: Path) -> None:
    """And with a pooler, which an image classifier has no place for."""
    torch.manual_seed(0)
    backbone = transformers.ViTModel(transformers.ViTConfig(image_size=16, patch_size=4, **SIZES["vit"]))
    backbone.save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    report = transformers.AutoModelForImageClassification.from_pretrained(tmp_path, output_loading_info=True)[1]
    if len(report["missing_keys"]) > 2:  # transformers 5.9 does not find the names that it writes itself
        with pytest.raises(attngraft.HostError, match="it lacks model.vit.layers.0"):
            build_initial_model(recipe(tmp_path), {"num_classes": 3})
        return
    model, start = build_initial_model(recipe(tmp_path), {"num_classes": 3})
    assert not start.whole
    for name in ("embeddings.cls_token", "layers.1.mlp.fc1.weight", "layernorm.weight"):
        assert torch.equal(model.model.vit.get_parameter(name), backbone.get_parameter(name)), name


def test_the_new_head_is_that_of_the_seed_alone(tmp_path: Path) -> None:
    saved(tmp_path)
    torch.manual_seed(11)
    before = torch.get_rng_state()
    folder_tensors(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)
    first, second = (build_initial_model(recipe(tmp_path), {"num_classes": 3})[0] for _ in range(2))
    assert torch.equal(first.get_classifier().weight, second.get_classifier().weight)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"input_size": (3, 16, 16), "interpolation": "bicubic", "crop_pct": 1.0, "crop_mode": "squash"}),
        (
            {"size": {"shortest_edge": 20}, "do_center_crop": True, "crop_size": {"height": 16, "width": 16}},
            {"input_size": (3, 16, 16), "crop_pct": 0.8, "crop_mode": "center"},
        ),
        ({"resample": 2, "do_normalize": False}, {"interpolation": "bilinear", "mean": (0, 0, 0), "std": (1, 1, 1)}),
        ({"rescale_factor": 1 / 127.5}, {"mean": (0.05, 0.1, 0.15), "std": (0.2, 0.25, 0.3)}),
    ],
)
def test_preprocessing_follows_the_image_processor(
    tmp_path: Path, changes: dict[str, Any], expected: dict[str, Any]
) -> None:
    kind = "BitImageProcessor" if "crop_size" in changes else "ViTImageProcessor"
    saved(tmp_path, processor={**PROCESSOR, "image_processor_type": kind, **changes})
    found = model_data_config(recipe(tmp_path))
    for name, value in ({"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6)} | expected).items():
        assert found[name] == (value if isinstance(value, str) else pytest.approx(value)), name


def test_preprocessed_images_equal_the_processors(tmp_path: Path) -> None:
    """Of the size that the model takes, where no resizing differs between the packages."""
    from PIL import Image

    from attngraft.tasks.images.inputs import HostInput
    from attngraft.tasks.images.transforms import eval_transform

    saved(tmp_path)
    pixels = torch.randint(0, 256, (16, 16, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    image = Image.fromarray(pixels.numpy())
    own = transformers.AutoImageProcessor.from_pretrained(tmp_path)(image, return_tensors="pt")["pixel_values"][0]
    host = HostInput.from_model(model_data_config(recipe(tmp_path)))
    shown = host.normalize(eval_transform(host, crop_pct=host.crop_pct)(image))
    torch.testing.assert_close(shown, own, rtol=1e-6, atol=1e-6)


def test_explicit_arguments_override_the_folder(tmp_path: Path) -> None:
    saved(tmp_path)
    said = {"img_size": 8, "hidden_dropout_prob": 0.25, "pretrained_cfg_overlay": {"mean": [0, 0, 0]}}
    wanted = recipe(tmp_path, args=said)
    data = model_data_config(wanted)
    assert data["input_size"] == (3, 8, 8)
    assert list(data["mean"]) == [0, 0, 0] and list(data["std"]) == [0.4, 0.5, 0.6]
    model, start = build_initial_model(wanted, {"num_classes": 5})
    assert model.model.config.hidden_dropout_prob == 0.25
    assert "resized: model.vit.embeddings.position_embeddings" in start.origin
    assert model.eval()(IMAGES[..., :8, :8]).shape == (2, 5)


def test_without_a_processor_preprocessing_must_be_passed(tmp_path: Path) -> None:
    saved(tmp_path, processor=None)
    with pytest.raises(attngraft.AttngraftError, match=r"preprocessor_config.json: no such file.*save_pretrained"):
        recipe(tmp_path)
    told = recipe(tmp_path, args={"pretrained_cfg_overlay": {"mean": [0.5] * 3, "std": [0.25] * 3}})
    assert model_data_config(told)["std"] == pytest.approx((0.25, 0.25, 0.25))


@pytest.mark.parametrize("form", ["shards", "bin"])
def test_other_forms_of_weights(tmp_path: Path, form: str) -> None:
    model = saved(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    if form == "shards":
        model.save_pretrained(tmp_path, max_shard_size="20KB")
        assert not (tmp_path / "model.safetensors").exists()
    else:
        torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    for place in (tmp_path, next(tmp_path.glob("*.index.json" if form == "shards" else "*.bin"))):
        made = attngraft.create_model("transformers_classifier", weights=place)
        assert torch.equal(made.eval()(IMAGES), model(IMAGES).logits)


class Trap:
    def __reduce__(self) -> Any:
        return print, ("ran",)


def test_a_pickle_that_could_run_anything_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = saved(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save({**model.state_dict(), "trap": Trap()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(attngraft.HostError, match=r"pytorch_model.bin contains Python objects.*safetensors"):
        check_start(recipe(tmp_path))
    assert "ran" not in capsys.readouterr().out


def test_a_model_of_endless_layers_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 10**30}))
    with pytest.raises(UsageError, match=r"config.json: num_hidden_layers is more than 10,000; correct it"):
        folder_arguments(tmp_path, {})


def test_what_is_missing_is_named_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("nothing is fetched"))
    whole = tmp_path / "whole"
    saved(whole)
    (whole / "model.safetensors").write_bytes(b"cut off")
    with pytest.raises(attngraft.HostError, match=r"whole/model.safetensors: transformers .* cannot read it"):
        check_start(recipe(whole))
    (whole / "model.safetensors").unlink()
    with pytest.raises(attngraft.AttngraftError, match=r"whole/model.safetensors: no such file.*copy it"):
        check_start(recipe(whole))
    (whole / "config.json").write_text('{"model_type": "vitt"}')
    with pytest.raises(attngraft.AttngraftError, match=r"config.json: transformers .* cannot read it"):
        recipe(whole)
    for field in ('"hidden_size": "16"', '"dtype": "os.system"'):
        (whole / "config.json").write_text(f'{{"model_type": "vit", {field}}}')
        with pytest.raises(attngraft.AttngraftError, match=r"config.json: transformers .* cannot read it"):
            recipe(whole)
    (whole / "config.json").unlink()
    with pytest.raises(attngraft.AttngraftError, match=r"whole/config.json: no such file.*copy it"):
        check_start(recipe(whole))
    with pytest.raises(attngraft.AttngraftError, match=r"google/vit: no such folder, and attngraft downloads nothing"):
        check_start(recipe(Path("google/vit")))


def test_a_grafted_folder_fills_the_grafts(tmp_path: Path) -> None:
    model = saved(tmp_path)
    attngraft.graft(model, "cb_s(init=0.7)@layers.1")
    attngraft.save_pretrained(model, tmp_path)
    made = attngraft.create_model("transformers_classifier", "cb_s@layers.1", weights=tmp_path)
    assert torch.equal(made.eval()(IMAGES), model(IMAGES).logits)
    with pytest.raises(attngraft.HostError, match="trained with different grafts from this model's"):
        attngraft.create_model("transformers_classifier", "horizontal", weights=tmp_path)
    model.save_pretrained(tmp_path)  # which puts them among the host's weights
    (tmp_path / "grafts.safetensors").unlink()
    with pytest.raises(attngraft.HostError, match=r"contains weights of grafts.*GraftCheckpoints"):
        attngraft.create_model("transformers_classifier", "cb_s@layers.1", weights=tmp_path)


def test_its_state_dict_in_a_file_fits_too(tmp_path: Path) -> None:
    model = saved(tmp_path)
    arguments = folder_arguments(tmp_path, {})
    torch.save(model.state_dict(), tmp_path / "mine.pth")
    made = attngraft.create_model("transformers_classifier", num_classes=5, weights=tmp_path / "mine.pth", **arguments)
    assert torch.equal(made.eval()(IMAGES), model(IMAGES).logits)


def test_other_hosts_ignore_a_folder() -> None:
    assert HostConfig(name="vit_tiny_patch16_224", weights="anywhere").args == {}
    assert timm.is_model("transformers_classifier")


@pytest.mark.slow
def test_a_run_needs_the_folder_only_at_its_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = tmp_path / "hf", tmp_path / "run"
    saved(folder, image_size=8, num_labels=10, processor={**PROCESSOR, "size": {"height": 8, "width": 8}})
    host = ["--host", "transformers_classifier", "--weights", str(folder)]
    train = ["train", *host, "--graft", "cb_s", "--data", "digits", "--epochs", "1", "--set", "train.threads=1"]
    call([*train, "--out", str(out)], capsys)
    start = json.loads((out / "start.json").read_text())
    assert "with its head for 10 classes" in start["from"] and 0 <= start["metrics"]["val/top1"] <= 1
    given = json.loads((out / "data.json").read_text())["facts"]["input"]
    assert given["mean"] == pytest.approx([0.1, 0.2, 0.3]) and given["interpolation"] == "bicubic"
    folder.rename(tmp_path / "elsewhere")
    call(["eval", str(out)], capsys)
    call(["export", str(out), "--to", "torch", "--out", str(tmp_path / "out")], capsys)
    assert attngraft.load(tmp_path / "out")(IMAGES[..., :8, :8]).shape == (2, 10)


def test_a_study_reads_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path / "hf", image_size=8, num_labels=10, processor={**PROCESSOR, "size": {"height": 8, "width": 8}})
    host = [
        "--host",
        "transformers_classifier",
        "--weights",
        str(tmp_path / "hf"),
        "--host-arg",
        "num_attention_heads=2",
    ]
    dry = [
        "compare",
        *host,
        "--graft",
        "cb_s@layers.1",
        "--data",
        "digits",
        "--epochs",
        "1",
        "--seeds",
        "1",
        "--dry-run",
    ]
    call([*dry, "--out", str(tmp_path / "study")], capsys)
    config = study_from_dict(
        {"host": {"name": HOST, "weights": str(tmp_path / "hf")}, "grafts": ["cb_s"], "out": "out"}
    )
    assert config.recipe_of(config.baseline, 0).host.args["hidden_size"] == 24


def call(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert not stop.value.code, capsys.readouterr().err


@pytest.mark.parametrize("name", ["do_flip_channel_order", "rescale_offset"])
def test_settings_that_change_pixels_otherwise_are_refused(tmp_path: Path, name: str) -> None:
    kind = {"do_flip_channel_order": "MobileViTImageProcessor", "rescale_offset": "EfficientNetImageProcessor"}[name]
    changes = {"include_top": False, "size": {"shortest_edge": 16}} if name == "do_flip_channel_order" else {}
    saved(tmp_path, processor={**PROCESSOR, "include_top": False, **changes, "image_processor_type": kind, name: True})
    with pytest.raises(attngraft.AttngraftError, match=f"{name} changes pixels in a way that is not supported"):
        model_data_config(recipe(tmp_path))


def test_parts_have_the_tensors_of_the_index(tmp_path: Path) -> None:
    saved(tmp_path)
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    for number in (1, 2):
        safetensors.torch.save_file(tensors, tmp_path / f"part{number}.safetensors", {"format": "pt"})
    index = dict.fromkeys(tensors, "part1.safetensors") | {"classifier.bias": "part2.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    with pytest.raises(attngraft.HostError, match=r"part\d\.safetensors and the index differ in 'classifier"):
        folder_tensors(tmp_path)


@pytest.mark.parametrize("part", ["../secret.safetensors", "/etc/passwd", "sub/a.safetensors", "pipe", 3])
def test_divided_weights_stay_in_their_folder(tmp_path: Path, part: Any) -> None:
    folder = tmp_path / "folder"
    saved(folder)
    (folder / "model.safetensors").rename(tmp_path / "secret.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"classifier.bias": part}}))
    if part == "pipe":
        os.mkfifo(folder / "pipe")
    with pytest.raises(
        attngraft.HostError, match=r"model\.safetensors\.index\.json: .*download or save the folder again"
    ):
        folder_tensors(folder)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bool])
def test_weights_that_are_no_floats_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    saved(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = safetensors.torch.load_file(file)
    name = next(name for name in weights if name.endswith(("query.weight", "q_proj.weight")))
    weights[name] = weights[name].mul(100).to(dtype)
    safetensors.torch.save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(attngraft.HostError, match=rf"{file}: {name} is (I8|I64|BOOL), as in quantized models"):
        folder_tensors(tmp_path)


def test_a_model_larger_than_the_memory_is_not_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path)
    monkeypatch.setattr("attngraft.models.schemes.memory_size", lambda: 1000)
    with pytest.raises(
        attngraft.HostError, match=r"the host takes .* or more, and this machine has 1.0 kB; correct its"
    ):
        create_host(f"hf:{tmp_path}")
