"""What an analysis is given: models, images, and how much of both; and how it goes through them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar

import torch
from torch import Tensor

from attngraft.errors import AttngraftError, GraftSpecError, HostError, RecordError, UsageError
from attngraft.results.analysis import Finding
from attngraft.targets.handle import ModelHandle
from attngraft.targets.images import ImageSet

T = TypeVar("T")

Progress = Callable[[int], None]  #: so many more images were seen


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One question to some models."""

    subjects: tuple[ModelHandle, ...]
    album: ImageSet | None = None  #: None: the analysis needs no images
    baseline: int | None = None  #: the place of the model that the others are compared with, where there is one
    left_out: Mapping[str, str] = field(default_factory=dict)  #: models that were wanted and cannot be asked, and why
    sites: str = "all"
    limit: int = 500  #: images that means are taken over
    shown: int = 4  #: images that are shown one by one
    batch: int = 32
    heads: bool = False  #: pictures head by head where there is a choice, not their mean
    latents: tuple[int, ...] = ()  #: which latents are shown, by their numbers; empty: some, and all of the last layer
    at: tuple[tuple[int, int], ...] = ()  #: (row, column) of the places whose filters are shown; empty: nine of them
    label_maps: Path | None = None  #: folder of images of class numbers, a pixel a label; None: there are none
    progress: Progress = lambda images: None

    @property
    def images(self) -> ImageSet:
        """
        Raises:
            UsageError: no images were given.
        """
        if self.album is None:
            raise UsageError("no images: name some with --image, or data with --data")
        return self.album

    @property
    def saved(self) -> bool:
        """Whether what the models answered is known from their runs: all saved it, and no other images were named."""
        return not (self.album is not None and self.album.user_chosen) and all(
            each.has_predictions for each in self.subjects
        )

    def batches(self, subject: ModelHandle, *, least: int = 1) -> Iterator[Tensor]:
        """Up to `limit` images as the model takes them; the same images for every model. A last batch of fewer than `least`
        images is left out."""
        places = self.images.sample(self.limit)
        for start in range(0, len(places), self.batch):
            part = places[start : start + self.batch]
            if len(part) >= least:
                yield subject.inputs([subject.view(self.images.open(place)) for place in part])
            self.progress(len(part))

    def pictures(self, subject: ModelHandle) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Up to `shown` images: name, what the model sees as bytes (C, H, W), and as it takes it, (1, C, H, W)."""
        for place in self.images.sample(self.shown):
            view = subject.view(self.images.open(place))
            yield self.images.names[place], view, subject.inputs([view])
            self.progress(1)


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """One analysis by its name on the command line."""

    name: str
    title: str
    what: str  #: what it shows, in a line
    source: str  #: where it is from: "CB, Figs. 3a and 5a"
    find: Callable[[Ask], Finding]
    images: Literal["none", "shown", "many"] = "many"  #: none; a few, shown one by one; many, for means
    models: tuple[int, int] = (1, 12)  #: at least, at most
    runs: bool = False  #: whether models must be runs: it reads what they wrote while they trained
    #: whether it compares what models answer, as their runs saved it or on labelled images; "shown": and shows some images
    answers: Literal["", "counted", "shown"] = ""

    @property
    def takes(self) -> str:
        """What it needs, in words."""
        least, most = self.models
        count = str(least) if least == most else f"{least} to {most}"
        what = f"{count} run{'s' * (most > 1)}" if self.runs else f"{count} model{'s' * (most > 1)}"
        if self.answers:
            return what + ", labelled images unless all are runs"
        return what + {"none": "", "shown": ", a few images", "many": ", images"}[self.images]

    def needs_images(self, *, saved: bool) -> bool:
        """Whether there must be an album, where all models are runs that saved their answers (`saved`), or not."""
        return self.images != "none" and not (saved and self.answers == "counted")

    def __call__(self, ask: Ask) -> Finding:
        """The finding.

        Raises:
            UsageError: too few or too many models, no images where it needs some, or models that are no runs.
            RecordError: no model has what it looks for; says why, model by model.
        """
        least, most = self.models
        if not least <= len(ask.subjects) <= most:
            wanted = str(least) if least == most else f"{least} to {most}"
            raise UsageError(f"{self.name}: takes {wanted} model{'s' * (most > 1)}, not {len(ask.subjects)}")
        if ask.album is None and self.needs_images(saved=ask.saved):
            raise UsageError(f"{self.name}: needs images; name some with --image, or data with --data")
        for subject in ask.subjects:
            if self.runs and subject.record is None:
                raise UsageError(f"{self.name}: reads what a run wrote while it trained, and {subject.name} is no run")
        found = self.find(ask)
        return replace(found, baseline=ask.baseline, left_out={**ask.left_out, **found.left_out})


def by_subject(ask: Ask, find: Callable[[ModelHandle], T]) -> tuple[dict[int, T], dict[str, str]]:
    """What `find` finds of each model, by its place; and, by name, why others have nothing of the kind: what the error
    said, and its kind where it is another than a `RecordError`.

    Models are in evaluation mode and without gradients meanwhile.

    Raises:
        RecordError: none has.
        HostError, GraftSpecError: none has, and all for one reason of this kind.
    """
    found: dict[int, T] = {}
    errors: dict[str, AttngraftError] = {}
    for place, subject in enumerate(ask.subjects):
        try:
            with torch.no_grad():
                found[place] = find(subject)
        except (RecordError, HostError, GraftSpecError) as error:
            errors[subject.name] = error
    if not found:
        raise _none(errors)
    return found, {name: _said(error) for name, error in errors.items()}


def _said(error: AttngraftError) -> str:
    return str(error) if isinstance(error, RecordError) else f"{type(error).__name__}: {error}"


def _none(errors: Mapping[str, AttngraftError]) -> AttngraftError:
    """One error for all: of their kind where they are of one, so that a mistake in the command is still one."""
    kinds = {type(error) for error in errors.values()}
    reasons = dict.fromkeys(map(str, errors.values()))
    if len(kinds) == len(reasons) == 1:
        return next(iter(errors.values()))
    if len(kinds) == 1:
        return kinds.pop()("; ".join(f"{name}: {error}" for name, error in errors.items()))
    return RecordError("; ".join(f"{name}: {_said(error)}" for name, error in errors.items()))
