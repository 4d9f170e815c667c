"""What a reader must know of what the runs of a study started from, and of what they trained."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from statistics import fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attngraft.training.run_folder import RunRecord

_TRAINED = {
    "grafts+head": "Only what was grafted and the head are trained: the baseline trains its head alone.",
    "head": "Only the head is trained: a graft's own parameters stay as they begin.",
}


def start_notes(
    records: Mapping[str, Mapping[int, RunRecord]], metric: str, *, others: Collection[str] = ()
) -> list[str]:
    """Notes on the finished runs, by variant and seed: the weights that they start from, whether these are the same, what
    each variant scores with them before training (where the head is theirs, too), whom they learn from, and what is
    trained. Of the `others`, which stand on hosts of their own, the weights are left out."""
    every = [record for by_seed in records.values() for record in by_seed.values()]
    own = {name: by_seed for name, by_seed in records.items() if name not in others}
    of_host = [record for by_seed in own.values() for record in by_seed.values()]
    notes = []
    origins = sorted({record.start["from"] for record in of_host if record.start})
    if origins:
        notes.append(f"The host starts from {' or '.join(origins)}.")
    if not same_weights(of_host):
        notes.append(
            "The runs do not all start from the same weights (the file was changed in between), so part of a difference "
            "may come from there."
        )
    notes += _teachers(every)
    if before := _before(own, f"val/{metric}"):
        notes.append(f"Before training, {metric} is {before}: what a graft takes from the host at the start.")
    if every and (trained := _TRAINED.get(every[0].recipe.train.parameters)):
        notes.append(trained)
    return notes


def same_weights(runs: Iterable[RunRecord]) -> bool:
    """Whether the runs, all of one host, start from one file, or all from none."""
    return len({(run.start.get("from") is not None, run.start.get("sha256")) for run in runs}) <= 1


def _teachers(every: list[RunRecord]) -> list[str]:
    """Whom the runs learned from, what that one scores, and whether it was the same for all."""
    taught = {record.teacher["sha256"]: record.teacher for record in every if record.teacher}
    notes = []
    for teacher in taught.values():
        scores = [f"{name} {value:.4g}" for name, value in list(teacher.get("metrics", {}).items())[:1]]
        known = "; ".join([teacher["from"], *scores])
        notes.append(f"The runs learn from a teacher besides the labels: {teacher['name']} ({known}).")
    if len(taught) > 1 or (taught and not all(record.teacher for record in every)):
        notes.append(
            "The runs do not all have the same teacher (its weights were changed in between), so part of a difference may "
            "come from there."
        )
    return notes


def _before(records: Mapping[str, Mapping[int, RunRecord]], name: str) -> str:
    """Each variant's mean over seeds before training."""
    found = []
    for variant, by_seed in records.items():
        values = [record.start["metrics"][name] for record in by_seed.values() if "metrics" in record.start]
        if values:
            found.append(f"{fmean(values):.4g} ({variant})")
    return ", ".join(found)
