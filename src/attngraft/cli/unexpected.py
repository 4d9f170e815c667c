"""Errors that are not the package's own: one line, the traceback in a file, and exit code 70."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import traceback
from pathlib import Path
from types import TracebackType

from attngraft.cli.output import command_line, echo
from attngraft.suggest import cut, one_line

UNEXPECTED = 70  #: exit code (EX_SOFTWARE)

tracebacks = logging.getLogger("attngraft.tracebacks")  #: at DEBUG, tracebacks are printed (--debug, --verbose)

_NAMES = ("path", "file", "folder")  #: of variables that hold the file in use
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_MODELS = os.path.join(_PACKAGE, "models", "")
_TORCH = f"{os.sep}site-packages{os.sep}torch{os.sep}"
_TORCH_MODULE = os.path.join(_TORCH, "nn", "modules", "module.py")


def report_unexpected(error: BaseException) -> int:
    """Print what was being done, the error, the file in use if known, what to try, and where the traceback is.

    Returns:
        the exit code: 70, or 1 if a model raised the error, as for host arguments that do not fit.
    """
    text = "".join(traceback.format_exception(error))
    if tracebacks.isEnabledFor(logging.DEBUG):
        echo(text, err=True)
    if _in_model(error):
        echo(
            f"attngraft: `{cut(command_line(), 200)}`: the model cannot process its input: {one_line(error)}; check the "
            f"host's arguments (host.args in the recipe) and the sizes of the data{_written(text)}",
            err=True,
        )
        return 1
    file = _file_in_use(error)
    used = f", file in use: {cut(file, 200)}" if file else ""
    echo(
        f"attngraft: unexpected error in `{cut(command_line(), 200)}`: {one_line(error)}{used}; "
        f"{_remedy(error, file)}{_written(text)}",
        err=True,
    )
    return UNEXPECTED


def _in_model(error: BaseException) -> bool:
    """Return whether code of a model, in any package, raised the error in a module's forward pass."""
    if isinstance(error, MemoryError | OSError):
        return False
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    own = [file.startswith(_PACKAGE) and not file.startswith(_MODELS) for file in files]
    inner = files[len(files) - own[::-1].index(True) :] if True in own else files  # behind the caller of the model
    return any(file.endswith(_TORCH_MODULE) for file in inner) and any(_TORCH not in file for file in inner)


def _remedy(error: BaseException, file: str) -> str:
    if isinstance(error, MemoryError):
        return "it needs more memory than there is: use less data or smaller batches, or a machine with more memory"
    if isinstance(error, RecursionError):
        return "the input is nested too deeply: use fewer levels"
    if isinstance(error, OSError):
        return (
            "check that the file can be read, that the disk has space and, for downloads, the network; then try again"
        )
    if file:
        return "check that this file is intact, and report the error with its traceback if it is"
    return "try `attngraft doctor` and the newest version, and report the error with its traceback if it remains"


def _written(text: str) -> str:
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="attngraft-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            file.write(f"{command_line()}\n{sys.version}\n\n{text}")
        return f" (traceback: {file.name}; attngraft --debug ... shows it)"
    except OSError:  # a full disk may have caused the error
        return " (attngraft --debug ... shows the traceback)"


def _file_in_use(error: BaseException) -> str:
    """Return the file that the error names, or the one in a variable of the package's innermost function."""
    if isinstance(error, OSError) and error.filename is not None:
        return str(error.filename)
    found = ""
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        frame, trace = trace.tb_frame, trace.tb_next
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            continue
        for name in _NAMES:
            value = frame.f_locals.get(name)
            if isinstance(value, Path):
                found = str(value)
    return found


def print_traceback() -> None:
    """Print the traceback of the error that is being handled, with --debug or --verbose."""
    if tracebacks.isEnabledFor(logging.DEBUG):
        echo(traceback.format_exc(), err=True)
