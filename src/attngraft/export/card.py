"""Model cards: README.md files of exported folders, in the format of model hubs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any

import timm
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from attngraft.export.fold import summary
from attngraft.models.schemes import split_scheme
from attngraft.results import facts as described
from attngraft.results import wording
from attngraft.results.storage import RESULT_FILE, cost_ratios, read_study
from attngraft.results.study import StudyResult, VariantResult
from attngraft.saved.manifest import GRAFTS, MANIFEST, WEIGHTS, Manifest
from attngraft.training.recipe import recipe_to_dict
from attngraft.training.run_folder import RunRecord, folder_of_study
from attngraft.yaml_config import dump_yaml

FILE = "README.md"
#: tasks of the Hub, by kind of inputs or by task
_PIPELINES = {
    "captioning": "image-to-text",
    "detection": "object-detection",
    "images": "image-classification",
    "segmentation": "image-segmentation",
    "text": "text-classification",
    "translation": "translation",
}
#: inputs of `attngraft predict`, likewise
_INPUTS = {
    "captioning": "IMAGES...",
    "detection": "IMAGES... --out boxes",
    "images": "IMAGES...",
    "segmentation": "IMAGES... --out masks",
    "text": "texts.csv",
    "translation": "< sentences.txt",
}
_LOCAL = "local-dir:"  #: timm's prefix for a path instead of a name
_COUNTED = 20  #: largest number of classes for which the card lists image counts


@dataclass(frozen=True, kw_only=True)
class StudyOfRun:
    """The study that a run belongs to, and the run's variant in it."""

    result: StudyResult
    variant: VariantResult

    @property
    def style(self) -> wording.MetricFormat:
        return wording.metric_format(self.result)

    @property
    def rows(self) -> list[dict[str, str]]:
        """Return the table cells for the baseline and this variant."""
        shown = [variant for variant in self.result.variants if variant.is_baseline or variant is self.variant]
        return [self._row(variant) for variant in shown]

    def _row(self, variant: VariantResult) -> dict[str, str]:
        spread, difference = variant.last.get(self.result.metric), variant.difference
        texts = []
        if difference:
            texts = [f"{self.style.change(difference.mean)} {self.style.points}".rstrip()]
            note = wording.interval_note(difference)
            interval = self.style.interval(wording.deciding_interval(difference))
            texts.append(f"{interval} ({note})" if note else interval)
        ratios = cost_ratios(variant.cost)
        return {
            "name": variant.name,
            "value": wording.spread_text(spread.mean, spread.deviation, self.style) if spread else wording.ABSENT,
            "difference": "; ".join(texts),
            "verdict": wording.verdict_text(self.result, variant),
            "parameters": wording.ratio(ratios["parameters"], exact=True),
            "macs": wording.ratio(ratios["macs"], exact=True),
            "training": wording.ratio(ratios["train_time"]),
            "inference": wording.ratio(ratios["inference_time"]),
        }

    @property
    def other_baseline(self) -> str:
        """The baseline's host if it differs from the variant's host; otherwise empty."""
        return str(_without_paths(self.result.host["name"])) if self.variant.host is not None else ""

    @property
    def recipe(self) -> str:
        """The variant's changes to the study's recipe, without local paths."""
        return str(_without_paths(wording.recipe_text(self.variant.recipe)))

    @property
    def epochs(self) -> int:
        return wording.epochs_of(self.variant, self.result)

    @property
    def command(self) -> str:
        """Command line that repeats the study, without local paths."""
        return " ".join(str(_without_paths(word)) for word in self.result.command.split(" "))

    @property
    def data(self) -> str:
        return str(_without_paths(self.result.data.get("source", "the data")))

    @property
    def reason(self) -> str:
        difference = self.variant.difference
        if self.variant.too_short:
            return "The study is too short to tell the variant from the baseline."
        return wording.reason(difference, seeds=len(self.result.seeds)) if difference else ""

    @property
    def interval_name(self) -> str:
        return wording.interval_name(self.result)

    @property
    def chance(self) -> str:
        return wording.chance_text(self.result)


def card_text(manifest: Manifest, record: RunRecord, *, parameters: int, plain_difference: float | None = None) -> str:
    """Return the model card, without local paths; it lists all licenses as unknown.

    Args:
        manifest: manifest of the exported folder.
        record: run of the model.
        parameters: number of the model's parameters.
        plain_difference: largest difference between the outputs of the model and of the host in plain timm (without
            grafts), if the folder has timm's configuration.
    """
    from huggingface_hub import ModelCardData  # local import: it is slow

    kind = manifest.serving.kind
    key = manifest.task if kind == "other" else kind
    maker, pipeline = _maker(manifest.host.name), _PIPELINES.get(key)
    header = ModelCardData(
        license="unknown",
        library_name=maker if maker == "timm" and not manifest.graft else "attngraft",
        pipeline_tag=None if manifest.serving.numeric and kind != "other" else pipeline,
        tags=[
            "attngraft",
            *(["timm"] if maker in ("timm", "attngraft") else []),
            *([pipeline] if pipeline and (kind == "other" or not manifest.serving.numeric) else []),
            *(["image-regression"] if kind == "images" and manifest.serving.numeric else []),
        ],
    )
    recipe = dump_yaml(_without_paths(recipe_to_dict(record.recipe))).rstrip()
    study = study_of(record.folder)
    image = manifest.input_size if manifest.serving.kind == "images" else ()
    environment = Environment(
        loader=PackageLoader("attngraft.export"),
        autoescape=False,  # the output is Markdown
        finalize=markdown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(code=code, number=lambda value: f"{value:.4g}")
    return environment.get_template("README.md.j2").render(
        header=Markup(header.to_yaml()),
        manifest=manifest,
        study=study,
        style=study.style if study else None,
        metrics=manifest.origin.metrics,
        inputs=Markup(_INPUTS.get(key, "INPUTS...")),
        model=wording.host_text(
            {"name": manifest.host.name, "args": _without_paths(record.recipe.host.args)}, input_size=image
        ),
        size=wording.model_size(parameters=parameters, input_size=image),
        parameters=parameters,
        plain_difference=plain_difference,
        maker=maker,
        facts=described.facts(_facts(record)),
        folds=summary(manifest.folds),
        recipe=Markup(recipe),
        fence=Markup(_fence(recipe, at_least=3)),
        host=record.recipe.host,
        teacher=_teacher(record),
        files={"manifest": MANIFEST, "weights": WEIGHTS, "grafts": GRAFTS},
    )


def _maker(name: str) -> str:
    """Return the name of the package that creates the host."""
    scheme, rest = split_scheme(name)
    if scheme == "timm" and timm.is_model(rest) and timm.model_entrypoint(rest).__module__.startswith("attngraft."):
        return "attngraft"
    return {"hf": "transformers", "module": rest.partition(":")[0]}.get(scheme, scheme)


def study_of(run: Path) -> StudyOfRun | None:
    """Return the study whose folder contains this run; None if there is no study whose result includes the run."""
    run, study = run.resolve(), folder_of_study(run)
    if study is None or not (study / RESULT_FILE).is_file():
        return None
    result = read_study(study)
    inside = run.relative_to(study).as_posix()
    variant = next((each for each in result.variants if any(one.includes(inside) for one in each.runs)), None)
    return None if variant is None else StudyOfRun(result=result, variant=variant)


def _facts(record: RunRecord) -> dict[str, Any]:
    """Return the facts about the data, without paths and without facts that appear elsewhere in the card."""
    left_out = (
        *("task", "where", "input", "augment", "classes", "colors", "targets"),
        *("check", "split_digest", "image", "pixels", "unigram"),
    )
    facts = {name: _without_paths(value) for name, value in record.facts.items() if name not in left_out}
    counts = facts.get("counts")
    if isinstance(counts, Mapping) and any(len(part) > _COUNTED for part in counts.values()):
        span = {part: f"{min(by.values())} to {max(by.values())}" for part, by in counts.items() if by}
        facts = {name: value for name, value in facts.items() if name != "counts"} | {"images per class": span}
    return {name: value for name, value in facts.items() if value not in ([], {}, None)}


def _teacher(record: RunRecord) -> dict[str, Any] | None:
    """Return the run's teacher: name, hash of its weights, and primary metric if it was evaluated."""
    if not record.teacher:
        return None
    metrics = {name.removeprefix("val/"): value for name, value in list(record.teacher.get("metrics", {}).items())[:1]}
    return {
        "name": _without_paths(record.teacher["name"]),
        "sha256": record.teacher["sha256"],
        "metrics": metrics,
    }


def _without_paths(value: Any) -> Any:
    """Reduce absolute paths in `value` to their last component, to publish no local folders."""
    if isinstance(value, Mapping):
        return {name: _without_paths(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_paths(each) for each in value]
    if isinstance(value, str) and value.startswith(_LOCAL):
        return _LOCAL + PureWindowsPath(value.removeprefix(_LOCAL)).name
    if isinstance(value, str) and (value.startswith(("/", "~")) or PureWindowsPath(value).drive):
        return PureWindowsPath(value).name  # handles both kinds of slashes
    return value


def markdown(value: Any) -> str:
    """Escape `value`, a text on one line, so that Markdown shows it as it is; leave Markdown (`Markup`) unchanged."""
    return value if isinstance(value, Markup) else re.sub(r"([\\`*_\[\]<>|&~])", r"\\\1", wording.shown(value))


def code(value: Any) -> str:
    """Format `value` as a Markdown code span on one line, escaping backticks and bars."""
    text = wording.shown(value).replace("|", "¦")
    fence = _fence(text)
    pad = " " if text.startswith("`") or text.endswith("`") or not text else ""
    return Markup(f"{fence}{pad}{text}{pad}{fence}")


def _fence(text: str, *, at_least: int = 1) -> str:
    """Return more backticks than occur in a row in `text`."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    return "`" * max(longest + 1, at_least)
