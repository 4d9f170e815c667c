"""The models that are looked at: runs, exported folders, models of timm; each with its way from an image to its input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import timm.data
import torch
from PIL import Image
from torch import Tensor, nn

from attngraft.errors import UsageError
from attngraft.hosts import find_host
from attngraft.models.create import create_model
from attngraft.results.storage import RESULT_FILE
from attngraft.saved.folder import load
from attngraft.saved.manifest import MANIFEST, read_manifest
from attngraft.targets.run import open_run
from attngraft.tasks.images.inputs import HostInput
from attngraft.tasks.images.transforms import Preprocessor
from attngraft.tasks.task import Serving
from attngraft.training.evaluate import Weights
from attngraft.training.run_folder import RunRecord


@dataclass(frozen=True, kw_only=True)
class ModelHandle:
    """A model in evaluation mode, and how images are shown to it."""

    name: str
    model: nn.Module
    preparation: Preprocessor
    classes: tuple[str, ...] = ()  #: empty where nobody says
    record: RunRecord | None = None  #: where it is of a run
    weights: Weights = "last"  #: which weights of it

    @property
    def saved(self) -> bool:
        """Whether its run saved what the model answered with these very weights."""
        return self.record is not None and self.record.predictions is not None and self.weights == "last"

    def view(self, image: Image.Image) -> Tensor:
        """What it sees of an upright image, before normalization: bytes (C, H, W)."""
        return self.preparation.transform(image)

    def inputs(self, views: list[Tensor]) -> Tensor:
        """Views as the model takes them, (B, C, H, W), where it is and of its type."""
        like = next(self.model.parameters(), torch.zeros(()))
        return self.preparation.batch(views).to(like)


def open_handle(
    where: str,
    *,
    name: str | None = None,
    weights: Weights = "last",
    pretrained: bool = False,
    arguments: Mapping[str, Any] | None = None,
) -> ModelHandle:
    """A run's folder, an exported folder, or a model of timm by its name.

    Args:
        where: which of these; a folder goes before a name.
        name: what it is called; by default a run's own name, a folder's, or timm's.
        weights: of a run: those of the last epoch, of the best one, or their moving averages.
        pretrained: of timm: with its weights; without, values are random.
        arguments: for timm's factory.

    Raises:
        UsageError: it is a study, or nothing of the kind; or a model that takes no images.
        TrainingError, ExportError, HostError: it cannot be opened.
    """
    path = Path(where)
    if (path / RESULT_FILE).is_file() and not (path / "recipe.yaml").is_file():
        raise UsageError(f"{where}: is a study: give it as --study {where}, or give one of its runs ({where}/runs/...)")
    if path.is_dir():
        if pretrained or arguments:
            raise UsageError(
                f"{where}: is a folder, which says itself what its model is; leave --pretrained and --host-arg out"
            )
        return _of_exported(path, name) if (path / MANIFEST).is_file() else _of_run(path, name, weights)
    if path.suffix or "/" in where:
        raise UsageError(
            f"{where}: there is no such folder; give a run, an exported model, or a model of timm by its name"
        )
    model = create_model(where, pretrained=pretrained, **(arguments or {}))
    return model_handle(name or where, model)


def model_handle(name: str, model: nn.Module, *, expects: Mapping[str, Any] | None = None) -> ModelHandle:
    """A model that is there already; images become its input as timm evaluates it.

    Args:
        expects: what it expects of an image, as in timm's configuration (`mean`, `std`, `crop_pct`, `interpolation`); by
            default what its own says, or timm's defaults.

    Raises:
        UsageError: it takes no images.
        HostError: no adapter knows it.
    """
    host = find_host(getattr(model, "_orig_mod", model))  # torch.compile's wrapper holds the model itself
    example = host.adapter.example_inputs(host.core, batch=1)[0]
    if example.ndim != 4 or example.shape[1] not in (1, 3):
        raise UsageError(f"{name}: it takes tensors of {tuple(example.shape)}, and no images of 1 or 3 channels")
    config = timm.data.resolve_model_data_config(host.core) | dict(expects or {})
    takes = HostInput.from_model(config | {"input_size": tuple(example.shape[1:])})
    return ModelHandle(name=name, model=model, preparation=Preprocessor(takes))


def _of_run(path: Path, name: str | None, weights: Weights) -> ModelHandle:
    source = open_run(path, weights, unfinished=True)
    subject = _served(name or _called(path), source.model, source.manifest.serving)
    return replace(subject, record=source.record, weights=weights)


def _of_exported(path: Path, name: str | None) -> ModelHandle:
    return _served(name or path.resolve().name, load(path), read_manifest(path).serving)


def _served(name: str, model: nn.Module, serving: Serving) -> ModelHandle:
    return ModelHandle(
        name=name,
        model=_placed(model),
        preparation=Preprocessor.from_serving(serving),
        classes=serving.classes,
    )


def _placed(model: nn.Module) -> nn.Module:
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return (model if device is None else model.to(device)).eval()


def _called(run: Path) -> str:
    """A study's run by its variant and seed, another one by its folder."""
    parts = run.resolve().parts
    return "/".join(parts[-2:]) if len(parts) > 2 and parts[-3] == "runs" else parts[-1]
