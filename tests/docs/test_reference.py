"""The generated pages say all that there is: fields, verbs, options, grafts, recipes, tables."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import typing
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from attngraft.grafting.catalog import list_grafts, list_hosts, list_presets
from attngraft.mechanisms.registry import graft_types
from attngraft.papers.schema import list_papers, load_paper
from attngraft.training.recipe import Recipe, packaged_recipes
from docs.generate.cli_reference import cli_reference, verbs
from docs.generate.fields import comments_of, fields_of, type_text
from docs.generate.graft_reference import graft_reference
from docs.generate.hooks import external, pages
from docs.generate.markdown import table
from docs.generate.notebook_page import notebook_page
from docs.generate.paper_tables import paper_tables
from docs.generate.recipe_reference import packaged_tasks, recipe_reference, task_config
from tests.docs.pages import ROOT


def leaves(cls: Any, prefix: str = "") -> list[str]:
    """The dotted names of all fields, by another way than the page's."""
    names, hints = [], typing.get_type_hints(cls)
    for each in dataclasses.fields(cls):
        if not each.init:
            continue
        hint = hints[each.name]
        names += leaves(hint, f"{prefix}{each.name}.") if dataclasses.is_dataclass(hint) else [f"{prefix}{each.name}"]
    return names


def test_every_recipe_field_is_there() -> None:
    page = recipe_reference()
    names = leaves(Recipe) + [name for task in packaged_tasks() for name in leaves(task_config(task), "task.")]
    assert len(names) > 60
    missing = [name for name in names if f"| `{name}` |" not in page]
    assert missing == []
    for task in packaged_tasks():
        assert f"## task: {task}\n" in page
    for name in packaged_recipes():
        assert f"### {name}\n" in page


def test_fields_of_an_optional_section_are_there() -> None:
    page = recipe_reference()
    for name in ("train.first.parameters", "train.first.epochs"):
        assert f"| `{name}` |" in page


def test_every_recipe_field_has_a_comment() -> None:
    rows = re.findall(r"(?m)^\| `([\w.]+)` \|(.*)\| *(.*?) *\|$", recipe_reference())
    assert len(rows) > 80
    assert [name for name, _, comment in rows if not comment] == []


def test_every_verb_and_option_is_there() -> None:
    page = cli_reference()
    found = dict(verbs())
    assert {"compare", "train", "eval", "plan", "paper", "list", "doctor"} <= set(found)
    for path, command in found.items():
        section = page.partition(f"## {path}\n")[2].partition("\n## ")[0]
        assert section, f"no section on {path}"
        for param in command.params:
            if param.param_type_name == "option" and not param.hidden:
                for name in (*param.opts, *param.secondary_opts):
                    assert re.search(rf"[`/]{re.escape(name)}[`/ ]", section), f"{path} {name}"


def test_every_graft_host_and_preset_is_there() -> None:
    page = graft_reference()
    for info in list_grafts():
        section = page.partition(f"### {info.name}\n")[2].partition("\n### ")[0]
        assert info.source in section
        for option in info.options:
            assert f"| `{option}` |" in section
    for host in list_hosts():
        assert f"`{host.name}`" in page
    for name, text in list_presets().items():
        assert f"| `{name}` | `{text}` |" in page


def test_every_graft_option_has_a_comment() -> None:
    ours = [each for each in graft_types().values() if type(each).__module__.startswith("attngraft.")]
    assert len(ours) > 7
    for each in ours:
        told = {doc.name: doc.comment for doc in fields_of(each.Options)}
        assert [name for name, comment in told.items() if not comment] == [], each.name


def test_every_public_name_is_there() -> None:
    """Under the path of the module in which it is written, because that is what the page asks for."""
    import attngraft

    page = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    shown = re.findall(r"(?m)^::: (\S+)$", page)
    for path in shown:
        module, _, name = path.rpartition(".")
        named = hasattr(importlib.import_module(module), name)
        assert named or importlib.util.find_spec(path) is not None, (
            path
        )  # a module, which nobody need have imported yet
    for name in set(attngraft.__all__) - {"__version__"}:
        thing = getattr(attngraft, name)
        assert f"{thing.__module__}.{name}" in shown or thing.__module__ == "attngraft.errors", name


def test_field_comments_are_told_in_the_python_reference() -> None:
    griffe = pytest.importorskip("griffe", reason="needs the extra docs")
    from docs.generate.griffe_comments import FieldComments

    module = griffe.load(
        "attngraft.results.study", search_paths=[ROOT / "src"], extensions=griffe.load_extensions(FieldComments)
    )
    behind, above = module["RunSummary.folder"], module["Spread.mean"]
    assert behind.docstring.value == "relative to the study's folder"
    assert above.docstring is None  # has no comment


def test_every_table_of_the_papers_is_there() -> None:
    page = paper_tables()
    for name in list_papers():
        paper = load_paper(name)
        for printed in paper.tables:
            section = page.partition(f"### {paper.id} {printed.id}: ")[2].partition("\n### ")[0]
            for row in printed.rows:
                assert f"| {row.variant} |" in section
                for text in row.printed.values():
                    assert text in section


def test_generated_pages_are_in_the_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for path, make in pages().items():
        assert f": {path}\n" in menu
        assert make().startswith("# "), f"{path} has no title"


def test_table_escapes_bars_outside_of_code() -> None:
    assert table(("a",), [("x|y `p|q`\nz",)]).splitlines()[-1] == "| x&#124;y `p|q` z |"


def test_external_resources_are_found() -> None:
    page = '<a href="https://a.example/x">t</a><script src="https://b.example/s.js"></script><img src="images/x.svg">'
    assert external(page) == ["https://b.example/s.js"]
    assert external(
        '<link href="//c.example/f.css" rel="stylesheet"><link rel="canonical" href="https://d.example/">'
    ) == ["//c.example/f.css"]


@dataclass(frozen=True, kw_only=True)
class Inner:
    c: int = 3  #: deep


@dataclass(frozen=True, kw_only=True)
class Base:
    #: above,
    #: in two lines
    a: Literal["x", "y"] = "x"


@dataclass(frozen=True, kw_only=True)
class Outer(Base):
    b: tuple[float, ...] | None = None  #: behind
    d: dict[str, Any] = field(
        default_factory=dict,  #: inside
    )
    inner: Inner | None = None
    made: int = field(init=False, default=0)


def test_fields_of_a_dataclass() -> None:
    docs = {doc.name: doc for doc in fields_of(Outer)}
    assert list(docs) == ["a", "b", "d", "inner"]
    assert docs["a"].comment == "above, in two lines"
    assert docs["a"].kind == "`x`, `y`"
    assert (docs["b"].kind, docs["b"].default, docs["b"].comment) == ("list (number) or null", "`null`", "behind")
    assert (docs["d"].kind, docs["d"].default, docs["d"].comment) == ("mapping", "`{}`", "inside")
    assert docs["inner"].section is Inner
    assert docs["inner"].kind == "section or null"
    assert comments_of(Inner) == {"c": "deep"}


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (int | None, "whole number or null"),
        (str | list[Any] | None, "text or list or null"),
        (tuple[float, float], "list of 2 (number)"),
        (list[str], "list (text)"),
        (Literal["a", 1], "`a`, `1`"),
    ],
)
def test_type_text(hint: Any, words: str) -> None:
    assert type_text(hint) == words


def test_notebook_page(tmp_path: Any) -> None:
    cells: list[dict[str, Any]] = [
        {"cell_type": "markdown", "source": ["# Title\n", "text"]},
        {"cell_type": "code", "source": ["1 + 1"], "outputs": []},
    ]
    path = tmp_path / "n.ipynb"
    path.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    plain = notebook_page(path, executed=tmp_path / "none.ipynb")
    assert plain.startswith("# Title\ntext\n\n```python\n1 + 1\n```")

    text = {"output_type": "stream", "name": "stdout", "text": ["a ```\n", "<b>"]}
    noise = {"output_type": "stream", "name": "stderr", "text": ["a warning"]}
    image = {"output_type": "display_data", "data": {"image/png": "AAAA", "text/plain": ["<Figure>"]}}
    cells[1]["outputs"] = [text, noise, image]
    done = tmp_path / "done.ipynb"
    done.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    shown = notebook_page(path, executed=done)
    assert "    a ```\n    <b>\n" in shown
    assert "![](data:image/png;base64,AAAA)" in shown
    assert "a warning" not in shown
    assert "<Figure>" not in shown

    cells[1]["source"] = ["1 + 2"]  # the notebook has changed since it was run
    done.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    assert notebook_page(path, executed=done) == plain
