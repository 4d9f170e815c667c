"""`attngraft predict` of translations: lines from standard input and files."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from attngraft.export.run import export_run
from attngraft.training.loop import train
from attngraft.training.progress import Silent
from attngraft.training.recipe import recipe_from_dict
from tests.cli.test_export import run
from tests.report.test_text_explorer import data_of
from tests.tasks.translation.pairs import HOST, section, sentences

pytest.importorskip("sacrebleu", reason="needs the extra text")
SOURCES = [source for source, _ in sentences(4)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in `run`, and its export in `out`."""
    folder = tmp_path_factory.mktemp("translation")
    recipe = recipe_from_dict(
        {
            "host": HOST,
            "graft": "vertical",
            "task": section(folder / "pairs"),
            "schedule": {"epochs": 1},
            "train": {"threads": 1},
        }
    )
    train(recipe, folder / "run", progress=Silent())
    export_run(folder / "run", folder / "out")
    return folder


def type_in(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text), isatty=lambda: False))


def test_standard_input_line_by_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Blank lines stay blank; a byte order mark and CR LF are no part of sentences."""
    found = []
    for name, batch in (("run", 32), ("out", 1)):
        type_in(monkeypatch, b"\xef\xbb\xbf" + "\r\n".join([*SOURCES[:2], "", " ", *SOURCES[2:]]).encode())
        assert run("predict", folder / name, "--batch", batch) == 0
        found.append(capfdbinary.readouterr().out.decode())
    assert found[0] == found[1]
    lines = found[0].split("\n")
    assert len(lines) == 7 and lines[2:4] == ["", ""] and lines[-1] == ""
    assert run("predict", folder / "out", *(word for text in SOURCES for word in ("--text", text))) == 0
    assert capfdbinary.readouterr().out.decode().splitlines() == [*lines[:2], *lines[4:6]]


def test_files(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "two.en").write_text("\n".join(SOURCES[:2]) + "\n")
    with gzip.open(tmp_path / "one.en.gz", "wt") as file:
        file.write(f"{SOURCES[2]}\n")
    given = ["predict", folder / "out", "--input", tmp_path / "two.en", "--input", tmp_path / "one.en.gz", "--output"]
    for name in ("found.de", "found.jsonl", "found.csv"):
        assert run(*given, tmp_path / name) == 0
    lines = (tmp_path / "found.de").read_text().splitlines()
    entries = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    assert entries == [{"input": source, "prediction": line} for source, line in zip(SOURCES, lines, strict=False)]
    assert (tmp_path / "found.csv").read_text().splitlines()[1] == f"{SOURCES[0]},{lines[0]},"


def test_mistakes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    type_in(monkeypatch, f"{SOURCES[0]}\n{' '.join(SOURCES * 9)}\n{SOURCES[1]}\n".encode())
    assert run("predict", folder / "run") == 1
    shown = capfd.readouterr()
    assert len(shown.out.splitlines()) == 3 and not shown.out.splitlines()[1]
    assert "line 2: the sentence has" in shown.err and "positions; divide the sentence" in shown.err
    type_in(monkeypatch, b"One.\nTwo\xff\n")
    assert run("predict", folder / "run", "--out", tmp_path / "found.de") == 2
    assert "standard input: line 2 is not UTF-8" in capfd.readouterr().err
    assert not (tmp_path / "found.de").exists()
    assert run("predict", folder / "run", tmp_path / "missing.en") == 2
    assert "no such file" in capfd.readouterr().err
    (tmp_path / "pairs.csv").write_text("source\na house\n")
    assert run("predict", folder / "run", tmp_path / "pairs.csv") == 2
    assert "tables are not translated" in capfd.readouterr().err


def test_explore_shows_the_words_of_both_sides(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    models = ("--model", folder / "run", "--model", folder / "out")
    assert run("explore", *models, "--text", SOURCES[0], "--target", sentences(1)[0][1], "--out", page) == 0
    found, other = data_of(page)["models"]
    assert found["layers"] == other["layers"]
    assert ("".join(found["source"][1:-1]).replace("▁", " ").strip(), found["source"][-1]) == (SOURCES[0], "</s>")
    assert found["inputs"] == ["<s>", *found["target"][:-1]]
    cross = next(layer for layer in found["layers"] if layer["site"] == "decoder.0.cross_attn")
    assert cross["weights"]["shape"] == [2, len(found["target"]), len(found["source"])]
    assert (cross["rows"], cross["columns"]) == ("target", "source")
    assert run("explore", "--model", folder / "run", "--text", SOURCES[0], "--out", page) == 0
    (found,) = data_of(page)["models"]
    assert 1 <= len(found["target"]) <= 12  # its own translation, of at most `decoding.max_length` tokens
