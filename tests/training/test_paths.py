from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attngraft.errors import FolderError, TrainingError
from attngraft.training.paths import real_paths, refuse_data_folder
from attngraft.training.recipe import Recipe, recipe_from_dict, recipe_to_dict
from attngraft.training.run_folder import RunFolder, read_run


def recipe(source: str, **data: Any) -> Recipe:
    return recipe_from_dict({"task": {"name": "classification", "data": {"source": source, **data}}})


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run on `./flowers`, beside a link to that folder and another folder."""
    for name in ("flowers", "leaves", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("flowers")
    monkeypatch.chdir(tmp_path)
    run, given = RunFolder(tmp_path / "run"), recipe("./flowers")
    run.path.mkdir()
    run.write_recipe(given)
    run.write_data(model_args={}, facts={}, paths=real_paths(recipe_to_dict(given)))
    run.write_metrics([{"epoch": 1, "seconds": 1.0}])
    return tmp_path


def test_another_spelling_of_the_data_is_the_same_recipe(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder(places / "run")
    for source in ("flowers", "./flowers/", "link", str(places / "flowers"), "elsewhere/../link"):
        run.refuse_other_recipe(recipe(source))
    monkeypatch.chdir(places / "elsewhere")
    run.refuse_other_recipe(recipe("../flowers"))
    run.refuse_other_recipe(recipe("./flowers"))  # as it was given, perhaps on another machine
    assert read_run(run.path).recipe == recipe(str(places / "flowers")), "for evaluations from another folder"
    for source in ("../leaves", "../nowhere"):
        with pytest.raises(TrainingError, match="task.data.source"):
            run.refuse_other_recipe(recipe(source))
    with pytest.raises(TrainingError, match=r"task\.data\.val_fraction \(None -> 0\.5\)\."):
        run.refuse_other_recipe(recipe("../flowers", val_fraction=0.5))


def test_only_paths_that_exist_are_resolved(places: Path) -> None:
    (places / "x-0.tar").touch()
    found = real_paths(recipe_to_dict(recipe("link/../x-{0..1}.tar", split_file="leaves", root="gone")))
    assert found == {"task.data.source": str(places / "x-{0..1}.tar"), "task.data.split_file": str(places / "leaves")}
    assert real_paths(recipe_to_dict(recipe("digits"))) == {}
    assert real_paths(recipe_to_dict(recipe("hf:flowers"))) == {"task.data.source": str(places / "flowers")}


def test_a_run_is_not_written_into_its_data(tmp_path: Path) -> None:
    data, link = tmp_path / "data", tmp_path / "link"
    data.mkdir()
    link.symlink_to(data, target_is_directory=True)
    for source in (str(data), {"source": str(link)}):
        with pytest.raises(FolderError, match="data: contains the data, .* choose another --out"):
            refuse_data_folder(data, source)
    for source in (None, {}, "digits", str(tmp_path), str(tmp_path / "none")):
        refuse_data_folder(data, source)
