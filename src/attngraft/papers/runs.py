"""Finished runs for a paper's table: model, graft, metrics of the last epoch, and results of suites."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attngraft.errors import UsageError
from attngraft.evaluation.suites.catalog import suites
from attngraft.evaluation.suites.result import read_suite_run
from attngraft.grafting.spec import parse
from attngraft.papers.schema import PaperRow, PaperTable
from attngraft.training.evaluate import EVALUATIONS
from attngraft.training.run_folder import read_run

#: arguments ignored when matching rows, because they follow from the data or only affect training
_IGNORED = {"num_classes", "in_chans", "categories", "drop_rate", "drop_path_rate", "attn_drop_rate", "proj_drop_rate"}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One finished run."""

    folder: str
    host: str
    args: Mapping[str, Any]
    spec: str  #: canonical graft specification
    data: str  #: training data
    distilled: bool = False  #: whether it was trained with a teacher
    metrics: Mapping[str, float]  #: metrics as compared by a study (`val/top1`), and of suites (`v2/v2/top1`)


def find_runs(folder: Path) -> list[Run]:
    """Return all finished runs in `folder` (a run, a study, or a folder of several) and its subfolders.

    Raises:
        UsageError: the folder does not exist or contains no finished run.
    """
    if not folder.is_dir():
        raise UsageError(f"--runs {folder}: no such folder; use the folder of a run or a study")
    runs = [run for recipe in sorted(folder.rglob("recipe.yaml")) if (run := _read(recipe.parent)) is not None]
    if not runs:
        raise UsageError(f"--runs {folder}: contains no finished run (a folder with recipe.yaml and finished.json)")
    return runs


def matching(runs: Iterable[Run], table: PaperTable, row: PaperRow, aliases: Mapping[str, Sequence[str]]) -> list[Run]:
    """Return the runs with a row's model and graft, and with or without a teacher as the table requires."""
    model = table.model_of(row)
    names = {model, *aliases.get(model or "", ())}
    teachers = {False, True} if table.distilled is None else {table.distilled}
    key = (str(parse(row.graft)), _essential(row.args))
    return [
        run
        for run in runs
        if run.host in names and (run.spec, _essential(run.args)) == key and run.distilled in teachers
    ]


def _essential(args: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in args.items() if name not in _IGNORED}


def _read(folder: Path) -> Run | None:
    """Read the run in `folder`; None if it is not finished."""
    record = read_run(folder)
    if not record.finished:
        return None
    recipe = record.recipe
    compared = {} if record.judged is None else record.judged.compared()
    return Run(
        folder=str(folder),
        host=recipe.host.name.removeprefix("attngraft:").removeprefix("timm:"),
        args=recipe.host.args,
        spec=str(parse(recipe.graft)),
        data=str(recipe.task.get("data", {}).get("source", "unknown data")),
        distilled=recipe.distill is not None,
        metrics=record.epochs[-1]
        | {f"val/{name}": value for name, value in compared.items()}
        | _suite_metrics(folder / EVALUATIONS / recipe.train.judge),
    )


def _suite_metrics(evaluations: Path) -> dict[str, float]:
    """Return the metrics of a run's suites, averaged over noise seeds, as `suite/condition/metric`.

    Only results on all validation images or on a test set are included.
    """
    found: dict[str, float] = {}
    for name, suite in suites().items() if evaluations.is_dir() else ():
        folders = [evaluations / name] if not suite.test_set else evaluations.glob(f"{name}--*")
        results = [result for folder in folders if (result := read_suite_run(folder)) is not None]
        for group in [group for result in results for group in result.groups]:
            found |= {f"{name}/{group.name}/{metric}": value.mean for metric, value in group.metrics.items()}
    return found
