"""Predictions under one condition as a .parquet: a row per example, and beside them what they were made from.

The file is written whole or not at all, so its being there with the same fingerprint means that the condition is done.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attngraft.errors import TrainingError
from attngraft.files import atomic_file
from attngraft.tasks.task import Evaluation

KEY = b"attngraft"  #: of our part of the file's metadata

Fingerprint = Mapping[str, Any]  #: JSON-ready: all that decides what the predictions are


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What is said of the predictions in a file."""

    metrics: dict[str, float]
    binary: bool  #: scores are 0 or 1
    examples: int
    said: list[str]  #: how the changes were made


def need_pyarrow() -> None:
    """
    Raises:
        TrainingError: pyarrow is not installed.
    """
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise TrainingError(
            "predictions of suites are kept as .parquet, which needs pyarrow: pip install 'attngraft[data]'"
        ) from None


def write_kept(
    path: Path,
    evaluation: Evaluation,
    columns: tuple[str, ...],
    *,
    noise_seed: int | None,
    fingerprint: Fingerprint,
    said: Iterable[str] = (),
    write: bool = True,
) -> Kept:
    """Write the columns name, those of the predictions' `columns`, score and noise_seed. One of several processes does."""
    found = evaluation.predictions
    kept = Kept(metrics=dict(evaluation.metrics), binary=found.binary, examples=len(found.names), said=list(said))
    if write:
        _write(path, evaluation, columns, kept, noise_seed=noise_seed, fingerprint=fingerprint)
    return kept


def _write(
    path: Path,
    evaluation: Evaluation,
    columns: tuple[str, ...],
    kept: Kept,
    *,
    noise_seed: int | None,
    fingerprint: Fingerprint,
) -> None:
    """

    Raises:
        StorageError: the file cannot be written.
    """
    import pyarrow as pa
    from pyarrow import parquet

    found, count = evaluation.predictions, kept.examples
    arrays: dict[str, Any] = {"name": pa.array([str(name) for name in found.names], pa.string())}
    for name in columns:
        values = found.arrays[name]
        arrays[name] = pa.array(values if values.ndim == 1 else list(values))
    arrays["score"] = pa.array(found.score)
    arrays["noise_seed"] = pa.array([noise_seed] * count, pa.int64())
    beside = json.dumps({"fingerprint": fingerprint, **dataclasses.asdict(kept)})
    table = pa.table(arrays).replace_schema_metadata({KEY: beside})
    with atomic_file(path) as file:
        parquet.write_table(table, file, compression="zstd")


def read_kept(path: Path, *, fingerprint: Fingerprint | None = None) -> Kept | None:
    """What the file says; None where it is not there, not whole, or, with a `fingerprint`, of something else."""
    if (said := _said(path)) is None:
        return None
    made = said.pop("fingerprint")
    if fingerprint is not None and made != json.loads(json.dumps(fingerprint)):
        return None
    try:
        return Kept(**said)
    except TypeError:
        return None


def made_from(path: Path) -> Fingerprint | None:
    """What the predictions in a file were made from; None where it is not there or not whole."""
    said = _said(path)
    found: Fingerprint | None = None if said is None else said["fingerprint"]
    return found


def _said(path: Path) -> dict[str, Any] | None:
    from pyarrow import ArrowException, parquet

    try:
        said = json.loads((parquet.read_schema(path).metadata or {})[KEY])
    except (OSError, ValueError, KeyError, ArrowException):
        return None
    return said if isinstance(said, dict) and "fingerprint" in said else None


def read_columns(path: Path, only: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """The columns of a file that `write_kept` wrote, all or some.

    Raises:
        TrainingError: it cannot be read.
    """
    from pyarrow import ArrowException, parquet

    try:
        table = parquet.read_table(path, columns=None if only is None else list(only))
    except (OSError, ValueError, ArrowException) as error:
        raise TrainingError(f"{path}: cannot be read ({error}); delete it and repeat the command") from None
    return {
        name: np.array(table[name].to_pylist()) if str(table[name].type) == "string" else _numbers(table[name])
        for name in table.column_names
    }


def _numbers(column: Any) -> np.ndarray:
    values = column.to_pylist() if str(column.type).startswith("list") else column.to_numpy()
    return np.array(values)
