"""A folder as transformers' `save_pretrained` writes it, as a start for `transformers_classifier`. Nothing is fetched.

config.json                what the model is made with
model.safetensors          its weights; also in shards, or pytorch_model.bin, which is read with `weights_only=True`
preprocessor_config.json   how images are shown to it: size, mean, deviation, interpolation, crop
grafts.safetensors         where it was grafted (`attngraft.save_pretrained`)
"""

from __future__ import annotations

import json
import logging
import os
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from attngraft.attention import is_graft
from attngraft.errors import HostError, UsageError
from attngraft.grafting.io import load_grafts

log = logging.getLogger(__name__)

HOST = "transformers_classifier"  #: the host that such a folder is for
GRAFTS = "grafts.safetensors"
CONFIG = "config.json"
PROCESSORS = ("preprocessor_config.json", "processor_config.json")
#: what weights are called there; one is taken, the first that is there
WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
#: what a configuration keeps that says nothing of the model's form, or follows from the data
_ASIDE = {
    "_name_or_path",
    "architectures",
    "dtype",
    "id2label",
    "label2id",
    "num_labels",
    "problem_type",
    "transformers_version",
}
#: Pillow's numbers of the ways to resize
_RESAMPLE = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}


def transformers_folder(path: str | os.PathLike[str]) -> Path | None:
    """The folder of transformers that `path` is, or lies in as its file of weights; None for other places."""
    place = Path(path).expanduser()
    if place.is_file() and place.name in WEIGHTS:
        place = place.parent
    try:
        config = json.loads((place / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return place if isinstance(config, dict) and "model_type" in config else None


def refuse_without_config(place: Path) -> None:
    """Refuse what looks like a folder of transformers, or a name on the Hub, and is none.

    Raises:
        UsageError: says what is missing.
    """
    if not place.exists() and not place.suffix:
        raise UsageError(
            f"{place}: there is no such folder, and nothing is fetched; get it first (hf download NAME --local-dir FOLDER) "
            "and give the folder"
        )
    others = ("attngraft.json", "recipe.yaml", "checkpoints")  # an exported model's, a run's
    if place.is_dir() and not any((place / name).exists() for name in others):
        raise UsageError(
            f"{place / CONFIG}: there is no such file, or it names no model_type; a folder that save_pretrained wrote has "
            "one, copy it there. For weights alone give the file, and say by --host-arg what the model is made with"
        )


def folder_arguments(folder: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for `transformers_classifier`: those of the folder's configuration and image processor, under `given`.

    Once they are known the folder is needed for its weights alone; where `given` already says the `model_type`, they are.

    Raises:
        UsageError: transformers is missing, cannot read the configuration, or nothing says how images are shown.
    """
    if "model_type" in given:
        return dict(given)
    transformers = _transformers(folder)
    try:
        config = transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{folder / CONFIG}: transformers {transformers.__version__} cannot read it ({_first_line(error)})"
        ) from None
    own = json.loads(json.dumps({name: value for name, value in config.to_diff_dict().items() if name not in _ASIDE}))
    overlay = dict(given.get("pretrained_cfg_overlay") or {})
    if not {"mean", "std"} <= overlay.keys():
        overlay = {**_shown(transformers, folder), **overlay}
    if "img_size" in given:
        own.pop("image_size", None)
        overlay.pop("input_size", None)
    if "in_chans" in given:
        own.pop("num_channels", None)
    return {**own, **given, "pretrained_cfg_overlay": overlay}


def folder_classes(folder: Path) -> int:
    """How many classes the model's configuration is for."""
    transformers = _transformers(folder)
    config = transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    return int(config.num_labels)


def folder_tensors(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    """The file of weights, and the tensors that the classifier has with them, under the names that it has.

    transformers itself reads them, because names have changed over its releases. What the weights lack (a head) is left
    out; what an image classifier has no place for (a pooler, a decoder) is named in the log.

    Raises:
        UsageError: there are no weights, or no transformers.
        HostError: the weights are damaged, hold more than tensors, or were trained with grafts that are not there.
    """
    file = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if file is None:
        raise UsageError(
            f"{folder / WEIGHTS[0]}: there is no such file beside {CONFIG}, nor {' or '.join(WEIGHTS[1:3])}; "
            "copy it there from where the model was saved (save_pretrained writes both)"
        )
    transformers = _transformers(folder)
    model, report = _loaded(transformers, folder, file)
    unexpected = report["unexpected_keys"]
    if (folder / GRAFTS).is_file():
        load_grafts(model, folder / GRAFTS)
    elif any(is_graft(name) for name in unexpected):
        raise HostError(
            f"{file} holds weights of grafts, and there is no {GRAFTS} beside it to say which; save the model with "
            "attngraft.save_pretrained, or train it with attngraft.GraftCheckpoints"
        )
    if aside := sorted(name for name in unexpected if not is_graft(name)):
        log.info("%s: an image classifier has no place for %s", file, ", ".join(aside))
    missing = set(report["missing_keys"])
    return file, {f"model.{name}": value for name, value in model.state_dict().items() if name not in missing}


def _loaded(transformers: Any, folder: Path, file: Path) -> tuple[nn.Module, dict[str, Any]]:
    """The classifier with the folder's weights, and what transformers says of them."""
    try:
        with torch.random.fork_rng(devices=[]), quiet(transformers):  # it draws values for what is missing
            found: tuple[nn.Module, dict[str, Any]] = transformers.AutoModelForImageClassification.from_pretrained(
                str(folder),
                dtype=torch.float32,
                local_files_only=True,
                trust_remote_code=False,
                weights_only=True,
                output_loading_info=True,
            )
    except pickle.UnpicklingError as error:
        raise HostError(
            f"{file} holds Python objects besides tensors, and reading those could run anything, so it is not read. "
            "Where you trust it: load it with transformers elsewhere and save it again (save_pretrained writes safetensors)"
        ) from error
    except (SafetensorError, RuntimeError, OSError, ValueError, EOFError, KeyError, TypeError) as error:
        raise HostError(
            f"{file}: transformers {transformers.__version__} cannot read it as an image classifier "
            f"({_first_line(error)}); fetch or save the folder again"
        ) from error
    return found


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Keep what transformers reports of missing and unexpected weights, where it is told in other words."""
    logging_of = transformers.utils.logging
    before = logging_of.get_verbosity()
    logging_of.set_verbosity_error()
    try:
        yield
    finally:
        logging_of.set_verbosity(before)


def _shown(transformers: Any, folder: Path) -> dict[str, Any]:
    """How images are shown to the model, as timm's data configuration says it."""
    remedy = (
        f"Save it beside {CONFIG} (AutoImageProcessor.from_pretrained(NAME).save_pretrained(FOLDER)), or say it: "
        "--host-arg 'pretrained_cfg_overlay={mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5], interpolation: bilinear}'"
    )
    file = next((folder / name for name in PROCESSORS if (folder / name).is_file()), None)
    if file is None:
        raise UsageError(
            f"{folder / PROCESSORS[0]}: there is no such file, and it says how images are shown to this model. {remedy}"
        )
    try:
        processor = transformers.AutoImageProcessor.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        ).to_dict()
        return _data_config(processor)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise UsageError(f"{file}: cannot be read as an image processor's ({_first_line(error)}). {remedy}") from None


def _data_config(processor: Mapping[str, Any]) -> dict[str, Any]:
    """(pixel * rescale_factor - mean) / std, as timm has it for pixels in 0..1; and the last size, by one resize and crop.

    Raises:
        ValueError: sizes are given in a way that fixes none.
    """
    scale = 255 * float(processor.get("rescale_factor") or 1 / 255) if processor.get("do_rescale", True) else 255.0
    scale = 1.0 if abs(scale - 1) < 1e-9 else scale
    plain = not processor.get("do_normalize", True)
    mean = [0.0] * 3 if plain else _numbers(processor["image_mean"])
    std = [1.0] * 3 if plain else _numbers(processor["image_std"])
    size = _sides(processor.get("size"))
    cropped = _sides(processor.get("crop_size")) if processor.get("do_center_crop") else {}
    edge = size.get("shortest_edge")
    if edge is not None:
        height, width = cropped.get("height", edge), cropped.get("width", edge)
        shown: dict[str, Any] = {"crop_pct": min(height, width) / edge, "crop_mode": "center"}
        if not cropped and processor.get("crop_pct"):
            shown["crop_pct"] = 1.0 if edge >= 384 else float(processor["crop_pct"])  # ConvNeXt's own rule
    elif {"height", "width"} <= size.keys():
        height, width = cropped.get("height", size["height"]), cropped.get("width", size["width"])
        shown = {"crop_pct": height / size["height"], "crop_mode": "squash"}
    else:
        raise ValueError(f"size {size}: neither height and width nor shortest_edge")
    return {
        "input_size": [len(mean), height, width],
        "mean": [value / scale for value in mean],
        "std": [value / scale for value in std],
        "interpolation": _RESAMPLE[int(processor.get("resample", 2))],
        **shown,
    }


def _sides(size: Mapping[str, Any] | None) -> dict[str, int]:
    return {name: int(value) for name, value in (size or {}).items() if value is not None}


def _numbers(values: Any) -> list[float]:
    numbers = values if isinstance(values, list | tuple) else [values] * 3
    return [float(value) for value in numbers]


def _transformers(folder: Path) -> Any:
    try:
        import transformers
    except ImportError:
        raise UsageError(f"{folder}: this needs transformers: pip install 'attngraft[hf]'") from None
    return transformers


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
