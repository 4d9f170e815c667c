"""Verified export of a run to a folder; a failed export leaves no files."""

import copy
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from attngraft.attention import sites_with_detached
from attngraft.checksums import FILE as CHECKSUMS_FILE
from attngraft.checksums import write_checksums
from attngraft.errors import ExportError, FolderError, StorageError, UsageError
from attngraft.export import card, hf, onnx, timm_config, torch_export
from attngraft.export.check import check_outputs, in_precision
from attngraft.export.fold import fold as fold_model
from attngraft.files import write_atomically
from attngraft.hosts import forget
from attngraft.models.transformers_folder import CONFIG
from attngraft.saved.folder import load, write_model
from attngraft.saved.manifest import MANIFEST, WEIGHTS, Check, Manifest, checksums_of, write_manifest
from attngraft.suggest import shortened
from attngraft.targets.run import open_run
from attngraft.tasks.task import FITTED_FOLDER
from attngraft.training.evaluate import Weights

Target = Literal["torch", "pt2", "onnx", "hf"]
DType = Literal["float32", "bfloat16", "int8"]

# largest accepted differences of outputs from the model's
FOLDING = 1e-5  #: for a folded model
RELOADING = 1e-6  #: for the folder, loaded again
ROUNDING = 0.2  #: for a model rounded to bfloat16; a larger difference indicates a bug


@dataclass(frozen=True, kw_only=True)
class Exported:
    """An exported folder."""

    folder: Path
    manifest: Manifest
    plain_difference: float | None  #: with `hf`: largest change of outputs without grafts (plain timm)


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
    trust_code: bool = False,
    allow_download: bool = False,
) -> Exported:
    """Export the model of a run to the folder `out`, for `attngraft.load` and `attngraft predict`.

    All files are written to a folder next to `out`, loaded again and compared with the model; then the folder is moved to
    `out` atomically.

    Args:
        run: folder of the run.
        out: folder to create.
        to: formats in addition to weights and manifest: `pt2` (a torch.export program), `onnx` (an ONNX file) and `hf`
            (config.json, for timm, or for transformers if the host is a text model of transformers); `torch` adds nothing.
        checkpoint: the weights of the last or best epoch, or their moving averages.
        fold: fold grafts and batch norms into linear layers where that is exact to 1e-5; for inference only.
        dtype: dtype of the weights. bfloat16 halves the size of the files. int8 (with `onnx`) adds an ONNX file with
            quantized weights and does not change the other files.
        overwrite: replace an exported model in `out`.
        unfinished: accept a run that is not finished.
        trust_code: import a `module:` host named in the run; this runs its code.
        allow_download: download a host that the run names and that is not in the caches.

    Raises:
        UsageError: formats are mutually exclusive or not possible for this model, or `out` contains other files.
        ExportError: the model cannot be exported in a format, or the outputs of the files differ from the model's.
        TrainingError: the folder is not a run, or does not have these weights.
    """
    out = Path(out)
    _check_formats(to, dtype)
    _check_folder(out, overwrite=overwrite)
    source = open_run(run, checkpoint, unfinished=unfinished, trust_code=trust_code, allow_download=allow_download)
    manifest = source.manifest
    as_transformers = "hf" in to and hf.is_transformers(source.model)
    others = [each for each in to if not (each == "torch" or (each == "hf" and as_transformers))]
    if manifest.serving.kind != "images" and others:
        raise UsageError(
            f"--to {others[0]}: only for models that classify images or predict numbers from them; remove it to get a "
            "folder for attngraft.load"
        )
    other = manifest.serving.kind == "other"
    if other and (fold or dtype != "float32"):
        raise UsageError(f"{'--fold' if fold else '--dtype'}: only for image and text models; remove it")
    if "hf" in to and manifest.around is not None and not as_transformers:
        raise UsageError(
            f"--to hf: the task {manifest.task} has modules around the host, which plain timm lacks; remove it"
        )
    if "hf" in to and manifest.serving.numeric and not as_transformers:
        raise UsageError(
            "--to hf: plain timm and the hub would treat the model's numbers as classes; remove --to hf, and use the folder "
            "with attngraft.load or attngraft predict"
        )
    checks: list[Check] = []
    if fold:
        manifest, check = _folded(source.model, manifest)
        checks.append(check)
    if as_transformers:
        hf.refuse_grafts(source.model)
    if "hf" in to and manifest.host.fused:
        raise UsageError(
            f"--to hf with --fold: the batch norms of {manifest.host.name} are folded into its linear layers, which plain "
            "timm cannot load; remove --fold for timm, or --to hf for a folded model"
        )
    if "hf" in to and (replaced := [name for name, _ in sites_with_detached(source.model)]):
        raise UsageError(
            f"--to hf: a graft replaces the host's own attention at {len(replaced)} sites ({replaced[0]} is the first), so "
            "plain timm would lack its weights; remove --to hf"
        )
    if dtype == "bfloat16":
        manifest, check = _rounded(source.model, manifest)
        checks.append(check)
    with _built_beside(out) as folder:
        manifest = write_model(source.model, manifest, folder)
        source.task.save_files(folder / FITTED_FOLDER)
        again = load(folder, trust_code=trust_code, allow_download=allow_download)
        codec = source.codec if other else None
        checks.append(check_outputs(again, source.model, manifest, codec=codec, file=WEIGHTS, tolerance=RELOADING))
        programs: dict[str, str] = {}
        if {"pt2", "onnx"} & set(to):
            program = torch_export.export_program(source.model, manifest)
            if "pt2" in to:
                checks.append(torch_export.write_program(program, source.model, manifest, folder))
                programs["pt2"] = torch_export.FILE
            if "onnx" in to:
                checks.append(onnx.write_onnx(program, source.model, manifest, folder))
                programs["onnx"] = onnx.FILE
            if dtype == "int8":
                checks.append(onnx.write_quantized(source.model, manifest, folder))
                programs["onnx int8"] = onnx.QUANTIZED
            manifest = replace(manifest, programs=programs)
        plain = None
        if as_transformers:
            plain_model = hf.write_transformers(source.model, folder, tokenizer=folder / FITTED_FOLDER)
            checks.append(
                check_outputs(plain_model, source.model, manifest, codec=codec, file=CONFIG, tolerance=RELOADING)
            )
        elif "hf" in to:
            timm_config.write_config(source.model, manifest, folder)
            plain = timm_config.host_difference(
                load(folder, trust_code=trust_code, allow_download=allow_download), manifest, folder
            )
        manifest = replace(manifest, checks=tuple(checks))
        write_manifest(manifest, folder)
        parameters = sum(parameter.numel() for parameter in source.model.parameters())
        files = (path for path in folder.rglob("*") if path.is_file())
        write_checksums(folder / CHECKSUMS_FILE, files)
        text = card.card_text(manifest, source.record, parameters=parameters, plain_difference=plain)
        write_atomically(folder / card.FILE, text)
    return Exported(folder=out, manifest=manifest, plain_difference=plain)


def _folded(model: nn.Module, manifest: Manifest) -> tuple[Manifest, Check]:
    trained = copy.deepcopy(model)
    folded = fold_model(model)
    host = replace(manifest.host, args={**manifest.host.args, **folded.arguments}, fused=folded.fused)
    check = check_outputs(model, trained, manifest, file="folding", tolerance=FOLDING)
    return replace(manifest, folds=folded.entries, host=host), check


def _rounded(model: nn.Module, manifest: Manifest) -> tuple[Manifest, Check]:
    forget(model)
    exact = copy.deepcopy(model)
    model.to(torch.bfloat16)

    def rounded(*inputs: Tensor) -> Any:
        return model(*in_precision(inputs, torch.bfloat16))

    check = check_outputs(rounded, exact, manifest, file="rounding to bfloat16", batches=(8,), tolerance=ROUNDING)
    return replace(manifest, dtype="bfloat16"), check


def _check_formats(to: Sequence[Target], dtype: DType) -> None:
    if "hf" in to and not timm_config.LOADS_FOLDERS:
        raise UsageError(
            "--to hf: requires timm 1.0.26 or later, which loads such folders; run pip install -U timm, or remove --to hf"
        )
    if "onnx" in to:
        onnx.require_packages()
        if dtype == "bfloat16":
            raise UsageError(
                "ONNX in bf16: onnxruntime's CPU kernels do not support it; remove --dtype, or use --to pt2 or torch"
            )
    elif dtype == "int8":
        raise UsageError("int8 is only available for ONNX; add --to onnx, or use --dtype bf16")


def _check_folder(out: Path, *, overwrite: bool) -> None:
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out}: is a file; --out must be a folder")
    if out.resolve() == Path.cwd():  # which is replaced as a whole
        raise UsageError("--out: is the current folder; give a folder to create")
    if not out.exists() or not any(out.iterdir()):
        return
    if not (out / MANIFEST).is_file():
        raise UsageError(f"{out}: contains files that are not an exported model; use a new or empty folder")
    if not overwrite:
        raise UsageError(f"{out}: already contains an exported model; use another folder, or --overwrite to replace it")
    if listed := checksums_of(out).entries:  # folders of earlier versions have no list
        exported = {card.FILE, CHECKSUMS_FILE, *(Path(name).parts[0] for name in listed)}
        if others := sorted(each.name for each in out.iterdir() if each.name not in exported):
            raise UsageError(
                f"{out}: --overwrite would delete {shortened(map(repr, others), 3)}; move this, or use another folder"
            )


@contextmanager
def _built_beside(out: Path) -> Iterator[Path]:
    """Yield a folder next to `out` that replaces `out` if the block ends without an error, and else is deleted."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise FolderError(f"{out}: cannot be created ({error.strerror}); use a writable folder") from None
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
        raise ExportError(f"{out}: cannot be written ({error}); use a writable folder") from error
    finally:
        if old.exists() and not out.exists():
            old.rename(out)
        shutil.rmtree(folder, ignore_errors=True)
