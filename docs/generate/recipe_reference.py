"""Recipe reference: every field of a recipe and of a study file, generated from the dataclasses."""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator

from attngraft.study import config as study_config
from attngraft.tasks.task import TASKS, load_task
from attngraft.training.recipe import RECIPES, HostConfig, Recipe, packaged_recipes
from docs.generate.fields import FieldDoc, comments_of, fields_of
from docs.generate.markdown import docstring, table

_HEADER = ("field", "type", "default", "description")

_OPENING = """# Recipe reference

This page lists all fields of a recipe; it is generated from the source. A recipe is a YAML file. Every field has a default,
so a recipe contains only the fields that differ. `base: deit` starts from another recipe, and `--set optimizer.lr=1e-3`
changes a field on the command line. Unknown fields and values of the wrong type raise an error; for an unknown field, it
names the nearest one.
"""


def recipe_reference() -> str:
    """Return the page."""
    parts = [_OPENING, *_section(Recipe, "", depth=2)]
    for name in packaged_tasks():
        parts += [f"## task: {name}\n", f"These are the fields of `task:` with `name: {name}`.\n"]
        parts += _section(task_config(name), "task", depth=3)
    parts += [_packaged(), _study_file()]
    return "\n".join(parts)


def recipe_fields() -> Iterator[str]:
    """Return the dotted name of every field, for tests."""
    yield from _dotted(Recipe, "")
    for name in packaged_tasks():
        yield from _dotted(task_config(name), "task")


def packaged_tasks() -> list[str]:
    """Return the built-in tasks, without registered ones of other packages."""
    return [name for name, place in TASKS.items() if place.startswith("attngraft.")]


def task_config(name: str) -> type:
    """Return the dataclass of a task's section: `<Task>Config` in the task's module `config`."""
    task = load_task(name)
    module = importlib.import_module(f"{task.__module__.rpartition('.')[0]}.config")
    found: type = getattr(module, f"{task.__name__}Config")
    return found


def _dotted(cls: type, prefix: str) -> Iterator[str]:
    for doc in fields_of(cls):
        name = f"{prefix}.{doc.name}".removeprefix(".")
        if doc.section is None:
            yield name
        else:
            yield from _dotted(doc.section, name)


def _section(cls: type, prefix: str, *, depth: int) -> Iterator[str]:
    """Return the table of a dataclass's fields, then one section for each dataclass in it."""
    docs = list(fields_of(cls))
    plain = [
        doc for doc in docs if doc.section is None or doc.default in ("`null`", "`[]`")
    ]  # a section that may be absent has both
    if prefix != "task":  # whose heading names the task
        yield f"{'#' * depth} {prefix or 'Top level'}\n"
    yield docstring(cls) + "\n"
    if plain:
        yield table(_HEADER, (_row(doc, prefix) for doc in plain))
    for doc in docs:
        if doc.section is not None:
            yield from _section(doc.section, f"{prefix}.{doc.name}".removeprefix("."), depth=depth)


def _row(doc: FieldDoc, prefix: str) -> tuple[str, str, str, str]:
    name = f"{prefix}.{doc.name}".removeprefix(".")
    return f"`{name}`", doc.kind, doc.default, doc.comment


def _packaged() -> str:
    """Return the built-in recipes as YAML."""
    parts = ["## Packaged recipes\n", "`--recipe` takes the name of one of these, or the path of a file.\n"]
    for name in packaged_recipes():
        parts += [f"### {name}\n", f"```yaml\n{(RECIPES / f'{name}.yaml').read_text(encoding='utf-8').rstrip()}\n```\n"]
    return "\n".join(parts)


def _study_file() -> str:
    """Return the table of a study file's keys, described by the comments of the configuration's fields."""
    comments = comments_of(study_config.StudyConfig) | comments_of(study_config.Until)
    comments |= {
        "title": "title of the report",
        "grafts": "variants besides the baseline: specifications, or sections with `name`, `graft`, `host` (another host), "
        "`set` (another recipe)",
        "seeds": "number of seeds, counted from 0; or a list of seeds; with `until`, those of the first round",
        "until": "`decided`: add seeds in rounds to undecided variants; null: all variants have the same seeds",
        "set": "changes of the recipe for all variants: `section.field=value`",
        "out": "the study's folder",
    }
    rows = []
    for doc in fields_of(study_config._StudyFile):
        rows.append(
            (
                f"`{doc.name}`",
                doc.kind,
                doc.default,
                (doc.comment or comments.get(doc.name, "")).replace("None:", "null:"),
            )
        )
        if doc.section is not None:
            of_recipe = comments_of(HostConfig)
            rows += [
                (f"`{doc.name}.{own.name}`", own.kind, own.default, own.comment or of_recipe.get(own.name, ""))
                for own in fields_of(doc.section)
            ]
    return f"## Study files\n\n{_example()}\n{table(_HEADER, rows)}"


def _example() -> str:
    """Return the module's docstring with its example as a block of YAML."""
    text = inspect.getdoc(study_config) or ""
    return re.sub(
        r"(?m)(?:^    .*\n)+", lambda found: f"```yaml\n{textwrap.dedent(found.group()).rstrip()}\n```\n", f"{text}\n"
    )
