"""Command-line reference, generated from the command objects."""

from __future__ import annotations

import enum
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

import typer

from attngraft.cli import app
from docs.generate.markdown import table

_OPENING = """# Command line

This page lists all commands and their options; it is generated from the source. The exit codes are 0 (success), 1 (a run
failed), 2 (refused before anything was run: an invalid command, or a model, data or a folder that does not fit; also broken
data that only a run finds), 70 (an unexpected error) and 130 (interrupted). Errors are printed as one
line on standard error; `attngraft --debug VERB ...` adds the traceback.
"""
_VALUES = {int: "N", float: "X", str: "TEXT"}
_HEADER = ("option", "default", "description")


def cli_reference() -> str:
    """Return the page."""
    parts = [_OPENING]
    for path, command in verbs():
        parts += list(_verb(path, command))
    return "\n".join(parts)


def verbs() -> Iterator[tuple[str, Any]]:
    """Yield (`data check`, its command) for every command, including those in groups."""
    yield from _below(typer.main.get_command(app), "")


def _below(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        path = f"{prefix} {name}".strip()
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from _below(command, path)
        else:
            yield path, command


def _verb(path: str, command: Any) -> Iterator[str]:
    arguments = [param for param in command.params if not _is_option(param)]
    yield f"## {path}\n"
    yield f"`attngraft {' '.join([path, '[OPTIONS]', *map(_argument, arguments)])}`\n"
    yield _help(command.help or "")
    if arguments:
        rows = [(f"`{_argument(param)}`", _default(param), param.help or "") for param in arguments]
        yield table(("argument", "default", "description"), rows)
    hints = get_type_hints(inspect.unwrap(command.callback))
    panels: dict[str | None, list[Any]] = {}
    for param in command.params:
        if _is_option(param) and not param.hidden:
            panels.setdefault(param.rich_help_panel, []).append(param)
    for panel, params in panels.items():
        if panel:
            yield f"**{panel}**\n"
        yield table(
            _HEADER, ((_option(param, hints[param.name]), _default(param), param.help or "") for param in params)
        )


def _is_option(param: Any) -> bool:
    return bool(param.param_type_name == "option")


def _argument(param: Any) -> str:
    name = param.metavar or param.name.upper()
    name = name if param.nargs == 1 else f"{name}..."
    return name if param.required else f"[{name}]"


def _option(param: Any, hint: Any) -> str:
    names = "/".join([param.opts[0], *param.secondary_opts])
    short = "".join(f", `{name}`" for name in param.opts[1:])
    return f"`{names}{'' if param.is_flag else ' ' + (param.metavar or _value(hint))}`{short}"


def _value(hint: Any) -> str:
    """Return the placeholder of an option without a metavar: its choices, or its type."""
    for arm in (hint, *get_args(hint)):
        if get_origin(arm) is Literal:
            return "|".join(map(str, get_args(arm)))
        if isinstance(arm, type) and issubclass(arm, enum.Enum):
            return "|".join(str(choice.value) for choice in arm)
        if arm in _VALUES:
            return _VALUES[arm]
    return "VALUE"


def _default(param: Any) -> str:
    if param.required:
        return "required"
    value = getattr(param.default, "value", param.default)
    return "" if value in (None, False, (), []) else f"`{str(value).lower() if value is True else value}`"


def _help(text: str) -> str:
    """Return the help text with examples as code blocks; an example may span several lines."""
    before, _, examples = text.partition("Examples:")
    commands = [re.sub(r"\s*\n\s*", " ", block) for block in textwrap.dedent(examples).strip().split("\n\n") if block]
    shown = "".join(f"$ {command}\n" for command in commands)
    return f"{before.strip()}\n" + (f"\n```console\n{shown}```\n" if shown else "")
