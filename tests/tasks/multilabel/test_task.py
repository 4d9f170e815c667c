"""The task as the engine uses it, on labels made up for digits."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score, label_ranking_average_precision_score

from attngraft.errors import ConfigError, DataError
from attngraft.results.records import RecordCollector, RecordTable
from attngraft.results.sections import Section
from attngraft.tasks.images import opening
from attngraft.tasks.images.sources import ImageSource, open_source
from attngraft.tasks.multilabel import MultiLabel
from attngraft.tasks.task import to_records
from attngraft.training.evaluate import evaluate_records
from tests.tasks.images.datasets import host_config, make_task, normalized

TRAITS = ("even", "below five", "loop", "zero")


def _traits(digits: np.ndarray) -> np.ndarray:
    """Several labels for each digit; three of them have none."""
    columns = [digits % 2 == 0, digits < 5, np.isin(digits, [0, 6, 8, 9]), digits == 0]
    return np.stack(columns, axis=1).astype(np.uint8)


@pytest.fixture
def traits(monkeypatch: pytest.MonkeyPatch) -> None:
    """`digits` as multi-label data."""

    def opened(config: Any) -> ImageSource:
        parts = open_source(config)
        images = parts.train.take(np.arange(len(parts.train)), _traits(parts.train.labels))
        return replace(parts, classes=TRAITS, train=images, val=None, multilabel=True)

    monkeypatch.setattr(opening, "open_source", opened)


def _task(**sections: Any) -> MultiLabel:
    return MultiLabel.from_config({"name": "multilabel", "data": {"source": "digits"}, **sections}, seed=0)


@pytest.mark.usefixtures("traits")
def test_batches_facts_and_the_model() -> None:
    task = _task()
    data = task.load(model_data_config=host_config(8))
    batch = data.train.collate([data.train[(0, i)] for i in range(5)])
    assert batch["image"].shape == (5, 3, 8, 8)
    assert batch["target"].shape == (5, 4)
    assert batch["target"].dtype == torch.uint8
    assert data.model_args == {"num_classes": 4}
    assert data.facts["task"] == "multilabel"
    assert data.facts["counts"]["train"]["even"] > data.facts["counts"]["train"]["zero"] > 0
    assert 1 < data.facts["labels_per_image"]["val"] < 2
    assert torch.equal(task.to_model(batch)[0][0], normalized(batch["image"], host_config(8)))


@pytest.mark.usefixtures("traits")
def test_weights_of_these_data_reach_the_loss() -> None:
    """`balanced` weighs a label's images by how many others there are for each of them."""
    task = _task(loss={"pos_weight": "balanced"})
    labels = task.load(model_data_config=host_config(8)).train.labels  # type: ignore[attr-defined]
    weights = torch.from_numpy((labels == 0).sum(0) / (labels == 1).sum(0))
    logits, target = torch.randn(9, 4, dtype=torch.float64), torch.from_numpy(labels[:9])
    losses = -(weights * target * logits.sigmoid().log() + (1 - target) * (-logits).sigmoid().log())
    assert task.loss(logits, {"target": target})["loss"].item() == pytest.approx(losses.mean().item())


@pytest.mark.usefixtures("traits")
@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"loss": {"name": "asymmetric"}},
        {"loss": {"pos_weight": "balanced", "smoothing": 0.1}},
        {"augment": {"mixup": 0.8, "cutmix": 1.0}},
    ],
)
def test_a_model_learns(sections: dict[str, Any]) -> None:
    task = _task(**sections)
    data = task.load(model_data_config=host_config(8))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    batch = task.prepare(data.train.collate([data.train[(0, i)] for i in range(65)]), epoch=0, step=0)
    losses = []
    for _ in range(25):
        loss = task.loss(model(batch["image"]), batch)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.usefixtures("traits")
def test_mixing_mixes_labels_as_images() -> None:
    task = _task(augment={"mixup": 1.0, "crop": "center", "hflip": 0.0})
    data = task.load(model_data_config=host_config(8))
    batch = data.train.collate([data.train[(0, i)] for i in range(7)])
    batch["image"] = normalized(batch["image"], host_config(8))
    mixed = task.prepare(batch, epoch=1, step=2)
    again = task.prepare(batch, epoch=1, step=2)
    assert torch.equal(mixed["image"], again["image"])
    shares = []
    for i in range(6):
        gap = (batch["image"][i] - batch["image"][5 - i]).flatten()
        share = ((mixed["image"][i] - batch["image"][5 - i]).flatten() @ gap / (gap @ gap)).item()
        expected = share * batch["target"][i] + (1 - share) * batch["target"][5 - i]
        assert torch.allclose(mixed["target"][i], expected, atol=1e-5)
        shares.append(share)
    assert 0.0 < shares[0] < 1.0
    assert torch.equal(mixed["image"][6], batch["image"][6])
    assert torch.equal(mixed["target"][6], batch["target"][6].float())


@pytest.mark.usefixtures("traits")
def test_metrics_are_scikit_learns_and_the_primary_is_the_mean_score() -> None:
    task = _task(metrics={"threshold": 0.4})
    split = task.load(model_data_config=host_config(8)).val
    labels, size = split.labels, len(split)
    logits = torch.randn(size, 4, generator=torch.Generator().manual_seed(0))
    collector = RecordCollector(split.names)
    for rows in np.array_split(np.arange(size), 4):
        batch = {"target": torch.from_numpy(labels[rows])}
        collector.add(rows, to_records(task.predict(logits[rows], batch)))
    found = evaluate_records(task, split, collector.table(), {})
    given = (logits.double().sigmoid() >= 0.4).numpy()
    assert found.metrics == pytest.approx(
        {
            "image_ap": label_ranking_average_precision_score(labels, logits.numpy()),
            "map": average_precision_score(labels, logits.numpy(), average="macro"),
            "macro_f1": f1_score(labels, given, average="macro"),
            "micro_f1": f1_score(labels, given, average="micro"),
            "loss": torch.nn.functional.binary_cross_entropy_with_logits(
                logits, torch.from_numpy(labels).float()
            ).item(),
        },
        rel=1e-5,
    )
    assert found.metrics[task.primary] == found.predictions.score.mean()
    assert found.metrics.keys() == task.metrics.keys()
    assert not found.predictions.binary
    counts = {"even": 8, "below five": 9, "loop": 3, "zero": 1}
    sections = task.sections([found.predictions.arrays], facts={"classes": list(TRAITS), "counts": {"train": counts}})
    by_counts = label_ranking_average_precision_score(labels, np.tile(list(counts.values()), (size, 1)))
    assert f"average precision by image of {100 * by_counts:.2f} %" in sections[0].note
    assert [section.name for section in sections] == ["classes", "reliability"]
    table = sections[0].table
    assert table is not None
    assert [row[:2] for row in table.rows] == [[n, int(c)] for n, c in zip(TRAITS, labels.sum(0), strict=True)]
    assert np.mean([row[2] for row in table.rows]) == pytest.approx(found.metrics["map"])
    assert np.mean([row[5] for row in table.rows]) == pytest.approx(found.metrics["macro_f1"])
    reliability = sections[1].reliability
    assert reliability is not None
    assert sum(reliability.counts) == labels.size
    assert isinstance(asdict(sections[0]), dict)
    assert isinstance(sections[0], Section)


@pytest.mark.usefixtures("traits")
def test_runs_may_be_compared_by_their_loss() -> None:
    task = _task(metrics={"primary": "loss"})
    assert (task.primary, task.higher_is_better) == ("loss", False)
    split = task.load(model_data_config=host_config(8)).val
    logits = torch.randn(len(split), 4, generator=torch.Generator().manual_seed(0))
    collector = RecordCollector(split.names)
    target = torch.from_numpy(split.labels)
    collector.add(np.arange(len(split)), to_records(task.predict(logits, {"target": target})))
    found = evaluate_records(task, split, collector.table(), {})
    assert found.metrics["loss"] == pytest.approx(found.predictions.score.mean(), rel=1e-6)


@pytest.mark.usefixtures("traits")
def test_classification_refuses_several_labels() -> None:
    with pytest.raises(DataError, match=r"several labels each.*--recipe multilabel"):
        make_task("digits").load(model_data_config=host_config(8))


def test_single_labels_are_refused() -> None:
    with pytest.raises(DataError, match=r"one label each.*remove --recipe multilabel"):
        _task().load(model_data_config=host_config(8))


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"loss": {"name": "cross_entropy"}}, r"task\.loss\.name: 'cross_entropy' is not a choice.*bce, asymmetric"),
        ({"loss": {"name": "asymmetric", "pos_weight": 2}}, r"task\.loss\.pos_weight: applies to loss bce"),
        ({"loss": {"pos_weight": {"a": 0}}}, r"task\.loss\.pos_weight: must be positive"),
        ({"loss": {"clip": 1}}, r"task\.loss\.clip: must lie in"),
        ({"loss": {"gamma_neg": -1}}, r"task\.loss\.gamma_neg: must not be negative"),
        ({"loss": {"smoothing": 1.0}}, r"task\.loss\.smoothing: must lie in"),
        ({"metrics": {"primary": "maps"}}, r"task\.metrics\.primary: 'maps' is not a choice.*image_ap, map, macro_f1"),
        ({"metrics": {"threshold": 0}}, r"task\.metrics\.threshold: must lie between 0 and 1"),
        ({"sampling": "balanced"}, r"task\.sampling: unknown field"),
    ],
)
def test_refusals(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _task(**sections)


def test_chance_ranks_labels_by_frequency() -> None:
    task = MultiLabel.from_config({"name": "multilabel", "data": {"source": "digits"}}, seed=0)
    counts, generator = np.array([50, 10, 90, 100]), np.random.default_rng(0)
    target = (generator.random((40, 4)) < counts / 100).astype(np.uint8)
    facts = {
        "classes": list(TRAITS),
        "counts": {"train": dict(zip(TRAITS, counts.tolist(), strict=True))},
        "sizes": {"train": 100},
    }
    values = task.chance(RecordTable(names=np.arange(40).astype(str), columns={"target": target}), facts).values
    assert values["image_ap"] == pytest.approx(
        np.mean([1.0 if row.all() or not row.any() else _average(row, counts) for row in target])
    )
    assert values["map"] == pytest.approx(target.mean())
    shares = np.array([0.5, 0.1, 0.9, 0.995])
    assert values["loss"] == pytest.approx(-np.log(np.where(target, shares, 1 - shares)).mean())


def _average(row: np.ndarray, scores: np.ndarray) -> float:
    return float(label_ranking_average_precision_score(row[None], scores[None]))
