"""Catalog of analyses by name, and saving and loading of their results."""

import dataclasses
import json
from importlib import import_module
from pathlib import Path

from attngraft.analysis.request import Analysis
from attngraft.errors import ConfigError, DataError, UsageError
from attngraft.files import write_atomically
from attngraft.opening import read_json
from attngraft.results.analysis import FORMAT, AnalysisResult
from attngraft.strict import read
from attngraft.suggest import did_you_mean

FOLDER = "analysis"  #: name of the folder of analysis results in a study or run folder

#: name of the analysis -> module that defines it as `ANALYSIS`, in the order in which analyses are listed
ANALYSES = {
    "entropy": "entropy",
    "entropy-maps": "entropy_maps",
    "entropy-samples": "entropy_samples",
    "distance": "distance",
    "scaling": "scaling",
    "gradients": "gradients",
    "class-token": "class_token",
    "curves": "curves",
    "confusion": "confusion",
    "gates": "gates",
    "cka": "similarity",
    "rollout": "rollout",
    "sides": "sides",
    "importance": "importance",
    "structure": "structure",
    "latents": "latents",
    "symmetry": "symmetry",
    "filters": "filters",
    "ghost": "ghost",
    "receptive-field": "receptive_field",
}


def analysis(name: str) -> Analysis:
    """Return the analysis with this name.

    Raises:
        UsageError: the name is unknown.
    """
    if name not in ANALYSES:
        raise UsageError(f"unknown analysis {name!r}{did_you_mean(name, ANALYSES)}; available: {', '.join(ANALYSES)}")
    found: Analysis = import_module(f"attngraft.analysis.{ANALYSES[name]}").ANALYSIS
    return found


def analyses() -> list[Analysis]:
    """Return all analyses."""
    return [analysis(name) for name in ANALYSES]


def save_analysis(result: AnalysisResult, folder: Path) -> Path:
    """Save a result to `<name>.json` and return the path.

    The result's other files are generated from this file.

    Raises:
        StorageError: the file cannot be written.
        DataError: a number is not finite.
    """
    try:
        text = json.dumps(dataclasses.asdict(result), allow_nan=False)  # escapes what is no text in names
    except ValueError:
        raise DataError(
            f"{result.name}: the results are not finite, as with damaged weights or preprocessing of the model; correct them"
        ) from None
    return write_atomically(folder / f"{result.name}.json", text + "\n")


def load_analysis(path: Path) -> AnalysisResult:
    """Read a result written by `save_analysis`.

    Raises:
        ConfigError: the file cannot be read, is damaged or has a newer format.
    """
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as an analysis result ({error}); repeat the analysis") from None
    if isinstance(content, dict) and isinstance(content.get("format"), int) and content["format"] > FORMAT:
        raise ConfigError(
            f"{path}: has format {content['format']}, but this version reads formats up to {FORMAT}; update attngraft"
        )
    return read(AnalysisResult, content, where=str(path))


def load_analyses(folder: Path) -> list[AnalysisResult]:
    """Return all results in a folder in catalog order, or an empty list if the folder does not exist."""
    order = {name: index for index, name in enumerate(ANALYSES)}
    results = [load_analysis(path) for path in sorted(folder.glob("*.json")) if not path.name.startswith(".")]
    return sorted(results, key=lambda each: (order.get(each.name, len(order)), each.name))
