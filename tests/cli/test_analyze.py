"""`attngraft analyze` and `explore`, as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from attngraft.analysis.catalog import load_analyses
from attngraft.cli import main
from attngraft.errors import ConfigError
from attngraft.export.run import export_run
from tests.export.runs import ELSA_SWIN, make_run

TINY = [f"--host-arg={text}" for text in ("img_size=16", "patch_size=8", "embed_dim=24", "depth=2", "num_heads=3")]


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


@pytest.fixture
def flowers(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    for part in ("train", "val"):
        for name in ("daisy", "tulip"):
            folder = tmp_path / "flowers" / part / name
            folder.mkdir(parents=True)
            for number in range(6):
                Image.fromarray(random.integers(0, 255, (20, 20, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    return tmp_path / "flowers"


@pytest.fixture
def study(flowers: Path, tmp_path: Path) -> Path:
    """A study of two variants that is as good as trained."""
    out = tmp_path / "study"
    task = {"name": "classification", "data": {"source": str(flowers)}}
    for variant, graft in (("baseline", None), ("cb_s", "cb_s")):
        make_run(out / "runs" / variant / "seed0", graft, task=task)
    (out / "study.yaml").write_text(f"grafts: [cb_s]\nseeds: 1\ndata: {flowers}\nout: somewhere-else\n")
    return out


def test_a_study(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("analyze", "entropy", "scaling", "--study", study, "--limit", 5) == 0
    told = capsys.readouterr()
    assert "Attention entropy (entropy)" in told.out
    assert "baseline: mean over layers, part of the ceiling: " in told.out
    assert "left out: baseline: the model has no cb_s" in told.out
    folder = study / "analysis"
    assert str(folder / "analysis.html") in told.out
    names = {path.name for path in folder.iterdir()}
    assert {"entropy.json", "entropy.csv", "entropy.png", "entropy.svg", "scaling-dark.svg", "analysis.html"} <= names
    entropy, scaling = load_analyses(folder)
    assert entropy.subjects == ["baseline", "cb_s"]
    assert entropy.baseline == 0
    assert entropy.made["images"] == f"5 of {study.parent / 'flowers'} (validation)"
    assert scaling.name == "scaling"
    page = (folder / "analysis.html").read_text(encoding="utf-8")
    assert page.count("<section") == 2


@pytest.mark.slow
def test_all_that_fit(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("analyze", "all", "--study", study, "--limit", 5, "--pictures", 2, "--json") == 0
    told = capsys.readouterr()
    found = [each["name"] for each in json.loads(told.out)]
    assert {"entropy", "distance", "scaling", "class-token", "curves", "gates", "cka", "rollout"} <= set(found)
    assert "confusion left out: baseline: class daisy, tulip of " in told.err


def test_models_of_timm_and_files(flowers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ["--model", "vit_tiny_patch16_224", *TINY]
    image = ["--image", flowers / "val" / "daisy" / "1.png"]
    out = tmp_path / "out"
    assert run("analyze", "class-token", *model, *image, "--out", out, "--title", "<i>mine</i>", "--name", "ViT") == 0
    assert "<i>mine" not in (out / "analysis.html").read_text(encoding="utf-8")
    assert load_analyses(out)[0].subjects == ["ViT"]
    assert run("analyze", "distance", *model, "--data", flowers, "--split", "train", "--out", out) == 0
    assert [each.name for each in load_analyses(out)] == ["distance", "class-token"]
    assert (out / "analysis.html").read_text(encoding="utf-8").count("<section") == 2, "what was found before stays"
    capsys.readouterr()


def test_mistakes(study: Path, flowers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = study / "runs" / "cb_s" / "seed0", study / "runs" / "baseline" / "seed0"
    for arguments, code, message in [
        (["entropi", "--study", study], 2, "did you mean entropy?"),
        (["entropy"], 2, "give the models with either --study"),
        (["entropy", "--study", study, "--model", one], 2, "give the models with either --study"),
        (["entropy", "--study", tmp_path], 2, "no study (study.yaml is missing)"),
        (["entropy", "--study", study, "--seed", 7], 2, "no run with seed 7"),
        (["entropy", "--study", study, "--variant", "cb"], 2, "did you mean cb_s?"),
        (["entropy", "--run", one, "--run", one], 2, "two models are called"),
        (["entropy", "--run", one, "--name", "a", "--name", "b"], 2, "2 --name for 1 --model"),
        (["entropy", "--model", "vit_tiny_patch16_224", *TINY], 2, "requires images"),
        (["entropy", "--run", one, "--image", "x.png", "--data", flowers], 2, "pass either --image, or --data"),
        (["class-token", "--run", one, "--image", tmp_path / "x.png"], 2, "x.png"),
        (["gates", "--run", study / "runs" / "baseline" / "seed0"], 2, "gates"),
        (["cka", "--run", one, "--sites", "blocks.9"], 2, "matches no site"),
        (["class-token", "--run", one, "--sites", "blocks.9"], 2, "matches no site"),
        (["filters", "--run", one, "--at", "3"], 2, "--at 3: give a row and a column"),
        (["entropy", "--run", one, "--at", "3,1"], 2, "--at only applies to the analysis filters; add filters"),
        (["entropy", "--run", one, "--latent", 0], 2, "--latent only applies to the analysis latents"),
        (["structure", "--run", one, "--run", other, "--label-maps", tmp_path / "no"], 2, "the folder does not exist"),
    ]:
        assert run("analyze", *arguments) == code, arguments
        shown = capsys.readouterr()
        assert message in " ".join(shown.err.split()), (arguments, shown.err)
    assert not (one / "analysis").exists()


def test_two_variants_of_a_study(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["--variant", "cb_s", "--variant", "baseline"]
    assert run("analyze", "cka", "--study", study, *chosen, "--limit", 8, "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["subjects"] == ["baseline", "cb_s"]


def test_a_variant_without_a_finished_run_is_named(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (study / "study.yaml").read_text(encoding="utf-8")
    (study / "study.yaml").write_text(text.replace("[cb_s]", "[cb_s, horizontal]"))
    assert run("analyze", "entropy", "--study", study, "--limit", 5, "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["left_out"] == {"horizontal": "its run with seed 0 is not finished"}
    assert run("analyze", "entropy", "--study", study, "--variant", "cb_s", "--limit", 5, "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["left_out"] == {}


def test_answers_of_models_about_data(flowers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, taken = tmp_path / "out", tmp_path / "taken"
    one = make_run(tmp_path / "one", classes=("tulip", "rose", "daisy"))
    export_run(one, taken)
    two = make_run(tmp_path / "two", "cb_s", classes=("daisy", "tulip"))
    models = ["--model", taken, "--model", two, "--data", flowers]
    assert run("analyze", "confusion", "sides", *models, "--out", out, "--limit", 8) == 0
    confusion, sides = load_analyses(out)
    assert sides.numbers["of images"] == 8
    assert confusion.made["images"] == f"8 of {flowers} (validation)"
    capsys.readouterr()
    assert run("analyze", "sides", "--model", taken, "--model", two, "--image", flowers / "val", "--out", out) == 2
    assert "these images have no labels" in " ".join(capsys.readouterr().err.split())


def test_what_is_shown_can_be_chosen(flowers: Path, tmp_path: Path) -> None:
    image = ["--image", flowers / "val" / "daisy" / "1.png", "--image", flowers / "val" / "tulip" / "1.png"]
    out = tmp_path / "out"
    elsa = make_run(tmp_path / "elsa", host=ELSA_SWIN)
    assert run("analyze", "filters", "--run", elsa, *image, "--at", "7,0", "--at", "1,2", "--out", out) == 0
    small = ["num_latents=8", "img_size=16", "patch_size=8", "embed_dim=24", "depth=2", "num_heads=2"]
    bixt = ["--model", "bixt_ti_l64_p16", *(f"--host-arg={each}" for each in small)]
    assert run("analyze", "latents", *bixt, *image, "--latent", 5, "--heads", "--out", out) == 0
    latents, filters = load_analyses(out)
    rows = [
        dict(zip([column.name for column in filters.table.columns], row, strict=True)) for row in filters.table.rows
    ]
    assert {(row["row"], row["column"]) for row in rows if row["layer"] == rows[0]["layer"]} == {(7, 0), (1, 2)}
    assert {row["image"] for row in rows} == {"daisy/1.png", "tulip/1.png"}, "told apart"
    assert {(row[3], row[4]) for row in latents.table.rows} == {("0", 5), ("1", 5)}


def test_a_damaged_finding_is_named(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (study / "analysis").mkdir()
    (study / "analysis" / "old.json").write_text('{"name": "old"')
    assert run("analyze", "scaling", "--study", study) == 2
    assert "old.json" in capsys.readouterr().err
    (study / "analysis" / "old.json").write_text('{"format": 99}')
    with pytest.raises(ConfigError, match="update attngraft"):
        load_analyses(study / "analysis")


def test_explore(study: Path, flowers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, image = tmp_path / "page.html", flowers / "val" / "tulip" / "3.png"
    models = [f"--model={study / 'runs' / name / 'seed0'}" for name in ("baseline", "cb_s")]
    assert run("explore", *models, "--image", image, "--out", page) == 0
    assert f"{page} (0." in capsys.readouterr().out
    text = page.read_text(encoding="utf-8")
    assert '"baseline/seed0"' in text
    assert '"cb_s/seed0"' in text
    assert (
        run("explore", "--model", "vit_tiny_patch16_224", *TINY, "--image", image, "--out", page, "--name", "mine") == 0
    )
    assert '"mine"' in page.read_text(encoding="utf-8")
    assert run("explore", *models, models[0] + "/", "--image", image) == 2
    assert "two models are called" in capsys.readouterr().err
    assert run("explore", models[0], "--image", tmp_path / "none.png") == 2
    assert "none.png" in capsys.readouterr().err
    assert run("explore", models[0], "--image", image, "--out", tmp_path / "new.html", "--sites", "blocks.7") == 2
    assert not (tmp_path / "new.html").exists()


@pytest.mark.parametrize("verb", ["analyze", "explore"])
def test_help_has_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(verb, "--help") == 0
    assert f"attngraft {verb}" in capsys.readouterr().out
