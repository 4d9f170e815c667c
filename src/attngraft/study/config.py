"""What a study compares, as a YAML file or from the command line.

    title: Broadcasting on flowers          # optional
    host: {name: vit_tiny_patch16_224, args: {img_size: 64, depth: 6}, pretrained: false}   # or weights: FILE
    grafts:                                 # the host as it is (none) always takes part
      - cb_s@blocks.6-11
      - {name: both directions, spec: horizontal + vertical}
      - {name: DeiT, host: {name: deit_tiny_patch16_224, args: {img_size: 64, depth: 6}}}   # another host
    data: ./flowers                         # or a section: {source: ./flowers, val_fraction: 0.2}
    recipe: deit                            # packaged or a file; set: changes single fields of it
    set: [optimizer.lr=5e-4]
    seeds: 3                                # 0, 1, 2; or a list of seeds
    epochs: 30
    time_budget: 10m                        # instead of epochs, or with them as the most
    suites: [robustness, calibration]       # optional: what else is asked of finished runs (attngraft list suites)
    halving: 3                              # optional, for many grafts: at each rung of epochs the best third goes on
    out: runs/flowers

What is left out comes from the recipe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attngraft.errors import ConfigError, UsageError
from attngraft.study.host import ENTRY, StudyHost
from attngraft.study.values import Halving, parse_duration, parse_halving, parse_seeds
from attngraft.study.variants import Variant, read_variants

if TYPE_CHECKING:
    from attngraft.training.recipe import Recipe

STUDY_FILE = "study.yaml"


@dataclass(frozen=True, kw_only=True)
class StudyConfig:
    """A study, its variants read and its values checked. `read_study` and `study_from_dict` make it."""

    out: Path
    variants: tuple[Variant, ...]
    host: StudyHost | None = None  #: None: the recipe's
    data: str | Mapping[str, Any] | None = None  #: None: the recipe's
    recipe: str | None = None  #: None: the recipe dataclasses' defaults
    overrides: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0, 1, 2)
    epochs: int | None = None  #: None: the recipe's
    time_budget: float | None = None  #: seconds for the whole study; `epochs` is then the most
    fitted_epochs: int | None = None  #: what the budget was found to allow, so that continuing does not change it
    suites: tuple[str, ...] = ()  #: under which finished runs are evaluated
    halving: Halving | None = None  #: asynchronous successive halving; None: every run goes to its end
    title: str = ""
    command: str = ""  #: what was typed, for the report

    @property
    def baseline(self) -> Variant:
        return self.variants[0]

    def recipe_of(self, variant: Variant, seed: int) -> Recipe:
        """The resolved recipe of one run: the named recipe, then host, data and epochs, then overrides, the variant's own
        host, graft and seed.

        Raises:
            ConfigError: recipe, override or field does not exist or makes no sense; or nothing says what weights another
                host than the study's starts from.
        """
        from attngraft.training.recipe import Recipe, load_recipe, recipe_from_dict, recipe_to_dict
        from attngraft.yaml_config import apply_overrides, merge

        mapping = recipe_to_dict(load_recipe(self.recipe) if self.recipe else Recipe())
        if self.host is not None:
            mapping["host"] = self.host.over(mapping["host"])
        if self.data is not None:
            mapping["task"]["data"] = {"source": self.data} if isinstance(self.data, str) else dict(self.data)
        epochs = self.fitted_epochs or self.epochs
        if epochs is not None:
            mapping = merge(mapping, {"schedule": {"epochs": epochs}})
        mapping = apply_overrides(mapping, self.overrides)
        if variant.host is not None:
            mapping["host"] = variant.host.beside(mapping["host"])
        mapping |= {"graft": None if variant.spec == "none" else variant.spec, "seed": seed}
        return recipe_from_dict(mapping, source=self.recipe or "the study's recipe")

    def to_dict(self) -> dict[str, Any]:
        """What `study_from_dict` reads back."""
        plain: dict[str, Any] = {"title": self.title or None}
        plain["host"] = (None if self.host is None else self.host.plain()) or None
        plain["grafts"] = [variant.plain() for variant in self.variants]
        plain["data"] = self.data if isinstance(self.data, str | None) else dict(self.data)
        plain |= {"recipe": self.recipe, "set": list(self.overrides), "seeds": list(self.seeds), "epochs": self.epochs}
        plain["time_budget"] = None if self.time_budget is None else f"{self.time_budget:g}s"
        plain["halving"] = None if self.halving is None else str(self.halving)
        plain["suites"] = list(self.suites)
        plain |= {"fitted_epochs": self.fitted_epochs, "out": str(self.out), "command": self.command or None}
        return {key: value for key, value in plain.items() if value not in (None, [])}


@dataclass(frozen=True, kw_only=True)
class _StudyFile:
    """The keys of a study file, as they stand there."""

    grafts: list[Any] = field(default_factory=list)
    out: str | None = None
    title: str | None = None
    host: StudyHost | str | None = None
    data: Any = None
    recipe: str | None = None
    set: list[str] = field(default_factory=list)
    seeds: Any = 3
    epochs: int | None = None
    time_budget: str | None = None
    fitted_epochs: int | None = None
    halving: int | str | None = None
    suites: list[str] = field(default_factory=list)
    command: str | None = None


def read_study(path: Path) -> dict[str, Any]:
    """The mapping that a study file holds, its keys checked, for `study_from_dict`.

    Raises:
        ConfigError: the file cannot be read, or has an unknown key or a value of the wrong kind.
    """
    from attngraft.yaml_config import read_yaml

    mapping = read_yaml(path)
    _read_file(mapping, str(path))
    return mapping


def study_from_dict(mapping: Mapping[str, Any], *, source: str = "study") -> StudyConfig:
    """The study that plain values describe; `source` stands before every message.

    Raises:
        ConfigError, UsageError: an unknown key, a value that makes no sense, no place for the results, or a variant
            that is given twice.
        GraftSpecError: a graft specification cannot be read.
    """
    file = _read_file(mapping, source)
    if not file.out:
        raise UsageError(f"{source}: say where the results go: --out FOLDER, or `out:` in the study file")
    if file.epochs is not None and file.epochs < 1:
        raise ConfigError(f"{source}.epochs: at least 1 is needed, not {file.epochs}")
    if file.data is not None and not isinstance(file.data, str | Mapping):
        raise ConfigError(
            f"{source}.data: a source (digits, a folder, ...) or a section is expected, not {file.data!r}"
        )
    for text in file.set:
        _refuse_reserved(text)
    config = StudyConfig(
        out=Path(file.out),
        variants=read_variants(file.grafts),
        host=StudyHost(name=file.host) if isinstance(file.host, str) else file.host,
        data=file.data,
        recipe=file.recipe,
        overrides=tuple(file.set),
        seeds=parse_seeds(file.seeds),
        epochs=file.epochs,
        time_budget=None if file.time_budget is None else parse_duration(file.time_budget),
        fitted_epochs=file.fitted_epochs,
        halving=None if file.halving is None else parse_halving(file.halving),
        suites=tuple(file.suites),
        title=file.title or "",
        command=file.command or "",
    )
    if config.suites:
        from attngraft.evaluation.suites.catalog import parse_suites

        parse_suites(config.suites)
    return config


def _read_file(mapping: Mapping[str, Any], where: str) -> _StudyFile:
    from attngraft.strict import read

    if isinstance(mapping, Mapping) and "against" in mapping:  # as the option is called
        raise ConfigError(f"{where}.against: other hosts stand among the `grafts`, each as {ENTRY}")
    return read(_StudyFile, mapping, where=where)


#: fields of a recipe that a study sets itself, and how a study sets them
_RESERVED = {"seed": "--seeds", "graft": "--graft"}


def _refuse_reserved(override: str) -> None:
    name = override.partition("=")[0].strip()
    if name in _RESERVED:
        raise UsageError(f"--set {override}: in a study {name} is set by {_RESERVED[name]}")
