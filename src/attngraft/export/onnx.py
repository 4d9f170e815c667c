"""A model as ONNX: input `image` (B, C, H, W) float32 and normalized, output `logits` (B, classes), any batch size."""

from __future__ import annotations

import importlib.util
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attngraft.errors import ExportError
from attngraft.export.check import Forward, check_outputs, example_images
from attngraft.export.torch_export import EXAMPLE
from attngraft.saved.manifest import Check, Manifest, manifest_text

FILE = "model.onnx"
QUANTIZED = "model.int8.onnx"
TOLERANCE = 1e-4
QUANTIZING = 0.5  #: how far outputs of quantized weights may lie from the model's; more than this is another model
ENTRY = "attngraft"  #: of the file's metadata: the manifest
PACKAGES = ("onnx", "onnxscript", "onnxruntime")

_COLORS = re.compile(r"\x1b\[[0-9;]*m")
_SUMMARY = "## Exception summary"  #: of torch's exporter: what happened, innermost first, below general advice
_CLASS = re.compile(r"^<class '(?:\w+\.)*(\w+)'>")


def require_packages() -> None:
    """Check that what ONNX needs is installed.

    Raises:
        ExportError: a package is missing; says how to get it.
    """
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ExportError(f'ONNX needs {", ".join(missing)}: pip install "attngraft[export]"')


def write_onnx(program: torch.export.ExportedProgram, model: nn.Module, manifest: Manifest, folder: Path) -> Check:
    """Translate `program`, write model.onnx, and compare what onnxruntime makes of it with the model at batches of 1, 2, 5.

    Weights of more than 2 GB go into a file of their own beside it, as ONNX demands.

    Raises:
        ExportError: a package is missing, the program cannot be translated, or the outputs differ.
    """
    require_packages()
    path = folder / FILE
    try:
        with _quiet():
            made = torch.onnx.export(
                program,
                (example_images(manifest, batch=EXAMPLE),),
                input_names=["image"],
                output_names=["logits"],
                dynamo=True,
                verbose=False,
            )
            if made is None:
                raise ExportError("torch.onnx.export returned no program")
            made.model.metadata_props[ENTRY] = manifest_text(manifest)
            made.save(path)
    except ExportError:
        raise
    except Exception as error:  # an operation without a translation, whichever package finds it
        raise ExportError(
            f"the model cannot be translated to ONNX ({_reason(error)}); export it --to pt2 or --to torch"
        ) from error
    return check_outputs(open_onnx(path)[0], model, manifest, file=FILE, batches=(1, EXAMPLE, 5), tolerance=TOLERANCE)


def write_quantized(model: nn.Module, manifest: Manifest, folder: Path) -> Check:
    """Write model.int8.onnx from model.onnx, and measure by how much its outputs differ from the model's.

    The weights of matrix products are 8 bits wide, one scale per matrix; inputs are quantized as they come, with a scale of
    their own each time (onnxruntime's dynamic quantization). Convolutions and the head stay as they are.

    Raises:
        ExportError: onnxruntime cannot quantize it, or nothing of the model is left in the outputs.
    """
    require_packages()
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    plain = onnx.load(folder / FILE)
    del plain.graph.value_info[:]  # shapes as torch saw them, which the quantizer finds again, and disputes
    try:
        with _quiet():
            quantize_dynamic(
                plain,
                folder / QUANTIZED,
                weight_type=QuantType.QInt8,
                op_types_to_quantize=["MatMul"],
                per_channel=False,
            )
    except Exception as error:  # the quantizer raises whatever a graph leads it to
        raise ExportError(
            f"onnxruntime cannot quantize the model ({_reason(error)}); leave --dtype int8 out"
        ) from error
    return check_outputs(
        open_onnx(folder / QUANTIZED)[0], model, manifest, file=QUANTIZED, batches=(1, EXAMPLE, 5), tolerance=QUANTIZING
    )


def open_onnx(path: Path) -> tuple[Forward, str | None]:
    """An ONNX file as a function, run by onnxruntime on the CPU with as many threads as torch has, and the manifest that
    it carries; None where attngraft did not make it.

    Raises:
        ExportError: onnxruntime is missing, or cannot read the file.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        raise ExportError('ONNX needs onnxruntime: pip install "attngraft[export]"')
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors only
    try:
        session: Any = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own classes, one per status code
        raise ExportError(f"{path}: onnxruntime cannot read it ({_reason(error)}); export the model again") from None
    name = session.get_inputs()[0].name

    def forward(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {name: images.contiguous().numpy()})[0])

    return forward, session.get_modelmeta().custom_metadata_map.get(ENTRY)


def _reason(error: Exception) -> str:
    """A line of what went wrong: under torch's summary its cause and the operation that it is about, else the first line."""
    text = _COLORS.sub("", str(error))
    summary = text.partition(_SUMMARY)[2].strip()
    line = (summary or text.strip() or type(error).__name__).splitlines()[0]
    reason = _CLASS.sub(r"\1", line)[:300]
    operation = re.search(r"target=torch\.ops\.([\w.]+)", summary)
    return f"{reason}, at {operation[1]}" if operation else reason


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporters' remarks on their own internals."""
    loggers = [logging.getLogger(name) for name in ("", "torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
