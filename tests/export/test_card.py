"""The model card: the study's numbers or the run's own, nothing of this machine, and no name breaks its Markdown."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from attngraft.errors import UsageError
from attngraft.export.card import code
from attngraft.export.run import export_run
from attngraft.results.storage import save_result
from attngraft.results.study import Chance
from tests.export.runs import VIT, make_run
from tests.report import studies


def card_of(run: Path, out: Path) -> str:
    export_run(run, out)
    return (out / "README.md").read_text(encoding="utf-8")


def test_a_run_of_its_own(tmp_path: Path) -> None:
    card = card_of(make_run(tmp_path / "run", "cb", seed=7), tmp_path / "out")
    _, header, body = card.split("---\n", 2)
    assert yaml.safe_load(header)["pipeline_tag"] == "image-classification"
    (title,) = (line for line in body.splitlines() if line.startswith("# "))
    arguments = "patch_size=8, depth=2, embed_dim=24, num_heads=2"
    assert title.startswith(f"# `vit_tiny_patch16_224 ({arguments})` with `cb`, ")
    assert title.endswith("k parameters, 16 × 16 pixels")
    assert "| `top1` | 0.5 |" in body
    assert "epoch 1,\nseed 7), on its validation data" in body
    assert "study" not in body.split("## Use")[0]
    assert 'attngraft.load("THIS_FOLDER")' in body


def test_a_teacher_is_named_without_its_place(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", distill={"teacher": {"name": "local-dir:/secret/place/strong"}})
    assert "teacher" not in card_of(make_run(tmp_path / "alone"), tmp_path / "plain").replace("distill: null", "")
    facts = {
        "name": "local-dir:/secret/place/strong",
        "from": "timm's weights of local-dir:/secret/place/strong",
        "sha256": "0123abcd",
        "metrics": {"val/top1": 0.93, "val/loss": 0.2},
    }
    (run / "teacher.json").write_text(json.dumps(facts))
    card = card_of(run, tmp_path / "out")
    assert "/secret" not in card
    told = card.split("## Training")[1].split("<details>")[0]
    assert (
        "by distillation from the teacher `local-dir:strong` (`top1` 0.93 on the same validation data), whose" in told
    )
    assert "`0123abcd`" in told
    assert "Licence of the teacher's weights: **unknown**" in card


def test_a_host_that_timm_does_not_have(tmp_path: Path) -> None:
    host = {"name": "t2t_vit_14", "args": {"img_size": 32, "depth": 1, "embed_dim": 24, "num_heads": 2}}
    run = make_run(tmp_path / "run", host=host)
    export_run(run, tmp_path / "out", to=("torch", "hf"))
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "The model `t2t_vit_14` of attngraft, without grafts" in card
    assert "The host's name is registered by `import attngraft.models`." in card
    export_run(make_run(tmp_path / "other"), tmp_path / "plain", to=("torch", "hf"))
    card = (tmp_path / "plain" / "README.md").read_text(encoding="utf-8")
    assert "The model `vit_tiny_patch16_224` of timm, without grafts" in card
    assert "attngraft.models" not in card


def test_the_best_epochs_numbers_come_with_a_warning(tmp_path: Path) -> None:
    export_run(make_run(tmp_path / "run"), tmp_path / "out", checkpoint="best")
    assert "chosen on the same data" in (tmp_path / "out" / "README.md").read_text()


def test_the_studys_numbers(tmp_path: Path) -> None:
    result = studies.usual()
    result = replace(result, command=f"{result.command} --out {tmp_path}")
    variant = next(each for each in result.variants if each.name == "cb_s")
    save_result(result, tmp_path)
    card = card_of(make_run(tmp_path / variant.runs[0].folder, "cb_s"), tmp_path / "out")
    table = [line for line in card.splitlines() if line.startswith("| `")][:2]
    assert table[0].startswith("| `none` |")
    assert "baseline" in table[0]
    cells = [cell.strip() for cell in table[1].strip("|").split("|")]
    assert cells[0] == "`cb_s`"
    assert re.fullmatch(r"\d+\.\d\d ± \d\.\d\d", cells[1])
    assert re.fullmatch(r"\+1\.\d+ points; \+.* to \+.*", cells[2])
    assert cells[3] == "better"
    assert cells[4] == "1.0004×"
    assert cells[6] == "1.02×"
    assert "From a study of 3 seeds\n(0, 1, 2)" in card
    assert f"`{result.command.replace(str(tmp_path), tmp_path.name)}`" in card


def test_a_model_set_against_another_host_says_that_the_baseline_is_another_model(tmp_path: Path) -> None:
    result = studies.usual()
    host = {"name": "deit_tiny_patch16_224", "args": {}}
    variants = [replace(each, host=host if each.name == "cb_s" else None) for each in result.variants]
    save_result(replace(result, variants=variants), tmp_path)
    folder = {each.name: each.runs[0].folder for each in variants}
    said = f"The baseline is another model, `{result.host['name']}`, trained with the same recipe"
    other = card_of(make_run(tmp_path / folder["cb_s"], "cb_s"), tmp_path / "other")
    assert said in other
    assert said not in card_of(make_run(tmp_path / folder["cb"], "cb"), tmp_path / "same")


def test_a_study_is_no_run_and_its_runs_are_named(tmp_path: Path) -> None:
    result = studies.usual()
    save_result(result, tmp_path)
    with pytest.raises(UsageError, match="is a study; give one of its runs") as told:
        export_run(tmp_path, tmp_path / "out")
    folders = {each.name: each.runs[0].folder for each in result.variants}
    assert str(told.value).index(folders["cb_s"]) < str(told.value).index(folders["cb"])


def test_names_do_not_break_the_markdown(tmp_path: Path) -> None:
    data = {"source": "/secret/place/fl`ow``ers", "classes": ["a|b", "```yaml", "x\ny"]}
    task = {"name": "classification", "data": data}
    card = card_of(make_run(tmp_path / "run", task=task, host=VIT, classes=data["classes"]), tmp_path / "out")
    assert "/secret" not in card
    assert "``` fl`ow``ers ```" not in card
    recipe = card.split("<details>")[1].split("</details>")[0]
    fence = re.search(r"^(`{4,})yaml$", recipe, flags=re.MULTILINE)
    assert fence is not None
    assert recipe.count(fence[1]) == 2
    for line in card.split("## Data")[1].split("## Training")[0].splitlines():
        assert "<b>" not in re.sub(r"(`+).+?\1(?!`)", "", line)


def test_texts_of_a_study_are_shown_as_they_are(tmp_path: Path) -> None:
    result = studies.usual()
    metrics = {
        **result.metrics,
        result.metric: replace(result.metrics[result.metric], label="<script>x</script> | [y](z)"),
    }
    chance = Chance(values={result.metric: 0.1}, description="**<b>always**")
    save_result(replace(result, metrics=metrics, chance=chance), tmp_path)
    variant = next(each for each in result.variants if each.name == "cb_s")
    card = card_of(make_run(tmp_path / variant.runs[0].folder, "cb_s"), tmp_path / "out")
    assert r"| \<script\>x\</script\> \| \[y\](z) (%) |" in card
    assert r"(\*\*\<b\>always\*\*)" in card


def test_code_spans() -> None:
    assert code("plain") == "`plain`"
    assert code("a`b") == "``a`b``"
    assert code("`") == "`` ` ``"
    assert code("a|b\nc") == "`a¦b c`"
    assert code("") == "`  `"
