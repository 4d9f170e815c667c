"""What successive halving decided: kept in halving.json, and said in words."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from attngraft.errors import ConfigError
from attngraft.results.study import HalvingResult

HALVING_FILE = "halving.json"


def read_halving(out: Path) -> HalvingResult | None:
    """What was decided so far in the study in `out`; None where nothing was halved.

    Raises:
        ConfigError: the file is damaged.
    """
    from attngraft.strict import read

    path = out / HALVING_FILE
    if not path.is_file():
        return None
    remedy = "delete it, and halving decides anew"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}; {remedy}") from None
    result = read(HalvingResult, content, where=str(path))
    strange = [each.epoch for each in result.standings if each.epoch not in result.rungs]
    if strange:
        raise ConfigError(f"{path}: epoch {strange[0]} is none of the rungs {result.rungs}; {remedy}")
    return result


def outcome_of(out: Path, unfinished: Collection[str]) -> HalvingResult | None:
    """What a result says of halving.

    Args:
        out: the study's folder.
        unfinished: the variants with a run that has not come to its end.
    """
    halving = read_halving(out)
    if halving is None:
        return None
    going = {each.variant for each in halving.standings if each.promoted and each.epoch == halving.rungs[-1]}
    last = {each.variant: each.epoch for each in sorted(halving.standings, key=lambda each: each.epoch)}
    stopped = {name: epoch for name, epoch in last.items() if name in unfinished and name not in going}
    lost = {each.variant for each in halving.lost}
    return replace(halving, stopped={name: epoch for name, epoch in stopped.items() if name not in lost})


def place_of(halving: HalvingResult, name: str, epoch: int) -> tuple[int, int]:
    """The place of a variant among all that came to a rung, and how many those are."""
    scores = {each.variant: each.score for each in halving.standings if each.epoch == epoch}
    own, numbers = scores[name], [score for score in scores.values() if score is not None]
    if own is None:
        return len(numbers) + 1, len(scores)
    return 1 + sum(score > own if halving.higher_is_better else score < own for score in numbers), len(scores)


def in_words(halving: HalvingResult) -> list[str]:
    """What a reader must know of it."""
    epochs = _listed([str(rung) for rung in halving.rungs])
    notes = [
        f"Asynchronous successive halving was used: after epoch {epochs} of {halving.epochs}, only about one in "
        f"{halving.eta} variants went on, by the mean of {halving.metric} over seeds; the baseline always went on."
    ]
    for epoch in halving.rungs:
        stopped = [_standing(halving, name, epoch) for name, last in halving.stopped.items() if last == epoch]
        if stopped:
            notes.append(f"Stopped after epoch {epoch}: {_listed(stopped)}.")
    if halving.stopped:
        notes.append(
            "Only variants that went to the end are compared, and their p-values are corrected over all of them, the "
            "stopped ones too; one that was stopped might have caught up. The same command with --halving off continues "
            "them."
        )
    notes.append(
        "Halving chose the survivors by the validation examples that they are compared on, which favours them: confirm a "
        "difference with other seeds."
    )
    return notes


def _standing(halving: HalvingResult, name: str, epoch: int) -> str:
    place, count = place_of(halving, name, epoch)
    score = next(each.score for each in halving.standings if (each.variant, each.epoch) == (name, epoch))
    return f"{name} ({'not a number' if score is None else f'{score:.4g}'}, place {place} of {count})"


def _listed(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
