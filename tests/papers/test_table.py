"""Rendering of computed tables, and the command that prints them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from attngraft.cli.paper import paper as verb
from attngraft.errors import UsageError
from attngraft.papers.compute import Cell, compute_table
from attngraft.papers.schema import load_paper
from attngraft.papers.table import format_ours, list_tables, render_table

app = typer.Typer()
app.command()(verb)


def drawn(paper: str, table: str, **options: bool) -> str:
    found = load_paper(paper)
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render_table(found, compute_table(found, found.table(table)), **options))
    return console.export_text()


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_marks_reasons_and_the_summary():
    text = drawn("hv", "table2")
    assert "47.1  47.343 ✗" in text
    assert "46.7  46.709 ✓" in text
    assert "the paper contradicts itself" in text
    assert text.rstrip().endswith("15 cells agree, 1 differ, 0 not computed")


def test_our_number_has_two_digits_more_than_the_papers_mean():
    assert format_ours(Cell(verdict="from runs", printed="60.61 ± 1.11", ours=60.123456)) == "60.1235"


@pytest.mark.slow
def test_rows_that_are_not_built_show_the_paper_and_a_dash():
    text = drawn("bixt", "table3")
    row = next(line for line in text.splitlines() if "PVTv1-Ti" in line)
    assert "33.2       –" in row
    assert "35.7" in row
    assert "not available: a timm model of PVTv1" in text


def test_a_terminal_without_unicode():
    text = drawn("cb", "table11", ascii_only=True)
    assert "12.402 ok" in text
    assert "✓" not in text
    assert "–" not in text


def test_a_table_in_which_nothing_can_be_computed():
    assert "all numbers are the paper's" in drawn("cb", "table8")


def test_tables_of_a_paper_are_listed():
    console = Console(width=120, record=True)
    console.print(list_tables(load_paper("hv")))
    text = console.export_text()
    assert "ImageNet-100" in text
    assert "2^20" in text


def test_the_command_lists_and_shows():
    assert "Horizontal and Vertical" in printed()
    assert "table14" in printed("cb")
    assert "5 cells agree, 0 differ, 0 not computed" in printed("cb", "table11")


def test_the_command_prints_json():
    assert {entry["id"] for entry in json.loads(printed("--json"))} >= {"cb", "hv"}
    assert json.loads(printed("hv", "--json"))[1]["id"] == "table2"
    content = json.loads(printed("cb", "11", "--json"))
    assert content["rows"][0]["cells"]["flops"]["verdict"] == "agrees"


def test_runs_need_a_table_and_a_folder(tmp_path: Path):
    with pytest.raises(UsageError, match="requires a table"):
        printed("cb", "--runs", str(tmp_path))
    with pytest.raises(UsageError, match="no finished run"):
        printed("cb", "table3", "--runs", str(tmp_path))
    with pytest.raises(UsageError, match="no such folder"):
        printed("cb", "table3", "--runs", str(tmp_path / "nowhere"))
