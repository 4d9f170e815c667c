"""Conversion of a training script's checkpoint to safetensors, checked against its model."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import timm

from attngraft.errors import HostError, UsageError
from attngraft.files import check_output, write_atomically
from attngraft.models.checkpoint_file import KEY, CheckpointFile, read_checkpoint
from attngraft.models.create import create_host
from attngraft.models.trust import trusting
from attngraft.models.weights import Fitted, weights_of
from attngraft.suggest import shortened
from attngraft.tensors import meta_device, unshared


@dataclass(frozen=True, kw_only=True)
class Converted:
    """Result of `convert_checkpoint`."""

    checkpoint: CheckpointFile
    out: Path
    size: int  #: size of the written file in bytes
    architecture: str | None  #: name of the model; None: unknown, so the weights were not checked
    fitted: Fitted | None  #: how the weights fit the model; None: unchecked

    @property
    def numbers(self) -> int:
        """Total number of values in the tensors."""
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

    Tensors keep their values, types and names, except for wrappers' prefixes. Names and shapes are checked against the
    model, which is created on the meta device.

    Args:
        host: name of the model; None: the checkpoint's `arch`, otherwise the first part of the file name.
        host_args: arguments of the model's factory.
        average: as in `read_checkpoint`.
        overwrite: replace an existing file at `out`.

    Raises:
        UsageError: `out` exists or does not end in `.safetensors`; or as in `read_checkpoint` and `create_host`.
        HostError: the checkpoint cannot be read, contains no weights, or does not fit its model; all misfits are listed.
        StorageError: the file cannot be written.
    """
    if out.suffix != ".safetensors":
        raise UsageError(f"{out}: pass a file name that ends in .safetensors")
    if out.is_dir():
        raise UsageError(f"{out} is a folder; pass a file name")
    check_output(out)
    if out.exists() and not overwrite:
        raise UsageError(f"{out} exists already; pass another name, or --overwrite to replace it")
    checkpoint = read_checkpoint(source, average=average)
    weights = weights_of(checkpoint)
    floats = {name: each for name, each in checkpoint.tensors.items() if each.is_floating_point()}
    if wrong := [name for name, each in floats.items() if each.float().isnan().any()]:  # a mask may be infinite
        raise HostError(
            f"{source}: {shortened(wrong, 4)} contains values that are not numbers; use a checkpoint from before "
            "training failed"
        )
    candidates = (checkpoint.architecture, checkpoint.path.name.partition(".")[0])
    architecture = host or next((name for name in candidates if name is not None and timm.is_model(name)), None)
    arguments = dict(checkpoint.arguments if host is None else host_args or {})
    fitted = None
    if architecture is not None:
        with trusting(host), meta_device():
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
