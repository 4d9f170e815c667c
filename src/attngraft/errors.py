"""Errors that users can cause. Each message names the problem, its place, and the remedy."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class AttngraftError(Exception):
    """Base of all errors of this package; the command line prints its message and exits with `exit_code`."""

    exit_code = 1  #: 2 for errors that are found before anything is run or written; the remedy is another command


@contextmanager
def started() -> Iterator[None]:
    """Make the command exit with 1 after an error in the block, which has started a run.

    After mistakes of the user, such as broken data, it still exits with 2.
    """
    try:
        yield
    except AttngraftError as error:
        if not isinstance(error, UsageError | DataError) or isinstance(error, DataAccessError):
            error.exit_code = 1
        raise


class UsageError(AttngraftError):
    """An invalid command or argument."""

    exit_code = 2


class ArgumentError(UsageError, TypeError):
    """An argument of a wrong type; the message names the argument."""


def check_types(**arguments: tuple[Any, ...]) -> None:
    """Check the types of a function's arguments.

        check_types(model=(model, nn.Module), path=(path, str, os.PathLike))

    Args:
        arguments: for each name, the value and the types that it may have; None is a type of its own.

    Raises:
        ArgumentError: a value has another type; the message names the argument, the types and the value's type.
    """
    for name, (value, *kinds) in arguments.items():
        if not any(value is None if kind is None else isinstance(value, kind) for kind in kinds):
            given = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
            taken = " or ".join("None" if kind is None else kind.__name__ for kind in kinds)
            raise ArgumentError(f"argument {name!r} must be {taken}, not {given}")


class GraftSpecError(UsageError, ValueError):
    """An invalid graft specification. `position` is the index of the invalid character, if there is one."""

    def __init__(self, message: str, *, text: str | None = None, position: int | None = None) -> None:
        self.text, self.position = text, position
        super().__init__(message if text is None or position is None else _point_at(message, text, position))


class HostError(AttngraftError):
    """A model that is not supported, or a site that does not support a graft. The model is unchanged."""

    exit_code = 2


class RecordError(AttngraftError, KeyError):
    """A requested tensor that the model does not record; the message lists the recorded tensors."""

    exit_code = 2
    __str__ = Exception.__str__  # KeyError.__str__ would quote the message


class GraftFileError(AttngraftError):
    """A graft file that is damaged, in a newer format, or for a different host. The model is unchanged."""

    exit_code = 2


class ConfigError(UsageError, ValueError):
    """An unknown key or invalid value in a recipe, study or override; the message names file and field."""


class DataError(AttngraftError):
    """Data that cannot be read or used; the message names the file or folder and the remedy."""

    exit_code = 2


class DataAccessError(DataError):
    """A file of the data that the system cannot read (missing, no permission, disk error).

    The command exits with 2 before a run has started, since the file was never readable, and with 1 after.
    """


class TrainingError(AttngraftError):
    """A failed run (non-finite loss, checkpoint of another recipe, ...); saved files stay usable."""


class ExportError(AttngraftError):
    """A model that cannot be exported, or an unusable exported folder; the message names file and remedy."""


class StorageError(AttngraftError, OSError):
    """A file that could not be written (full disk, quota, limit, read-only); its previous version is intact."""


class FolderError(UsageError, TrainingError, ExportError, StorageError):
    """A folder that cannot be used: without the expected run or model, with another one, or not writable.

    Nothing was written.
    """


class BackendError(AttngraftError):
    """A backend that was selected by name but is not available; the message gives the reason."""

    exit_code = 2


@contextmanager
def naming(source: object) -> Iterator[None]:
    """Prepend `source`, such as the path of a file, to the message of an error in the block that lacks it."""
    try:
        yield
    except (UsageError, HostError) as error:
        if str(source) in str(error):
            raise
        raise type(error)(f"{source}: {error}") from None


def _point_at(message: str, text: str, position: int) -> str:
    """Append the line of `text` that contains `position`, at most 80 characters of it, with a caret under `position`."""
    start = max(text.rfind("\n", 0, position) + 1, position - 40)
    end = text.find("\n", position)
    line = text[start : min(len(text) if end < 0 else end, start + 80)]
    shown = "".join(char if char.isprintable() else " " for char in line)
    return f"{message}\n  {shown}\n  {' ' * (position - start)}^"
