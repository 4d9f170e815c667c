"""Command line. Each command has its own file and imports other layers only when it is called, to keep `--help` fast."""

from __future__ import annotations

import errno
import functools
import io
import logging
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from attngraft._version import __version__
from attngraft.cli.analyze import analyze
from attngraft.cli.bench import bixt as bench_bixt
from attngraft.cli.bench import models as bench_models
from attngraft.cli.compare import compare
from attngraft.cli.convert import convert
from attngraft.cli.data import check as data_check
from attngraft.cli.doctor import doctor
from attngraft.cli.evaluate import evaluate
from attngraft.cli.explore import explore
from attngraft.cli.export import export
from attngraft.cli.features import features
from attngraft.cli.list import list_command
from attngraft.cli.output import TerminalFormatter, announce_imports, echo
from attngraft.cli.paper import paper
from attngraft.cli.plan import plan
from attngraft.cli.predict import predict
from attngraft.cli.train import train
from attngraft.cli.unexpected import print_traceback, report_unexpected, tracebacks
from attngraft.errors import AttngraftError, UsageError
from attngraft.leaving import leave_now
from attngraft.suggest import quoted

INTERRUPTED = 130  #: exit code
_LONGEST = 4000  #: characters of a message

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


def _with_exit_codes(verb: Callable[..., None], *, slow: bool = False) -> Callable[..., None]:
    """Wrap a command: print errors and exit with 1 (failed), 2 (refused), 70 (unexpected error) or 130 (interrupted).

    `slow` commands print a line before PyTorch is imported.
    """

    @functools.wraps(verb)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            if slow:
                _refuse_deleted_folder()
                announce_imports()
            verb(*args, **kwargs)
        except AttngraftError as error:
            print_traceback()
            echo(f"attngraft: {_limited(str(error))}", err=True)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt as stop:
            echo(f"attngraft: interrupted{f': {stop}' if str(stop) else ''}", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
                echo(f"attngraft: {quoted(error.filename)}: too long for a path; correct it", err=True)
                raise typer.Exit(UsageError.exit_code) from None
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                where = quoted(error.filename) if error.filename else "the output"
                echo(f"attngraft: {where}: {error.strerror}; free some space and repeat the command", err=True)
                raise typer.Exit(1) from None
            if isinstance(error, FileNotFoundError) and "temporary directory" in str(error):  # of `tempfile`
                echo(f"attngraft: {error}; free some space, or set TMPDIR to a folder with space", err=True)
                raise typer.Exit(1) from None
            if isinstance(error, ImportError) and "failed to map segment" in str(error):
                echo(
                    "attngraft: not enough memory to load PyTorch; raise the limit of this process (ulimit -v)",
                    err=True,
                )
                raise typer.Exit(1) from None
            raise typer.Exit(report_unexpected(error)) from None

    return run


def _refuse_deleted_folder() -> None:
    """Raise a UsageError if the current folder was deleted, since a library of torch would abort the process."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UsageError("the current folder was deleted; change to another one with cd") from None


def _limited(message: str) -> str:
    """Return `message` without its middle if it is longer than a page."""
    return message if len(message) <= _LONGEST else f"{message[: _LONGEST - 800]} ... {message[-800:]}"


_VERBS: dict[str, Callable[..., None]] = {
    "compare": compare,
    "train": train,
    "eval": evaluate,
    "analyze": analyze,
    "explore": explore,
    "export": export,
    "predict": predict,
    "features": features,
    "convert": convert,
    "plan": plan,
    "paper": paper,
    "list": list_command,
    "doctor": doctor,
}
_SLOW = {
    "compare",
    "train",
    "eval",
    "analyze",
    "explore",
    "export",
    "predict",
    "features",
}  #: take longer than loading PyTorch
for _verb, _function in _VERBS.items():
    app.command(_verb)(_with_exit_codes(_function, slow=_verb in _SLOW))

_data = typer.Typer(help="Check data before training.", no_args_is_help=True, rich_markup_mode="markdown")
_data.command("check")(_with_exit_codes(data_check, slow=True))
app.add_typer(_data, name="data")

_bench = typer.Typer(
    help="Measure the cost of models, or of a mechanism, on this machine.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
_bench.command("model")(_with_exit_codes(bench_models, slow=True))
_bench.command("bixt")(_with_exit_codes(bench_bixt, slow=True))
app.add_typer(_bench, name="bench")


def _show_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        from attngraft.devices import accelerator_device

        device = accelerator_device()
        packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "timm"))
        echo(f"attngraft {__version__} ({packages}, device {device.type if device else 'cpu'})")
        raise typer.Exit


@app.callback()
def options(
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log more details, including tracebacks of errors.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print the tracebacks of errors.")] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Print the versions and the default device, and exit.",
        ),
    ] = False,
) -> None:
    """Options common to all commands."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TerminalFormatter("%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    tracebacks.setLevel(logging.DEBUG if debug or verbose else logging.INFO)
    logging.getLogger("attngraft").setLevel(logging.DEBUG if verbose else logging.INFO)
    for noisy in ("matplotlib", "PIL", "timm", "accelerate"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # of failed attempts, which one message about the last follows
    for retrying in ("huggingface_hub.utils._http", "huggingface_hub.file_download"):
        logging.getLogger(retrying).setLevel(logging.NOTSET if verbose else logging.ERROR)


def _limit_spinning() -> None:
    """Limit how long torch's waiting CPU threads spin before they sleep, unless an environment variable sets this already.

    By default they spin for milliseconds, and a training step takes several times as long if another process needs the
    core. Must be called before torch is imported. The limit was measured: without any spinning, small models are slower.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "1000"


def _replace_backend() -> None:
    """Make matplotlib ignore the backend of the environment, which fails if it is unknown; figures are only saved."""
    if "MPLBACKEND" in os.environ:
        os.environ["MPLBACKEND"] = "agg"


def _open_closed_streams() -> None:
    """Replace standard streams that are closed, which are None, by the null device."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # open until the end


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with 0 (success), 1 (failed), 2 (refused), 70 (unexpected error) or 130 (interrupted).

    Without `arguments`, parse `sys.argv`, and skip the interpreter's shutdown after an interrupt, or if torch was imported,
    which makes it take seconds.
    """
    _limit_spinning()
    _replace_backend()
    _open_closed_streams()
    if arguments is None and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # of names in encodings other than UTF-8
    try:
        try:
            app(args=arguments)
        except (
            BrokenPipeError
        ):  # typer ends quietly if the reader of the output has ended, but only with its error number
            raise SystemExit(1) from None
        except Exception as error:  # outside of the commands, which report their own
            raise SystemExit(report_unexpected(error)) from None
    except SystemExit as end:
        if arguments is None and isinstance(end.code, int) and (end.code == INTERRUPTED or "torch" in sys.modules):
            leave_now(end.code)
        raise
