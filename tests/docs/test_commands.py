"""Every `attngraft` command on the pages, in notebooks and recipes parses: the verb, each option, each value's type."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import typer

from attngraft.cli import app
from attngraft.papers.schema import list_papers, load_paper
from attngraft.training.recipe import RECIPES
from tests.docs.pages import ROOT, blocks, written_pages

WRONG: Any = typer.BadParameter.__mro__[1]  #: the usage error of whichever click it is that typer brings
SHELL = ("console", "bash", "sh", "shell")


@dataclass(frozen=True)
class Command:
    place: str
    words: tuple[str, ...]  #: behind `attngraft`
    mention: bool = False  #: stands in a sentence, so that arguments may be left out


def commands() -> Iterator[Command]:
    from docs.generate.hooks import pages as generated_pages

    for page in written_pages():
        name = page.relative_to(ROOT).as_posix()
        for block in blocks(page, *SHELL):
            for line in logical_lines(block.code):
                yield from of_line(line, f"{name}:{block.line}")
        text = re.sub(r"(?ms)^ *```.*?^ *```", "", page.read_text(encoding="utf-8"))
        for quoted in re.findall(r"`(attngraft -{0,2}\w[^`\n]*)`", text):
            for command in of_line(quoted, name):
                yield dataclasses.replace(command, mention=True)
    for name, make in generated_pages().items():
        if name.startswith("reference/cli"):
            for line in re.findall(r"(?m)^\$ (.*)$", make()):
                yield from of_line(line, name)
    for path in sorted([*RECIPES.glob("*.yaml"), *(ROOT / "examples").glob("*.yaml")]):
        text = re.sub(r"\\\n# *", "", path.read_text(encoding="utf-8"))  # a line that goes on is one
        for line in re.findall(r"(?m)^# *\$? *(attngraft .*)$", text):
            yield from of_line(line.partition("`")[0].removesuffix("..."), path.name)
    for paper in map(load_paper, list_papers()):
        for quoted in re.findall(
            r"`(attngraft [^`]*)`", " ".join(note for table in paper.tables for note in table.notes)
        ):
            for command in of_line(quoted, f"{paper.id}.yaml"):
                yield dataclasses.replace(command, mention=True)
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                for line in re.findall(r"(?m)^[!%]+ *(attngraft.*)$", "".join(cell["source"])):
                    yield from of_line(line, path.name)


def logical_lines(code: str) -> list[str]:
    """Lines of input: those behind a `$` where there is one, else all; continued lines joined."""
    lines = re.sub(r"\\\n *", "", code).splitlines()
    prompted = [line.lstrip()[2:] for line in lines if line.lstrip().startswith("$ ")]
    return prompted or lines


def of_line(line: str, place: str) -> Iterator[Command]:
    """The attngraft commands of a line; what is piped in, redirected, or set before is left out."""
    words = shlex.split(line, comments=True)
    start = 0
    for end in [
        *(i for i, word in enumerate(words) if word in {"|", "&&", ";", "||", "&", ">", "2>", "<"}),
        len(words),
    ]:
        part = words[start:end]
        start = end + 1
        while part and (re.match(r"[A-Z_]+=", part[0]) or part[0] in {"time", "nohup", "exec"}):
            part = part[1:]
        if part and part[0].rpartition("/")[2] == "attngraft":
            yield Command(place, tuple(part[1:]))


def parse(words: tuple[str, ...], *, complete: bool = True) -> None:
    """As the command line would parse them, nothing called; where not `complete`, only names are looked at.

    Raises:
        WRONG: an unknown verb or option, a value of the wrong type, or too few arguments.
    """
    command: Any = typer.main.get_command(app)
    rest = list(words)
    while hasattr(command, "commands"):
        flags = {name for param in command.params for name in param.opts} | {"--help", "-h"}
        while rest and rest[0] in flags:  # options before a verb take no values
            rest = rest[1:]
        if not rest:
            return
        if rest[0] not in command.commands:
            raise typer.BadParameter(f"no such verb or option: {rest[0]}")
        command, rest = command.commands[rest[0]], rest[1:]
    if {"--help", "-h"} & set(rest):
        return
    if complete:
        command.make_context(command.name, rest).close()
    else:
        known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
        if unknown := {word.partition("=")[0] for word in rest if word.startswith("-")} - known:
            raise typer.BadParameter(f"no such option: {', '.join(unknown)}")


COMMANDS = sorted(set(commands()), key=lambda command: (command.place, command.words))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: f"{command.place} {' '.join(command.words)[:60]}")
def test_parses(command: Command) -> None:
    try:
        parse(command.words, complete=not command.mention)
    except WRONG as error:
        pytest.fail(f"{command.place}: attngraft {shlex.join(command.words)}\n{error}")


def test_commands_are_found() -> None:
    assert len(COMMANDS) > 15
    assert any(command.words[:1] == ("compare",) and command.place.startswith("README") for command in COMMANDS)


@pytest.mark.parametrize(
    "line",
    [
        "attngraft compair --graft cb",
        "attngraft compare --grapht cb",
        "attngraft compare --epochs many",
        "attngraft plan",
    ],
)
def test_wrong_commands_do_not_parse(line: str) -> None:
    (command,) = of_line(line, "here")
    with pytest.raises(WRONG):
        parse(command.words)
