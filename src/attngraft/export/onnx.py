"""ONNX files: input `image` (B, C, H, W) float32 and normalized, output `logits` (B, classes), any batch size."""

import importlib.util
import logging
import math
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attngraft.errors import ExportError, UsageError
from attngraft.export.check import Forward, check_outputs, example_inputs
from attngraft.export.torch_export import EXAMPLE
from attngraft.opening import check_regular
from attngraft.saved.manifest import Check, Manifest, manifest_text
from attngraft.suggest import quoted, repeated

FILE = "model.onnx"
OUTPUT = "logits"  #: name of the output
QUANTIZED = "model.int8.onnx"
TOLERANCE = 1e-4
QUANTIZING = 0.5  #: largest accepted difference of outputs with quantized weights; a larger one indicates a bug
_MOST_NUMBERS = 2**28  #: largest number of elements of a tensor in an ONNX file, per example
_MOST_OPERATORS = 10**6
_SHAPE_BYTES = 2**16  #: largest size of a constant that may be a shape
#: operators of ONNX with inputs that contain sizes, and the positions of these inputs
_SIZES = {
    "AffineGrid": (1,),
    "BlackmanWindow": (0,),
    "CenterCropPad": (1,),
    "Col2Im": (1,),
    "ConstantOfShape": (0,),
    "DFT": (1,),
    "Expand": (1,),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1),
    "OneHot": (1,),
    "Pad": (1,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (2, 3),
    "STFT": (1, 3),
    "Tile": (1,),
    "Upsample": (1,),
}
ENTRY = "attngraft"  #: name of the metadata entry with the manifest
PACKAGES = ("onnx", "onnxscript", "onnxruntime")

_COLORS = re.compile(r"\x1b\[[0-9;]*m")
_SUMMARY = "## Exception summary"  #: heading in errors of torch's exporter, followed by the causes, innermost first
_CLASS = re.compile(r"^<class '(?:\w+\.)*(\w+)'>")


def require_packages(*names: str) -> None:
    """Check that packages for ONNX are installed; default: all.

    Raises:
        UsageError: a package is missing; the message contains the command that installs it.
    """
    missing = [name for name in names or PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f'ONNX requires {", ".join(missing)}; run pip install "attngraft[export]"')


def write_onnx(program: torch.export.ExportedProgram, model: nn.Module, manifest: Manifest, folder: Path) -> Check:
    """Convert `program` to ONNX, write model.onnx, and compare its outputs with the model's for batches of 1, 2 and 5.

    Weights of more than 2 GB are written to a separate file, as ONNX requires.

    Raises:
        UsageError: a package is missing.
        ExportError: the program cannot be converted, or the outputs differ.
    """
    require_packages()
    path = folder / FILE
    try:
        with _quiet():
            exported = torch.onnx.export(
                program,
                (example_inputs(manifest, batch=EXAMPLE),),
                input_names=["image"],
                output_names=[OUTPUT],
                dynamo=True,
                verbose=False,
            )
            if exported is None:
                raise ExportError("torch.onnx.export returned no program; use --to pt2 or --to torch")
            exported.model.metadata_props[ENTRY] = manifest_text(manifest)
            exported.save(path)
    except ExportError:
        raise
    except Exception as error:  # unsupported operations raise arbitrary errors in any of the packages
        raise ExportError(
            f"the model cannot be converted to ONNX ({_reason(error)}); use --to pt2 or --to torch"
        ) from error
    return check_outputs(open_onnx(path)[0], model, manifest, file=FILE, batches=(1, EXAMPLE, 5), tolerance=TOLERANCE)


def write_quantized(model: nn.Module, manifest: Manifest, folder: Path) -> Check:
    """Quantize model.onnx to model.int8.onnx, and measure how much its outputs differ from the model's.

    Weights of matrix products have 8 bits and one scale per matrix; their inputs are quantized at run time, each with its
    own scale (onnxruntime's dynamic quantization). Convolutions and the head are not quantized.

    Raises:
        ExportError: onnxruntime cannot quantize the model, or the outputs differ too much.
    """
    require_packages()
    import onnx  # optional dependency, like onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic

    plain = onnx.load(folder / FILE)
    del plain.graph.value_info[:]  # torch's shapes conflict with those that the quantizer infers
    try:
        with _quiet():
            quantize_dynamic(
                plain,
                folder / QUANTIZED,
                weight_type=QuantType.QInt8,
                op_types_to_quantize=["MatMul"],
                per_channel=False,
            )
    except Exception as error:  # the quantizer raises arbitrary errors
        raise ExportError(f"onnxruntime cannot quantize the model ({_reason(error)}); remove --dtype int8") from error
    return check_outputs(
        open_onnx(folder / QUANTIZED)[0], model, manifest, file=QUANTIZED, batches=(1, EXAMPLE, 5), tolerance=QUANTIZING
    )


def open_onnx(path: Path) -> tuple[Forward, str | None]:
    """Open an ONNX file as a function, and return it with the text of its manifest (None for files of other tools).

    onnxruntime runs it on the CPU, with the same number of threads as torch.

    Raises:
        UsageError: onnx or onnxruntime is not installed.
        ExportError: onnxruntime cannot read the file, or it has a loop or a huge tensor.
    """
    require_packages("onnx", "onnxruntime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors only
    try:
        check_regular(path)
        _check_program(path)
        session: Any = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        inputs, outputs = ([each.name for each in found] for found in (session.get_inputs(), session.get_outputs()))
        entry = session.get_modelmeta().custom_metadata_map.get(ENTRY)
    except Exception as error:  # onnxruntime raises a separate class per status code
        raise ExportError(f"{path}: onnxruntime cannot read it ({_reason(error)}); export the model again") from None
    if len(inputs) != 1:
        raise ExportError(f"{path}: has {len(inputs)} inputs, expected one; export the model again")
    if len(outputs) != 1 and OUTPUT not in outputs:
        raise ExportError(
            f"{path}: has {len(outputs)} outputs, none of which is called {OUTPUT}; export the model again"
        )
    output = OUTPUT if OUTPUT in outputs else outputs[0]

    def forward(images: Tensor) -> Tensor:
        try:
            return torch.from_numpy(session.run([output], {inputs[0]: images.contiguous().numpy()})[0])
        except Exception as error:  # as above
            raise ExportError(f"{path}: onnxruntime cannot run it ({_reason(error)}); export the model again") from None

    return forward, entry


def _check_program(path: Path) -> None:
    """Check that a model has one value for each key of its metadata, and that its time and memory are bounded.

    Raises:
        ValueError: a key occurs twice, an operator contains a graph, as loops do, a size depends on the values of pixels, or
            a tensor is huge.
    """
    import onnx
    import onnx.inliner

    model = onnx.load(path, load_external_data=False)
    if (twice := repeated(entry.key for entry in model.metadata_props)) is not None:
        raise ValueError(f"its metadata have {quoted(twice)} twice")
    functions = {(function.domain, function.name): function.node for function in model.functions}

    @cache
    def count(domain: str, name: str) -> int:
        """Return the number of operators that a function expands to."""
        return 1 + sum(count(node.domain, node.op_type) for node in functions.get((domain, name), ()))

    number = sum(count(node.domain, node.op_type) for node in model.graph.node)
    if number > _MOST_OPERATORS:
        raise ValueError(f"its functions expand to {number:,} operators")
    if functions:
        model = onnx.inliner.inline_local_functions(model)
    weights = {weight.name for weight in model.graph.initializer}
    images = [value for value in model.graph.input if value.name not in weights]
    of_pixels = {value.name for value in images}
    for node in model.graph.node:
        if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
            raise ValueError(f"it has the operator {quoted(node.op_type)}, which may run forever")
        for place in _SIZES.get(node.op_type, ()):
            if place < len(node.input) and node.input[place] in of_pixels:
                raise ValueError(f"the size of the tensor {quoted(node.output[0])} depends on the values of pixels")
        if node.op_type not in ("Shape", "Size") and of_pixels.intersection(node.input):
            of_pixels.update(filter(None, node.output))
    for side in (side for value in images for side in value.type.tensor_type.shape.dim if not side.dim_value):
        side.dim_value = 1  # one image
    for weight in model.graph.initializer:
        if len(weight.raw_data) > _SHAPE_BYTES:
            weight.ClearField("raw_data")  # not needed to infer shapes, which copies the model
    del model.graph.value_info[:]  # a file may state other sizes than it has
    for value in onnx.shape_inference.infer_shapes(model, data_prop=True).graph.value_info:
        size = math.prod(max(side.dim_value, 1) for side in value.type.tensor_type.shape.dim)
        if size > _MOST_NUMBERS:
            raise ValueError(f"the tensor {quoted(value.name)} has {size:,} numbers")


def _reason(error: Exception) -> str:
    """Return the cause on one line: from torch's summary, with the operation, else the message's first line."""
    text = _COLORS.sub("", str(error))
    summary = text.partition(_SUMMARY)[2].strip()
    line = (summary or text.strip() or type(error).__name__).splitlines()[0]
    reason = _CLASS.sub(r"\1", line)[:300]
    operation = re.search(r"target=torch\.ops\.([\w.]+)", summary)
    return f"{reason}, at {operation[1]}" if operation else reason


@contextmanager
def _quiet() -> Iterator[None]:
    """Context manager that silences the exporters' warnings about their own internals."""
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
