"""A run with a teacher: who may teach, what is learned, what is written down, and that nothing of it is saved."""

from __future__ import annotations

import copy
import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from attngraft.errors import AttngraftError, ConfigError, TrainingError
from attngraft.export.run import export_run
from attngraft.timing.memory import storage_bytes
from attngraft.training.build import build_model, build_task, model_data_config
from attngraft.training.evaluate import evaluate_run
from attngraft.training.failures import OutOfMemory
from attngraft.training.loop import train
from attngraft.training.profiler import BenchmarkBatch, Profiler
from attngraft.training.progress import Silent
from attngraft.training.recipe import Recipe, load_recipe, recipe_from_dict, recipe_to_dict
from attngraft.training.run_folder import read_run
from attngraft.training.teacher import check_teacher, create_teacher, weights_hash
from tests.tasks.images.datasets import picture
from tests.training.processes import finish, start_together
from tests.training.toys import assert_same_outcome, final_state, metric_rows, with_new_checksums

VIT = {"img_size": 8, "patch_size": 4, "depth": 1, "embed_dim": 24, "num_heads": 3, "in_chans": 1}
#: digits in which a color student sees three equal channels
COLOR = VIT | {"in_chans": 3}


def digits(distill: dict[str, Any] | None = None, **sections: Any) -> Recipe:
    """Few updates of a tiny ViT on the digits, with all that draws random numbers."""
    plain: dict[str, Any] = {
        "host": {"name": "vit_tiny_patch16_224", "args": {**VIT, "proj_drop_rate": 0.1}},
        "task": {"name": "classification", "data": {"source": "digits", "val_fraction": 0.8}},
        "optimizer": {"lr": 3e-3},
        "schedule": {"epochs": 2},
        "train": {"batch_size": 64, "eval_batch_size": 720, "threads": 1},
        "distill": distill,
    }
    plain["task"]["augment"] = {"padding": 0, "mixup": 0.8, "cutmix": 1.0}
    for name, section in sections.items():
        plain[name] = {**plain[name], **section}
    return recipe_from_dict(plain)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A grafted run that knows a little."""
    folder = tmp_path_factory.mktemp("teacher") / "run"
    recipe = digits(task={"augment": {"padding": 0}}, schedule={"epochs": 6})
    train(replace(recipe, graft="cb_s"), folder, progress=Silent())
    return folder


@pytest.fixture(scope="module")
def seven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A convolutional model of seven classes, as timm saves one."""
    folder = tmp_path_factory.mktemp("seven")
    timm.models.save_for_hf(timm.create_model("lcnet_035", num_classes=7), folder, safe_serialization=True)
    return folder


def taught_by(place: Path | str, **fields: Any) -> dict[str, Any]:
    return {"teacher": {"weights": str(place)}, **fields}


def open_teacher(recipe: Recipe) -> Any:
    task = build_task(recipe)
    data = task.load(model_data_config=model_data_config(recipe))
    return create_teacher(recipe, task, data, device=torch.device("cpu"))


def test_a_run_learns_from_a_run_and_keeps_nothing_of_it(
    teacher: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    record = train(digits(taught_by(teacher), train={"ema": 0.5}), tmp_path / "run", progress=Silent())
    plain = train(digits(train={"ema": 0.5}), tmp_path / "plain", progress=Silent())
    assert (record.finished, plain.teacher) == (True, {})
    for row in record.epochs:
        assert row["train/loss"] == pytest.approx(row["train/label_loss"] + 5 * row["train/teacher_loss"], rel=1e-5)
    for section in ("model", "ema"):
        assert final_state(tmp_path / "run")[section].keys() == final_state(tmp_path / "plain")[section].keys()
    known = evaluate_run(teacher, weights="best").metrics
    assert record.teacher["metrics"] == pytest.approx({f"val/{name}": value for name, value in known.items()})
    assert record.teacher["name"] == "vit_tiny_patch16_224 with cb_s"
    assert record.teacher["from"].startswith(f"weights of {teacher / 'checkpoints' / 'best.safetensors'} (epoch ")
    assert f"the teacher, vit_tiny_patch16_224 with cb_s: val/top1 {known['top1']:.4g}" in caplog.text


def test_what_it_says_is_the_models_answer_to_the_mixed_images_in_evaluation_mode(teacher: Path) -> None:
    recipe = digits(taught_by(teacher))
    found = open_teacher(recipe)
    task = build_task(recipe)
    data = task.load(model_data_config=model_data_config(recipe))
    batch = data.train.collate([data.train[(0, i)] for i in range(8)])
    mixed = task.prepare(batch, epoch=0, step=0)
    alone = build_model(read_run(teacher).recipe, {"num_classes": 10}, load_weights=False).eval()
    alone.load_state_dict(safetensors.torch.load_file(teacher / "checkpoints" / "best.safetensors"))
    said = found(mixed)
    assert torch.equal(said, alone(mixed["image"]))
    assert not said.requires_grad
    assert not any(parameter.requires_grad for parameter in found.model.parameters())
    assert found.facts["sha256"] == weights_hash(alone)
    own = torch.randn(8, 10)
    losses = found.losses(task, own, mixed, said)
    by_hand = -(mixed["target"] * own.log_softmax(-1)).sum(-1).mean()
    wanted = said.softmax(-1)
    by_hand = by_hand + 5 * (wanted * (wanted.log() - own.log_softmax(-1))).sum(-1).mean()
    assert losses["loss"].item() == pytest.approx(by_hand.item(), rel=1e-5)


def test_a_run_that_stopped_goes_on_to_the_same_end(teacher: Path, tmp_path: Path) -> None:
    recipe = digits(taught_by(teacher), train={"save_every": 2, "ema": 0.9})
    train(recipe, tmp_path / "whole", progress=Silent())
    train(recipe, tmp_path / "parts", progress=Silent(), stop_after_epoch=1)
    before = (tmp_path / "parts" / "teacher.json").read_text()
    train(recipe, tmp_path / "parts", progress=Silent())
    assert_same_outcome(tmp_path / "whole", tmp_path / "parts")
    assert (tmp_path / "parts" / "teacher.json").read_text() == before


def test_cutting_batches_changes_nothing(teacher: Path, tmp_path: Path) -> None:
    calm = {"host": {"args": VIT}, "task": {"augment": {"padding": 0}}, "schedule": {"epochs": 1}}
    for cut in (1, 4):
        recipe = digits(taught_by(teacher, temperature=2.0), train={"accumulate": cut}, **calm)
        train(recipe, tmp_path / str(cut), progress=Silent())
    for left, right in zip(metric_rows(tmp_path / "1"), metric_rows(tmp_path / "4"), strict=True):
        assert left == pytest.approx(right, rel=1e-4)


def test_another_teacher_is_refused_where_a_run_goes_on(teacher: Path, tmp_path: Path) -> None:
    mine = tmp_path / "teacher"
    shutil.copytree(teacher, mine)
    recipe = digits(taught_by(mine))
    train(recipe, tmp_path / "run", progress=Silent(), stop_after_epoch=1)
    weights = safetensors.torch.load_file(mine / "checkpoints" / "best.safetensors")
    weights["head.bias"] = weights["head.bias"] + 1
    safetensors.torch.save_file(weights, mine / "checkpoints" / "best.safetensors")
    with pytest.raises(
        TrainingError, match=r"teacher's weights have changed since this run began \(distill\.teacher: "
    ):
        train(recipe, tmp_path / "run", progress=Silent())
    with pytest.raises(TrainingError, match=r"has a different recipe: distill\.alpha \(None -> 2\.0\)"):
        train(digits(taught_by(mine, alpha=2.0)), tmp_path / "run", progress=Silent())
    with pytest.raises(TrainingError, match=r"has a different recipe: distill "):
        train(digits(), tmp_path / "run", progress=Silent())


def test_an_exported_model_teaches_what_its_run_teaches(teacher: Path, tmp_path: Path) -> None:
    export_run(teacher, tmp_path / "exported", checkpoint="best", to=("torch", "hf"))
    run, exported = (open_teacher(digits(taught_by(place))) for place in (teacher, tmp_path / "exported"))
    batch = {"image": torch.randn(4, 1, 8, 8), "target": torch.zeros(4, dtype=torch.long)}
    assert torch.equal(run(batch), exported(batch))
    assert exported.facts["from"] == f"the exported model in {tmp_path / 'exported'}"
    file = teacher / "checkpoints" / "best.safetensors"
    assert torch.equal(run(batch), open_teacher(digits(taught_by(file)))(batch))


def test_it_is_compiled_where_the_run_is(teacher: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[nn.Module] = []
    monkeypatch.setattr(nn.Module, "compile", lambda module: compiled.append(module))
    open_teacher(digits(taught_by(teacher)))
    assert compiled == []
    found = open_teacher(digits(taught_by(teacher), train={"compile": True}))
    assert compiled == [found.model]


def test_it_is_asked_in_batches_that_fit(teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = VisionTransformer.forward

    def forward(model: Any, x: torch.Tensor) -> torch.Tensor:
        if not model.training and len(x) > 200:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return original(model, x)

    monkeypatch.setattr(VisionTransformer, "forward", forward)
    with pytest.raises(
        OutOfMemory, match=r"720 examples .* in an evaluation of the teacher .* use --set train\.eval_batch_size=180"
    ):
        train(digits(taught_by(teacher)), tmp_path / "run", progress=Silent())


def test_timms_weights_of_a_name_and_a_file_with_a_name(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = timm.create_model("vit_tiny_patch16_224", **VIT, num_classes=10)
    timm.models.save_for_hf(model, tmp_path / "hub", model_args=VIT, safe_serialization=True)
    named = open_teacher(digits({"teacher": {"name": f"local-dir:{tmp_path / 'hub'}"}}))
    file = tmp_path / "hub" / "model.safetensors"
    given = {"name": "vit_tiny_patch16_224", "args": VIT, "weights": str(file)}
    from_file = open_teacher(digits({"teacher": given}))
    assert named.facts["sha256"] == from_file.facts["sha256"] == weights_hash(model)
    assert "timm's weights of local-dir:" in named.facts["from"]
    assert from_file.facts["from"] == f"weights of {file} (with its head for 10 classes)"


def test_a_convolutional_teacher_sees_its_own_size_or_the_one_that_is_given(tmp_path: Path) -> None:
    weights = timm.create_model("lcnet_035", num_classes=10).state_dict()
    safetensors.torch.save_file(weights, tmp_path / "r.safetensors")
    whom = {"name": "lcnet_035", "weights": str(tmp_path / "r.safetensors")}
    assert open_teacher(digits({"teacher": whom})).facts["input_size"] == [3, 224, 224]
    larger = open_teacher(digits({"teacher": {**whom, "size": 32}}))
    assert larger.facts["input_size"] == [3, 32, 32]
    shown = larger.inputs({"image": torch.randn(2, 1, 8, 8), "target": torch.zeros(2)})[0][0]
    assert shown.shape == (2, 3, 32, 32)


@pytest.mark.parametrize(
    ("distill", "message"),
    [
        ({}, r"distill\.teacher: no teacher is given; use --set distill\.teacher\.name=NAME"),
        (
            {"teacher": {"weights": "{seven}"}},
            r"not the folder of a run or of an exported model.* give its model: distill\.teacher\.name",
        ),
        (
            {"teacher": {"name": "lcnet_035", "weights": "{seven}"}},
            r"safetensors is for 7 classes, but the data have 10",
        ),
        ({"teacher": {"name": "local-dir:{hub}"}}, r"was made for 7 classes, but the data have 10"),
        (
            {"teacher": {"name": "local-dir:{hub}", "args": {"num_classes": 10}}},
            r"a new head: for 10 classes instead of 7",
        ),
        (
            {"teacher": {"name": "lcnet_035", "weights": "{run}"}},
            r"distill\.teacher\.name: .* has its own name and arguments",
        ),
        (
            {"teacher": {"name": "lcnot_035", "weights": "{seven}"}},
            r"^distill\.teacher: there is no model 'lcnot_035'.*did you mean",
        ),
        ({"teacher": {"weights": "{run}", "size": 16}}, r"takes images of 8x8 pixels only, not 16"),
        (
            {"teacher": {"weights": "{run}"}, "kind": "token"},
            r"distill\.kind: token .* vit_tiny_patch16_224 has one head",
        ),
    ],
)
def test_a_teacher_that_cannot_teach_is_refused_before_anything_is_written(
    teacher: Path, seven: Path, tmp_path: Path, distill: dict[str, Any], message: str
) -> None:
    places = {"seven": seven / "model.safetensors", "run": teacher, "hub": seven}
    text = json.dumps(distill)
    for name, path in places.items():
        text = text.replace(f"{{{name}}}", str(path))
    with pytest.raises(AttngraftError, match=message):
        train(digits(json.loads(text)), tmp_path / "run", progress=Silent())
    assert not (tmp_path / "run" / "recipe.yaml").exists()


def test_classes_of_a_run_are_the_datas_in_the_same_order(teacher: Path, tmp_path: Path) -> None:
    classes = [str(digit) for digit in range(10)]
    for number, (others, message) in enumerate(
        [
            (classes[::-1], "another order; use --set task.data.classes=... with the teacher's order: 9, 8"),
            (["x", *classes[1:]], "without the classes 0; use a teacher"),
        ]
    ):
        other = tmp_path / str(number)
        shutil.copytree(teacher, other)
        found = json.loads((other / "data.json").read_text())
        assert found["facts"]["classes"] == classes
        found["facts"]["classes"] = others
        for counts in found["facts"]["counts"].values():
            counts |= dict.fromkeys(others, 1)
        (other / "data.json").write_text(json.dumps(found))
        with_new_checksums(other)
        with pytest.raises(ConfigError, match=message):
            open_teacher(digits(taught_by(other)))


@pytest.mark.parametrize("names", ["own", "reversed", "others"])
def test_labels_of_a_transformers_folder_are_the_datas_in_the_same_order(tmp_path: Path, names: str) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'attngraft[hf]'")
    digit = [str(number) for number in range(10)]
    labels = {"own": digit, "reversed": digit[::-1], "others": [f"n{number}" for number in digit]}[names]
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.ViTConfig(
        **sizes, image_size=32, patch_size=16, id2label=dict(enumerate(labels)), label2id={}, num_channels=3
    )
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(tmp_path)
    recipe = digits({"teacher": {"name": "transformers_classifier", "weights": str(tmp_path)}})
    if names == "reversed":
        with pytest.raises(
            ConfigError, match="another order; use --set task.data.classes=... with the teacher's order: 9"
        ):
            open_teacher(recipe)
    else:
        assert open_teacher(recipe) is not None


def test_weights_of_a_teacher_are_finite(tmp_path: Path) -> None:
    model = timm.create_model("lcnet_035", num_classes=10)
    torch.nn.init.constant_(model.classifier.bias, float("nan"))
    torch.save(model.state_dict(), tmp_path / "x.pth")
    with pytest.raises(ConfigError, match=r"x\.pth.*has weights that are not finite \(classifier\.bias\)"):
        open_teacher(digits({"teacher": {"name": "lcnet_035", "weights": str(tmp_path / "x.pth")}}))


def test_a_run_at_work_is_no_teacher(tmp_path: Path) -> None:
    train(digits(), tmp_path / "run", progress=Silent(), stop_after_epoch=1)
    with pytest.raises(ConfigError, match="is not finished, and its best weights may change"):
        check_teacher(digits(taught_by(tmp_path / "run")))


def test_the_second_head_of_a_distilled_host_follows_the_teacher(teacher: Path, tmp_path: Path) -> None:
    host = {"name": "deit_tiny_distilled_patch16_224", "args": VIT}
    recipe = digits(taught_by(teacher, kind="token", hard=True), host=host, schedule={"epochs": 1})
    assert recipe.distill is not None
    assert recipe.distill.weight == 1
    record = train(recipe, tmp_path / "run", progress=Silent())
    row = record.epochs[0]
    assert row["train/loss"] == pytest.approx(row["train/label_loss"] + row["train/teacher_loss"], rel=1e-5)
    fresh = build_model(recipe, {"num_classes": 10})
    learned = final_state(tmp_path / "run")["model"]
    assert all(not torch.equal(learned[name], fresh.state_dict()[name]) for name in ("head.weight", "head_dist.weight"))
    found, task = open_teacher(recipe), build_task(recipe)
    task.load(model_data_config=model_data_config(recipe))
    batch = {"image": torch.randn(4, 1, 8, 8), "target": torch.arange(4)}
    own, second = fresh(batch["image"])
    losses = found.losses(task, (own, second), batch, found(batch))
    assert torch.equal(losses["label_loss"], task.loss(own, batch)["loss"])
    best = found(batch).argmax(-1)
    assert torch.allclose(losses["teacher_loss"], torch.nn.functional.cross_entropy(second, best))
    with pytest.raises(TrainingError, match="token requires a host that returns the logits of two heads"):
        found.losses(task, own, batch, found(batch))


def test_a_two_headed_host_may_follow_with_the_mean_of_its_heads(teacher: Path, tmp_path: Path) -> None:
    args = {
        "img_size": 16,
        "stem_type": "s8",
        "embed_dim": [16, 24],
        "key_dim": 4,
        "depth": [1, 1],
        "num_heads": [2, 2],
    }
    args |= {"mlp_ratio": [1, 1], "attn_ratio": [1, 1]}
    recipe = digits(
        taught_by(teacher), host={"name": "levit_128s", "args": args}, schedule={"epochs": 1}, train={"batch_size": 128}
    )
    with pytest.raises(ConfigError, match="a grayscale teacher cannot be used with color images"):
        open_teacher(recipe)
    train(digits(host={"args": COLOR}, schedule={"epochs": 1}), tmp_path / "color", progress=Silent())
    record = train(
        replace(recipe, distill=digits(taught_by(tmp_path / "color")).distill), tmp_path / "run", progress=Silent()
    )
    assert record.teacher["input_size"] == [3, 8, 8]
    assert record.epochs[0]["train/teacher_loss"] > 0


def test_several_labels_can_be_learned_from_a_teacher(tmp_path: Path) -> None:
    rows = ["path,labels"]
    for number in range(24):
        picture(number, size=(8, 8), mode="L").save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{('a', 'b', 'a|b', 'b|c')[number % 4]}")
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    task = {"name": "multilabel", "data": {"source": str(tmp_path / "labels.csv"), "val_fraction": 0.3}}
    recipe = recipe_to_dict(digits(schedule={"epochs": 1}, train={"batch_size": 8}))
    recipe["task"] = task
    train(recipe_from_dict(recipe), tmp_path / "teacher", progress=Silent())
    recipe["distill"] = taught_by(tmp_path / "teacher")
    record = train(recipe_from_dict(recipe), tmp_path / "run", progress=Silent())
    row = record.epochs[0]
    assert row["train/loss"] == pytest.approx(row["train/label_loss"] + 5 * row["train/teacher_loss"], rel=1e-5)


def test_costs_and_estimates_time_the_teacher_too(teacher: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = digits(taught_by(teacher))
    benchmark = BenchmarkBatch(recipe)
    assert benchmark.teacher is not None
    seen = []
    monkeypatch.setattr(benchmark.teacher.model, "forward", lambda x: seen.append(len(x)) or torch.zeros(len(x), 10))
    profiler = Profiler(recipe, benchmark)
    profiler.train_step()
    assert seen == [64]
    untaught = copy.copy(benchmark)
    untaught.teacher = None
    alone = Profiler(recipe, untaught)
    alone.train_step()
    model = benchmark.teacher.model
    own = sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])
    assert storage_bytes(profiler._state()) - storage_bytes(alone._state()) == own
    assert seen == [64]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("distill.alpha=0", r"distill\.alpha: must be positive; got 0\.0"),
        ("distill.kind=tokens", r"distill\.kind: 'tokens' is not a choice \(did you mean token\?\)"),
        ("distill.teacher.arg=1", r"distill\.teacher\.arg: unknown field"),
        ("distill.teacher.args={depth: 2}", r"distill\.teacher\.args: require a teacher name"),
        ("distill={hard: true, temperature: 2}", r"distill\.temperature: has no effect with hard: true"),
    ],
)
def test_mistakes_in_the_section_are_named(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_recipe("default", [override])


@pytest.mark.slow
def test_two_processes_are_one(teacher: Path, tmp_path: Path) -> None:
    calm = {"host": {"args": VIT}, "task": {"augment": {"padding": 0}}, "schedule": {"epochs": 1}}
    recipe = digits(taught_by(teacher), **calm)
    train(recipe, tmp_path / "one", progress=Silent())
    both = start_together(recipe_to_dict(recipe), tmp_path / "two", processes=2)
    assert [finish(process) for process in both] == [0, 0]
    for left, right in zip(metric_rows(tmp_path / "one"), metric_rows(tmp_path / "two"), strict=True):
        assert left == pytest.approx(right, rel=1e-3)
    assert read_run(tmp_path / "two").teacher == read_run(tmp_path / "one").teacher
