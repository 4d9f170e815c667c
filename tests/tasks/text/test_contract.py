"""Text classification passes the contract of every task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from attngraft.tasks.task import Split
from attngraft.tasks.text.source import text_names
from attngraft.training.recipe import Recipe
from tests.contract.task_contract import TaskContract
from tests.tasks.text.toys import host, sentences, table

pytest.importorskip("transformers", reason="needs the extra hf")
COUNT = 71


class TestTextClassification(TaskContract):
    """Texts of several lengths."""

    host: ClassVar = {}
    held_fixed = frozenset({"balanced_accuracy"})

    def recipe(self, folder: Path, **sections: Any) -> Recipe:
        still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        return super().recipe(folder, host={"name": host(folder / "bert", **still)}, **sections)

    def section(self, folder: Path) -> dict[str, Any]:
        data = {"source": str(table(folder / "texts.csv", sentences(COUNT))), "val_fraction": 0.35}
        loss = {"smoothing": 0.0}
        return {"name": "text_classification", "data": data, "tokenizer": {"vocab_size": 80}, "loss": loss}

    def broken(self, folder: Path) -> Mapping[str, dict[str, Any]]:
        return {
            "has no rows": {"data": {"source": str(table(folder / "empty.csv", []))}},
            "row 3: column 'text' is empty": {"data": {"source": str(table(folder / "b.csv", [("a", 0), ("", 1)]))}},
        }

    def raw(self, split: Split, folder: Path, *, count: int) -> list[str]:
        texts = [text for text, _ in sentences(COUNT)]
        named = dict(zip(text_names(texts), texts, strict=True))
        return [named[split.name(index)] for index in range(count)]


class Unmasked(TestTextClassification):
    """With a graft that cannot mask padding, the host is called once for every length."""

    __test__ = False

    def recipe(self, folder: Path, **sections: Any) -> Recipe:
        return replace(super().recipe(folder, **sections), graft="cb")


@pytest.mark.slow
def test_processes_with_texts_of_different_numbers_of_lengths(tmp_path: Path) -> None:
    Unmasked().test_two_processes_are_one(tmp_path)
