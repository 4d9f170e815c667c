"""A drawn split, kept from one opening of the data to the next."""

from __future__ import annotations

from pathlib import Path

from attngraft.tasks.images.opening import Division
from attngraft.tasks.images.sources.split_file import save_split


class KeptSplit:
    """What a task of images draws at random, and the file that it comes from or goes to."""

    def __init__(self) -> None:
        self.path: Path | None = None  #: where it was found; None: it is drawn
        self.drawn: Division | None = None  #: known when the data are

    def recall(self, path: Path) -> None:
        """Draw nothing, if `path` is there."""
        self.path = path if path.is_file() else None

    def keep(self, path: Path) -> bool:
        """Write to `path` what was drawn, unless it came from there; whether there is anything to keep."""
        if self.drawn is not None and self.path != path:
            save_split(path, *self.drawn)
        return self.drawn is not None
