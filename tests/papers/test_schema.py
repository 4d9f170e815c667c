"""Strict parsing of papers' files."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from attngraft.errors import ConfigError, UsageError
from attngraft.grafting.spec import parse
from attngraft.papers.schema import list_papers, load_paper, read_paper

MINIMAL = {
    "id": "x",
    "title": "A paper",
    "source": "Somebody, 2020",
    "counter": "cb",
    "counting": "as usual",
    "tables": [
        {
            "id": "table1",
            "title": "First",
            "columns": [{"id": "params", "title": "params, M", "count": "params"}],
            "rows": [{"variant": "ViT-Ti", "model": "vit_tiny_patch16_224", "printed": {"params": "5.7"}}],
        }
    ],
}


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    return path


def changed(old: str, new: str) -> str:
    text = yaml.safe_dump(MINIMAL, sort_keys=False)
    assert old in text
    return text.replace(old, new)


def test_a_minimal_file(tmp_path: Path):
    paper = read_paper(written(tmp_path, yaml.safe_dump(MINIMAL)))
    assert paper.tables[0].rows[0].printed == {"params": "5.7"}
    assert paper.table("Table 1") is paper.table("1") is paper.table("table1") is paper.tables[0]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("'5.7'", "5.7", r"x\.yaml\.tables\[0\]\.rows\[0\]\.printed\.params: quote the number 5\.7"),
        ("variant:", "varant:", r"varant.*did you mean variant"),
        ("printed:\n      params:", "printed:\n      parms:", r"no column 'parms' \(did you mean params\?\)"),
        ("    model: vit_tiny_patch16_224\n", "", "set its model"),
        ("counter: cb\n", "", r"x\.yaml\.counter: missing"),
        ("count: params", "count: params\n    metric: val/top1", "counted or measured"),
        ("id: x\n", "id: x\nformat: 2\n", "update attngraft"),
        ("id: x\n", "id: [x\n", "not valid YAML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, message: str):
    with pytest.raises(ConfigError, match=message):
        read_paper(written(tmp_path, changed(old, new)))


def test_labels_of_added_grafts_start_with_their_host():
    labels = load_paper("hv").table("table3").labels()
    assert labels[:2] == ["Swin-T", "Swin-T + Hor."]
    assert labels[4:6] == ["T2T-ViT-14", "T2T-ViT-14 + Hor."]


def test_ids_are_unique(tmp_path: Path):
    twice = {**MINIMAL, "tables": MINIMAL["tables"] * 2}
    with pytest.raises(ConfigError, match="'table1' occurs twice"):
        read_paper(written(tmp_path, yaml.safe_dump(twice)))


def test_unknown_papers_and_tables_are_refused_with_near_ones():
    with pytest.raises(UsageError, match=r"did you mean cb\?.*papers: "):
        load_paper("cbb")
    with pytest.raises(UsageError, match=r"did you mean table6\?"):
        load_paper("cb").table("tabel6")


@pytest.mark.parametrize("name", ["tableA2", "tablea2", "Table A2", "a2"])
def test_a_tables_letter_may_be_large_or_small(name: str):
    assert load_paper("bixt").table(name).id == "tableA2"


def test_a_file_in_the_folder_is_a_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("attngraft.papers.schema._FOLDER", tmp_path)
    written(tmp_path, yaml.safe_dump(MINIMAL))
    assert list_papers() == ["x"]
    assert load_paper("X").title == "A paper"


@pytest.mark.parametrize("name", ["cb", "hv", "bisa", "bixt", "elsa"])
def test_the_packaged_papers_can_be_read(name: str):
    assert name in list_papers()
    paper = load_paper(name)
    assert paper.id == name
    assert all(row.printed for table in paper.tables for row in table.rows)


@pytest.mark.parametrize("name", list_papers())
def test_every_graft_of_a_row_is_a_specification(name: str):
    """Of grafts and options that there are: a table beside runs reads those of every row."""
    grafts = [row.graft for table in load_paper(name).tables for row in table.rows if row.graft is not None]
    assert all(parse(graft).terms for graft in grafts)
