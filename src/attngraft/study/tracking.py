"""Summary of a study in experiment trackers."""

from attngraft.results.storage import csv_rows
from attngraft.results.study import StudyResult
from attngraft.study.config import StudyConfig
from attngraft.training.run_folder import TRACKERS_FILE
from attngraft.training.tracking import Tracking

_VERDICTS = {"better": 1, "inside the noise": 0, "worse": -1}


def track_result(names: tuple[str, ...], result: StudyResult, config: StudyConfig) -> None:
    """Log the numbers of results.csv to the trackers `names`, as one run `<study>/summary` with keys `variant/column`.

    A study with new results continues that run. Verdicts are numbers: 1 better, 0 inside the noise, -1 worse.
    """
    slugs = {variant.name: variant.slug for variant in config.variants}
    values = {}
    for row in csv_rows(result):
        for name, value in row.items():
            number = _VERDICTS.get(str(value)) if name == "verdict" else value
            if isinstance(number, int | float) and not isinstance(number, bool):
                values[f"{slugs[str(row['variant'])]}/{name}"] = float(number)
    out = config.out.resolve()
    facts = {"title": result.title, "metric": result.metric, "variants": {slugs[each]: each for each in slugs}}
    label = f"{out.name}/summary"
    with Tracking(names, file=out / TRACKERS_FILE, label=label, config=facts | {"folder": str(out)}) as tracking:
        tracking.log_result(values)
