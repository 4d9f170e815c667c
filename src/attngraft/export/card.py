"""The model card: README.md of an exported folder, in the form that model hubs read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Any

from attngraft.export.fold import summary
from attngraft.files import write_atomically
from attngraft.results import facts as described
from attngraft.results import wording
from attngraft.results.storage import RESULT_FILE, load_result
from attngraft.results.study import StudyResult, VariantResult
from attngraft.saved.manifest import GRAFTS, MANIFEST, WEIGHTS, Manifest
from attngraft.training.recipe import recipe_to_dict
from attngraft.training.run_folder import RunRecord
from attngraft.yaml_config import dump_yaml

if TYPE_CHECKING:
    from jinja2 import Environment

FILE = "README.md"
_LOCAL = "local-dir:"  #: before a path, where timm expects a name
_COUNTED = 20  #: classes whose images are counted one by one


@dataclass(frozen=True, kw_only=True)
class InStudy:
    """The study that a run belongs to, and which of its variants the run is one of."""

    result: StudyResult
    variant: VariantResult

    @property
    def style(self) -> wording.MetricFormat:
        return wording.metric_format(self.result)

    @property
    def rows(self) -> list[dict[str, str]]:
        """The baseline and this variant, as the cells of a table."""
        shown = [variant for variant in self.result.variants if variant.is_baseline or variant is self.variant]
        return [self._row(variant) for variant in shown]

    def _row(self, variant: VariantResult) -> dict[str, str]:
        spread, found, cost = variant.last.get(self.result.metric), variant.difference, variant.cost
        difference = [f"{self.style.change(found.mean)} {self.style.points}".rstrip()] if found else []
        if found:
            difference.append(f"bootstrap {self.style.interval(found.bootstrap)}")
        if found and found.t is not None:
            difference.append(f"t {self.style.interval(found.t)}")
        trained = cost.train_time_ratio if cost else None
        used = cost.inference_time_ratio if cost else None
        return {
            "name": variant.name,
            "value": wording.spread_text(spread.mean, spread.deviation, self.style) if spread else wording.ABSENT,
            "difference": "; ".join(difference),
            "verdict": found.verdict if found else ("baseline" if variant.is_baseline else ""),
            "parameters": wording.ratio(cost.parameters_ratio if cost else None, exact=True),
            "macs": wording.ratio(cost.macs_ratio if cost else None, exact=True),
            "training": wording.ratio(trained.point if trained else None),
            "inference": wording.ratio(used.point if used else None),
        }

    @property
    def other_baseline(self) -> str:
        """The baseline's host where the variant stands on another, else nothing: then one graft is not all that differs."""
        return str(_without_places(self.result.host["name"])) if self.variant.host is not None else ""

    @property
    def command(self) -> str:
        """What makes the study again, without this machine's paths."""
        return " ".join(str(_without_places(word)) for word in self.result.command.split(" "))

    @property
    def data(self) -> str:
        return str(_without_places(self.result.data.get("source", "the data")))

    @property
    def reason(self) -> str:
        found = self.variant.difference
        return wording.reason(found, seeds=len(self.result.seeds)) if found else ""


def write_card(
    manifest: Manifest, record: RunRecord, folder: Path, *, parameters: int, plain_difference: float | None
) -> None:
    """Write README.md.

    Args:
        record: the run that the model comes from.
        parameters: how many the model has.
        plain_difference: where the folder holds timm's configuration, by how much the outputs of plain timm differ from the
            model's, which has grafts besides.
    """
    write_atomically(
        folder / FILE,
        card_text(manifest, record, parameters=parameters, plain_difference=plain_difference),
    )


def card_text(manifest: Manifest, record: RunRecord, *, parameters: int, plain_difference: float | None = None) -> str:
    """The card. What is not known of licences is said to be unknown; paths of this machine are left out."""
    from huggingface_hub import ModelCardData

    maker = _maker(manifest.host.name)
    header = ModelCardData(
        license="unknown",
        library_name="attngraft" if manifest.graft else maker,
        pipeline_tag="image-classification",
        tags=["attngraft", "timm", "image-classification"],
    )
    recipe = dump_yaml(_without_places(recipe_to_dict(record.recipe))).rstrip()
    study = study_of(record.folder)
    return (
        _environment()
        .get_template("README.md.j2")
        .render(
            header=header.to_yaml(),
            manifest=manifest,
            study=study,
            style=study.style if study else None,
            metrics=manifest.origin.metrics,
            parameters=parameters,
            plain_difference=plain_difference,
            maker=maker,
            facts=described.facts(_facts(record)),
            folds=summary(manifest.folds),
            recipe=recipe,
            fence=_fence(recipe, at_least=3),
            host=record.recipe.host,
            teacher=_teacher(record),
            files={"manifest": MANIFEST, "weights": WEIGHTS, "grafts": GRAFTS},
        )
    )


def _maker(host: str) -> str:
    """The package that registers the host's name with timm, where that is attngraft; else timm."""
    import timm

    own = timm.is_model(host) and timm.model_entrypoint(host).__module__.startswith("attngraft.")
    return "attngraft" if own else "timm"


def study_of(run: Path) -> InStudy | None:
    """The study whose folder holds this run, if it has a result and the run is part of it."""
    run = run.resolve()
    if len(run.parents) < 3 or not (run.parents[2] / RESULT_FILE).is_file():
        return None
    result = load_result(run.parents[2])
    inside = run.relative_to(run.parents[2]).as_posix()
    variant = next((each for each in result.variants if any(one.folder == inside for one in each.runs)), None)
    return None if variant is None else InStudy(result=result, variant=variant)


def _facts(record: RunRecord) -> dict[str, Any]:
    """What was found in the data, without paths and without what stands elsewhere in the card."""
    left_out = ("task", "where", "input", "augment", "classes", "check", "split_digest", "image")
    found = {name: _without_places(value) for name, value in record.facts.items() if name not in left_out}
    counts = found.get("counts")
    if isinstance(counts, Mapping) and any(len(part) > _COUNTED for part in counts.values()):
        span = {part: f"{min(by.values())} to {max(by.values())}" for part, by in counts.items() if by}
        found = {name: value for name, value in found.items() if name != "counts"} | {"images per class": span}
    return {name: value for name, value in found.items() if value not in ([], {}, None)}


def _teacher(record: RunRecord) -> dict[str, Any] | None:
    """Whom the run learned from, by name, hash of its weights and score (the primary metric, where it was evaluated)."""
    if not record.teacher:
        return None
    metrics = {name.removeprefix("val/"): value for name, value in list(record.teacher.get("metrics", {}).items())[:1]}
    return {
        "name": _without_places(record.teacher["name"]),
        "sha256": record.teacher["sha256"],
        "metrics": metrics,
    }


def _without_places(value: Any) -> Any:
    """`value` with the last part of each absolute path in it: folders of this machine are nobody's business."""
    if isinstance(value, Mapping):
        return {name: _without_places(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_places(each) for each in value]
    if isinstance(value, str) and value.startswith(_LOCAL):
        return _LOCAL + PureWindowsPath(value.removeprefix(_LOCAL)).name
    if isinstance(value, str) and (value.startswith(("/", "~")) or PureWindowsPath(value).drive):
        return PureWindowsPath(value).name  # which knows both kinds of slashes
    return value


def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("attngraft.export"),
        autoescape=False,  # Markdown: what users named stands in code spans
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(code=code, number=_number)
    return environment


def code(value: Any) -> str:
    """`value` as a code span on one line, whatever backticks and bars it has."""
    text = wording.shown(value).replace("|", "¦")
    fence = _fence(text)
    pad = " " if text.startswith("`") or text.endswith("`") or not text else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def _fence(text: str, *, at_least: int = 1) -> str:
    """More backticks in a row than `text` has anywhere."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    return "`" * max(longest + 1, at_least)


def _number(value: float) -> str:
    return f"{value:.4g}"
