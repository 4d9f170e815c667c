"""Every error that a user can cause. Each message says what is wrong, where, and what to do about it."""

from __future__ import annotations


class AttngraftError(Exception):
    """Base of all errors of this package; the command line prints its message and exits with 1."""


class UsageError(AttngraftError):
    """The command or its arguments make no sense together; the command line exits with 2."""


class GraftSpecError(UsageError, ValueError):
    """A graft specification cannot be read. `position` is the offending character's index, where there is one."""

    def __init__(self, message: str, *, text: str | None = None, position: int | None = None) -> None:
        self.text, self.position = text, position
        super().__init__(message if text is None or position is None else _point_at(message, text, position))


class HostError(AttngraftError):
    """A model, or one of its sites, cannot take the graft. Nothing was changed."""


class RecordError(AttngraftError, KeyError):
    """A model offers nothing of what a recording asks for; the message says what it offers."""

    __str__ = Exception.__str__  # not KeyError's, which quotes the message


class GraftFileError(AttngraftError):
    """A graft file is damaged, of a newer format, or made for another host. The model was left as it was."""


class ConfigError(UsageError, ValueError):
    """A recipe, study or override has an unknown key or a wrong value; the message names the file and the field."""


class DataError(AttngraftError):
    """The data cannot be read or used; the message names the file or folder and the remedy."""


class TrainingError(AttngraftError):
    """A run had to stop (loss not finite, checkpoint of another recipe, ...); what was saved stays usable."""


class ExportError(AttngraftError):
    """A model cannot be exported, or an exported folder cannot be used; the message names the file and the remedy."""


class StorageError(AttngraftError, OSError):
    """A file could not be written (disk full, quota, limit, read-only); what stood there before is whole."""


class BackendError(AttngraftError):
    """A backend was asked for by name and cannot be used here; the message says why."""


def _point_at(message: str, text: str, position: int) -> str:
    """Append the line of `text` that holds `position` with a caret under that character."""
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    line = text[start : len(text) if end < 0 else end]
    shown = "".join(char if char.isprintable() else " " for char in line)
    return f"{message}\n  {shown}\n  {' ' * (position - start)}^"
