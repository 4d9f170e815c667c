"""Errors of any class become one line and an exit code; nothing that a user names can control the terminal."""

from __future__ import annotations

import inspect
import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from timm.layers import PatchEmbed

import attngraft.cli as cli
from attngraft.cli.output import TerminalFormatter, output_console, print_rows
from attngraft.cli.unexpected import UNEXPECTED
from attngraft.errors import UsageError

ESCAPE = "\x1b[31m\x9b\u202e"
SHOWN = "\\u001b[31m\\u009b\\u202e"


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: Any) -> Callable[..., tuple[int, str]]:
    """Return a function that runs a command that raises an error, and returns the exit code and what it printed."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(cli.app, "registered_commands", [*cli.app.registered_commands])
    monkeypatch.setattr(typer.main, "get_command", inspect.unwrap(typer.main.get_command))  # with the new command

    def run(error: BaseException, *options: str) -> tuple[int, str]:
        def verb() -> None:
            raise error

        cli.app.command("verb")(cli._with_exit_codes(verb))
        monkeypatch.setattr(sys, "argv", ["attngraft", *options, "verb"])
        with pytest.raises(SystemExit) as ended:
            cli.main([*options, "verb"])
        return int(ended.value.code or 0), capfd.readouterr().err

    return run


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "MemoryError; it needs more memory"),
        (RecursionError("too deep"), "RecursionError: too deep; the input is nested too deeply"),
        (OSError(5, "Input/output error", "data/a\x1b.npz"), r"file in use: data/a\\u001b.npz; check that the file"),
        (EOFError(), "EOFError; try `attngraft doctor`"),
        (RuntimeError("x" * 10**6 + "\nsecond line"), r"RuntimeError: x{197}\.\.\.; try"),
        (KeyError(ESCAPE), "KeyError: "),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "UnicodeDecodeError: 'utf-8' codec"),
        (SystemError("bad \r call"), "SystemError: bad; try"),
    ],
)
def test_an_unexpected_error_is_one_line(
    error: BaseException, message: str, call: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    code, said = call(error)
    assert code == UNEXPECTED == 70
    assert re.match(f"^attngraft: unexpected error in `attngraft verb`: .*{message}|{message}", said)
    assert said.count("\n") == 1 and len(said) < 700
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", said)
    (written,) = tmp_path.glob("attngraft-*.txt")
    assert f"(traceback: {written}; attngraft --debug ... shows it)" in said
    assert "in verb\n    raise error" in written.read_text("utf-8")


def test_the_file_in_use_is_named(call: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    from attngraft.opening import read_text

    def opened(path: Path) -> None:
        raise OverflowError

    (tmp_path / "a.json").write_text("1")
    try:
        read_text(tmp_path / "a.json", limit=opened)  # type: ignore[arg-type]
    except TypeError as error:
        _, said = call(error)
        assert f"file in use: {tmp_path / 'a.json'}; check that this file is intact" in said


def test_an_error_in_a_model_is_not_ours(call: Callable[..., tuple[int, str]]) -> None:
    with pytest.raises(AssertionError) as raised:
        PatchEmbed(img_size=8, patch_size=4)(torch.zeros(1, 3, 4, 4))
    code, said = call(raised.value)
    assert code == 1
    assert re.match(
        "attngraft: `attngraft verb`: the model cannot process its input: AssertionError: Input height", said
    )
    assert "check the host's arguments (host.args in the recipe)" in said and said.count("\n") == 1


def test_debug_prints_the_traceback(call: Callable[..., tuple[int, str]]) -> None:
    code, said = call(RuntimeError(ESCAPE), "--debug")
    assert code == UNEXPECTED
    assert said.startswith("Traceback (most recent call last)") and "raise error" in said
    assert SHOWN in said and "\x1b" not in said
    code, said = call(UsageError("wrong"), "--debug")
    assert code == 2
    assert said.startswith("Traceback") and said.endswith("attngraft: wrong\n")


def test_a_full_disk_only_loses_the_file(call: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("attngraft.cli.unexpected.tempfile.NamedTemporaryFile", full)
    code, said = call(RuntimeError("bad"))
    assert code == UNEXPECTED
    assert "(attngraft --debug ... shows the traceback)" in said


def test_our_own_messages_are_cut_to_a_page(call: Callable[..., tuple[int, str]]) -> None:
    code, said = call(UsageError(f"start {'x' * 10**6}{ESCAPE} remedy"))
    assert code == 2
    assert said.startswith("attngraft: start") and said.endswith(f"x{SHOWN} remedy\n") and len(said) < 5000


def test_a_reader_that_has_ended_is_no_error(call: Callable[..., tuple[int, str]]) -> None:
    assert call(BrokenPipeError(32, "Broken pipe")) == (1, "")
    assert call(BrokenPipeError()) == (1, "")


def test_names_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    cli.echo(f"line {ESCAPE}\udcff")
    print_rows([{f"head{ESCAPE}": f"cell{ESCAPE}"}], f"title{ESCAPE}")
    output_console().print(f"text{ESCAPE}", markup=False)
    said = capsys.readouterr().out
    assert said.startswith(f"line {SHOWN}\\udcff\n")
    assert all(f"{word}{SHOWN}" in said for word in ("head", "cell", "title", "text"))
    assert not re.search(r"[\x1b\x9b\u202e]", said)
    record = logging.LogRecord("attngraft", logging.INFO, "", 0, "%s", (f"log{ESCAPE}",), None)
    assert TerminalFormatter("%(message)s").format(record) == f"log{SHOWN}"


def test_commands_print_only_through_the_functions_that_show_control_characters() -> None:
    folder = Path(cli.__file__).parent
    for file in sorted(folder.glob("*.py")):
        if file.name != "output.py":
            other = r"typer\.echo\(|(?<!Terminal)Console\(|(?<![.\w])print\(|std(?:out|err)\.write"
            found = re.findall(other, file.read_text("utf-8"))
            assert found in ([], ["stdout.write"] if file.name == "predict.py" else []), file
