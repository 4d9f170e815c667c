"""`attngraft export` as a function: a run goes in, a checked folder comes out, or nothing."""

from __future__ import annotations

import copy
import logging
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from attngraft.errors import ExportError, UsageError
from attngraft.export import card, onnx, timm_config, torch_export
from attngraft.export.check import check_outputs
from attngraft.export.fold import fold as fold_grafts
from attngraft.export.folder import load, write_model
from attngraft.export.manifest import MANIFEST, WEIGHTS, Check, Manifest, write_manifest
from attngraft.export.source import Source, open_run
from attngraft.training.evaluate import Weights

Target = Literal["torch", "pt2", "onnx", "hf"]
DType = Literal["float32", "bfloat16"]

FOLDING = 1e-5  #: how far a folded model's outputs may lie from the model's
RELOADING = 1e-6  #: and those of the folder, loaded again
ROUNDING = 0.2  #: and those of a model rounded to bfloat16; more than this is no rounding

log = logging.getLogger(__name__)


def export_run(
    run: Path | str,
    out: Path | str,
    *,
    to: Sequence[Target] = ("torch",),
    weights: Weights = "last",
    fold: bool = False,
    dtype: DType = "float32",
    overwrite: bool = False,
) -> Manifest:
    """Export the model of a run to the folder `out`, which `attngraft.load` and `attngraft predict` read.

    Everything is made beside `out`, loaded again and compared with the model, and then moved there at once.

    Args:
        to: what the folder holds besides weights and manifest: `pt2` a torch.export program, `onnx` an ONNX file, `hf`
            timm's config.json; `torch` adds nothing.
        weights: of the last checkpoint, the best epoch, or their moving averages.
        fold: move what is exact to 1e-5 of the grafts into the host's weights; for inference only.
        dtype: of the weights. bfloat16 halves the files; float32 is what was trained.
        overwrite: replace a model that was exported to `out` before.

    Raises:
        UsageError: targets that do not go together, or a folder with other things in it.
        ExportError: the model cannot be exported so, or what was written differs from it.
        TrainingError: no run, or no such weights in it.
    """
    out = Path(out)
    _check_targets(to, dtype)
    _check_place(out, overwrite=overwrite)
    source = open_run(run, weights)
    model, manifest = source.model, source.manifest
    checks: list[Check] = []
    if fold:
        trained = copy.deepcopy(model)
        manifest = replace(manifest, folds=fold_grafts(model))
        checks.append(check_outputs(model, trained, manifest, file="folding", batches=(2,), tolerance=FOLDING))
    if dtype != "float32":
        exact = copy.deepcopy(model)
        model, manifest = model.to(getattr(torch, dtype)), replace(manifest, dtype=dtype)
        rounded = check_outputs(model, _taking(exact), manifest, file=dtype, batches=(8,), tolerance=ROUNDING)
        checks.append(rounded)
    with _built_beside(out) as folder:
        manifest = write_model(model, manifest, folder)
        again = load(folder)
        checks.append(check_outputs(again, model, manifest, file=WEIGHTS, batches=(2,), tolerance=RELOADING))
        manifest = _add_targets(model, manifest, folder, to, checks)
        write_manifest(manifest, folder)
        _write_card(source, manifest, folder, "hf" in to)
    return manifest


def _taking(model: nn.Module) -> nn.Module:
    """`model` in its own precision, for images in another."""
    model.register_forward_pre_hook(lambda _, images: (images[0].float(),))
    return model


def _check_targets(to: Sequence[Target], dtype: DType) -> None:
    if "onnx" in to:
        onnx.require_packages()
        if dtype != "float32":
            raise UsageError(
                f"ONNX in {dtype}: onnxruntime's CPU kernels do not take it; leave --dtype out, or use --to pt2 or torch"
            )


def _check_place(out: Path, *, overwrite: bool) -> None:
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out}: is a file; give a folder for the model")
    if not out.exists() or not any(out.iterdir()):
        return
    if not (out / MANIFEST).is_file():
        raise UsageError(f"{out}: holds other things than an exported model; give a new or an empty folder")
    if not overwrite:
        raise UsageError(f"{out}: holds an exported model already; give another folder, or --overwrite to replace it")


def _add_targets(
    model: nn.Module, manifest: Manifest, folder: Path, to: Sequence[Target], checks: list[Check]
) -> Manifest:
    programs = {}
    if "pt2" in to:
        checks.append(torch_export.write_program(model, manifest, folder))
        programs["pt2"] = torch_export.FILE
    if "onnx" in to:
        checks.append(onnx.write_onnx(model, manifest, folder))
        programs["onnx"] = onnx.FILE
    if "hf" in to:
        timm_config.write_config(model, manifest, folder)
    return replace(manifest, programs=programs, checks=tuple(checks))


def _write_card(source: Source, manifest: Manifest, folder: Path, for_timm: bool) -> None:
    plain = timm_config.host_difference(load(folder), manifest, folder) if for_timm else None
    parameters = sum(parameter.numel() for parameter in source.model.parameters())
    card.write_card(manifest, source.record, folder, parameters=parameters, plain_difference=plain)


@contextmanager
def _built_beside(out: Path) -> Iterator[Path]:
    """A folder beside `out` that takes its place if the block ends without error, and is removed if not."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise ExportError(f"{out}: cannot be made: {error.strerror}; give a folder that can be written") from None
    folder.chmod(0o755)
    try:
        yield folder
        old = folder.with_name(f"{folder.name}-old")
        if out.exists():
            out.rename(old)
        folder.rename(out)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise ExportError(f"{out}: cannot be written: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
