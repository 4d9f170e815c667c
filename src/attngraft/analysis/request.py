"""Input of an analysis (models, images and options), and functions to run it model by model."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

import torch
from torch import Tensor

from attngraft.errors import AttngraftError, GraftSpecError, HostError, RecordError, UsageError
from attngraft.hosts import Host, find_host
from attngraft.recording.record import record
from attngraft.recording.recording import Recording
from attngraft.results.analysis import AnalysisResult, Panel
from attngraft.results.sections import Table
from attngraft.targets.handle import ModelHandle
from attngraft.targets.images import ImageSet

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class AnalysisRequest:
    """Models, images and options of an analysis."""

    models: tuple[ModelHandle, ...]
    image_set: ImageSet | None = None  #: None: the analysis needs no images
    baseline: int | None = None  #: index of the model that others are compared with, if any
    left_out: Mapping[str, str] = field(default_factory=dict)  #: requested models that could not be opened -> reason
    sites: str = "all"
    limit: int = 500  #: largest number of images for means
    shown: int = 4  #: largest number of images shown one by one
    batch: int = 32
    heads: bool = False  #: show heads separately instead of their mean
    latents: tuple[int, ...] = ()  #: indices of the latents to show; empty: a few, and all of the last layer
    positions: tuple[tuple[int, int], ...] = ()  #: (row, column) of the filters to show; empty: nine default positions
    label_maps: Path | None = None  #: folder of label maps with a class index per pixel
    progress: Callable[[int], None] = lambda images: None  #: called with the number of images just processed

    @property
    def names(self) -> list[str]:
        return [model.name for model in self.models]

    @property
    def images(self) -> ImageSet:
        """The images.

        Raises:
            UsageError: there are no images.
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
        """Yield input batches of up to `limit` images, the same for every model; skip a last batch smaller than `least`."""
        indices = self.images.sample(self.limit)
        for start in range(0, len(indices), self.batch):
            part = indices[start : start + self.batch]
            if len(part) >= least:
                yield model.inputs([model.view(self.images.open(index)) for index in part])
            self.progress(len(part))

    def pictures(self, model: ModelHandle) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yield the name, the view (C, H, W) as uint8 and the model input (1, C, H, W) of each of up to `shown` images."""
        for index in self.images.sample(self.shown):
            view = model.view(self.images.open(index))
            yield self.images.names[index], view, model.inputs([view])
            self.progress(1)


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """An analysis and its requirements; `name` is its name on the command line."""

    name: str
    title: str
    summary: str  #: one line
    source: str  #: papers: "CB, Figs. 3a and 5a"
    run: Callable[[AnalysisRequest], AnalysisResult]
    images: Literal["none", "shown", "many"] = "many"  #: none; a few, shown one by one; many, for means
    models: tuple[int, int] = (1, 12)  #: least and most
    runs_only: bool = False  #: needs runs: it reads their training metrics
    #: compares predictions, saved by runs or made on labeled images; "shown": also shows some of the images
    predictions: Literal["", "counted", "shown"] = ""

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
        """Return whether images are required; `saved`: all models are runs with saved predictions."""
        return self.images != "none" and not (saved and self.predictions == "counted")

    def __call__(self, request: AnalysisRequest) -> AnalysisResult:
        """Run the analysis.

        Raises:
            UsageError: there are too few or too many models, images are missing, or models are not runs.
            RecordError: no model can be analyzed; the message contains the reason for each.
        """
        if not self.models[0] <= len(request.models) <= self.models[1]:
            raise UsageError(f"{self.name}: requires {self._count('model')}, got {len(request.models)}")
        if request.image_set is None and self.needs_images(saved=request.use_saved_predictions):
            raise UsageError(f"{self.name}: requires images; add --image FILE or --data SOURCE")
        for model in request.models:
            if self.runs_only and model.record is None:
                raise UsageError(
                    f"{self.name}: requires runs (it reads their training metrics); {model.name} is not a run"
                )
        return self.run(request)

    def result(
        self,
        request: AnalysisRequest,
        *,
        note: str,
        panels: Iterable[Panel],
        table: Table,
        numbers: Mapping[str, float] | None = None,
        left_out: Mapping[str, str] | None = None,
    ) -> AnalysisResult:
        """Create the result of this analysis for a request."""
        return AnalysisResult(
            name=self.name,
            title=self.title,
            note=note,
            source=self.source,
            subjects=request.names,
            baseline=request.baseline,
            panels=list(panels),
            table=table,
            numbers=dict(numbers or {}),
            left_out={**request.left_out, **(left_out or {})},
        )


def measure_models(
    request: AnalysisRequest, measure: Callable[[AnalysisRequest, ModelHandle, dict[str, str]], T]
) -> tuple[list[tuple[int, str, T]], dict[str, str]]:
    """Call `measure(request, model, left_out)` for each model, in evaluation mode and without gradients.

    Returns:
        Index, name and measurement of each model that could be measured, and the reasons for models that could not (with the
        kind of error unless it is a `RecordError`) and for layers that `measure` added to `left_out`, by name.

    Raises:
        RecordError: no model could be measured.
        HostError, GraftSpecError: no model could be measured, all because of this kind of error.
    """
    measured: list[tuple[int, str, T]] = []
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


def host_of(model: ModelHandle) -> Host:
    """Return the host adapter of a model.

    Raises:
        HostError: no adapter supports the model.
    """
    return find_host(getattr(model.model, "_orig_mod", model.model))  # unwrap torch.compile's module


def recorded(
    model: ModelHandle, inputs: Tensor, what: Iterable[str], *, sites: str = "all", detach: bool = True
) -> Recording:
    """Run the model once and return the recording."""
    with record(model.model, what, sites=sites, detach=detach) as recording:
        model.model(inputs)
    return recording


def find_tensors(model: ModelHandle, inputs: Tensor, names: Collection[str], *, sites: str) -> dict[str, list[str]]:
    """Return the tensors with one of these names at each site, in the host's order, with any graft prefix.

    The names include the prefix of a graft, as in `elsa.ghost_add`. The model is run once, and no tensors are stored.
    """
    with torch.no_grad():
        recording = recorded(model, inputs, (), sites=sites)
    found = {
        site.path: [
            each for each in recording.available(site.path) if each in names or each.rpartition(".")[2] in names
        ]
        for site in host_of(model).sites
    }
    return {site: tensors for site, tensors in found.items() if tensors}


def sites_without_maps(recording: Recording, model: ModelHandle) -> dict[str, str]:
    """Return the attention sites without an attention map (linear attention, or replaced by a graft), with the reason."""
    names = {site.path: recording.available(site.path) for site in host_of(model).sites if site.kind == "attention"}
    return {
        site: f"{site}: has no attention map; available: {', '.join(each)}"
        for site, each in names.items()
        if "weights" not in each and not {"heads", "tokens", "attn.end"}.isdisjoint(each)
    }


def feature_map(recording: Recording, site: str, name: str) -> Tensor:
    """Return the features of a hook point as a map (B, rows, columns, C), for hosts with tokens or maps.

    Raises:
        RecordError: no tensor of this name was recorded at the site, or the positions of its tokens are unknown.
    """
    try:
        return recording.on_map(site, name)
    except UsageError as error:
        raise RecordError(f"{site}: {error}") from None
