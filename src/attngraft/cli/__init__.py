"""The command line. A verb is a plain function in a file of its own that imports what it needs when it runs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from attngraft._version import __version__
from attngraft.cli.compare import compare
from attngraft.cli.doctor import doctor
from attngraft.cli.evaluate import evaluate
from attngraft.cli.list import list_command
from attngraft.cli.paper import paper
from attngraft.cli.plan import plan
from attngraft.cli.train import train
from attngraft.errors import AttngraftError, UsageError

app = typer.Typer(
    name="attngraft",
    help="Graft better attention into the transformer you have, and find out whether it helps on your data.",
    epilog="Start with: attngraft compare --help",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_VERBS: dict[str, Callable[..., None]] = {
    "compare": compare,
    "train": train,
    "eval": evaluate,
    "plan": plan,
    "paper": paper,
    "list": list_command,
    "doctor": doctor,
}
for _verb, _function in _VERBS.items():
    app.command(_verb)(_function)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"attngraft {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the whole traceback of an error.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Options that every verb has."""
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, format="%(message)s", stream=sys.stderr)
    logging.getLogger("attngraft").setLevel(logging.DEBUG if verbose else logging.INFO)
    for noisy in ("matplotlib", "PIL", "timm", "accelerate"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; exit codes: 0, 1 failed, 2 usage, 130 interrupted."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        code: Any = app(args=given, standalone_mode=True)
    except AttngraftError as error:
        if "--debug" in given:
            raise
        typer.echo(f"attngraft: {error}", err=True)
        code = 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt as stop:
        typer.echo(f"attngraft: interrupted{f': {stop}' if str(stop) else ''}", err=True)
        code = 130
    except BrokenPipeError:
        code = 1
    sys.exit(code or 0)
