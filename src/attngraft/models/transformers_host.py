"""`hf:` hosts: transformers models from a folder or the Hugging Face Hub. Remote code is never run.

A host is described by its arguments alone: `config` (the contents of config.json), for images `input` (the preprocessing),
for encoder-decoders `generation` (the contents of generation_config.json), and the user's own arguments, which are fields of
the configuration, `auto_class`, `num_classes`, `img_size` and `in_chans`.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch import nn

from attngraft.downloads import without_hub
from attngraft.errors import HostError, UsageError
from attngraft.files import user_path
from attngraft.models.hub import hub_or_cache
from attngraft.models.schemes import Started, build_anywhere, creation_errors, sized_for
from attngraft.models.transformers_classifier import transformers_classifier
from attngraft.models.transformers_folder import (
    CAPTIONER,
    IMAGE_CLASSIFIER,
    PROCESSORS,
    SEQUENCE_TO_SEQUENCE,
    checked_fields,
    folder_config,
    folder_generation,
    folder_preprocessing,
    folder_tensors,
    import_transformers,
    refuse_wrong_numbers,
    transformers_folder,
)
from attngraft.models.unavailable import why_no_weights
from attngraft.models.weights import split_weights
from attngraft.opening import read_mapping
from attngraft.suggest import did_you_mean, quoted

#: files besides the weights
_FILES = ["*.json", "*.txt", "*.model", "*.spm"]
_WEIGHTS = ["model.safetensors", "model-*.safetensors"], ["pytorch_model.bin", "pytorch_model-*.bin"]
_TOKENIZER = "tokenizer_config.json"
_VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model")
_LIMIT = 10**6  #: largest plausible limit of tokens; tokenizers without a limit have 10**30


def resolve_arguments(source: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Add `config`, for images `input`, and for encoder-decoders `generation`, of the folder `source` to `given`.

    `source` may also be a repository.

    Raises:
        UsageError: there is no such folder, or transformers cannot read it.
        HostError: the files cannot be downloaded.
    """
    if "config" in given:
        return dict(given)
    folder = find_folder(source)
    found: dict[str, Any] = {"config": folder_config(folder), **given}
    overlay = given.get("pretrained_cfg_overlay") or {}
    required = found["config"]["model_type"] == CAPTIONER
    if (required or any((folder / name).is_file() for name in PROCESSORS)) and not {"mean", "std"} <= overlay.keys():
        found["input"] = folder_preprocessing(folder)
    if generation := folder_generation(folder):
        found.setdefault("generation", generation)
    return found


def start(name: str, arguments: Mapping[str, Any], *, pretrained: bool) -> Started:
    """Create the model, from its configuration alone or with its weights.

    An image classifier is wrapped as `transformers_classifier`, and returns logits; other models are not wrapped.

    Raises:
        UsageError, HostError: as in `resolve_arguments`; or the configuration or the weights do not fit.
    """
    transformers = import_transformers(f"hf:{name}")
    given = resolve_arguments(name, arguments)
    if not isinstance(given["config"], Mapping) or not isinstance(given["config"].get("model_type"), str):
        raise HostError(f"hf:{name}: host argument config: has no model_type; leave config out, or restore it")
    refuse_wrong_numbers(given["config"], where=f"hf:{name}: host argument config")
    config, shown = dict(given.pop("config")), dict(given.pop("input", {}))
    shown |= given.pop("pretrained_cfg_overlay", None) or {}
    generation = given.pop("generation", {})
    architectures, labels = config.pop("architectures", None) or [], config.pop("num_labels", None)
    if not (isinstance(architectures, list) and all(isinstance(each, str) for each in architectures)):
        raise HostError(f"hf:{name}: config.json: architectures must be a list of names; correct it")
    kind = given.pop("auto_class", None) or auto_class(transformers, config["model_type"], architectures)
    _check_auto_class(transformers, f"hf:{name}", kind, config["model_type"])
    classes = given.pop("num_classes", labels if "Classification" in kind else None)
    own = {"auto_class": kind, "num_classes": classes, **given}
    made = creation_errors(f"hf:{name}", own, maker=f"transformers {transformers.__version__}")
    folder = find_folder(name, weights=True) if pretrained else None
    sized = nullcontext() if folder is None else sized_for(folder)
    with made, sized, without_hub():  # a configuration may name a backbone whose weights transformers would download
        if kind == IMAGE_CLASSIFIER:
            count = 1000 if classes is None else classes
            settings = {**config, **given, "num_classes": count, "pretrained_cfg_overlay": shown}
            model = build_anywhere(lambda: transformers_classifier(**settings))
        else:
            plain = {**config, **_renamed(given)}
            model = build_anywhere(lambda: _plain(transformers, kind, plain, classes))
    if kind == SEQUENCE_TO_SEQUENCE or _is_captioner(model):
        _set_generation(transformers, model, name, generation)
    _describe(model, name, kind=kind, classes=classes, shown=shown)
    if folder is None:
        return Started(model=model)
    file = split_weights(*folder_tensors(folder, kind))
    return Started(model=model, file=file, fitted=file.fill_host(model))


def find_folder(source: str, *, weights: bool = False, download: bool = True) -> Path:
    """Return the folder `source`, or the cached copy of the repository `source` of the Hub.

    Args:
        source: a folder, or NAME or USER/NAME on the Hub.
        weights: also download the weights.
        download: download files that are not in the cache.

    Raises:
        UsageError: there is no such folder, or it has no configuration.
        HostError: the files cannot be downloaded.
    """
    path = user_path(source)
    if path.is_dir():
        folder = transformers_folder(path)
        if folder is None:
            raise UsageError(
                f"hf:{source}: no config.json with a model_type in this folder; save_pretrained writes it, so copy it from "
                "the saved folder"
            )
        return folder
    if not source or source.startswith((".", "/", "~")) or source.count("/") > 1 or "\\" in source:
        raise UsageError(f"hf:{source}: no such folder; pass a folder written by save_pretrained, or hf:USER/NAME")
    from huggingface_hub import snapshot_download

    def fetch(patterns: list[str]) -> Path:
        return Path(snapshot_download(source, allow_patterns=patterns, local_files_only=not download))

    with hub_or_cache(f"hf:{source}") if download else nullcontext() as unreachable:
        try:
            folder = fetch(_FILES)
            for patterns in _WEIGHTS if weights else ():
                folder = fetch([*_FILES, *patterns])
                if any(found for pattern in patterns for found in folder.glob(pattern)):
                    break
        except Exception as error:  # the Hub's client and its HTTP client raise errors of any class
            reason = why_no_weights(f"hf:{source}", error, unreachable=unreachable)
            raise HostError(reason or f"hf:{source}: {error}") from error
    if transformers_folder(folder) is None:
        raise UsageError(
            f"hf:{source}: this repository has no config.json of transformers; for a timm model, type hf-hub:{source}"
        )
    return folder


def auto_class(transformers: Any, model_type: str, architectures: list[str]) -> str:
    """Return the name of the auto class that creates the first of `architectures`.

    An image model without a head is created as a classifier, and a model without architectures by `AutoModel`.
    """
    auto = transformers.models.auto.modeling_auto
    wanted = architectures[0] if architectures else ""

    def creates(name: str) -> bool:
        found = getattr(auto, name)._model_mapping._model_mapping.get(model_type, ())
        return wanted in (found if isinstance(found, list | tuple) else (found,))

    known = [
        name for name, kind in vars(auto).items() if name.startswith("AutoModelFor") and hasattr(kind, "_model_mapping")
    ]
    first = (IMAGE_CLASSIFIER, "AutoModelForSequenceClassification", SEQUENCE_TO_SEQUENCE, "AutoModelForCausalLM")
    last = "AutoModelForPreTraining"  # this class also creates the architectures of all other classes
    names = sorted(known, key=lambda name: (name == last, name not in first))
    found = next((name for name in names if creates(name)), "AutoModel")
    pretraining = ("AutoModel", "AutoModelForMaskedImageModeling", last)
    if found in pretraining and model_type in auto.AutoModelForImageClassification._model_mapping._model_mapping:
        return IMAGE_CLASSIFIER
    return found


def _check_auto_class(transformers: Any, host: str, kind: str, model_type: str) -> None:
    """Check that the auto class `kind` exists, and creates models of this type.

    Raises:
        UsageError: transformers has no such class, or the class creates other models.
    """
    if not (str(kind).startswith("AutoModel") and hasattr(transformers, str(kind))):
        names = [name for name in dir(transformers) if name.startswith("AutoModel")]  # takes a quarter of a second
        raise UsageError(f"auto_class {kind!r}: transformers has no such class{did_you_mean(str(kind), names)}")
    if model_type not in getattr(transformers, kind)._model_mapping._model_mapping:
        raise UsageError(
            f"{host}: transformers has no {kind} of model_type {model_type!r}; use another host for this task, or another "
            "--host-arg auto_class"
        )


def _renamed(given: Mapping[str, Any]) -> dict[str, Any]:
    """Rename timm's `img_size` and `in_chans` to transformers' fields."""
    names = {"img_size": "image_size", "in_chans": "num_channels"}
    return {names.get(name, name): value for name, value in given.items()}


def _plain(transformers: Any, kind: str, fields: Mapping[str, Any], classes: int | None) -> nn.Module:
    settings = dict(fields) if classes is None else {**fields, "num_labels": classes}
    model_type = settings.pop("model_type")
    config = transformers.AutoConfig.for_model(model_type, **checked_fields(transformers, model_type, settings))
    model: nn.Module = getattr(transformers, kind).from_config(config)
    return model


def _set_generation(transformers: Any, model: Any, source: str, settings: Mapping[str, Any]) -> None:
    """Set the model's settings for `generate`.

    Raises:
        UsageError: there is no start token or no end token, neither in the settings nor in the configuration.
        HostError: a special token is not in the vocabulary.
    """
    if settings:
        model.generation_config = transformers.GenerationConfig(**settings)
    found, config = model.generation_config, model.config
    inner = config.decoder if _is_captioner(model) else None
    starts = ("decoder_start_token_id", "bos_token_id", "pad_token_id")  # T5 starts with padding
    for name, sources in (("decoder_start_token_id", starts), ("eos_token_id", ("eos_token_id",))):
        values = (getattr(holder, each, None) for each in sources for holder in (found, config, inner))
        value = next((each for each in values if each is not None), None)
        if value is None:
            task = "captioning" if inner else "translation"
            raise UsageError(f"hf:{source}: config.json has no {name}, which {task} needs; add it to the file")
        setattr(found, name, value)
    if found.pad_token_id is None and inner is not None:  # as in transformers, which would warn
        found.pad_token_id = _first(found.eos_token_id if inner.pad_token_id is None else inner.pad_token_id)
    vocabulary = (inner or config).vocab_size
    for name, value in found.to_dict().items():
        tokens = value if isinstance(value, list) else [] if value is None else [value]
        if name.endswith("_token_id") and not all(0 <= token < vocabulary for token in tokens):
            raise HostError(
                f"hf:{source}: {name} is {value}, but the decoder has {vocabulary} tokens; correct it in config.json and "
                "generation_config.json"
            )


def _decoder_input(model: Any) -> dict[str, Any]:
    """Return the ids of the start and end tokens, the largest number of tokens, and the forced first token."""
    settings = model.generation_config
    return {
        "start": _first(settings.decoder_start_token_id),
        "end": _first(settings.eos_token_id),
        "max_length": _positions(model.decoder if _is_captioner(model) else model),
        "forced": settings.forced_bos_token_id,
    }


def _is_captioner(model: Any) -> bool:
    config = getattr(model, "config", None)  # `transformers_classifier` has none
    return bool(getattr(config, "model_type", "") == CAPTIONER)


def _captioned_input(model: Any, source: str, shown: Mapping[str, Any]) -> dict[str, Any]:
    """Return the input of an encoder-decoder of images: their size and normalization, and what `_text_input` returns.

    Raises:
        HostError: image_mean and the encoder differ in the number of channels.
    """
    encoder = model.config.encoder
    size = encoder.image_size if isinstance(encoder.image_size, list | tuple) else [encoder.image_size] * 2
    text, decoder, pad = _text_input(model.decoder, source), _decoder_input(model), model.generation_config.pad_token_id
    if (channels := len(shown.get("mean", ()) or ())) not in (0, encoder.num_channels):
        raise HostError(
            f"hf:{source}: image_mean has {channels} channels, but the encoder {encoder.num_channels}; correct image_mean "
            f"and image_std in {PROCESSORS[0]}"
        )
    return {
        "input_size": [encoder.num_channels, *size],
        **shown,
        **text,
        "pad": _first(pad),
        "decoder": decoder,
    }


def _first(value: Any) -> int:
    return int(value[0] if isinstance(value, list | tuple) else value)


def _describe(model: Any, source: str, *, kind: str, classes: int | None, shown: dict[str, Any]) -> None:
    """Set `pretrained_cfg`, and `attngraft_input` if the input is text, or the output captions."""
    if kind == IMAGE_CLASSIFIER:
        if not {"mean", "std"} <= shown.keys():  # the preprocessing of ViT may be wrong for this model
            unknown = ("input_size", "mean", "std")
            model.pretrained_cfg = {name: value for name, value in model.pretrained_cfg.items() if name not in unknown}
        return
    model.pretrained_cfg = {**shown, "classifier": _head(model), "num_classes": classes}
    model.num_classes = classes
    if _is_captioner(model):
        model.attngraft_input = {"kind": "captioned images", **_captioned_input(model, source, shown)}
    if model.main_input_name == "input_ids":
        model.attngraft_input = {"kind": "text", **_text_input(model, source)}
        if kind == SEQUENCE_TO_SEQUENCE:
            model.attngraft_input["decoder"] = _decoder_input(model)


def _head(model: Any) -> tuple[str, ...]:
    """Return the paths of the modules outside the base model, and of its pooler, which only heads use."""
    base, children = model.base_model_prefix, [name for name, _ in model.named_children()]
    if base not in children:
        return ("pooler",) if getattr(model, "pooler", None) is not None else ()
    outside = [name for name in children if name != base]
    pooler = getattr(getattr(model, base), "pooler", None)
    return (*outside, *([f"{base}.pooler"] if pooler is not None else []))


def _text_input(model: Any, source: str) -> dict[str, Any]:
    """Return the tokenizer's folder, maximum number of tokens, vocabulary size, and padding id."""
    try:
        folder: Path | None = find_folder(source, download=False)
    except (UsageError, HostError):
        folder = None  # the folder was deleted, or is on another machine
    if folder is not None and not any((folder / name).is_file() for name in (_TOKENIZER, *_VOCABULARIES)):
        folder = None
    limits: list[float | None] = [_positions(model)]
    if folder is not None and (settings := folder / _TOKENIZER).is_file():
        limits.append(_stored_limit(settings))
    lengths = [int(limit) for limit in limits if limit is not None and limit < _LIMIT]
    return {
        "tokenizer": None if folder is None else str(folder),
        "max_length": min(lengths, default=None),
        "vocab_size": int(model.config.vocab_size),
        "pad": getattr(model.config, "pad_token_id", None),
    }


def _stored_limit(settings: Path) -> float | None:
    """Return the largest number of tokens in the tokenizer's settings.

    Raises:
        HostError: the file cannot be read.
    """
    try:
        limit = read_mapping(settings).get("model_max_length")
    except (OSError, ValueError) as error:
        raise HostError(f"{settings}: cannot be read ({error}); save or download the tokenizer again") from None
    if limit is None or (isinstance(limit, int | float) and limit >= 1):
        return limit
    raise HostError(f"{settings}: model_max_length must be a number of tokens, found {quoted(limit)}; correct it")


def _positions(model: Any) -> int | None:
    """Return the largest number of tokens; RoBERTa and similar models do not use the first positions."""
    for path, module in model.named_modules():
        if path.endswith("position_embeddings") and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            return module.num_embeddings - module.padding_idx - 1
    positions = getattr(model.config, "max_position_embeddings", None)
    return None if positions is None or positions < 1 else int(positions)
