"""Studies of the package's tasks on data with training, validation and test: runs are judged on the test split."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attngraft.cli import main
from attngraft.study import Tools, compare
from attngraft.study.config import study_from_dict
from attngraft.training.recipe import recipe_from_dict, recipe_to_yaml
from attngraft.training.run_folder import read_run
from tests.tasks.images.datasets import picture
from tests.tasks.text import toys

PARTS = {"train": 8, "validation": 4, "test": 6}
VIT = {
    "name": "vit_tiny_patch16_224",
    "args": {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 1, "num_heads": 3},
}


def coco(folder: Path) -> dict[str, Any]:
    (folder / "annotations").mkdir()
    categories = [{"id": number, "name": name} for number, name in enumerate(("cat", "dog", "cow"))]
    for part, count in PARTS.items():
        images = [{"id": i, "file_name": f"{i}.png"} for i in range(count)]
        objects = [{"image_id": i, "category_id": i % 2} for i in range(count)]
        if part == "validation":
            objects.append({"image_id": 0, "category_id": 2})  # a class of this split alone
        content = {"images": images, "annotations": objects, "categories": categories}
        (folder / f"annotations/instances_{part}2017.json").write_text(json.dumps(content))
        (folder / f"{part}2017").mkdir()
        for i in range(count):
            picture(100 * count + i).save(folder / f"{part}2017/{i}.png")
    return {"name": "multilabel"}


def hugging_face(folder: Path) -> dict[str, Any]:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    for part, count in PARTS.items():
        images = []
        for i in range(count):
            picture(100 * count + i).save(file := io.BytesIO(), "png")
            images.append({"bytes": file.getvalue(), "path": None})
        table = pa.table({"image": images, "label": [i % 2 for i in range(count)]})
        parquet.write_table(table, folder / f"{part}-00000-of-00001.parquet")
    return {"name": "classification"}


def numbers(folder: Path) -> dict[str, Any]:
    rows = ["path,length,split"]
    for part, count in PARTS.items():
        for i in range(count):
            picture(100 * count + i).save(folder / f"{part}{i}.png")
            rows.append(f"{part}{i}.png,{i + count},{part}")
    (folder / "lengths.csv").write_text("\n".join(rows))
    return {"name": "regression", "data": {"source": str(folder / "lengths.csv")}}


def texts(folder: Path) -> dict[str, Any]:
    pytest.importorskip("transformers", reason="needs the extra hf")
    for seed, (part, count) in enumerate(PARTS.items()):
        if part != "validation":
            toys.table(folder / f"{part}.csv", toys.sentences(count, seed=seed))
    data = {"source": str(folder), "val_fraction": 0.5}  # drawn at random from the 8 training texts
    return {"name": "text_classification", "data": data, "tokenizer": {"vocab_size": 80}}


@pytest.mark.parametrize("make", [coco, hugging_face, numbers, texts])
def test_a_study_is_judged_on_the_test_split(
    tmp_path: Path, make: Callable[[Path], dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    task = make(data)
    recipe = {
        "host": {"name": toys.host(tmp_path / "bert"), "args": {}} if make is texts else VIT,
        "task": {"data": {"source": str(data)}} | task,
        "schedule": {"epochs": 1, "warmup_epochs": 0},
        "train": {"batch_size": 4},
    }
    (tmp_path / "r.yaml").write_text(recipe_to_yaml(recipe_from_dict(recipe)))
    study = {"recipe": str(tmp_path / "r.yaml"), "grafts": ["cb_s"], "seeds": 1, "out": str(tmp_path / "study")}
    result = compare(study_from_dict(study), costs=False, tools=Tools(write_report=lambda _, folder: folder))
    assert (result.judged_split, result.data["sizes"]["val"], result.data["sizes"]["test"]) == ("test", 4, 6)
    assert any("evaluated on the test split" in note for note in result.notes)

    folder = tmp_path / "study/runs/cb_s/seed0"
    run = read_run(folder)
    assert run.judged is not None
    assert run.judged.metrics.keys() == {f"test/{name}" for name in result.variants[1].runs[0].last}
    capsys.readouterr()
    for split, expected in (("test", run.judged.metrics), ("val", run.epochs[-1])):
        with pytest.raises(SystemExit) as ended:
            main(["eval", str(folder), "--split", split, "--json"])
        assert not ended.value.code
        found = json.loads(capsys.readouterr().out)
        assert (found["split"], found["examples"]) == (split, result.data["sizes"][split])
        assert found["metrics"] == pytest.approx({name: expected[f"{split}/{name}"] for name in found["metrics"]})
