"""From a recipe's `task.data` to a training and a validation part that can be trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attngraft.tasks.images.checks import check_amount, check_split
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources import Images, Parts, open_source, restrict, with_validation


@dataclass(frozen=True, kw_only=True)
class Opened:
    """Images that can be trained on."""

    parts: Parts  #: `parts.train` is the training part; a drawn validation part is taken out of it
    val: Images
    facts: dict[
        str, Any
    ]  #: JSON-ready, for the task's facts: what was found wrong and left out, `notes` for the report


def open_images(config: DataConfig) -> Opened:
    """Open, choose classes, divide, check.

    Raises:
        ConfigError: a class that is not there.
        DataError: the data cannot be used; names the file or folder and the remedy.
    """
    parts = restrict(open_source(config), config.classes)
    check_amount(parts)
    parts, val = with_validation(parts, config)
    check_split(parts, val)
    return Opened(parts=parts, val=val, facts={"notes": list(parts.notes)})
