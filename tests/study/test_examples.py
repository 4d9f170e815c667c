"""Every study under examples/: it is read, its recipes are made, and its variants fit its host."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from attngraft.cli import main
from attngraft.errors import ConfigError
from attngraft.study import load_result, runner
from attngraft.study.checks import check_variants
from attngraft.study.config import StudyConfig, read_study_file, study_from_dict
from attngraft.study.plan import resolve_runs
from attngraft.tensors import meta_device
from attngraft.timing import count_macs
from attngraft.training.build import build_model, model_data_config
from tests.slow import product_but

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_fits_its_host(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # no study of before, no teacher
    config = study_from_dict(read_study_file(path), source=str(path))
    for variant in config.variants:
        for seed in config.seeds:
            assert config.recipe_of(variant, seed).graft == (None if variant.spec == "none" else variant.spec)
    if taught(config):  # its own comment says how to make one
        with pytest.raises(ConfigError, match="teacher-cifar10 is not the folder"):
            check_variants(resolve_runs(config))
    else:
        check_variants(resolve_runs(config))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["digits", "cifar10", "tiny_imagenet20"])
@pytest.mark.slow
def test_bixt_is_set_against_hosts_of_as_many_macs(name: str) -> None:
    path = next(path for path in EXAMPLES if path.stem == f"{name}-bixt")
    config = study_from_dict(read_study_file(path), source=str(path))
    assert [variant.name for variant in config.variants] == ["BiXT", "ViT", "iterative", "sequential"]
    assert config.seeds == (0, 1, 2)
    recipes = [config.recipe_of(variant, 0) for variant in config.variants]
    inputs = [model_data_config(recipe) for recipe in recipes]
    assert len({(seen["input_size"], seen["mean"], seen["std"], seen["interpolation"]) for seen in inputs}) == 1
    macs = []
    for recipe in recipes:
        with meta_device():
            model = build_model(recipe, {"num_classes": 20 if name == "tiny_imagenet20" else 10}, load_weights=False)
            macs.append(count_macs(model, torch.zeros(1, *inputs[0]["input_size"])))
    assert max(macs) / min(macs) < 1.03, macs


@pytest.mark.parametrize("name", product_but(["digits", "cifar10", "tiny_imagenet20"], ["digits"]))
def test_bixt_trains_against_all_of_them(
    name: str, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The three studies through the command, for one epoch of one seed of some of their images."""
    monkeypatch.setattr(runner, "COST_SECONDS", 0.0)  # counts, no times
    file = Path(__file__).parents[2] / "examples" / f"{name}-bixt.yaml"
    given = ["--study", str(file), "--seeds", "1", "--epochs", "1", "--set", "train.batch_size=64"]
    if name != "digits":
        given += ["--data", str(few_images(name, shared / "data", tmp_path))]
    with pytest.raises(SystemExit) as ended:
        main(["compare", *given, "--out", str(tmp_path / "study")])
    assert not ended.value.code
    result = load_result(tmp_path / "study")
    assert [(variant.name, len(variant.runs)) for variant in result.variants] == [
        ("BiXT", 1),
        ("ViT", 1),
        ("iterative", 1),
        ("sequential", 1),
    ]
    for variant in result.variants:
        assert 0 < variant.runs[0].curve["train/loss"][0] < 3.2, variant.name  # a guess among 20 classes: 3.0
        assert variant.cost is not None
        assert variant.cost.macs_ratio == pytest.approx(1, abs=0.03)
        assert variant.is_baseline or variant.difference is not None
    page = (tmp_path / "study" / "report.html").read_text(encoding="utf-8")
    assert "ViT, iterative and sequential are different models from the baseline" in page


def few_images(name: str, data: Path, out: Path) -> Path:
    if name == "tiny_imagenet20":
        return there(data / name / "val.tar")  # of which a part is drawn for validation
    whole, part = np.load(there(data / "cifar10" / "cifar10_train10k_test2k.npz")), out / "part.npz"
    np.savez(part, **{key: whole[key][:640] for key in ("x_train", "y_train", "x_test", "y_test")})
    return part


def there(path: Path) -> Path:
    if not path.exists():
        pytest.skip(f"{path.name} is not among the reference data")
    return path


def taught(config: StudyConfig) -> bool:
    return config.recipe_of(config.baseline, config.seeds[0]).distill is not None


def test_there_are_examples_of_both_kinds() -> None:
    studies = [study_from_dict(read_study_file(path)) for path in EXAMPLES]
    assert sum(map(taught, studies)) == 1
    assert len(studies) >= 7
