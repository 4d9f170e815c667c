"""Configuration of a study, from a YAML file or the command line.

    title: Broadcasting on flowers          # optional
    host: {name: vit_tiny_patch16_224, args: {img_size: 64, depth: 6}, pretrained: false}   # or weights: FILE
    grafts:                                 # the plain host (none) is always included
      - cb_s@blocks.6-11
      - shortlist                           # grafts that suit the host; all: every graft that fits it
      - {name: both directions, graft: horizontal + vertical}
      - {graft: cb_s, set: {schedule.warmup_epochs: 10}}    # other recipe fields for this variant, shown with its result
      - {name: DeiT, host: {name: deit_tiny_patch16_224, args: {img_size: 64, depth: 6}}}   # another host
    data: ./flowers                         # or a section: {source: ./flowers, val_fraction: 0.2}
    recipe: deit                            # a packaged recipe or a file; `set` changes its fields for all variants
    set: [optimizer.lr=5e-4]
    seeds: 3                                # seeds 0, 1, 2; or a list of seeds
    folds: 5                                # optional cross-validation: every variant and seed is trained once per fold
    epochs: 30
    time_budget: 10m                        # instead of epochs; with both, epochs is the maximum
    suites: [robustness, calibration]       # optional: also evaluate finished runs under suites (attngraft list suites)
    halving: 3                              # optional, for many grafts: the best third continues at each rung
    until: decided                          # optional: add seeds to undecided variants; `seeds` is the first round
    margin: 0.5                             # with until: differences within ±0.5 points do not matter
    budget: 2h                              # with until: training time after which no round starts
    out: runs/flowers

Omitted fields are taken from the recipe.
"""

import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attngraft.errors import ConfigError, UsageError, naming
from attngraft.evaluation.suites.catalog import parse_suites
from attngraft.results.sequential import MOST_SEEDS
from attngraft.strict import read
from attngraft.study.variants import ENTRY, StudyHost, Variant, read_variants
from attngraft.suggest import quoted
from attngraft.tasks.images.config import MOST_FOLDS
from attngraft.training.recipe import Recipe, load_recipe, recipe_from_dict, recipe_to_dict
from attngraft.training.run_folder import STUDY_FILE as STUDY_FILE
from attngraft.yaml_config import apply_overrides, merge, read_yaml

#: recipe fields set by the study -> the option to use instead
_RESERVED = {"seed": "--seeds", "graft": "--graft"}

_NUMBER = re.compile(r"[0-9]{1,18}")
_MAX_SEEDS = 10_000
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m(?:in)?)?(?:(\d+(?:\.\d+)?)s)?")


@dataclass(frozen=True)
class Halving:
    """Asynchronous successive halving: at each rung, the best 1 / `eta` of the variants continue."""

    eta: int = 3
    first: int | None = None  #: epoch of the first rung; later rungs multiply it by `eta`; None: total // eta^k

    def __str__(self) -> str:
        return str(self.eta) if self.first is None else f"{self.eta},{self.first}"


@dataclass(frozen=True, kw_only=True)
class Until:
    """Add seeds in rounds until every variant is decided; see `attngraft.results.sequential`."""

    margin: float | None = None  #: in points of metrics that are shares (accuracy), in units of other metrics
    budget: float | None = None  #: seconds of training after which no round starts; None: no limit


@dataclass(frozen=True, kw_only=True)
class StudyConfig:
    """Parsed and checked configuration of a study; see `read_study_file` and `study_from_dict`."""

    out: Path
    variants: tuple[Variant, ...]
    host: StudyHost | None = None  #: None: the recipe's
    data: str | Mapping[str, Any] | None = None  #: None: the recipe's
    recipe: str | None = None  #: None: the defaults of the recipe dataclasses
    overrides: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0, 1, 2)  #: with `until`, the seeds of the first round
    folds: int | None = None  #: folds of cross-validation: one run per variant, seed and fold; None: one run per seed
    epochs: int | None = None  #: None: the recipe's
    time_budget: float | None = None  #: seconds for the whole study, with `epochs` as the maximum
    fitted_epochs: int | None = None  #: epochs that fit the budget, stored so that resuming does not change them
    #: CPU threads of a run, chosen from timed steps if the recipe sets none; stored so that resuming does not change them
    fitted_threads: int | None = None
    #: seeds of the first round of an earlier `until` that is off now, stored so that its tests are not repeated with others
    first_round: tuple[int, ...] | None = None
    #: sets of grafts in use (`shortlist`) -> specifications, stored so that resuming does not change them
    graft_sets: Mapping[str, Sequence[str]] = field(default_factory=dict)
    suites: tuple[str, ...] = ()  #: suites to evaluate finished runs under
    halving: Halving | None = None  #: asynchronous successive halving; None: all runs train to the end
    until: Until | None = None  #: add seeds in rounds; None: all variants have the same seeds
    title: str = ""
    command: str = ""  #: the command line, for the report

    @property
    def baseline(self) -> Variant:
        return self.variants[0]

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """`seeds`, and with `until` those that later rounds may add, in this order."""
        if self.until is None:
            return self.seeds
        following = max(self.seeds) + 1
        return (*self.seeds, *range(following, following + MOST_SEEDS - len(self.seeds)))

    @property
    def fold_numbers(self) -> tuple[int | None, ...]:
        """The folds of each seed, from 0; only None without cross-validation."""
        return (None,) if self.folds is None else tuple(range(self.folds))

    def recipes(self) -> Callable[[Variant, int, int | None], Recipe]:
        """Return a function that maps a variant, a seed and a fold (see `fold_numbers`) to the recipe of that run.

        The study's recipe is read once. It is changed by the study's host, data and epochs, then by the study's overrides,
        then by the variant's overrides, host, graft, seed and fold.

        Raises:
            ConfigError: the recipe, an override or a field does not exist or is invalid. The returned function also raises
                it if a variant's host differs from the study's and its initial weights are missing.
        """
        recipe = self._recipe()
        shared = recipe_to_dict(recipe)
        if self.host is not None:
            shared["host"] = self.host.over(shared["host"])
        if self.data is not None:
            shared["task"]["data"] = {"source": self.data} if isinstance(self.data, str) else dict(self.data)
        epochs = self.fitted_epochs or self.epochs
        if epochs is not None:
            shared = merge(shared, {"schedule": recipe.schedule.over(epochs)[0]})
        if shared["train"]["threads"] is None:
            shared["train"]["threads"] = self.fitted_threads
        shared = apply_overrides(shared, self.overrides)

        def recipe_of(variant: Variant, seed: int, fold: int | None) -> Recipe:
            changes: dict[str, Any] = {"graft": None if variant.spec == "none" else variant.spec, "seed": seed}
            if variant.host is not None:
                changes["host"] = variant.host.beside(shared["host"])
            source = f"{variant.where or variant.name}.set"
            section = apply_overrides(shared, variant.overrides, source=f"{source}:")
            if self.folds is not None:
                section = merge(section, {"task": {"data": {"folds": self.folds, "fold": fold}}})
            if not variant.overrides:
                source = self.recipe or "the study's recipe"
            return recipe_from_dict({**section, **changes}, source=source)

        return recipe_of

    def schedule_note(self) -> str | None:
        """Return a note if the recipe's warm-up and cool-down were shortened to the study's epochs.

        None if the recipe's file no longer exists.
        """
        epochs = self.fitted_epochs or self.epochs
        try:
            return None if epochs is None else self._recipe().schedule.over(epochs)[1]
        except ConfigError:
            return None

    def _recipe(self) -> Recipe:
        return load_recipe(self.recipe) if self.recipe else Recipe()

    def host_names(self) -> set[str]:
        """Return the names of all hosts and teachers, with their schemes.

        Raises:
            ConfigError: see `recipes`.
        """
        recipe_of = self.recipes()
        return {
            name
            for variant in self.variants
            for name in recipe_of(variant, self.seeds[0], self.fold_numbers[0]).host_names
        }

    def recipe_of(self, variant: Variant, seed: int) -> Recipe:
        """Return the resolved recipe of one run, with folds that of the first one.

        For several runs, use `plan.resolve_runs`, which reads the recipe only once.

        Raises:
            ConfigError: see `recipes`.
        """
        return self.recipes()(variant, seed, self.fold_numbers[0])

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as plain values, in the format of `study_from_dict`."""
        plain: dict[str, Any] = {
            "title": self.title or None,
            "host": (None if self.host is None else self.host.plain()) or None,
            "grafts": [variant.plain() for variant in self.variants],
            "data": self.data if isinstance(self.data, str | None) else dict(self.data),
            "recipe": self.recipe,
            "set": list(self.overrides),
            "seeds": list(self.seeds),
            "folds": self.folds,
            "epochs": self.epochs,
            "time_budget": None if self.time_budget is None else f"{self.time_budget:g}s",
            "halving": None if self.halving is None else str(self.halving),
            "until": None if self.until is None else "decided",
            "margin": None if self.until is None else self.until.margin,
            "budget": None if self.until is None or self.until.budget is None else f"{self.until.budget:g}s",
            "suites": list(self.suites),
            "fitted_epochs": self.fitted_epochs,
            "fitted_threads": self.fitted_threads,
            "first_round": None if self.first_round is None else list(self.first_round),
            "graft_sets": {key: list(specs) for key, specs in self.graft_sets.items()},
            "out": str(self.out),
            "command": self.command or None,
        }
        return {key: value for key, value in plain.items() if value not in (None, [], {})}


@dataclass(frozen=True, kw_only=True)
class _StudyFile:
    """Keys of a study file."""

    grafts: list[Any] = field(default_factory=list)
    out: str | None = None
    title: str | None = None
    host: StudyHost | str | None = None
    data: Any = None
    recipe: str | None = None
    set: list[str] = field(default_factory=list)
    seeds: Any = 3
    folds: int | None = None
    epochs: int | None = None
    time_budget: str | None = None
    fitted_epochs: int | None = None
    fitted_threads: int | None = None
    first_round: list[int] | None = None
    graft_sets: dict[str, list[str]] = field(default_factory=dict)
    halving: int | str | None = None
    until: str | None = None
    margin: float | None = None
    budget: str | None = None
    suites: list[str] = field(default_factory=list)
    command: str | None = None


def read_study_file(path: Path) -> dict[str, Any]:
    """Return the contents of a study file, with checked keys, for `study_from_dict`.

    Raises:
        ConfigError: the file cannot be read, or has an unknown key or a value of the wrong type.
    """
    mapping = read_yaml(path)
    _read_file(mapping, str(path))
    return mapping


def read_study(path: Path) -> dict[str, Any]:
    """Deprecated name of `read_study_file`; `attngraft.read_study` returns the result of a study."""
    warnings.warn("read_study() is deprecated here; call read_study_file()", DeprecationWarning, stacklevel=2)
    return read_study_file(path)


def study_from_dict(mapping: Mapping[str, Any], *, source: str = "study") -> StudyConfig:
    """Return the study configuration from plain values; error messages start with `source`.

    Raises:
        ConfigError, UsageError: an unknown key, an invalid value, a missing output folder, or a repeated variant.
        GraftSpecError: a graft specification cannot be parsed.
    """
    with nullcontext() if source == "study" else naming(source):
        return _from_dict(mapping, source)


def _from_dict(mapping: Mapping[str, Any], source: str) -> StudyConfig:
    file = _read_file(mapping, source)
    if not file.out:
        raise UsageError(f"{source}: missing output folder; use --out FOLDER, or set `out:` in the study file")
    if file.epochs is not None and file.epochs < 0:
        raise ConfigError(f"{source}.epochs: must not be negative; got {file.epochs}")
    if file.epochs == 0 and (
        given := [name for name in ("time_budget", "halving", "until") if getattr(file, name) not in (None, "off")]
    ):
        raise UsageError(
            f"{source}.epochs: 0 trains nothing; remove {' and '.join(given)}, or train for 1 epoch or more"
        )
    if file.data is not None and not isinstance(file.data, str | Mapping):
        raise ConfigError(f"{source}.data: expected a source (digits, a folder, ...) or a section, found {file.data!r}")
    for override in file.set:
        name = override.partition("=")[0].strip()
        if name in _RESERVED:
            raise UsageError(f"--set {override}: {name} is set by the study; use {_RESERVED[name]} instead")
    parse_suites(file.suites)
    _check_folds(file, source)
    halving = None if file.halving is None else parse_halving(file.halving)
    variants = read_variants(file.grafts, where=f"{source}.grafts")
    seeds = parse_seeds(file.seeds)
    until = _until(file, variants, seeds, halving=halving is not None)
    for variant in variants if halving is not None else ():
        if variant.sets("schedule.epochs"):
            raise UsageError(
                f"{variant.where}.set.schedule.epochs: halving compares all variants after the same epochs; remove this "
                "field, or use --halving off"
            )
    return StudyConfig(
        out=Path(file.out),
        variants=variants,
        host=StudyHost(name=file.host.removeprefix("timm:")) if isinstance(file.host, str) else file.host,
        data=file.data,
        recipe=file.recipe,
        overrides=tuple(file.set),
        seeds=seeds,
        folds=file.folds,
        epochs=file.epochs,
        time_budget=None if file.time_budget is None else parse_duration(file.time_budget),
        fitted_epochs=file.fitted_epochs,
        fitted_threads=file.fitted_threads,
        first_round=None if file.first_round is None else tuple(file.first_round),
        graft_sets=file.graft_sets,
        halving=halving,
        until=until,
        suites=tuple(file.suites),
        title=file.title or "",
        command=file.command or "",
    )


def _until(file: _StudyFile, variants: Sequence[Variant], seeds: Sequence[int], *, halving: bool) -> Until | None:
    """Return the checked values of `until`, `margin` and `budget`."""
    if file.until in (None, "off"):
        given = [f"--{name}" for name in ("margin", "budget") if getattr(file, name) is not None]
        if given:
            verb = "requires" if len(given) == 1 else "require"
            raise UsageError(f"{' and '.join(given)} {verb} --until decided; add it, or remove {' and '.join(given)}")
        return None
    if file.until != "decided":
        raise UsageError(f"until: expected decided, or off for a fixed number of seeds; got {file.until!r}")
    if len(variants) < 2:
        raise UsageError("--until decided compares variants with the baseline; add a variant with --graft SPEC")
    if not 2 <= len(seeds) < MOST_SEEDS:
        raise UsageError(
            f"--until decided starts with 2 to {MOST_SEEDS - 1} seeds and adds more, up to {MOST_SEEDS}; use --seeds 3"
        )
    if halving:
        raise UsageError(
            "--until decided compares runs trained to the end, and --halving stops runs early; use one of them "
            "(--halving off, or --until off)"
        )
    if file.time_budget is not None:
        raise UsageError(
            "--time-budget fits the epochs to a known number of runs, which --until decided does not have; set --epochs, "
            "and limit the time with --budget"
        )
    if file.margin is not None and not 0 < file.margin < math.inf:
        raise UsageError(f"margin: must be above zero, in points of a metric in percent; got {file.margin:g}")
    return Until(margin=file.margin, budget=None if file.budget is None else parse_duration(file.budget))


def _check_folds(file: _StudyFile, source: str) -> None:
    if file.folds is None:
        return
    if file.folds < 2:
        raise UsageError(f"{source}.folds: must be at least 2, got {file.folds}; omit it to train on one split")
    if file.folds > MOST_FOLDS:
        raise UsageError(f"{source}.folds: must be at most {MOST_FOLDS:,}, got {file.folds}; give fewer")
    if file.halving not in (None, "off"):
        raise UsageError("--halving compares runs on one split; remove it, or omit --folds")
    if file.until == "decided":
        raise UsageError("--until decided adds seeds on one split; omit --folds, or set the number of --seeds instead")
    if file.suites:
        raise UsageError(
            "--suite evaluates runs on one split; remove it, or omit --folds (attngraft eval evaluates the run of a fold)"
        )


def _read_file(mapping: Mapping[str, Any], where: str) -> _StudyFile:
    if isinstance(mapping, Mapping) and "against" in mapping:  # the name of the option
        raise ConfigError(f"{where}.against: unknown field; list other hosts under `grafts`, each as {ENTRY}")
    return read(_StudyFile, mapping, where=where)


def parse_seeds(value: str | int | Sequence[int]) -> tuple[int, ...]:
    """Parse seeds: `3` means 0, 1, 2; `5,7` means 5 and 7; `5,` means only 5. A list is used as given.

    Raises:
        UsageError: no seed, a repeated seed, or a value that is not a non-negative integer.
    """
    refusal = UsageError(f"seeds: expected a number of seeds (3) or comma-separated seeds (5,7), found {quoted(value)}")
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",")]
        if len(parts) > 1 and parts[-1] == "":
            parts.pop()
        if not all(map(_NUMBER.fullmatch, parts)):
            raise refusal
        seeds = tuple(map(int, parts)) if "," in value else tuple(range(min(int(parts[0]), _MAX_SEEDS + 1)))
    elif isinstance(value, int) and not isinstance(value, bool):
        seeds = tuple(range(min(value, _MAX_SEEDS + 1)))
    elif isinstance(value, list | tuple) and all(
        isinstance(each, int) and not isinstance(each, bool) for each in value
    ):
        seeds = tuple(value)
    else:
        raise refusal
    if not seeds or min(seeds) < 0:
        raise refusal
    if len(seeds) > _MAX_SEEDS:
        raise UsageError(f"seeds: at most {_MAX_SEEDS:,} are supported; give fewer")
    if len(set(seeds)) < len(seeds):
        raise UsageError(f"seeds: repeated seed in {quoted(value)}; remove it")
    return seeds


def parse_halving(value: str | int) -> Halving | None:
    """Parse `3` (the best third continues), `3,2` (with the first rung after epoch 2), or `off`.

    Raises:
        UsageError: the text has a different form.
    """
    if value == "off":
        return None
    parts = [part.strip() for part in str(value).split(",")]
    if len(parts) > 2 or not all(map(_NUMBER.fullmatch, parts)) or int(parts[0]) < 2 or "0" in parts[1:]:
        raise UsageError(
            "halving: expected a factor of at least 2 (3: the best third continues), optionally with the first rung's epoch "
            f"(3,2), or off; got {quoted(value)}"
        )
    return Halving(int(parts[0]), int(parts[1]) if parts[1:] else None)


def parse_duration(value: str) -> float:
    """Convert a duration such as `90s`, `10m`, `1.5h` or `1h30m` to seconds.

    Raises:
        UsageError: the text has a different form, or the duration is zero.
    """
    found = _DURATION.fullmatch(value.strip().replace(" ", ""))
    hours, minutes, seconds = (float(part or 0) for part in found.groups()) if found else (0.0, 0.0, 0.0)
    total = 3600 * hours + 60 * minutes + seconds
    if not 0 < total < 1e9:
        raise UsageError(f"time budget: expected a duration with its unit (90s, 10m, 1h30m), found {quoted(value)}")
    return total
