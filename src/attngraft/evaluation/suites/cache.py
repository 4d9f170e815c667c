"""Cached predictions under one condition: a .parquet file with one row per example.

Its metadata contains a fingerprint. The file is written atomically, so a file with the expected fingerprint means that the
condition is finished. When a suite is finished, `checksums.json` in its folder has the size and SHA-256 of each file.
"""

import dataclasses
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attngraft.checksums import FILE as CHECKSUMS_FILE
from attngraft.checksums import Checksums, folder_checksums, write_checksums
from attngraft.errors import ConfigError, TrainingError, UsageError
from attngraft.files import atomic_file
from attngraft.opening import parse_json
from attngraft.strict import are_numbers, read
from attngraft.tasks.task import Evaluation

# pyarrow is an optional dependency, imported in the functions that need it

log = logging.getLogger(__name__)

KEY = b"attngraft"  #: attngraft's key in the file's metadata

_REMEDY = "rerun attngraft eval or compare with the suite, which makes it again"

Fingerprint = Mapping[str, Any]  #: everything that determines the predictions, as JSON values


@dataclass(frozen=True, kw_only=True)
class CachedPredictions:
    """Metadata of a predictions file; the field names are the keys in its JSON."""

    metrics: dict[str, float]
    binary: bool  #: whether scores are 0 or 1
    examples: int
    said: list[str]  #: remarks on how the examples were changed


def require_pyarrow() -> None:
    """Check that pyarrow is installed.

    Raises:
        UsageError: pyarrow is not installed.
    """
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise UsageError(
            "suites store predictions as .parquet, which requires pyarrow; run pip install 'attngraft[data]'"
        ) from None


def cache_predictions(
    path: Path,
    evaluation: Evaluation,
    columns: tuple[str, ...],
    *,
    noise_seed: int | None,
    fingerprint: Fingerprint,
    remarks: Iterable[str] = (),
    write: bool = True,
) -> CachedPredictions:
    """Save predictions to `path` if `write` is true, and return their metadata in any case.

    The columns are `name`, the arrays named in `columns`, `score` (if the predictions have scores) and `noise_seed`.

    Raises:
        StorageError: the file cannot be written.
    """
    predictions = evaluation.predictions
    cached = CachedPredictions(
        metrics=dict(evaluation.metrics),
        binary=predictions.binary,
        examples=len(predictions.names),
        said=list(remarks),
    )
    if not write:
        return cached
    import pyarrow as pa
    from pyarrow import parquet

    arrays: dict[str, Any] = {"name": pa.array([str(name) for name in predictions.names], pa.string())}
    for name in columns:
        values = predictions.arrays[name]
        arrays[name] = pa.array(values if isinstance(values, np.ndarray) and values.ndim == 1 else list(values))
    if predictions.score is not None:
        arrays["score"] = pa.array(predictions.score)
    arrays["noise_seed"] = pa.array([noise_seed] * cached.examples, pa.int64())
    metadata = json.dumps({"fingerprint": fingerprint, **dataclasses.asdict(cached)})
    table = pa.table(arrays).replace_schema_metadata({KEY: metadata})
    with atomic_file(path) as file:
        parquet.write_table(table, file, compression="zstd")
    return cached


def read_cached(path: Path, *, fingerprint: Fingerprint | None = None) -> CachedPredictions | None:
    """Read a file's metadata; None if it is missing, damaged, or has a different fingerprint."""
    if (metadata := _metadata(path)) is None:
        return None
    written = metadata.pop("fingerprint")
    if fingerprint is not None and written != json.loads(json.dumps(fingerprint)):
        return None
    metrics = metadata.pop("metrics", None)
    try:
        cached = read(CachedPredictions, {**metadata, "metrics": {}}, where=str(path))
    except ConfigError:
        return None
    return dataclasses.replace(cached, metrics=metrics) if are_numbers(metrics) else None


def read_fingerprint(path: Path) -> Fingerprint | None:
    """Read a file's fingerprint; None if the file is missing or damaged."""
    metadata = _metadata(path)
    found: Fingerprint | None = None if metadata is None else metadata["fingerprint"]
    return found


def _metadata(path: Path) -> dict[str, Any] | None:
    from pyarrow import ArrowException, parquet

    try:
        metadata = parse_json((parquet.read_schema(path).metadata or {})[KEY])
    except (OSError, ValueError, KeyError, ArrowException):
        return None
    return metadata if isinstance(metadata, dict) and "fingerprint" in metadata else None


def read_columns(path: Path, only: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Read the columns of a file written by `cache_predictions`; with `only`, skip all others.

    Raises:
        ConfigError: the checksums are damaged.
        TrainingError: the file is damaged or cannot be read.
    """
    from pyarrow import ArrowException, parquet

    if damage := suite_checksums(path.parent).damage(path):
        raise TrainingError(f"{path}: damaged since it was written ({damage}); {_REMEDY}")
    try:
        names = parquet.read_schema(path).names
        table = parquet.read_table(path, columns=[name for name in names if only is None or name in only])
    except (OSError, ValueError, ArrowException) as error:
        raise TrainingError(f"{path}: cannot be read ({error}); delete the file and rerun the command") from None
    columns = {}
    for name in table.column_names:
        kind = str(table[name].type)
        listed = kind == "string" or kind.startswith("list")
        columns[name] = np.array(table[name].to_pylist() if listed else table[name].to_numpy())
    return columns


def suite_checksums(folder: Path) -> Checksums:
    """Return the checksums of the files in a suite's folder; empty if it is not finished or from an earlier version.

    Raises:
        ConfigError: checksums.json is damaged.
    """
    return folder_checksums(folder, error=ConfigError, remedy=_REMEDY)


def write_suite_checksums(folder: Path, results: str) -> None:
    """Write the checksums of a suite's predictions and of its file of results.

    Raises:
        StorageError: the file cannot be written.
    """
    files = [*folder.glob("*.parquet"), folder / results]
    write_checksums(folder / CHECKSUMS_FILE, [path for path in files if path.is_file()])


def remove_damaged(folder: Path) -> None:
    """Remove damaged predictions from a suite's folder, and all of them if the checksums are damaged."""
    try:
        damaged = suite_checksums(folder).damaged()
    except ConfigError as error:
        damaged = dict.fromkeys([folder / CHECKSUMS_FILE, *folder.glob("*.parquet")], str(error))
    for path, damage in damaged.items():
        log.warning("%s: damaged (%s); it is made again", path, damage)
        path.unlink(missing_ok=True)
