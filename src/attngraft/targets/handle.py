"""Model handles: models from runs, exported folders, hosts or files, with their image preprocessing."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import timm.data
import torch
from PIL import Image
from timm.data import ImageNetInfo, infer_imagenet_subset
from torch import Tensor, nn

from attngraft.devices import accelerator_device
from attngraft.errors import ConfigError, HostError, UsageError
from attngraft.hosts import find_host
from attngraft.models.host_input import other_input
from attngraft.models.trust import from_folder
from attngraft.results import wording
from attngraft.results.storage import RESULT_FILE, read_study
from attngraft.saved.folder import load, open_codec
from attngraft.saved.manifest import Manifest, read_manifest
from attngraft.targets.judged import HostOptions, create_target, kind_of
from attngraft.targets.run import open_run
from attngraft.tasks.codec import Codec
from attngraft.tasks.images.inputs import HostInput
from attngraft.tasks.images.transforms import Preprocessor
from attngraft.tasks.segmentation.codec import SegmentationCodec
from attngraft.tasks.task import Serving
from attngraft.training.evaluate import Weights
from attngraft.training.run_folder import RunRecord, folder_of_study, runs_below


@dataclass(frozen=True, kw_only=True)
class ModelHandle:
    """A model in evaluation mode, together with its image preprocessing."""

    name: str
    model: nn.Module
    preparation: Preprocessor
    classes: tuple[str, ...] = ()  #: class names; empty if unknown
    description: str  #: host with the arguments that change it, graft, parameters and input size
    serving: Serving | None = None  #: meaning of the outputs; None: unknown, or random weights
    masks: SegmentationCodec | None = None  #: classes and colors of a model that predicts masks; None: it does not
    record: RunRecord | None = None  #: record of the run; None for other models
    weights: Weights = "last"  #: which weights of the run

    @property
    def has_predictions(self) -> bool:
        """Return whether the run saved predictions made with these weights on its validation images."""
        if self.record is None or self.record.predictions is None or self.weights != "last":
            return False
        judged = self.record.judged
        return judged is None or (judged.weights, judged.split) == ("last", "val")

    def view(self, image: Image.Image) -> Tensor:
        """Return the resized and cropped pixels of an upright image, before normalization: uint8 (C, H, W)."""
        return self.preparation.transform(image)

    def inputs(self, views: list[Tensor]) -> Tensor:
        """Return a batch of views as model input (B, C, H, W), on the model's device and in its dtype."""
        like = next(self.model.parameters(), torch.zeros(()))
        return self.preparation.batch(views).to(like)


def open_handle(
    where: str,
    *,
    name: str | None = None,
    weights: Weights = "last",
    host: HostOptions | None = None,
    trust_code: bool = False,
    allow_download: bool = False,
    purpose: str = "analyses",
) -> ModelHandle:
    """Open a run's folder, an exported folder, a host by name, or a file of weights that names its host.

    Args:
        where: folder, file, or name of a host; folders and files take precedence.
        name: display name; default: the name of the run, the folder or the host.
        weights: which weights of a run to use: last epoch, best epoch, or their moving averages.
        host: weights and arguments of a host; without weights, it is initialized randomly.
        trust_code: import a `module:` host named in the folder; this runs its code.
        allow_download: download what the folder names (a host of the Hub, a data set) and is not in the caches.
        purpose: the capability that the task of a run must have.

    Raises:
        UsageError: `where` is a study or does not exist, or its model does not take images.
        TrainingError, ExportError, HostError: the model cannot be opened.
    """
    path, options = Path(where), host or HostOptions()
    if (path / RESULT_FILE).is_file() and not (path / "recipe.yaml").is_file():
        runs = ", ".join(map(str, runs_below(path)[:3])) or "none yet"
        raise UsageError(f"{where} is a study; use --study {where}, or give one of its runs ({runs})")
    kind = kind_of(where, options)
    if kind == "exported":
        with from_folder(trust_code=trust_code, allow_download=allow_download):
            model, manifest = load(path, trust_code=trust_code), read_manifest(path)
            codec = open_codec(manifest, path)
        return _served(name or path.resolve().name, model, manifest, codec)
    if kind == "run":
        opened = open_run(
            path, weights, unfinished=True, purpose=purpose, trust_code=trust_code, allow_download=allow_download
        )
        recipe = opened.record.recipe
        described = {"name": recipe.host.name, "args": recipe.host.args}
        handle = _served(name or run_name(opened.record), opened.model, opened.manifest, opened.codec, host=described)
        return replace(handle, record=opened.record, weights=weights)
    config, model = create_target(where, options, trust_code=trust_code, allow_download=allow_download)
    handle = model_handle(name or (where if kind == "host" else path.stem), model)
    handle = replace(
        handle, description=_description(model, handle.preparation, {"name": config.name, "args": config.args})
    )
    trained = config.pretrained or config.weights is not None
    return replace(handle, serving=_imagenet(model, handle.preparation)) if trained else handle


def model_handle(name: str, model: nn.Module, *, expects: Mapping[str, Any] | None = None) -> ModelHandle:
    """Wrap a model in a handle; images are preprocessed as in timm's validation.

    Args:
        expects: image configuration as in timm (`mean`, `std`, `crop_pct`, `interpolation`); default: the model's own, or
            timm's defaults.

    Raises:
        UsageError: the model does not take images.
        HostError: no adapter matches the model, and it has no `pretrained_cfg` with an input size.
    """
    core = getattr(model, "_orig_mod", model)  # the model inside torch.compile's wrapper
    if (other := other_input(core)) is not None:
        raise UsageError(f"{name}: takes {other['kind']}, not images; give an image model")
    configured, size = core, (getattr(core, "pretrained_cfg", None) or {}).get("input_size")
    try:
        host = find_host(core)
    except HostError:
        if size is None:
            raise
    else:
        configured = core if size is not None else host.core
        size = tuple(host.adapter.example_inputs(host.core, batch=1)[0].shape[1:])
    if len(size) != 3 or size[0] not in (1, 3):
        raise UsageError(f"{name}: takes tensors of {(1, *size)}, not images of 1 or 3 channels; give an image model")
    config = timm.data.resolve_model_data_config(configured) | dict(expects or {})
    preparation = Preprocessor(HostInput.from_model(config | {"input_size": tuple(size)}))
    return ModelHandle(name=name, model=model, preparation=preparation, description=_description(model, preparation))


def _served(
    name: str, model: nn.Module, manifest: Manifest, codec: Codec, *, host: Mapping[str, Any] | None = None
) -> ModelHandle:
    serving, masks = manifest.serving, codec if isinstance(codec, SegmentationCodec) else None
    if masks is None and serving.kind != "images":
        raise UsageError(f"{name}: takes {codec.takes}, but this command requires an image model")
    device = accelerator_device()
    arguments = {name: value for name, value in manifest.host.args.items() if name != "num_classes"}
    preparation = Preprocessor.from_serving(serving) if masks is None else masks.preprocessor()
    return ModelHandle(
        name=name,
        model=(model if device is None else model.to(device)).eval(),
        preparation=preparation,
        classes=serving.classes,
        description=_description(
            model, preparation, host or {"name": manifest.host.name, "args": arguments}, graft=manifest.graft
        ),
        serving=serving if masks is None else None,
        masks=masks,
    )


def _description(
    model: nn.Module, preparation: Preprocessor, host: Mapping[str, Any] | None = None, *, graft: str | None = None
) -> str:
    input_size = (preparation.host.channels, preparation.host.height, preparation.host.width)
    size = wording.model_size(parameters=sum(each.numel() for each in model.parameters()), input_size=input_size)
    known = [] if host is None else [wording.host_text(host, input_size=input_size)]
    return ", ".join([" + ".join(known + ([graft] if graft else [])), size]) if known else size


def _imagenet(model: nn.Module, preparation: Preprocessor) -> Serving | None:
    """Return the meaning of the outputs of a classifier of ImageNet's classes; None for other models."""
    if not hasattr(model, "num_classes") or (subset := infer_imagenet_subset(model)) is None:
        return None
    names = ImageNetInfo(subset)
    classes = tuple(names.index_to_description(index) for index in range(names.num_classes()))
    return Serving(kind="images", input=preparation.host.facts(), activation="softmax", classes=classes)


def run_name(record: RunRecord) -> str:
    """Return the name of the variant and the seed for a run of a study, otherwise the folder's name."""
    folder, study = record.folder.resolve(), folder_of_study(record.folder)
    if study is None:
        return folder.name
    inside = folder.relative_to(study).as_posix()
    try:
        variants = read_study(study).variants
    except ConfigError:  # no result yet
        variants = []
    named = (each.name for each in variants if any(run.includes(inside) for run in each.runs))
    _, variant, *of_run = folder.relative_to(study).parts
    return "/".join([next(named, variant), *of_run])
