"""Folders written by transformers' `save_pretrained`, as hosts and as initial weights.

Nothing is downloaded, and no remote code runs.

config.json                arguments of the model
generation_config.json     settings of `generate`
model.safetensors          its weights; also in shards, or pytorch_model.bin, which is read with `weights_only=True`
preprocessor_config.json   preprocessing of images: size, mean, deviation, interpolation, crop
grafts.safetensors         its grafts, if any (`attngraft.save_pretrained`)
"""

import logging
import math
import os
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor, nn

from attngraft.attention import is_graft
from attngraft.downloads import without_hub
from attngraft.errors import HostError, UsageError
from attngraft.files import user_path
from attngraft.grafting.io import load_grafts
from attngraft.opening import check_folder, check_regular, read_json, read_mapping
from attngraft.suggest import first_line, quoted

log = logging.getLogger(__name__)

HOST = "transformers_classifier"  #: the host that loads such folders
IMAGE_CLASSIFIER = "AutoModelForImageClassification"  #: the auto class of `transformers_classifier`
SEQUENCE_TO_SEQUENCE = "AutoModelForSeq2SeqLM"  #: the auto class of encoder-decoders
CAPTIONER = "vision-encoder-decoder"  #: the model_type of encoder-decoders whose input is images
GRAFTS = "grafts.safetensors"
CONFIG = "config.json"
PROCESSORS = ("preprocessor_config.json", "processor_config.json")
#: file names of weights; the first that exists is used
WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
#: configuration keys that do not affect the architecture or are determined by the data
_IGNORED = {
    "_name_or_path",
    "architectures",
    "dtype",
    "id2label",
    "label2id",
    "num_labels",
    "problem_type",
    "transformers_version",
}
#: keys of generation settings that are not about generation
_NOT_GENERATION = {
    "_from_model_config",
    "transformers_version",
    "output_attentions",
    "output_hidden_states",
    "use_cache",
}
_KERNELS = ("_implementation", "_implementation_internal")  #: endings of keys whose values name attention kernels
#: largest numbers in a configuration, by a part of their name
_MOST = {"layer": 10_000, "depth": 10_000, "num_labels": 1_000_000}
#: Pillow's resampling filters by number
_RESAMPLE = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}


def transformers_folder(path: str | os.PathLike[str]) -> Path | None:
    """Return the transformers folder at `path`, a folder or its weights file; None for other paths."""
    folder = user_path(path)
    if folder.is_file() and folder.name in WEIGHTS:
        folder = folder.parent
    try:
        config = read_json(folder / CONFIG)
    except (OSError, ValueError):
        return None
    return folder if isinstance(config, dict) and "model_type" in config else None


def label_names(folder: Path) -> tuple[str, ...]:
    """Return the names of the classes in a folder's configuration, in the order of the model's outputs.

    Raises:
        HostError: they cannot be read.
    """
    try:
        labels = read_mapping(folder / CONFIG).get("id2label") or {}
        return tuple(str(labels[number]) for number in sorted(labels, key=int))
    except (OSError, ValueError, TypeError) as error:
        raise HostError(
            f"{folder / CONFIG}: its labels (id2label) cannot be read ({error}); correct the file"
        ) from None


def refuse_without_config(path: Path) -> None:
    """Check that a folder exists and was saved by transformers, by `attngraft export` or by a run.

    Raises:
        UsageError: the folder or its configuration is missing.
    """
    if not path.exists() and not path.suffix:
        raise UsageError(
            f"{path}: no such folder, and attngraft downloads nothing; run hf download NAME --local-dir FOLDER first, and "
            "pass the folder"
        )
    others = ("attngraft.json", "recipe.yaml", "checkpoints")  # of an exported model or a run
    if path.is_dir() and not any((path / name).exists() for name in others):
        raise UsageError(
            f"{path / CONFIG}: no such file, or it has no model_type; save_pretrained writes it, so copy it from the saved "
            "folder. To load only weights, pass the weights file, and the model's arguments with --host-arg"
        )


def folder_arguments(folder: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `transformers_classifier` for a folder, updated by `given`.

    The arguments are read from the folder's configuration and image processor. If `given` has a `model_type`, it is
    complete and returned unchanged.

    Raises:
        UsageError: transformers is missing, cannot read the configuration, or preprocessing is not specified.
    """
    if "model_type" in given:
        return dict(given)
    own = _fields(_read_config(folder))
    overlay = dict(given.get("pretrained_cfg_overlay") or {})
    if not {"mean", "std"} <= overlay.keys():
        overlay = {**folder_preprocessing(folder), **overlay}
    if "img_size" in given:
        own.pop("image_size", None)
        overlay.pop("input_size", None)
    if "in_chans" in given:
        own.pop("num_channels", None)
    return {**own, **given, "pretrained_cfg_overlay": overlay}


def folder_classes(folder: Path) -> int:
    """Return the number of classes in the model's configuration."""
    return int(_read_config(folder).num_labels)


def folder_config(folder: Path) -> dict[str, Any]:
    """Return the model's configuration as plain values: all fields that differ from the defaults.

    `architectures`, `num_labels` and the size and channels of images are always included.

    Raises:
        UsageError: transformers is missing, or cannot read the configuration.
    """
    config = _read_config(folder)
    always = ("architectures", "num_labels", "image_size", "num_channels")
    found = {name: getattr(config, name) for name in always if getattr(config, name, None) is not None}
    return {**_fields(config), **_plain(found)}


def folder_generation(folder: Path) -> dict[str, Any]:
    """Return the settings of `generate` that differ from the defaults; empty for models without an encoder and a decoder.

    They are in generation_config.json, in old folders in the configuration.

    Raises:
        UsageError: transformers is missing, or cannot read a file.
    """
    config = _read_config(folder)
    if not getattr(config, "is_encoder_decoder", False):
        return {}
    settings_of = import_transformers(folder).GenerationConfig
    file = folder / "generation_config.json"
    try:
        check_folder(folder)
        with without_hub():
            found = (
                settings_of.from_pretrained(str(folder)) if file.is_file() else settings_of.from_model_config(config)
            )
    except Exception as error:  # of any class, as of configurations
        raise UsageError(f"{file}: transformers cannot read it ({first_line(error)}); save the folder again") from None
    plain: dict[str, Any] = _plain(found.to_diff_dict())
    return {key: value for key, value in plain.items() if key not in _NOT_GENERATION and value is not None}


def _read_config(folder: Path) -> Any:
    transformers = import_transformers(folder)
    try:
        check_folder(folder)
        refuse_wrong_numbers(read_mapping(folder / CONFIG), where=str(folder / CONFIG))
        with without_hub():  # a configuration may name a backbone, which transformers would look up
            return transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except UsageError:
        raise
    except Exception as error:  # configurations raise errors of many classes
        raise UsageError(
            f"{folder / CONFIG}: transformers {transformers.__version__} cannot read it ({first_line(error)}); update "
            "transformers, or save the folder again"
        ) from None


def refuse_wrong_numbers(config: Mapping[str, Any], *, where: str) -> None:
    """Check the numbers of a configuration.

    Raises:
        UsageError: there are more than 10,000 layers or a million classes, which are created one after the other, or a
            value is NaN.
    """
    for name, value in _entries(config):
        if isinstance(value, float) and math.isnan(value):
            raise UsageError(f"{where}: {name} is not a number; correct it")
        for part, most in _MOST.items():
            if part in name and isinstance(value, int | float) and value > most:
                raise UsageError(f"{where}: {name} is more than {most:,}; correct it")


def _entries(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield names and values of a configuration and of those within it, also of each entry of a list."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _entries(value)
        elif isinstance(value, list | tuple):
            yield from ((str(name), each) for each in value if not isinstance(each, Mapping))
        else:
            yield str(name), value


def _fields(config: Any) -> dict[str, Any]:
    """Return the non-default fields that the installed transformers accepts; old files may have others."""
    known = {*type(config)().to_dict(), *config.attribute_map} - _IGNORED
    return _plain({name: value for name, value in config.to_diff_dict().items() if name in known})


def _plain(value: Any) -> Any:
    """Return `value` as plain JSON, without attention kernels, which transformers may download."""
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items() if not str(name).endswith(_KERNELS)}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def configuration_fields(transformers: Any, model_type: str) -> set[str]:
    """Return the names of the fields that a configuration accepts.

    Raises:
        ValueError: transformers has no such configuration.
    """
    try:
        plain = transformers.AutoConfig.for_model(model_type)
    except ValueError:
        raise ValueError(
            f"transformers has no configuration of model_type {model_type!r}; use a known type, such as vit or deit"
        ) from None
    return {"num_labels", *plain.to_dict(), *plain.attribute_map}


def checked_fields(transformers: Any, model_type: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Check that the configuration of a `model_type` accepts `fields`, and return them as plain values.

    Raises:
        ValueError: an unknown field.
    """
    known = configuration_fields(transformers, model_type)
    if unknown := [name for name in fields if name not in known]:
        raise ValueError(f"the configuration of {model_type!r} has no field {unknown[0]!r}")
    checked: dict[str, Any] = _plain(dict(fields))
    return checked


def folder_tensors(folder: Path, auto_class: str = IMAGE_CLASSIFIER) -> tuple[Path, dict[str, Tensor]]:
    """Return the weights file, and its tensors by their names in the host that `auto_class` creates.

    transformers loads the file itself, since names differ between its releases. Missing tensors (a head) are not returned;
    unexpected tensors (a pooler, a decoder) are logged.

    Raises:
        UsageError: there are no weights, or transformers is missing.
        HostError: the weights are damaged, contain more than tensors, or were trained with grafts whose file is missing.
    """
    file = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if file is None:
        raise UsageError(
            f"{folder / WEIGHTS[0]}: no such file next to {CONFIG}, nor {' or '.join(WEIGHTS[1:3])}; "
            "copy it from the saved folder (save_pretrained writes both)"
        )
    parts = _parts(file) if file.suffix == ".json" else [file]
    for part in parts:
        _refuse_integers(part)
    transformers = import_transformers(folder)
    model, report = _loaded(transformers, folder, file, auto_class)
    unexpected = report["unexpected_keys"]
    if (folder / GRAFTS).is_file():
        load_grafts(model, folder / GRAFTS)
    elif any(is_graft(name) for name in unexpected):
        raise HostError(
            f"{file} contains weights of grafts, but there is no {GRAFTS} next to it to describe them; save the model with "
            "attngraft.save_pretrained, or train it with attngraft.GraftCheckpoints"
        )
    if ignored := sorted(name for name in unexpected if not is_graft(name)):
        users = "an image classifier does" if auto_class == IMAGE_CLASSIFIER else f"{type(model).__name__} does"
        log.info("%s: ignored tensors that %s not use: %s", file, users, ", ".join(ignored))
    missing, prefix = set(report["missing_keys"]), "model." if auto_class == IMAGE_CLASSIFIER else ""
    return file, {f"{prefix}{name}": value for name, value in model.state_dict().items() if name not in missing}


def _refuse_integers(file: Path) -> None:
    """Check that weights and biases in a .safetensors file are floats; transformers would take quantized ones for values.

    Raises:
        HostError: they are not.
    """
    if file.suffix != ".safetensors":
        return
    try:
        check_regular(file)
        with safetensors.safe_open(file, framework="pt") as opened:
            kinds = {name: opened.get_slice(name).get_dtype() for name in opened.keys()}  # noqa: SIM118
    except (OSError, safetensors.SafetensorError):
        return  # explained when they are loaded
    for name, kind in kinds.items():
        if name.endswith((".weight", ".bias")) and (kind[0] in "IU" or kind == "BOOL"):
            raise HostError(f"{file}: {name} is {kind}, as in quantized models; use weights that are floats")


def _parts(index: Path) -> list[Path]:
    """Return the files of divided weights, which are regular files in the folder of their index.

    Raises:
        HostError: they are not, or the index is damaged.
    """
    try:
        tensors: dict[str, set[str]] = {}
        for name, part in read_mapping(index)["weight_map"].items():
            tensors.setdefault(part, set()).add(name)
        for part, names in tensors.items():
            if Path(part).name != part:
                raise ValueError(f"{quoted(part)} is not a file in this folder")
            check_regular(index.with_name(part))
            if part.endswith(".safetensors"):
                with safetensors.safe_open(index.with_name(part), framework="pt") as file:
                    if others := names ^ set(file.keys()):
                        raise ValueError(f"{part} and the index differ in {quoted(min(others))}")
        return [index.with_name(part) for part in tensors]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, safetensors.SafetensorError) as error:
        raise HostError(f"{index}: {first_line(error)}; download or save the folder again") from None


def _loaded(transformers: Any, folder: Path, file: Path, auto_class: str) -> tuple[nn.Module, dict[str, Any]]:
    """Load the model; return it and transformers' report on missing and unexpected tensors."""
    try:
        check_folder(folder)
        with torch.random.fork_rng(devices=[]), quiet(transformers), without_hub():  # initializes missing weights
            found: tuple[nn.Module, dict[str, Any]] = getattr(transformers, auto_class).from_pretrained(
                str(folder),
                dtype=torch.float32,
                local_files_only=True,
                trust_remote_code=False,
                weights_only=True,
                attn_implementation="eager",  # not as in the configuration, which may name a kernel on the Hub
                output_loading_info=True,
            )
    except pickle.UnpicklingError as error:
        raise HostError(
            f"{file} contains Python objects besides tensors; reading them could run arbitrary code, so it is refused. If "
            "you trust the file, load it with transformers elsewhere and save it again (save_pretrained writes safetensors)"
        ) from error
    except Exception as error:  # damaged files, and configurations, raise errors of many classes
        what = "an image classifier" if auto_class == IMAGE_CLASSIFIER else auto_class
        raise HostError(
            f"{file}: transformers {transformers.__version__} cannot read it as {what} "
            f"({first_line(error)}); download or save the folder again"
        ) from error
    return found


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Suppress transformers' progress bars and its reports on weights, which attngraft prints itself."""
    logging_of = transformers.utils.logging
    before, bars = logging_of.get_verbosity(), logging_of.is_progress_bar_enabled()
    logging_of.set_verbosity_error()
    logging_of.disable_progress_bar()
    try:
        yield
    finally:
        logging_of.set_verbosity(before)
        if bars:
            logging_of.enable_progress_bar()


def folder_preprocessing(folder: Path) -> dict[str, Any]:
    """Return the preprocessing of images as timm's data configuration.

    Raises:
        UsageError: transformers is missing, or there is no image processor that it can read.
    """
    transformers = import_transformers(folder)
    remedy = (
        f"Save it next to {CONFIG} (AutoImageProcessor.from_pretrained(NAME).save_pretrained(FOLDER)), or pass it: "
        "--host-arg 'pretrained_cfg_overlay={mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5], interpolation: bilinear}'"
    )
    file = next((folder / name for name in PROCESSORS if (folder / name).is_file()), None)
    if file is None:
        raise UsageError(f"{folder / PROCESSORS[0]}: no such file; it specifies the preprocessing of images. {remedy}")
    try:
        check_folder(folder)
        with without_hub():
            processor = transformers.AutoImageProcessor.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            ).to_dict()
        return _data_config(processor)
    except Exception as error:  # of any class, as of configurations
        raise UsageError(f"{file}: not readable as an image processor ({first_line(error)}). {remedy}") from None


#: settings of image processors that are not supported: BGR images, shifted pixels, and a second normalization
_UNSUPPORTED = ("do_flip_channel_order", "rescale_offset", "include_top")


def _data_config(processor: Mapping[str, Any]) -> dict[str, Any]:
    """Convert an image processor's settings to timm's data configuration.

    (pixel * rescale_factor - mean) / std becomes timm's form for pixels in 0..1, and all sizes become one resize and
    one crop.

    Raises:
        ValueError: the sizes do not determine an input size, pixels cannot be normalized, or a setting is not supported.
    """
    for name in _UNSUPPORTED:
        if processor.get(name):
            raise ValueError(f"{name} changes pixels in a way that is not supported")
    scale = 255 * float(processor.get("rescale_factor") or 1 / 255) if processor.get("do_rescale", True) else 255.0
    scale = 1.0 if abs(scale - 1) < 1e-9 else scale
    plain = not processor.get("do_normalize", True)
    mean = [0.0] * 3 if plain else _numbers(processor["image_mean"])
    std = [1.0] * 3 if plain else _numbers(processor["image_std"])
    if len(mean) != len(std) or not all(map(math.isfinite, [*mean, *std])) or min(std, default=0) <= 0:
        raise ValueError(
            f"image_mean {mean} and image_std {std} must be finite and of the same length, and image_std positive"
        )
    size = _sides(processor.get("size"))
    cropped = _sides(processor.get("crop_size")) if processor.get("do_center_crop") else {}
    edge = size.get("shortest_edge")
    if edge is not None:
        height, width = cropped.get("height", edge), cropped.get("width", edge)
        shown: dict[str, Any] = {"crop_pct": min(height, width) / edge, "crop_mode": "center"}
        if not cropped and processor.get("crop_pct"):
            shown["crop_pct"] = 1.0 if edge >= 384 else float(processor["crop_pct"])  # ConvNeXt's rule
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


def import_transformers(what: Path | str) -> Any:
    """Import transformers for the folder or host `what`.

    Raises:
        UsageError: transformers is not installed.
    """
    try:
        import transformers  # optional and slow to import
    except ImportError:
        raise UsageError(f"{what}: requires transformers; run pip install 'attngraft[hf]'") from None
    return transformers
