from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attngraft.errors import ConfigError, UsageError
from attngraft.tasks.task import load_task
from attngraft.training.build import build_model, model_data_config
from attngraft.training.recipe import (
    RECIPES,
    Recipe,
    load_recipe,
    load_schedule,
    packaged_recipes,
    recipe_from_dict,
    recipe_summary,
    recipe_to_dict,
    recipe_to_yaml,
)
from attngraft.yaml_config import parse_yaml, read_yaml


@pytest.mark.parametrize("name", packaged_recipes())
def test_packaged_recipes_load_and_their_task_reads_its_section(name: str) -> None:
    recipe = load_recipe(name)
    section = {**recipe.task, "data": {"source": "digits", **recipe.task.get("data", {})}}
    section.pop("name")
    load_task(recipe.task["name"]).from_config(section, seed=0)
    assert recipe_from_dict(recipe_to_dict(recipe)) == recipe


def test_the_default_recipe_lists_every_field_with_its_default() -> None:
    listed, every = read_yaml(RECIPES / "default.yaml"), recipe_to_dict(Recipe())
    assert load_recipe("default") == Recipe()
    assert listed.keys() == every.keys()
    for section in ("host", "optimizer", "schedule", "train"):
        assert listed[section].keys() == every[section].keys()


def test_the_papers_recipes_say_what_the_papers_say() -> None:
    deit, cb, hv = (load_recipe(name) for name in ("deit", "cb-imagenet", "hv-swin-imagenet100"))
    assert deit.lr == 1e-3
    assert load_recipe("deit", ["train.batch_size=256"]).lr == 2.5e-4
    assert (deit.task["augment"]["repeats"], cb.task["augment"]["repeats"]) == (3, 1)
    assert cb.task["augment"]["mixup"] == 0.8
    assert hv.optimizer.lr == pytest.approx(5e-4 * 128 / 512)
    t2t = load_recipe("t2t-imagenet100")
    assert (t2t.host.name, t2t.lr, t2t.optimizer.weight_decay) == ("t2t_vit_14", hv.lr, 0.05)
    assert (t2t.schedule.epochs, t2t.schedule.cooldown_epochs, t2t.schedule.warmup) == (210, 10, 10)
    assert (t2t.schedule.warmup_lr, t2t.schedule.min_lr) == (1e-6, 1e-5)
    assert (t2t.train.clip_grad, t2t.train.drop_path, t2t.train.ema) == (None, 0.1, 0.99996)
    assert t2t.task == hv.task
    assert model_data_config(t2t)["crop_pct"] == 0.9
    assert (hv.schedule.epochs, hv.schedule.warmup, hv.train.clip_grad) == (200, 20, 5.0)


def test_deits_other_models_differ_from_deit_in_the_host_and_the_teacher() -> None:
    deit, distilled, ghost = (load_recipe(name) for name in ("deit", "deit-distilled", "elsa-deit-imagenet"))
    assert distilled.distill is not None
    assert (distilled.distill.kind, distilled.distill.hard, distilled.distill.weight) == ("token", True, 1.0)
    assert distilled.distill.teacher.name == "regnety_160.deit_in1k"
    assert replace(distilled, distill=None, host=deit.host) == deit
    assert replace(ghost, host=deit.host) == deit
    assert {"class_token": False, "global_pool": "avg"}.items() <= ghost.host.args.items()


def task_config(recipe: Recipe) -> Any:
    """The whole of the task's section, with what it leaves to defaults."""
    section = {**recipe.task, "data": {"source": "digits"}}
    task: Any = load_task(section.pop("name")).from_config(section, seed=0)
    return task.config


def test_swin_says_what_its_paper_says() -> None:
    swin, small = load_recipe("swin-imagenet"), load_recipe("swin-cifar100")
    assert replace(small, schedule=swin.schedule) == swin
    assert replace(small.schedule, epochs=300) == swin.schedule
    assert (swin.schedule.epochs, small.schedule.epochs) == (300, 600)
    assert (swin.host.name, swin.host.args) == ("swin_tiny_patch4_window7_224", {})
    adamw, schedule, train = swin.optimizer, swin.schedule, swin.train
    assert (adamw.name, adamw.betas, adamw.eps, adamw.weight_decay) == ("adamw", (0.9, 0.999), 1e-8, 0.05)
    by_batch = train.batch_size / 512
    assert (swin.lr, schedule.min_lr, schedule.warmup_lr) == pytest.approx(
        (5e-4 * by_batch, 5e-6 * by_batch, 5e-7 * by_batch)
    )
    assert load_recipe("swin-imagenet", ["train.batch_size=512"]).lr == 5e-4
    assert (schedule.name, schedule.warmup, schedule.cooldown_epochs) == ("cosine", 20, 0)
    assert (train.batch_size, train.clip_grad, train.drop_path, train.ema) == (1024, 5.0, 0.2, None)
    augment, loss = task_config(swin).augment, task_config(swin).loss
    assert (augment.auto_augment, augment.color_jitter) == ("rand-m9-mstd0.5-inc1", 0.4)
    assert (augment.mixup, augment.cutmix, augment.mix_switch_prob) == (0.8, 1.0, 0.5)
    assert (augment.erasing, augment.erasing_mode, augment.repeats) == (0.25, "pixel", 1)
    assert (loss.name, loss.smoothing) == ("cross_entropy", 0.1)


def test_usi_says_what_its_script_says() -> None:
    usi, whole = load_recipe("usi"), load_recipe("usi-distilled", ["distill.teacher.name=resnet50"])
    adamw, schedule, train = usi.optimizer, usi.schedule, usi.train
    assert (usi.host.name, usi.seed) == ("levit_128s", 42)
    assert (adamw.name, usi.lr, adamw.weight_decay) == ("adamw", 2e-3, 0.02)
    assert (schedule.name, schedule.epochs, schedule.cooldown_epochs) == ("cosine", 310, 10)
    assert (schedule.warmup, schedule.warmup_lr, schedule.min_lr) == (5, 1e-4, 1e-6)
    assert (train.batch_size, train.clip_grad, train.ema, train.drop_path or 0) == (8 * 128, None, 0.99996, 0)
    augment, loss = task_config(usi).augment, task_config(usi).loss
    assert (augment.crop, tuple(augment.scale), augment.interpolation) == ("resized", (0.08, 1.0), "bicubic")
    assert (augment.auto_augment, augment.color_jitter) == ("rand-m7-mstd0.5-inc1", 0.4)
    assert (augment.mixup, augment.cutmix, augment.mix_switch_prob) == (0.8, 1.0, 0.5)
    assert (augment.erasing, augment.repeats) == (0.0, 3)
    assert (loss.name, loss.smoothing) == ("cross_entropy", 0.0)
    seen = model_data_config(usi)
    assert (seen["input_size"], seen["crop_pct"], seen["interpolation"]) == ((3, 224, 224), 0.95, "bicubic")
    assert whole.distill is not None
    assert (whole.distill.kind, whole.distill.hard) == ("logits", False)
    assert (whole.distill.weight, whole.distill.temperature, whole.distill.teacher.name) == (5.0, 1.0, "resnet50")
    assert replace(whole, distill=None) == usi


def test_the_small_levit_is_made_and_looks_at_64_tokens() -> None:
    recipe = load_recipe("cpu-levit")
    model = build_model(recipe, {"num_classes": 10})
    assert model(torch.zeros(2, 3, 64, 64)).shape == (2, 10)
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(0.4e6, rel=0.1)
    assert model_data_config(recipe)["input_size"] == (3, 64, 64)
    assert model_data_config(load_recipe("usi"))["crop_pct"] == 0.95


def test_recipes_that_start_from_weights() -> None:
    tune, added, probe = (load_recipe(name) for name in ("finetune", "graft-only", "linear-probe"))
    assert [recipe.host.pretrained for recipe in (tune, added, probe)] == [True] * 3
    assert [recipe.train.parameters for recipe in (tune, added, probe)] == ["all", "grafts+head", "head"]
    assert tune.optimizer.layer_decay == 0.75
    same = replace(added, train=probe.train, optimizer=replace(added.optimizer, graft_lr_scale=1.0))
    assert same == probe, "a host without a graft is trained alike by both"
    summaries = {name: recipe_summary(name) for name in packaged_recipes()}
    assert summaries["finetune"] == "Full fine-tuning"
    assert all(0 < len(summary) < 80 for summary in summaries.values())


shares = st.floats(0, 1)
names = st.text(st.characters(categories=["L", "N"], codec="utf-8"), min_size=1, max_size=8)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "seed": st.integers(-(2**64) + 1, 2**64 - 1),
            "graft": st.none() | names,
            "host": st.fixed_dictionaries({"args": st.dictionaries(names, st.integers() | names | st.booleans())}),
            "optimizer": st.fixed_dictionaries({"lr": shares, "betas": st.tuples(shares, shares)}),
            "train": st.fixed_dictionaries({"batch_size": st.integers(1, 9), "amp": st.sampled_from(["no", "bf16"])}),
            "task": st.fixed_dictionaries({"name": names, "x": st.lists(st.floats(allow_nan=False))}),
        },
    )
)
def test_round_trip_through_dictionary_and_yaml(sections: dict[str, Any]) -> None:
    recipe = recipe_from_dict(sections)
    assert recipe_from_dict(recipe_to_dict(recipe)) == recipe
    assert recipe_from_dict(parse_yaml(recipe_to_yaml(recipe), source="test")) == recipe


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.lrr=1", r"optimizer\.lrr: unknown field.*did you mean lr\?.*allowed: name, lr"),
        ("optimiser.lr=1", r"optimiser: unknown field.*did you mean optimizer\?"),
        ("train.batch_size=many", r"train\.batch_size: expected a whole number, found 'many'"),
        ("train.workers=513", r"train\.workers: must lie between 0 and 512; got 513"),
        ("train.threads=1025", r"train\.threads: must be at most 1024; null uses torch's default; got 1025"),
        (
            "schedule.steps=9223372036854775808",
            r"schedule\.steps: must lie between 1 and 1,000,000,000,000",
        ),
        ("train.batch_size=0", r"train\.batch_size: must be at least 1; got 0"),
        ("train.accumulate=3", r"train\.accumulate: must divide train\.batch_size \(128\); got 3"),
        ("train.amp=bf61", r"train\.amp: 'bf61' is not a choice.*did you mean bf16\?"),
        ("schedule.epochs=2.5", r"schedule\.epochs: expected a whole number"),
        ("schedule.warmup_epochs=30", r"schedule\.warmup_epochs: must be less than the 30 epochs"),
        ("schedule.decay_milestones=[5, 1]", r"schedule\.decay_milestones: must increase; got \(5, 1\)"),
        ("schedule.decay_milestones=[1, 1]", r"schedule\.decay_milestones: must increase; got \(1, 1\)"),
        ("schedule.name=cosin", r"did you mean cosine\?"),
        ("task.name=null", r"task\.name: must be the name of a task"),
        ("task.name=true", r"task\.name: must be the name of a task; got True"),
        ("task.data=null", r"task\.data: must be a section; got None"),
        ("optimizer.lr=.nan", r"optimizer\.lr: expected a finite number"),
    ],
)
def test_mistakes_are_named(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_recipe("default", [override])
    assert str(caught.value).startswith(f"recipe default with --set {override}: ")


def test_a_file_stands_on_another(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("base: deit\ntrain: {batch_size: 256}\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "longer.yaml").write_text("base: ../mine.yaml\nschedule: {epochs: 600}\n")
    recipe = load_recipe(tmp_path / "sub" / "longer.yaml", ["seed=3"])
    assert (recipe.schedule.epochs, recipe.train.batch_size, recipe.train.drop_path, recipe.seed) == (600, 256, 0.1, 3)


def test_recipes_that_cannot_be_found(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown recipe .* \(did you mean digits\?\); recipes: .*deit"):
        load_recipe("digit")
    with pytest.raises(ConfigError, match="no such file"):
        load_recipe(tmp_path / "absent.yaml")
    (tmp_path / "a.yaml").write_text("base: b.yaml")
    (tmp_path / "b.yaml").write_text("base: a.yaml")
    with pytest.raises(ConfigError, match="extends itself"):
        load_recipe(tmp_path / "a.yaml")


def test_no_graft_has_one_spelling() -> None:
    assert recipe_from_dict({"graft": "none"}) == recipe_from_dict({"graft": None}) == Recipe()


@pytest.mark.parametrize(
    ("name", "epochs", "changed", "note"),
    [
        ("deit", 1, {"warmup_epochs": None, "cooldown_epochs": 0}, "of 5 epochs does not fit into 1 epoch: it takes 0.1"),
        ("usi", 30, {}, None),
        ("elsa-swin-imagenet", 30, {"warmup_epochs": None, "cooldown_epochs": 10}, "they take 3 and 10 instead"),
        ("elsa-swin-imagenet", 8, {"warmup_epochs": None, "cooldown_epochs": 0}, "they take 0.8 and 0 instead"),
        ("deit", 0, {}, None),
        ("default", 1, {}, None),
    ],
)  # fmt: skip
def test_a_warmup_that_does_not_fit_is_shortened(
    name: str, epochs: int, changed: dict[str, Any], note: str | None
) -> None:
    schedule = load_schedule(name)
    changes, said = schedule.over(epochs)
    assert changes == {"epochs": epochs, "steps": None, "warmup_steps": None, **changed}
    assert replace(schedule, **changes).epochs == epochs
    assert said is None if note is None else note in str(said)


def test_short_runs_have_a_short_warmup() -> None:
    assert recipe_from_dict({"schedule": {"epochs": 3}}).schedule.warmup == pytest.approx(0.3)
    assert recipe_from_dict({"schedule": {"epochs": 300}}).schedule.warmup == 5


def test_the_folder_of_a_run_is_no_recipe(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("")
    with pytest.raises(ConfigError, match="is the folder of a run; use .*recipe.yaml"):
        load_recipe(tmp_path)


def test_many_unknown_fields_are_refused_at_once() -> None:
    start = time.perf_counter()
    with pytest.raises(ConfigError, match="unknown field"):
        recipe_from_dict({f"field{number}": 1 for number in range(100_000)})
    assert time.perf_counter() - start < 5


def test_errors_of_a_host_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("host: {name: 'vit_tiny_:16'}\n")
    with pytest.raises(UsageError, match=r"x\.yaml: vit_tiny_:16: unknown scheme 'vit_tiny_'"):
        load_recipe(tmp_path / "x.yaml")
