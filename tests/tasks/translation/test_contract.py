"""Translation passes the contract of every task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from attngraft.tasks.task import Split
from tests.contract.task_contract import TaskContract
from tests.tasks.translation.pairs import HOST, section, write_pairs

pytest.importorskip("sacrebleu", reason="needs the extra text")


class TestTranslation(TaskContract):
    """Sentences of several lengths, in batches of tokens."""

    host: ClassVar = {**HOST, "args": {**HOST["args"], "dropout": 0.0}}
    graft: ClassVar = "vertical"
    lr: ClassVar = 1e-2
    steps: ClassVar = 80

    def section(self, folder: Path) -> dict[str, Any]:
        return section(folder / "pairs", loss={"smoothing": 0.0})

    def broken(self, folder: Path) -> Mapping[str, dict[str, Any]]:
        uneven = write_pairs(folder / "uneven", {"train": [("a", "b")] * 3})
        (uneven / "train.de").write_text("b\n")
        return {
            "train.en has 3 lines": {"data": {"source": str(uneven)}},
            "positions, got 50": {"decoding": {"max_length": 50}},
        }

    def raw(self, split: Split, folder: Path, *, count: int) -> list[str]:
        return list(split.pairs.sources[:count])  # type: ignore[attr-defined]
