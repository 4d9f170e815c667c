"""Batches that are larger than the training split are cut to it.

The cut depends only on the recipe, the number of training examples and the number of processes. A run records it, so that
it resumes with the same batches, also if examples were added since.
"""

from dataclasses import replace

from attngraft.tasks.task import Split
from attngraft.training.recipe import Recipe

#: changed fields -> their values before and after
Cut = dict[str, list[int | None]]


def fit_sizes(recipe: Recipe, split: Split, *, world: int = 1) -> Recipe:
    """Return `recipe` with batches no larger than an epoch of `split`, in whole micro-batches of all processes.

    Evaluation batches keep their size. With fewer examples than micro-batches, `train.accumulate` becomes the number of
    examples of a process. Stages with a task of their own are only cut to whole micro-batches, because they may have other
    examples.
    """
    train, examples = recipe.train, epoch_length(split, seed=recipe.seed)
    largest = max(train.batch_size, *(stage.batch_size or 0 for stage in recipe.stages), 0)
    if largest <= examples or split.batches(seed=recipe.seed, epoch=0) is not None:
        return recipe
    accumulate = max(min(train.accumulate, examples // world), 1)
    parts = accumulate * world

    def fitted(size: int, limit: int) -> int:
        size = fit_batch(size, limit, parts=parts)
        return size if accumulate == train.accumulate else max(size // parts, 1) * parts

    stages = tuple(
        replace(stage, batch_size=fitted(stage.batch_size, stage.batch_size if stage.task else examples))
        if stage.batch_size is not None
        else stage
        for stage in recipe.stages
    )
    changed = replace(
        train,
        batch_size=fitted(train.batch_size, examples),
        accumulate=accumulate,
        eval_batch_size=train.eval_batch_size or train.batch_size // train.accumulate,
    )
    return replace(recipe, train=changed, stages=stages)


def fit_batch(size: int, examples: int, *, parts: int) -> int:
    """Return `size`, or, if it is more than `examples`, the largest multiple of `parts` that is not."""
    return size if size <= examples else max(examples // parts, 1) * parts


def epoch_length(split: Split, *, seed: int) -> int:
    """Return the number of examples in a training epoch, which sampling may change."""
    order = split.order(seed=seed, epoch=0)
    return len(split) if order is None else len(order)


def sizes(recipe: Recipe) -> dict[str, int | None]:
    """Return the sizes that `fit_sizes` may change, by their dotted fields."""
    train = {f"train.{name}": getattr(recipe.train, name) for name in ("batch_size", "accumulate", "eval_batch_size")}
    return train | {f"stages.{stage.name}.batch_size": stage.batch_size for stage in recipe.stages}


def cut_between(recipe: Recipe, fitted: Recipe) -> Cut:
    """Return the sizes of `recipe` that differ in `fitted`."""
    before = sizes(recipe)
    return {name: [before[name], size] for name, size in sizes(fitted).items() if size != before[name]}


def with_cut(recipe: Recipe, cut: Cut) -> Recipe:
    """Return `recipe` with a recorded cut of its sizes, or unchanged if its sizes are others than those that were cut."""
    given = sizes(recipe)
    if not cut or any(given.get(name) != before for name, (before, _) in cut.items()):
        return recipe
    after = given | {name: size for name, (_, size) in cut.items()}
    train = {name: after[f"train.{name}"] for name in ("batch_size", "accumulate", "eval_batch_size")}
    stages = tuple(replace(stage, batch_size=after[f"stages.{stage.name}.batch_size"]) for stage in recipe.stages)
    return replace(recipe, train=replace(recipe.train, **train), stages=stages)  # type: ignore[arg-type]


def cut_note(cut: Cut) -> str:
    """Return a sentence on the batches that were cut, for the log and the report; empty if none was."""
    batches = [
        f"{name} {f'from {before} ' if before else ''}to {after}"
        for name, (before, after) in cut.items()
        if "eval_" not in name
    ]
    return f"Cut to the number of training examples: {', '.join(batches)}." if batches else ""
