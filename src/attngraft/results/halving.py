"""Outcome of successive halving: the decisions in halving.json, ranks, and notes for the report."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from attngraft.errors import ConfigError
from attngraft.opening import read_json
from attngraft.results.study import HalvingResult
from attngraft.results.wording import listed
from attngraft.strict import read

HALVING_FILE = "halving.json"


def read_halving(out: Path) -> HalvingResult | None:
    """Read the decisions made so far for the study in `out`; None if there is no halving.json.

    Raises:
        ConfigError: the file is damaged.
    """
    path = out / HALVING_FILE
    if not path.is_file():
        return None
    remedy = "delete the file to repeat the decisions"
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}; {remedy}") from None
    result = read(HalvingResult, content, where=str(path))
    unknown = [each.epoch for each in result.standings if each.epoch not in result.rungs]
    if unknown:
        raise ConfigError(f"{path}: epoch {unknown[0]} is not among the rungs {result.rungs}; {remedy}")
    return result


def halving_outcome(out: Path, unfinished: Collection[str]) -> HalvingResult | None:
    """Return the decisions, including the variants that were stopped; None if there is no halving.json.

    Args:
        out: folder of the study.
        unfinished: names of the variants with an unfinished run.
    """
    halving = read_halving(out)
    if halving is None:
        return None
    last = {each.variant: each.epoch for each in sorted(halving.standings, key=lambda each: each.epoch)}
    promoted = {each.variant for each in halving.standings if each.promoted and each.epoch == halving.rungs[-1]}
    not_stopped = promoted | {each.variant for each in halving.lost}
    stopped = {name: epoch for name, epoch in last.items() if name in unfinished and name not in not_stopped}
    return replace(halving, stopped=stopped)


def rank_at(halving: HalvingResult, name: str, epoch: int) -> tuple[int, int]:
    """Return a variant's rank at the rung of `epoch`, and the number of variants that reached this rung."""
    scores = {each.variant: each.score for each in halving.standings if each.epoch == epoch}
    score, numbers = scores[name], [score for score in scores.values() if score is not None]
    if score is None:
        return len(numbers) + 1, len(scores)
    return 1 + sum(other > score if halving.higher_is_better else other < score for other in numbers), len(scores)


def halving_notes(halving: HalvingResult, *, judged_split: str = "val") -> list[str]:
    """Return the report's notes on halving; `judged_split` is the split on which variants are compared."""
    notes = [
        f"Asynchronous successive halving was used: after epoch {listed([str(rung) for rung in halving.rungs])} of "
        f"{halving.epochs}, only about one in {halving.eta} variants was continued, by the mean of {halving.metric} over "
        "seeds; the baseline was always continued."
    ]
    for epoch in halving.rungs:
        stopped = []
        for name in (name for name, last in halving.stopped.items() if last == epoch):
            rank, count = rank_at(halving, name, epoch)
            score = next(each.score for each in halving.standings if (each.variant, each.epoch) == (name, epoch))
            stopped.append(f"{name} ({'not a number' if score is None else f'{score:.4g}'}, rank {rank} of {count})")
        if stopped:
            notes.append(f"Stopped after epoch {epoch}: {listed(stopped)}.")
    if halving.stopped:
        notes.append(
            "Only variants trained to the last epoch are compared; their p-values are corrected over all variants, "
            "including the stopped ones, which might have caught up. Rerun the same command with --halving off to "
            "continue them."
        )
    if judged_split == "val":
        notes.append(
            "Halving selected variants on the validation examples that they are compared on, which favors the selected "
            "ones: confirm a difference with other seeds."
        )
    return notes
