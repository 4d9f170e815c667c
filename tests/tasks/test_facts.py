"""Facts in data.json of a run without checksums: anything that was changed is named, for every task."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from attngraft.errors import ConfigError, FolderError, UsageError
from attngraft.strict import FieldError, read
from attngraft.tasks.task import TASKS, load_task
from attngraft.training.recipe import recipe_from_dict
from attngraft.training.run_folder import RunFolder, read_run

LABELS = {"classes": ["a", "b"], "counts": {"train": {"a": 3, "b": 3}}, "sizes": {"train": 6, "val": 2}, "notes": ["x"]}
IMAGES = {**LABELS, "input": {"size": [3, 8, 8], "mean": [0.5], "eval_crop_pct": 0.9}}
TEXTS = {"column": "text", "tokenizer": "af12", "vocab_size": 100, "max_length": None}
CLOUDS = {**LABELS, "input": {"points": 64, "sample": "first", "normals": False, "normalize": True}}
SCORES = {"cider": 9.5, "bleu1": 30}
FACTS: dict[str, dict[str, Any]] = {
    "captioning": {
        "sizes": {"train": 9, "val": 3},
        "input": {
            "vocabulary": "af12",
            "words": 90,
            "rows": 49,
            "channels": 2048,
            "encoder": {"name": "timm:resnet50"},
            "encoder_digest": "ab34",
        },
        "constant_caption": "a dog",
        "floors": {"val": {"constant": SCORES, "random": SCORES}},
        "unigram": {"train": 4.5, "val": 5},
    },
    "classification": IMAGES,
    "multilabel": IMAGES,
    "token_labeling": IMAGES,
    "points": CLOUDS,
    "point_parts": {**CLOUDS, "parts": [[0, 1], [2]], "part_points": [5, 6, 7]},
    "regression": {
        "targets": ["age"],
        "scale": {"mean": [1.5], "deviation": [0.5]},
        "sizes": {"train": 6},
        "input": IMAGES["input"],
    },
    "detection": {"classes": ["a", "b"], "category_ids": [3, 9], "objects": {"train": [7, 8]}, "canvas": [64, 96]},
    "segmentation": {"classes": ["a", "b"], "colors": [[0, 0, 0], [9, 9, 255]], "pixels": {"train": [7, 8]}},
    "text_classification": {**LABELS, "input": TEXTS},
    "translation": {
        "sizes": {"train": 9, "val": 3},
        "input": {"tokenizer": "af12", "vocab_size": 100},
        "unigram": {"loss": {"train": 1.0, "val": 2}, "accuracy": {"train": 0.1, "val": 0.2}, "sentence": "a b"},
    },
}
REQUIRED = {
    "captioning": [
        *("sizes", "input", "input.vocabulary", "input.words", "input.rows", "input.channels", "input.encoder"),
        *("floors", "floors.val", "floors.val.constant", "constant_caption", "unigram", "unigram.val"),
    ],
    "classification": [
        "classes",
        "counts",
        "counts.train",
        "counts.train.a",
        "sizes",
        "sizes.train",
        "input.eval_crop_pct",
    ],
    "multilabel": ["classes", "counts", "counts.train", "sizes", "sizes.train", "input"],
    "token_labeling": ["classes", "counts.train", "sizes", "input"],
    "points": ["classes", "counts.train", *(f"input.{name}" for name in CLOUDS["input"])],  # type: ignore[attr-defined]
    "point_parts": ["classes", "input", "parts", "part_points"],
    "regression": ["targets", "scale", "scale.mean", "scale.deviation", "input", "input.eval_crop_pct"],
    "detection": ["classes", "category_ids", "objects", "objects.train", "canvas"],
    "segmentation": ["classes", "colors", "pixels", "pixels.train"],
    "text_classification": ["classes", "counts", *(f"input.{name}" for name in TEXTS)],
    "translation": [
        "sizes",
        "input",
        "input.tokenizer",
        "input.vocab_size",
        "unigram",
        "unigram.loss.val",
        "unigram.sentence",
    ],
}
OTHER_TYPES = {str: 3, bool: "3", int: "3", float: "3", list: "a,b", dict: [1], type(None): "3"}


def check(task: str, facts: Any) -> None:
    read(load_task(task).facts_class, facts, where="facts")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values that a task reads."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inside:
        if (*path, key) != ("input", "mean"):  # only shown
            yield (*path, key)
            yield from places(each, (*path, key))


def changed(facts: Any, path: Sequence[Any], value: Any) -> tuple[Any, Any]:
    """Return a copy of the facts with another value at `path`, and the value before; with `...`, it is deleted."""
    facts = above = copy.deepcopy(facts)
    for key in path[:-1]:
        above = above[key]
    before = above[path[-1]]
    above[path[-1]] = OTHER_TYPES[type(before)] if value is OTHER_TYPES else value
    if value is ...:
        del above[path[-1]]
    return facts, before


def test_every_task_has_facts_here() -> None:
    assert FACTS.keys() == {name for name, where in TASKS.items() if where.startswith("attngraft.")}  # others are toys


@pytest.mark.parametrize("task", FACTS)
def test_facts_as_they_were_written_and_new_ones_pass(task: str) -> None:
    check(task, FACTS[task] | {"of a later version": 3})


@pytest.mark.parametrize(("task", "name"), [(task, name) for task, names in REQUIRED.items() for name in names])
def test_missing_facts_are_named(task: str, name: str) -> None:
    facts, _ = changed(FACTS[task], name.split("."), ...)
    with pytest.raises(ConfigError, match=rf"^facts\.{name.partition('.')[0]}"):
        check(task, facts)


@pytest.mark.parametrize("task", FACTS)
def test_other_types_and_huge_numbers_are_named(task: str) -> None:
    for path in places(FACTS[task]):
        facts, before = changed(FACTS[task], path, OTHER_TYPES)
        with pytest.raises(ConfigError, match=rf"^facts\.{path[0]}"):
            check(task, facts)
        if isinstance(before, int | float):
            with pytest.raises(ConfigError, match=rf"^facts\.{path[0]}"):
                check(task, changed(FACTS[task], path, 10**400)[0])


def written(folder: Path, **changes: Any) -> Path:
    run = RunFolder(folder)
    run.write_recipe(
        recipe_from_dict(
            {
                "host": {"name": "vit_tiny_patch16_224"},
                "task": {"name": "classification", "data": {"source": "digits"}},
            }
        )
    )
    data = {"model_args": {"num_classes": 2}, "facts": IMAGES, "judged_split": "val"}
    run.data.write_text(json.dumps(data | changes))
    run.finished.write_text("{}")
    run.metrics.write_text('{"epoch": 1, "seconds": 1.0}\n')
    return folder


def test_an_intact_run_is_read(tmp_path: Path) -> None:
    assert read_run(written(tmp_path)).facts == IMAGES


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("facts.classes", {"facts": {**IMAGES, "classes": "a,b"}}),
        ("facts.counts.train", {"facts": {**IMAGES, "counts": {"train": {"a": 3}}}}),
        ("facts.sizes.train", {"facts": {**IMAGES, "sizes": {"train": 2**60}}}),
        ("model_args.num_classes", {"model_args": {"num_classes": 10**9}}),
        ("model_args.num_classes", {"model_args": {"num_classes": "2"}}),
        ("model_args.img_size", {"model_args": {"num_classes": 2, "img_size": [8, 10**9]}}),
        ("judged_split", {"judged_split": "train"}),
        ("paths", {"paths": {"task.data.source": 3}}),
        ("cut", {"cut": {"train.batch_size": [3]}}),
    ],
)
def test_the_file_and_the_field_are_named(field: str, changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(FolderError, match=rf"data\.json: {field}\b.*restore a good copy, or delete") as caught:
        read_run(written(tmp_path, **changes))
    assert caught.value.exit_code == UsageError.exit_code == 2
    assert "\n" not in str(caught.value)


def test_model_arguments_fit_the_facts() -> None:
    facts = read(load_task("classification").facts_class, IMAGES, where="facts")
    facts.check_model_args({"num_classes": 2, "in_chans": 3})
    with pytest.raises(FieldError, match="num_classes must be 2, as the facts have it; got 3"):
        facts.check_model_args({"num_classes": 3})
