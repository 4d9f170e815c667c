"""A study's result as files: results.json, which is read back, and results.csv."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from attngraft.errors import ConfigError
from attngraft.files import write_atomically
from attngraft.results.csv_tables import csv_text, suites_csv
from attngraft.results.study import FORMAT, StudyResult, VariantResult

RESULT_FILE = "results.json"
TABLE_FILE = "results.csv"
SUITES_FILE = "suites.csv"


def save_result(result: StudyResult, folder: Path) -> None:
    """Write results.json and results.csv; suites.csv where there are suites."""
    write_atomically(folder / RESULT_FILE, json.dumps(result_to_dict(result), indent=2) + "\n")
    write_atomically(folder / TABLE_FILE, csv_text(result))
    if result.suites:
        write_atomically(folder / SUITES_FILE, suites_csv(result))
    else:
        (folder / SUITES_FILE).unlink(missing_ok=True)


def result_to_dict(result: StudyResult) -> dict[str, Any]:
    """What results.json holds; without the field of suites where there are none."""
    plain = dataclasses.asdict(result)
    if not result.suites:
        del plain["suites"]
    return plain


def load_result(path: Path | str) -> StudyResult:
    """The result in `path`, a results.json or the folder of a study.

    Raises:
        ConfigError: there is none, it is damaged, or a newer version wrote it.
    """
    from attngraft.strict import read

    path = Path(path) / RESULT_FILE if Path(path).is_dir() else Path(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as a study's result: {error}") from None
    if isinstance(content, dict) and isinstance(content.get("format"), int) and content["format"] > FORMAT:
        raise ConfigError(
            f"{path}: has format {content['format']}, this version reads up to {FORMAT}; update attngraft"
        )
    result = read(StudyResult, content, where=str(path))
    return dataclasses.replace(result, variants=[_with_whole_seeds(variant) for variant in result.variants])


def _with_whole_seeds(variant: VariantResult) -> VariantResult:
    """JSON turns the seeds of `by_seed` into text; this turns them back."""
    reached = variant.epochs_to_baseline
    if reached is None:
        return variant
    by_seed = {int(seed): epoch for seed, epoch in reached.by_seed.items()}
    return dataclasses.replace(variant, epochs_to_baseline=dataclasses.replace(reached, by_seed=by_seed))
