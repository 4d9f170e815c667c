"""Comparison of the outputs of an exported file with the model's."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from attngraft.errors import ExportError
from attngraft.saved.manifest import Check, Manifest
from attngraft.tasks.codec import Codec
from attngraft.tasks.seeding import seeded
from attngraft.tasks.text.lengths import logits_of

Forward = Callable[[Tensor], Tensor]  #: function of normalized images (B, C, H, W) that returns outputs (B, classes)


def example_images(manifest: Manifest, *, batch: int) -> Tensor:
    """Return standard-normal images (B, C, H, W) in the model's precision, the same for every call; ids (B, L) for text."""
    with seeded("export", batch):
        (inputs,), _ = manifest.serving.example_inputs(batch)
    return inputs.to(getattr(torch, manifest.dtype)) if inputs.is_floating_point() else inputs


@torch.no_grad()
def check_outputs(
    exported: Forward, model: nn.Module, manifest: Manifest, *, file: str, batches: tuple[int, ...], tolerance: float
) -> Check:
    """Compare the outputs of an exported file and the model on batches of several sizes.

    Raises:
        ExportError: outputs have different shapes, are not finite, or differ by more than `tolerance` times the largest
            output (at least 1).
    """
    worst = 0.0
    for size in batches:
        images = example_images(manifest, batch=size)
        expected, got = logits_of(model(images)), logits_of(exported(images))
        if not isinstance(expected, Tensor) or expected.shape != (size, len(manifest.serving.classes)):
            shape = tuple(expected.shape) if isinstance(expected, Tensor) else type(expected).__name__
            classes = len(manifest.serving.classes)
            raise ExportError(
                f"the model returns {shape} for {size} images, but its data have {classes} classes or numbers"
            )
        if got.shape != expected.shape:
            raise ExportError(f"{file} returns {tuple(got.shape)}, the model {tuple(expected.shape)}")
        worst = max(worst, _difference(got, expected, file=file, batch=size, tolerance=tolerance))
    return Check(file=file, batches=batches, difference=worst, tolerance=tolerance)


@torch.no_grad()
def check_programs(exported: nn.Module, model: nn.Module, codec: Codec, *, file: str, tolerance: float) -> Check:
    """Compare the outputs of two models in all programs of a task's codec.

    Raises:
        ExportError: see `check_outputs`.
    """
    batch, worst, outputs = 2, 0.0, []
    for each in (model, exported):
        with seeded("export", batch):
            programs = codec.programs(each, batch_size=batch)
        outputs.append({name: program.module(*program.args, **program.kwargs) for name, program in programs.items()})
    expected, got = ([leaf for leaf in tree_leaves(each) if isinstance(leaf, Tensor)] for each in outputs)
    if [each.shape for each in expected] != [each.shape for each in got]:
        raise ExportError(f"{file} returns outputs of other shapes than the model")
    for ours, theirs in zip(expected, got, strict=True):
        worst = max(worst, _difference(theirs, ours, file=file, batch=batch, tolerance=tolerance))
    return Check(file=file, batches=(batch,), difference=worst, tolerance=tolerance)


def _difference(got: Tensor, expected: Tensor, *, file: str, batch: int, tolerance: float) -> float:
    difference = (got.double() - expected.double()).abs().max() / expected.double().abs().max().clamp_min(1)
    if not difference <= tolerance:  # also true for NaN
        raise ExportError(
            f"{file} differs from the model by {float(difference):.2g} with {batch} images, more than {tolerance:g}; "
            "nothing was exported. Please report this with the host and the graft"
        )
    return float(difference)
