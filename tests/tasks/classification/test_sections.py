"""What a report is told of a classifier, against scikit-learn."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from attngraft.results.sections import Section
from attngraft.strict import read
from tests.tasks.images.datasets import make_task


def _predictions(seed: int, *, classes: int = 4, size: int = 200) -> dict[str, np.ndarray]:
    target = np.random.RandomState(0).randint(0, classes - 1, size)  # the last class does not occur
    logits = np.random.RandomState(seed + 1).randn(size, classes).astype(np.float32)
    logits[np.arange(size), target] += 1
    confidence = (np.exp(logits) / np.exp(logits).sum(1, keepdims=True)).max(1)
    return {"target": target, "predicted": logits.argmax(1), "confidence": confidence}


def _sections(seeds: list[dict[str, np.ndarray]], classes: int = 4) -> dict[str, Section]:
    names = [f"c{i}" for i in range(classes)]
    facts = {"classes": names, "counts": {"train": {name: 5 + (name == "c1") for name in names}}}
    return {each.name: each for each in make_task("digits").sections(seeds, facts=facts)}


def test_the_table_by_class_is_scikit_learns() -> None:
    seeds = [_predictions(0), _predictions(1)]
    section = _sections(seeds)["classes"]
    table = section.table
    assert table is not None
    share = (seeds[0]["target"] == 1).mean()
    always = f"always predicting c1, the class with the most training images, is correct for {share:.2%}"
    assert always in section.note.replace(" %", "%")
    by_seed = [
        precision_recall_fscore_support(s["target"], s["predicted"], labels=range(4), zero_division=0) for s in seeds
    ]
    for i, row in enumerate(table.rows[:3]):
        assert row[:2] == [f"c{i}", int((seeds[0]["target"] == i).sum())]
        for place, metric in ((2, 1), (3, 0), (4, 2)):
            assert row[place] == pytest.approx(np.mean([found[metric][i] for found in by_seed]))
    assert table.rows[3] == ["c3", 0, None, 0.0, None]


def test_confusions_are_summed_over_seeds() -> None:
    seeds = [_predictions(0), _predictions(1)]
    matrix = _sections(seeds)["confusion"].matrix
    assert matrix is not None
    expected = sum(confusion_matrix(s["target"], s["predicted"], labels=range(4)) for s in seeds)
    assert matrix.counts == expected.tolist()


def test_many_classes_have_a_list_of_confusions() -> None:
    seeds = [_predictions(0, classes=60, size=600)]
    section = _sections(seeds, classes=60)["confusion"]
    assert section.matrix is None
    assert section.table is not None
    assert len(section.table.rows) == 20
    counts = confusion_matrix(seeds[0]["target"], seeds[0]["predicted"], labels=range(60))
    np.fill_diagonal(counts, 0)
    assert section.table.rows[0][2] == counts.max()
    true, taken, times, share = section.table.rows[0]
    assert counts[int(str(true)[1:]), int(str(taken)[1:])] == times
    assert share == pytest.approx(times / (seeds[0]["target"] == int(str(true)[1:])).sum())


def test_reliability_is_of_the_confidence_in_what_is_predicted() -> None:
    seeds = [_predictions(0), _predictions(1)]
    section = _sections(seeds)["reliability"]
    found = section.reliability
    assert found is not None
    known = [
        (n, p, q)
        for n, p, q in zip(found.counts, found.stated, found.observed, strict=True)
        if p is not None and q is not None
    ]
    confidence = np.mean([each["confidence"] for each in seeds])
    hit = np.mean([each["predicted"] == each["target"] for each in seeds])
    assert sum(n * p for n, p, _ in known) / 400 == pytest.approx(confidence, rel=1e-5)
    assert sum(n * q for n, _, q in known) / 400 == pytest.approx(hit)
    assert section.numbers == {"ECE": np.mean(found.error_by_seed)}


def test_sections_are_plain_data_and_reliability_needs_numbers() -> None:
    for section in _sections([_predictions(0)]).values():
        assert read(Section, json.loads(json.dumps(asdict(section), allow_nan=False)), where="section") == section
    broken = _predictions(0)
    broken["confidence"][0] = np.nan
    assert set(_sections([broken])) == {"classes", "confusion"}
