"""Comparison of the outputs of an exported file with the model's."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from attngraft.errors import ExportError
from attngraft.saved.manifest import Check, Manifest
from attngraft.tasks.codec import Codec
from attngraft.tasks.seeding import seeded

Forward = Callable[[Tensor], Tensor]  #: function of normalized images (B, C, H, W) that returns outputs (B, classes)


def example_inputs(manifest: Manifest, *, batch: int) -> Tensor:
    """Return fixed standard-normal images (B, C, H, W) in the model's precision, or fixed ids (B, L) for text."""
    with seeded("export", batch):
        (inputs,), _ = manifest.serving.example_inputs(batch)
    return in_precision(inputs, getattr(torch, manifest.dtype))


def in_precision(inputs: Any, dtype: torch.dtype) -> Any:
    """Convert the floating-point tensors in `inputs` to `dtype`."""

    def converted(value: Any) -> Any:
        return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value

    return tree_map(converted, inputs)


@torch.no_grad()
def check_outputs(
    exported: Any,
    model: nn.Module,
    manifest: Manifest,
    *,
    codec: Codec | None = None,
    file: str,
    batches: tuple[int, ...] = (2,),
    tolerance: float,
) -> Check:
    """Compare the outputs of an exported file and the model on batches of several sizes.

    Args:
        exported: the loaded model, or a function that runs the file.
        codec: the task's own codec; all its programs are compared. Default: the manifest's `serving`.

    Raises:
        ExportError: outputs have different shapes, are not finite, or differ by more than `tolerance` times the largest
            output (at least 1).
    """
    worst, classes, dtype = 0.0, len(manifest.serving.classes), getattr(torch, manifest.dtype)
    for size in batches:
        found = []
        for each in (model, exported):
            with seeded("export", size):
                programs = (codec or manifest.serving).programs(each, batch_size=size)
            outputs = []
            for program in programs.values():
                args, kwargs = in_precision((program.args, dict(program.kwargs)), dtype)
                outputs.append(program.module(*args, **kwargs))
            found.append([leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)])
        expected, got = found
        shapes, others = ([tuple(leaf.shape) for leaf in leaves] for leaves in found)
        if codec is None and shapes != [(size, classes)]:
            raise ExportError(
                f"the model returns {_shown(shapes)} for {size} images; expected {(size, classes)}, one column "
                "for each class or number to predict"
            )
        if others != shapes:
            raise ExportError(f"{file} returns {_shown(others)}, the model {_shown(shapes)}; nothing was exported")
        for theirs, ours in ((a, b) for a, b in zip(got, expected, strict=True) if b.numel()):
            difference = float((theirs.double() - ours.double()).abs().max() / ours.double().abs().max().clamp_min(1))
            if not difference <= tolerance:  # also true for NaN
                raise ExportError(
                    f"{file} differs from the model by {difference:.2g} with {size} images, more than {tolerance:g}; "
                    "nothing was exported. Please report this with the host and the graft"
                )
            worst = max(worst, difference)
    return Check(file=file, batches=batches, difference=worst, tolerance=tolerance)


def _shown(shapes: list[tuple[int, ...]]) -> str:
    return ", ".join(map(str, shapes)) or "no tensor"
