"""Base class of tasks whose recipe section is a dataclass, and whose validation split may be random."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from attngraft.errors import ConfigError
from attngraft.strict import read
from attngraft.tasks.images.sources.splitting import Named, save_split
from attngraft.tasks.task import Task


class ConfiguredTask(Task):
    """Task whose section is a dataclass with `data` and `metrics.primary`.

    `load` uses the split in `_saved_split`, if set, and sets `_random_split`.
    """

    config_class: ClassVar[type[Any]]  #: dataclass of the recipe section
    sources: ClassVar[str]  #: supported kinds of data, for messages

    def __init__(self, config: Any, *, seed: int) -> None:
        self.config, self.seed = config, seed
        self.primary = config.metrics.primary
        self.higher_is_better = self.metrics[self.primary].higher_is_better
        self._saved_split: Path | None = None
        self._random_split: Mapping[str, Named] | None = None  #: its parts; None or empty: the split is not random

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, seed: int) -> Self:
        section = {key: value for key, value in config.items() if key != "name"}
        if "data" not in section:
            raise ConfigError(
                "task.data: missing; give --data SOURCE on the command line, or task: {data: {source: ...}} in the recipe "
                f"({cls.sources})"
            )
        return cls(read(cls.config_class, section, where="task"), seed=seed)

    def load_split(self, path: Path) -> None:
        self._saved_split = path if path.exists() else None

    def save_split(self, path: Path) -> bool:
        if self._random_split and self._saved_split != path:
            save_split(path, self._random_split)
        return bool(self._random_split)
