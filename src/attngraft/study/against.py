"""Other hosts beside the study's: what must hold before they are trained, and what a reader must know of them.

They see the same images in the same order, with the same augmentation, and learn under the same recipe. How an image becomes
an input (mean, deviation, interpolation, crop) each says for itself, as timm has it, and a note tells where they differ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from attngraft.errors import AttngraftError, UsageError
from attngraft.study.starts import same_weights

if TYPE_CHECKING:
    from torch import nn

    from attngraft.study.config import StudyConfig
    from attngraft.study.variants import Variant
    from attngraft.training.recipe import Recipe
    from attngraft.training.run_folder import RunRecord


def check_other_hosts(config: StudyConfig, *, new: Collection[str]) -> dict[str, nn.Module]:
    """Each variant's own host on the meta device, by the variant's name, once it is known that it can take part; the
    weights of those in `new` are fetched and fitted.

    Raises:
        UsageError: a host is unknown, cannot be made, takes another input than the study's, or is that of another variant;
            or the weights that it starts from cannot be had or do not fit. Names the variant.
        ConfigError: nothing says what weights it starts from.
    """
    from attngraft.training.build import check_start, model_data_config

    recipes = {variant.name: config.recipe_of(variant, config.seeds[0]) for variant in config.variants}
    base = recipes[config.baseline.name]
    hosts = {}
    for variant in config.variants:
        if variant.host is None:
            continue
        recipe = recipes[variant.name]
        _refuse_again(variant, recipes)
        try:
            hosts[variant.name] = _on_meta(recipe)
            size = tuple(model_data_config(recipe)["input_size"])
        except AttngraftError as error:
            raise UsageError(f"the variant {variant.name}: {error}") from error
        if variant.name in new:
            try:
                check_start(recipe)
            except AttngraftError as error:
                raise UsageError(
                    f"the variant {variant.name}: {error}. What another host starts from stands beside its name: "
                    "{name: ..., weights: FILE}, or pretrained: false for random values"
                ) from error
        if size != (wanted := tuple(model_data_config(base)["input_size"])):
            raise UsageError(_other_input(variant, base.host.name, size, wanted))
    return hosts


def _on_meta(recipe: Recipe) -> nn.Module:
    import torch

    from attngraft.training.build import build_model

    with torch.device("meta"):
        return build_model(dataclasses.replace(recipe, graft=None), {}, weights=False)


def _refuse_again(variant: Variant, recipes: Mapping[str, Recipe]) -> None:
    """A host that is given as another one may turn out to be the study's own."""
    own = recipes[variant.name]
    for name, other in recipes.items():
        if name != variant.name and (other.host, other.graft) == (own.host, own.graft):
            raise UsageError(
                f"the variants {name} and {variant.name} are the same model; a study compares different ones"
            )


def _other_input(variant: Variant, host: str, size: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    remedies = []
    if size[1:] != wanted[1:]:
        side = str(wanted[1]) if wanted[1] == wanted[2] else f"[{wanted[1]}, {wanted[2]}]"
        remedies.append(f"img_size: {side}")
    if size[0] != wanted[0]:
        remedies.append(f"in_chans: {wanted[0]}")
    return (
        f"the variant {variant.name} takes inputs of {_by(size)}, and the study's host {host} of {_by(wanted)}: all "
        f"variants see the same images; give it the arguments {{{', '.join(remedies)}}}, or, where it takes no img_size, "
        f"{{pretrained_cfg_overlay: {{input_size: {list(wanted)}}}}}"
    )


def _by(size: tuple[int, ...]) -> str:
    return "x".join(map(str, size))


def other_host_notes(config: StudyConfig, records: Mapping[str, Mapping[int, RunRecord]]) -> list[str]:
    """What a reader must know of finished runs on other hosts."""
    names = [variant.name for variant in config.variants if variant.host is not None]
    if not names:
        return []
    plain = "is another model than the baseline" if len(names) == 1 else "are other models than the baseline"
    notes = [
        f"{_listed(names)} {plain}: same data, order, augmentation and recipe, initial values of their own. One recipe does "
        "not suit all models alike."
    ]
    for name in names:
        origins = sorted({record.start["from"] for record in records[name].values() if record.start})
        notes += [f"{name} starts from {' or '.join(origins)}."] if origins else []
        if not same_weights(records[name].values()):
            notes.append(
                f"The runs of {name} do not all start from the same weights (the file was changed in between), so part of "
                "its difference may come from there."
            )
    parts = {record.recipe.train.parameters for name in names for record in records[name].values()}
    ungrafted = [variant.name for variant in config.variants if variant.name in names and variant.spec == "none"]
    if parts == {"grafts+head"} and ungrafted:
        notes.append(f"As the baseline, {_listed(ungrafted)} train{'s' * (len(ungrafted) == 1)} the head alone.")
    if other := _other_inputs(config, records, names):
        notes.append(f"Images become inputs in another way than the baseline's for {'; '.join(other)}.")
    return notes


def _other_inputs(
    config: StudyConfig, records: Mapping[str, Mapping[int, RunRecord]], names: Collection[str]
) -> list[str]:
    """Per variant the fields of its input that are not as the baseline's."""
    base = _input_of(records[config.baseline.name])
    found = []
    for name in names:
        own = _input_of(records[name])
        if base and own and (other := [key.replace("_", " ") for key in own if own[key] != base.get(key)]):
            found.append(f"{name} ({', '.join(other)})")
    return found


def _input_of(by_seed: Mapping[int, RunRecord]) -> dict[str, Any]:
    record = next(iter(by_seed.values()), None)
    return {} if record is None else dict(record.facts.get("input", {}))


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
