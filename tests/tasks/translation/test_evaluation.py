"""`attngraft eval` and `export` of translation models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attngraft.export.run import export_run
from attngraft.training.loop import train
from attngraft.training.progress import Silent
from tests.cli.test_export import run
from tests.tasks.translation.pairs import sentences, write_pairs
from tests.tasks.translation.test_task import recipe

pytest.importorskip("sacrebleu", reason="needs the extra text")


def test_a_pair_of_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run and its export, on all lines of two files."""
    train(recipe(tmp_path, graft="vertical"), tmp_path / "run", progress=Silent())
    export_run(tmp_path / "run", tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "pipeline_tag: translation" in card and "predict THIS_FOLDER < sentences.txt" in card
    assert "classes:" not in card and "unigram" not in card
    write_pairs(tmp_path / "other", {"newstest": sentences(31, seed=3)})
    found = []
    for model, more in (("run", []), ("out", []), ("out", ["--set", "task.decoding.beams=1"])):
        capsys.readouterr()
        options = ["--data", tmp_path / "other" / "newstest", "--set", "task.source=en", "--set", "task.target=de"]
        assert run("eval", tmp_path / model, *options, *more, "--json") == 0
        found.append(json.loads(capsys.readouterr().out))
    assert [each["examples"] for each in found] == [31, 31, 31]
    assert found[0]["metrics"] == pytest.approx(found[1]["metrics"])
    assert found[2]["metrics"]["perplexity"] == pytest.approx(found[1]["metrics"]["perplexity"])
    assert run("eval", tmp_path / "run", "--set", "optimizer.lr=1") == 2
    assert "only has fields of the task" in capsys.readouterr().err
