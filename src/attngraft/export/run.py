"""`attngraft export` as a function: a run goes in, a checked folder comes out, or nothing."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from attngraft.attention import sites_with_detached
from attngraft.errors import ExportError, StorageError, UsageError
from attngraft.export import card, onnx, timm_config, torch_export
from attngraft.export.check import check_outputs
from attngraft.export.fold import fold as fold_model
from attngraft.hosts import forget
from attngraft.saved.folder import load, write_model
from attngraft.saved.manifest import MANIFEST, WEIGHTS, Check, Manifest, write_manifest
from attngraft.targets.run import OpenedRun, open_run
from attngraft.training.evaluate import Weights

Target = Literal["torch", "pt2", "onnx", "hf"]
DType = Literal["float32", "bfloat16", "int8"]

FOLDING = 1e-5  #: how far a folded model's outputs may lie from the model's
RELOADING = 1e-6  #: and those of the folder, loaded again
ROUNDING = 0.2  #: and those of a model rounded to bfloat16; more than this is no rounding


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was made."""

    folder: Path
    manifest: Manifest
    plain_difference: (
        float | None
    )  #: with `hf`: by how much outputs of plain timm, without grafts, differ from the model's


def export_run(
    run: Path | str,
    out: Path | str,
    *,
    to: Sequence[Target] = ("torch",),
    checkpoint: Weights = "last",
    fold: bool = False,
    dtype: DType = "float32",
    overwrite: bool = False,
    unfinished: bool = False,
) -> Exported:
    """Export the model of a run to the folder `out`, which `attngraft.load` and `attngraft predict` read.

    Everything is made beside `out`, loaded again and compared with the model, and then moved there at once.

    Args:
        run: the run's folder.
        out: the folder to make.
        to: what the folder holds besides weights and manifest: `pt2` a torch.export program, `onnx` an ONNX file, `hf`
            timm's config.json; `torch` adds nothing.
        checkpoint: the weights of the last epoch, of the best one, or their moving averages.
        fold: move what is exact to 1e-5 of grafts and batch norms into the linear layers; for inference only.
        dtype: of the weights. bfloat16 halves the files. int8 (with `onnx`) adds an ONNX file with quantized weights, and
            leaves the others as they are.
        overwrite: replace a model that was exported to `out` before.
        unfinished: take a run that has not come to its end.

    Raises:
        UsageError: targets that do not go together or not with this model, or a folder with other things in it.
        ExportError: the model cannot be exported so, or what was written differs from it.
        TrainingError: no run, or no such weights in it.
    """
    out = Path(out)
    _check_targets(to, dtype)
    _check_place(out, overwrite=overwrite)
    source = open_run(run, checkpoint, unfinished=unfinished)
    manifest = source.manifest
    checks: list[Check] = []
    if fold:
        manifest, check = _folded(source.model, manifest)
        checks.append(check)
    if "hf" in to and manifest.host.fused:
        raise UsageError(
            f"--to hf with --fold: the batch norms of {manifest.host.name} would stand in its linear layers, and plain "
            "timm makes no such model; leave --fold out for timm, or --to hf out for a folded model"
        )
    if "hf" in to and (away := [name for name, _ in sites_with_detached(source.model)]):
        raise UsageError(
            f"--to hf: a graft stands in for the host's own attention at {len(away)} places ({away[0]} is the first), and "
            "plain timm, which knows no grafts, would lack those weights; leave --to hf out"
        )
    if dtype == "bfloat16":
        manifest, check = _rounded(source.model, manifest)
        checks.append(check)
    with _built_beside(out) as folder:
        manifest = write_model(source.model, manifest, folder)
        again = load(folder)
        checks.append(check_outputs(again, source.model, manifest, file=WEIGHTS, batches=(2,), tolerance=RELOADING))
        manifest, checks = _add_programs(source.model, manifest, folder, to, quantized=dtype == "int8", checks=checks)
        manifest = replace(manifest, checks=tuple(checks))
        write_manifest(manifest, folder)
        plain = _add_timm_config(source.model, manifest, folder) if "hf" in to else None
        _write_card(source, manifest, folder, plain)
    return Exported(folder=out, manifest=manifest, plain_difference=plain)


def _folded(model: nn.Module, manifest: Manifest) -> tuple[Manifest, Check]:
    trained = copy.deepcopy(model)
    found = fold_model(model)
    host = replace(manifest.host, args={**manifest.host.args, **found.arguments}, fused=found.fused)
    check = check_outputs(model, trained, manifest, file="folding", batches=(2,), tolerance=FOLDING)
    return replace(manifest, folds=found.entries, host=host), check


def _rounded(model: nn.Module, manifest: Manifest) -> tuple[Manifest, Check]:
    forget(model)
    exact = copy.deepcopy(model)
    model.to(torch.bfloat16)
    check = check_outputs(
        lambda images: _tensor(model(images.bfloat16())),
        exact,
        manifest,
        file="rounding to bfloat16",
        batches=(8,),
        tolerance=ROUNDING,
    )
    return replace(manifest, dtype="bfloat16"), check


def _tensor(value: object) -> Tensor:
    if not isinstance(value, Tensor):
        raise ExportError(f"the model returns {type(value).__name__}, not a tensor")
    return value


def _check_targets(to: Sequence[Target], dtype: DType) -> None:
    if "onnx" in to:
        onnx.require_packages()
        if dtype == "bfloat16":
            raise UsageError(
                "ONNX in bf16: onnxruntime's CPU kernels do not take it; leave --dtype out, or use --to pt2 or torch"
            )
    elif dtype == "int8":
        raise UsageError("int8 is for ONNX alone; add --to onnx, or take --dtype bf16")


def _check_place(out: Path, *, overwrite: bool) -> None:
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out}: is a file; give a folder for the model")
    if not out.exists() or not any(out.iterdir()):
        return
    if not (out / MANIFEST).is_file():
        raise UsageError(f"{out}: holds other things than an exported model; give a new or an empty folder")
    if not overwrite:
        raise UsageError(f"{out}: holds an exported model already; give another folder, or --overwrite to replace it")


def _add_programs(
    model: nn.Module,
    manifest: Manifest,
    folder: Path,
    to: Sequence[Target],
    *,
    quantized: bool,
    checks: list[Check],
) -> tuple[Manifest, list[Check]]:
    programs: dict[str, str] = {}
    if not {"pt2", "onnx"} & set(to):
        return manifest, checks
    program = torch_export.export_program(model, manifest)
    if "pt2" in to:
        checks = [*checks, torch_export.write_program(program, model, manifest, folder)]
        programs["pt2"] = torch_export.FILE
    if "onnx" in to:
        checks = [*checks, onnx.write_onnx(program, model, manifest, folder)]
        programs["onnx"] = onnx.FILE
        if quantized:
            checks = [*checks, onnx.write_quantized(model, manifest, folder)]
            programs["onnx int8"] = onnx.QUANTIZED
    return replace(manifest, programs=programs), checks


def _add_timm_config(model: nn.Module, manifest: Manifest, folder: Path) -> float:
    timm_config.write_config(model, manifest, folder)
    return timm_config.host_difference(load(folder), manifest, folder)


def _write_card(source: OpenedRun, manifest: Manifest, folder: Path, plain_difference: float | None) -> None:
    parameters = sum(parameter.numel() for parameter in source.model.parameters())
    card.write_card(manifest, source.record, folder, parameters=parameters, plain_difference=plain_difference)


@contextmanager
def _built_beside(out: Path) -> Iterator[Path]:
    """A folder beside `out` that takes its place if the block ends without error, and is removed if not."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise ExportError(f"{out}: cannot be made: {error.strerror}; give a folder that can be written") from None
    folder.chmod(0o755)
    old = folder.with_name(f"{folder.name}-old")
    try:
        yield folder
        if out.exists():
            out.rename(old)
        folder.rename(out)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise ExportError(f"{out}: cannot be written: {error}") from error
    finally:
        if old.exists() and not out.exists():
            old.rename(out)
        shutil.rmtree(folder, ignore_errors=True)
