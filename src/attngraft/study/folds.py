"""The folds of one variant and seed, as one run that was evaluated on all examples."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from attngraft.training.run_folder import Metrics, RunRecord, validation_metrics


@dataclass(frozen=True, kw_only=True)
class FoldedRecord(RunRecord):
    """All folds of one variant and seed. Other fields are those of the first fold, except for curves and facts."""

    folds: tuple[RunRecord, ...]

    @classmethod
    def of(cls, runs: Sequence[RunRecord]) -> FoldedRecord:
        """Return the record of the finished runs of all folds, in order.

        Metrics of an epoch are means over folds, weighted by their numbers of validation examples.
        """
        first, weights = runs[0], [_examples(run) for run in runs]
        values: dict[str, Any] = {field.name: getattr(first, field.name) for field in fields(RunRecord)}
        epochs = [_mean(rows, weights) for rows in zip(*(run.epochs for run in runs), strict=False)]
        return cls(**{**values, "epochs": epochs, "facts": _facts(runs), "judged": None, "folds": tuple(runs)})

    def last(self) -> Metrics:
        """Return the means over folds of the compared metrics (`top1`)."""
        last = [_compared(run) for run in self.folds]
        return _mean(last, [_examples(run) for run in self.folds])


def each_fold(records: Iterable[RunRecord]) -> list[RunRecord]:
    """Return the runs, with the folds of cross-validation one by one."""
    return [run for record in records for run in (record.folds if isinstance(record, FoldedRecord) else (record,))]


def compared_metrics(record: RunRecord) -> Metrics:
    """Return the compared metrics of a run (`top1`): of its last epoch on validation, or of its `judged` evaluation."""
    return record.last() if isinstance(record, FoldedRecord) else _compared(record)


def _compared(run: RunRecord) -> Metrics:
    return validation_metrics(run.epochs[-1]) if run.judged is None else run.judged.compared()


def _examples(run: RunRecord) -> int:
    return int(run.facts.get("sizes", {}).get("val", 1))


def _mean(rows: Sequence[Metrics], weights: Sequence[int]) -> Metrics:
    """Return the weighted mean of each metric that all rows have; seconds are summed."""
    names = [name for name in rows[0] if all(name in row for row in rows)]
    means = {name: float(np.average([row[name] for row in rows], weights=weights)) for name in names}
    return means | ({"seconds": sum(row["seconds"] for row in rows)} if "seconds" in means else {})


def _facts(runs: Sequence[RunRecord]) -> dict[str, Any]:
    """Return the facts of the first fold, with the notes, the training sets and the validation examples of all folds."""
    first = runs[0].facts
    notes = dict.fromkeys(note for run in runs for note in run.facts.get("notes", ()))
    digests = [str((run.facts.get("check") or {}).get("train_digest")) for run in runs]
    joined = hashlib.sha256(" ".join(digests).encode()).hexdigest()[:16]
    facts = {name: value for name, value in first.items() if name != "split_digest"}
    facts |= {"notes": list(notes), "check": {**(first.get("check") or {}), "train_digest": joined}}
    facts["sizes"] = {**first.get("sizes", {}), "val": sum(map(_examples, runs))}
    counts = [run.facts.get("counts", {}).get("val") for run in runs]
    if all(counts):
        total = {label: sum(of_fold[label] for of_fold in counts) for label in counts[0]}
        facts["counts"] = {**first["counts"], "val": total}
    return facts
