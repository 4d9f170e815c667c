"""Remedies for recipe fields that do not exist: the field of that name in another section, or under another name."""

import dataclasses
import difflib
import itertools
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attngraft.errors import ConfigError
from attngraft.strict import type_hints
from attngraft.suggest import did_you_mean

#: names in other libraries -> ours, as the last part of a field or as a whole field
_OTHER_NAMES = {
    "learning_rate": "lr",
    "base_lr": "lr",
    "max_lr": "lr",
    "wd": "weight_decay",
    "opt": "optimizer.name",
    "optim": "optimizer.name",
    "scheduler": "schedule.name",
    "sched": "schedule.name",
    "lr_scheduler": "schedule.name",
    "lr_scheduler_type": "schedule.name",
    "epoch": "epochs",
    "num_epochs": "epochs",
    "max_epochs": "epochs",
    "n_epochs": "epochs",
    "num_train_epochs": "epochs",
    "max_steps": "steps",
    "warmup": "warmup_epochs",
    "warmup_lr_init": "warmup_lr",
    "eta_min": "min_lr",
    "batch": "batch_size",
    "bs": "batch_size",
    "train_batch_size": "batch_size",
    "per_device_train_batch_size": "batch_size",
    "per_device_eval_batch_size": "eval_batch_size",
    "val_batch_size": "eval_batch_size",
    "grad_accum_steps": "accumulate",
    "accumulation_steps": "accumulate",
    "gradient_accumulation_steps": "accumulate",
    "accumulate_grad_batches": "accumulate",
    "grad_clip": "clip_grad",
    "max_grad_norm": "clip_grad",
    "gradient_clip_val": "clip_grad",
    "precision": "amp",
    "mixed_precision": "amp",
    "fp16": "amp",
    "bf16": "amp",
    "torch_compile": "compile",
    "num_workers": "workers",
    "dataloader_num_workers": "workers",
    "num_threads": "threads",
    "ema_decay": "ema",
    "model_ema": "ema",
    "drop_path_rate": "drop_path",
    "random_seed": "seed",
    "model": "host.name",
    "model_name": "host.name",
    "arch": "host.name",
    "data": "task.data.source",
    "dataset": "task.data.source",
    "val_split": "val_fraction",
    "label_smoothing": "smoothing",
    "image_size": "img_size",
    "input_size": "img_size",
    "imgsize": "img_size",
    "resolution": "img_size",
}
_HOST_ARGUMENTS = ("img_size", "patch_size", "depth", "embed_dim", "num_heads", "in_chans")
_TRIED = 20  #: unknown fields for which another is suggested
_DEVICE = ("device", "devices", "gpu", "gpus", "gpu_id", "cuda")


def refuse_misplaced(
    mapping: Any, cls: type, *, known: Callable[[], Mapping[str, type]], source: str = "", section: str = ""
) -> None:
    """Refuse a field that `cls` does not have, if the intended field can be named.

    Other unknown fields are left to `strict.read`.

    Args:
        mapping: plain values of the section.
        cls: dataclass of the section.
        known: returns the dataclasses in which fields are looked up, by section.
        source: prefix of messages.
        section: dotted name of the section; empty for the whole recipe.

    Raises:
        ConfigError: the message names the field to use.
    """
    for name, siblings in itertools.islice(_unknown(mapping, cls, section), _TRIED):  # `strict.read` refuses the others
        if remedy := _remedy(name, siblings, known()):
            raise ConfigError(f"{f'{source}: ' if source else ''}{name}: unknown field; {remedy}")


def _unknown(mapping: Any, cls: type, section: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the unknown fields of a section and of the sections in it, each with the fields beside it."""
    if not isinstance(mapping, Mapping):
        return
    hints = type_hints(cls)
    fields = [field.name for field in dataclasses.fields(cls) if field.init]
    for key, value in mapping.items():
        name = f"{section}.{key}" if section else str(key)
        if key not in fields:
            alone = not isinstance(value, Mapping) or bool(did_you_mean(str(key), fields))
            yield from ((name, fields),) if alone else ((f"{name}.{inside}", fields) for inside in value)
        elif (inner := _dataclass(hints[key])) is not None:
            yield from _unknown(value, inner, name)


def _remedy(name: str, siblings: list[str], known: Mapping[str, type]) -> str:
    """Return what to type instead of the field `name`; empty if that is not clear."""
    last = name.rpartition(".")[2]
    if last in _DEVICE:
        return "the device is not part of a recipe; choose it with --device cpu, --device cuda:1 or --device mps"
    wanted = _OTHER_NAMES.get(last, last)
    if wanted in _HOST_ARGUMENTS:
        return f"use host.args.{wanted} (--host-arg {wanted}=VALUE)"
    every = [field for section, cls in known.items() for field in _fields(cls, section)]
    if name in every:  # a key with dots
        return f"write `{name.rpartition('.')[0]}:` and, indented below it, `{last}:`"
    found = [field for field in every if wanted in (field, field.rpartition(".")[2])]
    if not found and not did_you_mean(last, siblings):
        near = difflib.get_close_matches(wanted, {field.rpartition(".")[2] for field in every}, n=1, cutoff=0.8)
        found = [field for field in every if field.rpartition(".")[2] in near]
    found.sort(key=lambda field: field.count("."))  # the main section's before those of stages and teachers
    shallow = [field for field in found if field.count(".") == found[0].count(".")]
    return f"use {' or '.join(shallow[:3])}" if found and len(shallow) <= 3 else ""


def _fields(cls: type, section: str) -> Iterator[str]:
    hints = type_hints(cls)
    for field in dataclasses.fields(cls):
        name = f"{section}.{field.name}" if section else field.name
        inner = _dataclass(hints[field.name])
        if inner is None:
            yield name
        else:
            yield from _fields(inner, name)


def _dataclass(hint: Any) -> type | None:
    """Return the dataclass that a type hint names, alone or with None."""
    members = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    return next((each for each in members if dataclasses.is_dataclass(each) and isinstance(each, type)), None)
