"""Sentences by rule, and small folders of transformers without weights."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np

from attngraft.training.recipe import Recipe, load_recipe

WORDS = {
    "good": ("wonderful", "bright", "charming", "clever", "warm"),
    "bad": ("dull", "tedious", "clumsy", "cold", "noisy"),
    "odd": ("strange", "puzzling", "curious", "peculiar", "eerie"),
}
THINGS = ("film", "book", "song", "play", "garden", "meal", "journey")
BERT = {
    "model_type": "bert",
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 120,
    "max_position_embeddings": 24,
}


def sentences(count: int, *, seed: int = 0, classes: tuple[str, ...] = ("good", "bad")) -> list[tuple[str, str]]:
    """Sentences of several lengths with the class that their adjectives are of."""
    random = np.random.RandomState(seed)
    rows = []
    for number in range(count):
        label = classes[number % len(classes)]
        some = random.choice(WORDS[label], size=random.randint(1, 4), replace=False)
        rows.append((f"The {random.choice(THINGS)} number {number} was {' and '.join(some)}.", label))
    return rows


def table(path: Path, rows: list[tuple[Any, ...]], header: tuple[str, ...] = ("text", "label")) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",").writerows([header, *rows])
    return path


def host(folder: Path, **changes: Any) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(BERT | changes))
    return f"hf:{folder}"


def recipe(data: Path, host: str, *settings: str) -> Recipe:
    fixed = ["schedule.epochs=1", "train.batch_size=8", "train.threads=1", "task.tokenizer.vocab_size=80"]
    return load_recipe("text", [f"host.name={host}", f"task.data.source={data}", *fixed, *settings])
