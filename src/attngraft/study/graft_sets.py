"""Expansion of the graft sets of a study (`shortlist`, `all`) to one variant per graft."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from attngraft.errors import HostError, UsageError
from attngraft.grafting.sets import graft_set
from attngraft.study.checks import host_on_meta
from attngraft.study.config import STUDY_FILE, StudyConfig, read_study_file, study_from_dict
from attngraft.study.plan import run_folder
from attngraft.study.variants import Variant, refuse_repeated
from attngraft.training.recipe import Recipe
from attngraft.training.run_folder import RunFolder


def with_expanded_sets(config: StudyConfig, *, build: bool = True) -> StudyConfig:
    """Return `config` with a variant for each graft of a set that fits the set's host.

    Grafts that are variants already are omitted. Once a run of the study has started, a set keeps the grafts that it had
    then, even if a later release changes it.

    Args:
        config: of the study.
        build: whether to build the hosts of new sets, on the meta device.

    Raises:
        UsageError: no graft of a set fits the host, there is a new set without `build`, or two variants would have the same
            name.
        ConfigError, HostError: a host is unknown or does not accept its arguments.
    """
    sets = [variant for variant in config.variants if variant.is_set]
    if not (sets or build):
        return config
    known = _started_sets(config)
    new = [variant for variant in sets if variant.key not in known]
    if new and not build:
        raise UsageError(
            f"--report-only: {config.out} contains no study of {new[0].key}; omit --graft to report on the runs that it "
            "contains"
        )
    recipe_of = config.recipes()
    specs = {
        **known,
        **{each.key: _fitting(each, recipe_of(each, config.seeds[0], config.fold_numbers[0])) for each in new},
    }
    keys = {variant.key for variant in config.variants}
    variants: list[Variant] = []
    for variant in config.variants:
        if not variant.is_set:
            variants.append(variant)
            continue
        found = [variant.with_graft(spec) for spec in specs[variant.key]]
        variants += [each for each in found if each.key not in keys]
        keys.update(each.key for each in found)
    refuse_repeated(variants)
    return replace(config, variants=tuple(variants), graft_sets=specs)


def _started_sets(config: StudyConfig) -> Mapping[str, Sequence[str]]:
    """Return the sets of the study in the folder `config.out`, if any of its runs has started."""
    file = config.out / STUDY_FILE
    if not file.is_file():
        return {}
    before = study_from_dict(read_study_file(file), source=str(file))
    runs = itertools.product(before.variants, before.all_seeds, before.fold_numbers)
    folders = (run_folder(config.out, *run) for run in runs)
    return before.graft_sets if any(RunFolder(folder).recipe.is_file() for folder in folders) else {}


def _fitting(variant: Variant, recipe: Recipe) -> list[str]:
    """Return the specifications of the set that `variant` stands for."""
    host, trained = host_on_meta(recipe), recipe.host.pretrained or recipe.host.weights is not None
    try:
        return graft_set(host, variant.spec, pretrained=trained)
    except HostError as error:
        raise UsageError(f"--graft {variant.name}: {error}") from error
