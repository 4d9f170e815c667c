"""Input of an analysis (models, images and options), and functions to run it model by model."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor

from attngraft.errors import AttngraftError, GraftSpecError, HostError, RecordError, UsageError
from attngraft.results.analysis import AnalysisResult, Panel
from attngraft.results.sections import Table
from attngraft.targets.handle import ModelHandle
from attngraft.targets.images import ImageSet

T = TypeVar("T")

Measured: TypeAlias = list[tuple[int, str, T]]  #: index, name and measurement of each model


class ShownImage(NamedTuple):
    """An image to show individually, prepared for a model."""

    name: str
    view: Tensor  #: (C, H, W), uint8
    inputs: Tensor  #: (1, C, H, W)


@dataclass(frozen=True, kw_only=True)
class AnalysisRequest:
    """Models, images and options of an analysis."""

    models: tuple[ModelHandle, ...]
    image_set: ImageSet | None = None  #: None: no images were given
    baseline: int | None = None  #: index of the model with which the others are compared, if any
    left_out: Mapping[str, str] = field(default_factory=dict)  #: requested models that could not be opened -> reason
    sites: str = "all"
    limit: int = 500  #: largest number of images to average over
    shown: int = 4  #: largest number of images to show individually
    batch: int = 32
    heads: bool = False  #: show heads separately instead of their mean
    #: indices of the latents to show; empty: a few latents in each layer, and all latents in the last layer
    latents: tuple[int, ...] = ()
    positions: tuple[tuple[int, int], ...] = ()  #: (row, column) of the filters to show; empty: nine default positions
    label_maps: Path | None = None  #: folder of label maps with a class index per pixel
    progress: Callable[[int], None] = lambda images: None  #: called with the number of images just processed

    @property
    def names(self) -> list[str]:
        return [model.name for model in self.models]

    @property
    def images(self) -> ImageSet:
        """The image set.

        Raises:
            UsageError: no images were given.
        """
        if self.image_set is None:
            raise UsageError("no images; add --image FILE or --data SOURCE")
        return self.image_set

    @property
    def use_saved_predictions(self) -> bool:
        """Whether all models are runs with saved predictions and the user did not choose other images."""
        chosen = self.image_set is not None and self.image_set.user_chosen
        return not chosen and all(model.has_predictions for model in self.models)

    def batches(self, model: ModelHandle, *, least: int = 1) -> Iterator[Tensor]:
        """Yield batches of inputs, in total up to `limit` images, which are the same for every model.

        A batch of fewer than `least` images is skipped.
        """
        indices = self.images.sample(self.limit)
        for start in range(0, len(indices), self.batch):
            part = indices[start : start + self.batch]
            if len(part) >= least:
                yield model.inputs([model.view(self.images.open(index)) for index in part])
            self.progress(len(part))

    def pictures(self, model: ModelHandle) -> Iterator[ShownImage]:
        """Yield up to `shown` images, which are the same for every model."""
        for index in self.images.sample(self.shown):
            view = model.view(self.images.open(index))
            yield ShownImage(self.images.names[index], view, model.inputs([view]))
            self.progress(1)


@dataclass(frozen=True, kw_only=True)
class Content:
    """Content of an analysis result; see `AnalysisResult`."""

    note: str
    panels: list[Panel]
    table: Table
    numbers: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """An analysis and its requirements; `name` is its name on the command line."""

    name: str
    title: str
    summary: str  #: one line
    source: str  #: papers: "CB, Figs. 3a and 5a"
    run: Callable[[AnalysisRequest], Content]
    images: Literal["none", "shown", "many"] = "many"  #: "shown": a few, shown individually; "many": to average over
    models: tuple[int, int] = (1, 12)  #: smallest and largest number of models
    runs_only: bool = False  #: requires runs, whose training metrics the analysis reads
    #: whether the analysis compares predictions, read from runs or computed; "shown": it also shows some of the images
    predictions: Literal["", "counted", "shown"] = ""
    per_image: bool = False  #: requires models that predict one class per image

    def _count(self, noun: str) -> str:
        least, most = self.models
        return f"{least if least == most else f'{least} to {most}'} {noun}{'s' * (most > 1)}"

    @property
    def requirements(self) -> str:
        """Description of the required models and images."""
        models = self._count("run" if self.runs_only else "model")
        if self.predictions:
            return models + ", labeled images unless all are runs"
        return models + {"none": "", "shown": ", a few images", "many": ", images"}[self.images]

    def needs_images(self, *, saved: bool) -> bool:
        """Return whether images are required; `saved`: whether all models have saved predictions."""
        return self.images != "none" and not (saved and self.predictions == "counted")

    def __call__(self, request: AnalysisRequest) -> AnalysisResult:
        """Run the analysis.

        Raises:
            UsageError: there are too few or too many models, images are missing, or a model is not a run or does not predict
                one class per image as required.
            RecordError: no model can be analyzed; the message contains the reason for each.
        """
        if not self.models[0] <= len(request.models) <= self.models[1]:
            raise UsageError(f"{self.name}: requires {self._count('model')}, got {len(request.models)}")
        for model in request.models:
            if self.per_image and model.masks is not None:
                raise UsageError(
                    f"{self.name}: requires a class per image, but {model.name} predicts one per pixel; give classifiers"
                )
        if request.image_set is None and self.needs_images(saved=request.use_saved_predictions):
            raise UsageError(f"{self.name}: requires images; add --image FILE or --data SOURCE")
        for model in request.models:
            if self.runs_only and model.record is None:
                raise UsageError(
                    f"{self.name}: requires runs (it reads their training metrics); {model.name} is not a run"
                )
        content = self.run(request)
        note = content.note
        if self.images != "none" and any(model.masks is not None for model in request.models):
            note += (
                " Images are resized and cropped to the padded size of the training crops of models that predict masks."
            )
        return AnalysisResult(
            name=self.name,
            title=self.title,
            source=self.source,
            subjects=request.names,
            baseline=request.baseline,
            **vars(replace(content, note=note, left_out={**request.left_out, **content.left_out})),
        )


def by_model(
    measure: Callable[[AnalysisRequest, ModelHandle, dict[str, str]], T],
    present: Callable[[AnalysisRequest, Measured[T]], Content],
) -> Callable[[AnalysisRequest], Content]:
    """Return the `run` function of an analysis that measures each model and presents all measurements."""

    def run(request: AnalysisRequest) -> Content:
        models, left_out = measure_models(request, measure)
        return replace(present(request, models), left_out=left_out)

    return run


def measure_models(
    request: AnalysisRequest, measure: Callable[[AnalysisRequest, ModelHandle, dict[str, str]], T]
) -> tuple[Measured[T], dict[str, str]]:
    """Call `measure(request, model, left_out)` for each model, in evaluation mode and without gradients.

    Returns:
        measured: index, name and measurement of each model that could be measured.
        left_out: model that could not be measured, or layer that `measure` left out -> reason. Reasons of models start with
            the type of the error unless it is a `RecordError`.

    Raises:
        RecordError: no model could be measured.
        HostError, GraftSpecError: no model could be measured, and all raised this type of error.
    """
    measured: Measured[T] = []
    errors: dict[str, AttngraftError] = {}
    layers: dict[str, str] = {}
    for index, model in enumerate(request.models):
        left_out: dict[str, str] = {}
        try:
            with torch.no_grad():
                measured.append((index, model.name, measure(request, model, left_out)))
        except (RecordError, HostError, GraftSpecError) as error:
            errors[model.name] = error
            continue
        layers |= {f"{model.name}, {layer}": reason for layer, reason in left_out.items()}
    if measured:
        return measured, {name: _reason(error) for name, error in errors.items()} | layers
    kinds = {type(error) for error in errors.values()}
    if len(kinds) > 1:
        raise RecordError("; ".join(f"{name}: {_reason(error)}" for name, error in errors.items()))
    if len(set(map(str, errors.values()))) == 1:
        raise next(iter(errors.values()))
    raise kinds.pop()("; ".join(f"{name}: {error}" for name, error in errors.items()))


def _reason(error: AttngraftError) -> str:
    return str(error) if isinstance(error, RecordError) else f"{type(error).__name__}: {error}"
