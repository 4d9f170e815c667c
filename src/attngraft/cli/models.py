"""Models and images selected by command line options."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from attngraft.cli.values import assignments, find_images
from attngraft.errors import UsageError

if TYPE_CHECKING:
    from attngraft.targets.clouds import CloudHandle
    from attngraft.targets.handle import ModelHandle
    from attngraft.targets.images import ImageSet
    from attngraft.targets.judged import HostOptions
    from attngraft.targets.texts import TextHandle
    from attngraft.training.evaluate import Weights


def open_models(
    models: Sequence[str],
    *,
    names: Sequence[str] = (),
    weights: Weights = "last",
    host: HostOptions | None = None,
    trust_code: bool = False,
    purpose: str = "analyses",
) -> tuple[ModelHandle, ...]:
    """Open runs, exported folders, hosts and weights files.

    The options `host` apply to hosts and, in part, to weights files; see `options_of_each`. `purpose` is the capability that
    the task of every run must have.

    Raises:
        UsageError: more names than models, two models with the same name, or `--host-weights` for several hosts.
    """
    from attngraft.targets.handle import open_handle

    given = _with_names(models, names)
    options = options_of_each(models, host)
    handles = tuple(
        open_handle(model, name=name, weights=weights, host=own, trust_code=trust_code, purpose=purpose)
        for (model, name), own in zip(given, options, strict=True)
    )
    _refuse_equal_names([handle.name for handle in handles])
    return handles


def open_text_models(
    models: Sequence[str],
    *,
    names: Sequence[str] = (),
    captions: bool = False,
    weights: Weights = "last",
    trust_code: bool = False,
) -> tuple[TextHandle, ...]:
    """Open runs and exported folders whose models take texts, or with `captions` caption images.

    Raises:
        UsageError: more names than models, two models with the same name, or a model is of another kind.
    """
    from attngraft.targets.texts import open_text_handle

    handles = tuple(
        open_text_handle(model, name=name, captions=captions, weights=weights, trust_code=trust_code)
        for model, name in _with_names(models, names)
    )
    _refuse_equal_names([handle.name for handle in handles])
    return handles


def open_cloud_models(
    models: Sequence[str], *, names: Sequence[str] = (), weights: Weights = "last", trust_code: bool = False
) -> tuple[CloudHandle, ...]:
    """Open runs and exported folders whose models take point clouds.

    Raises:
        UsageError: more names than models, two models with the same name, or a model does not take point clouds.
    """
    from attngraft.targets.clouds import open_cloud_handle

    handles = tuple(
        open_cloud_handle(model, name=name, weights=weights, trust_code=trust_code)
        for model, name in _with_names(models, names)
    )
    _refuse_equal_names([handle.name for handle in handles])
    return handles


def _with_names(models: Sequence[str], names: Sequence[str]) -> list[tuple[str, str | None]]:
    """Return each model with its name from `--name`, or None."""
    if len(names) > len(models):
        raise UsageError(
            f"{len(names)} --name for {len(models)} --model; give at most one --name per --model, in order"
        )
    return list(zip_longest(models, names))


def _refuse_equal_names(shown: Sequence[str]) -> None:
    for name in shown:
        if shown.count(name) > 1:
            raise UsageError(f"two models are called {name!r}; add --name once per model, in order")


def options_of_each(models: Sequence[str], given: HostOptions | None) -> list[HostOptions]:
    """Return the host options of each model: all for hosts, only arguments for weights files, none for others.

    Raises:
        UsageError: `--host-weights` for several hosts, or a model that does not exist.
    """
    from attngraft.targets.judged import HostOptions, kind_of

    options, kinds = given or HostOptions(), [kind_of(model) for model in models]
    if options.weights is not None and kinds.count("host") != 1:
        raise UsageError(
            f"--host-weights {options.weights} is for one host, and the models include {kinds.count('host')}; give files "
            "that name their host instead (attngraft convert FILE OUT.safetensors --host MODEL)"
        )
    arguments = HostOptions(arguments=options.arguments)
    return [{"host": options, "weights": arguments}.get(kind, HostOptions()) for kind in kinds]


def host_options(pretrained: bool, weights: Path | None, host_arg: Sequence[str] | None) -> HostOptions:
    """Return the options `--pretrained`, `--host-weights` and `--host-arg`."""
    from attngraft.targets.judged import HostOptions

    arguments = assignments(host_arg or [], option="--host-arg")
    return HostOptions(pretrained=pretrained, weights=weights, arguments=arguments)


def models_of_study(
    folder: Path,
    *,
    variants: Sequence[str] = (),
    seed: int | None = None,
    weights: Weights = "last",
    trust_code: bool = False,
) -> tuple[tuple[ModelHandle, ...], int | None, dict[str, str]]:
    """Open one run of each variant of a study, or of the named variants.

    Returns the models, the index of the baseline among them (None if not included), and the reasons for missing variants,
    by name.

    Raises:
        UsageError: the folder contains no study, the study has no such variant, or no run with this seed is finished.
    """
    from attngraft.study.config import STUDY_FILE, read_study_file, study_from_dict
    from attngraft.study.plan import finished_runs
    from attngraft.suggest import did_you_mean
    from attngraft.targets.handle import open_handle

    file = folder / STUDY_FILE
    if not file.is_file():
        raise UsageError(f"--study {folder}: no study ({STUDY_FILE} is missing); pass the folder that compare wrote")
    config = dataclasses.replace(study_from_dict(read_study_file(file), source=str(file)), out=folder)
    chosen = config.seeds[0] if seed is None else seed
    known = [variant.name for variant in config.variants]
    for name in variants:
        if name not in known:
            raise UsageError(
                f"--variant {name}: not in this study{did_you_mean(name, known)}; variants: {', '.join(known)}"
            )
    finished = {name: each for name, each in finished_runs(config).items() if not variants or name in variants}
    runs = {name: by_seed[chosen].folder for name, by_seed in finished.items() if chosen in by_seed}
    left_out = {
        name: f"its run with seed {chosen} is not finished" + (f"; use --seed {next(iter(by_seed))}" if by_seed else "")
        for name, by_seed in finished.items()
        if name not in runs
    }
    if not runs:
        raise UsageError(
            f"--study {folder}: no run with seed {chosen} is finished; choose another seed of the study with --seed "
            f"({', '.join(map(str, config.seeds))}), or rerun attngraft compare to finish it"
        )
    handles = tuple(
        open_handle(str(path), name=name, weights=weights, trust_code=trust_code) for name, path in runs.items()
    )
    return handles, list(runs).index(config.baseline.name) if config.baseline.name in runs else None, left_out


def images_for(
    handles: Sequence[ModelHandle], *, images: Sequence[str], data: str | None, split: str | None
) -> ImageSet | None:
    """Return the images of the files `images`, else of `data`, else of the first run's validation split, else None."""
    from attngraft.targets.images import images_from_data, images_from_files, images_from_run

    if images:
        if data is not None or split is not None:
            raise UsageError("pass either --image, or --data and --split, not both")
        return images_from_files(find_images(images))
    record = next((handle.record for handle in handles if handle.record is not None), None)
    if record is not None and "data" in record.recipe.task:
        return images_from_run(record, data=data, split=split)
    return None if data is None else images_from_data(data, split=split)
