"""A checkpoint of a training script made a file of safetensors, checked against the model that it is of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import timm
import torch

from attngraft.errors import UsageError
from attngraft.files import write_atomically
from attngraft.models.checkpoint_file import KEY, CheckpointFile, read_checkpoint
from attngraft.models.create import create_host
from attngraft.models.weights import Fitted, weights_of
from attngraft.tensors import unshared


@dataclass(frozen=True, kw_only=True)
class Converted:
    """What was found and written."""

    checkpoint: CheckpointFile
    out: Path
    size: int  #: of the written file, in bytes
    architecture: (
        str | None
    )  #: the model that the weights are of; None: nobody says it, so they were checked against none
    fitted: Fitted | None  #: what they would be to it

    @property
    def numbers(self) -> int:
        """How many numbers the tensors hold together."""
        return sum(tensor.numel() for tensor in self.checkpoint.tensors.values())


def convert_checkpoint(
    source: Path,
    out: Path,
    *,
    host: str | None = None,
    host_args: Mapping[str, Any] | None = None,
    average: bool | None = None,
    overwrite: bool = False,
) -> Converted:
    """Write the weights in `source` to `out`, with the name of their model in the file's metadata.

    Tensors keep their values, types and names, but for wrappers in front of names. Names and shapes are checked against the
    model, which is made without values.

    Args:
        host: name of the model; None: what the checkpoint says (`arch`), or else what its own name begins with.
        host_args: of the model's factory.
        average: as in `read_checkpoint`.
        overwrite: replace a file that stands at `out`.

    Raises:
        UsageError: `out` is there already or is no `.safetensors`; or as `read_checkpoint`, `create_host`.
        HostError: the checkpoint cannot be read, holds no weights, or does not fit its model; all misfits are listed.
        StorageError: the file cannot be written.
    """
    if out.suffix != ".safetensors":
        raise UsageError(f"{out}: give a file that ends in .safetensors")
    if out.is_dir():
        raise UsageError(f"{out}: is a folder; give the name of a file")
    if out.exists() and not overwrite:
        raise UsageError(f"{out}: is there already; give another name, or --overwrite to replace it")
    checkpoint = read_checkpoint(source, average=average)
    weights = weights_of(checkpoint)
    architecture = host or _named(checkpoint)
    arguments = dict(checkpoint.arguments if host is None else host_args or {})
    fitted = None
    if architecture is not None:
        with torch.device("meta"):
            model = create_host(architecture, **arguments)
        fitted = weights.fit(model)[1]
    facts = {
        "architecture": architecture,
        "arguments": arguments,
        "epoch": checkpoint.epoch,
        "layout": checkpoint.layout,
    }
    kept = {name: value for name, value in facts.items() if value not in (None, {})}
    content = safetensors.torch.save(unshared(checkpoint.tensors), metadata={KEY: json.dumps(kept)})
    write_atomically(out, content)
    return Converted(checkpoint=checkpoint, out=out, size=len(content), architecture=architecture, fitted=fitted)


def _named(checkpoint: CheckpointFile) -> str | None:
    """The model that a checkpoint says it is of, in it or by its name; None: it is none that timm knows."""
    for name in (checkpoint.architecture, checkpoint.path.name.partition(".")[0]):
        if name is not None and timm.is_model(name):
            return name
    return None
