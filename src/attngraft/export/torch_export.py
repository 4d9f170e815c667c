"""`torch.export` programs (.pt2), which run with any batch size, without attngraft or timm."""

from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from attngraft.errors import ExportError
from attngraft.export.check import Forward, check_outputs, example_inputs
from attngraft.opening import open_zip
from attngraft.saved.manifest import MANIFEST, Check, Manifest, manifest_text

FILE = "model.pt2"
#: tolerance by precision of the model; a program computes in another order and therefore rounds differently
TOLERANCE = {"float32": 1e-5, "bfloat16": 16 * torch.finfo(torch.bfloat16).eps}
EXAMPLE = 2  #: batch size of the example, since a size of 1 would become a constant
BUILT_IN = {"aten", "prim", "prims"}  #: namespaces of torch's built-in operations


def export_program(model: nn.Module, manifest: Manifest) -> torch.export.ExportedProgram:
    """Trace `model` on the CPU to a program with a dynamic batch size.

    Raises:
        ExportError: torch cannot trace the model, or can trace it only for one batch size.
    """
    images = example_inputs(manifest, batch=EXAMPLE)
    try:
        with torch.no_grad():
            batch = torch.export.Dim("batch", min=1, max=2**31 - 1)  # without a maximum torch 2.6 refuses slices
            return torch.export.export(model.eval(), (images,), dynamic_shapes=({0: batch},), strict=False)
    except Exception as error:  # tracing can raise any error of the host's code
        raise ExportError(
            f"torch.export cannot trace this model ({_first_line(error)}); use --to torch, which works for every model"
        ) from error


def write_program(program: torch.export.ExportedProgram, model: nn.Module, manifest: Manifest, folder: Path) -> Check:
    """Write model.pt2, load it again, and compare its outputs with the model's for several batch sizes.

    Raises:
        ExportError: the program requires a package other than torch, its outputs differ, or it cannot be written.
    """
    path = folder / FILE
    if foreign := foreign_operations(program):
        raise ExportError(
            f"{FILE}: calls {', '.join(foreign)}, which torch alone does not have; choose another backend "
            "(ATTNGRAFT_BACKEND=eager, or an option of the graft), or use --to torch"
        )
    try:
        torch.export.save(program, path, extra_files={MANIFEST: manifest_text(manifest)})
    except (OSError, RuntimeError) as error:  # torch's writer raises RuntimeError if the disk is full
        raise ExportError(f"{FILE}: cannot be written ({_first_line(error)}); free some space and try again") from error
    tolerance = TOLERANCE[manifest.dtype]
    return check_outputs(
        open_program(path)[0], model, manifest, file=FILE, batches=(1, EXAMPLE, 5), tolerance=tolerance
    )


def foreign_operations(program: torch.export.ExportedProgram) -> list[str]:
    """Return the names of the program's custom operations, which are registered by packages other than torch."""
    called = {
        node.target
        for module in program.graph_module.modules()  # branches and loop bodies are submodules
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
    }
    overloads = (target for target in called if isinstance(target, torch._ops.OpOverload))
    return sorted({str(each) for each in overloads if each.namespace not in BUILT_IN})


def open_program(path: Path) -> tuple[Forward, str | None]:
    """Open a saved program as a function, and return it with the text of its manifest (None for other tools' programs).

    This may run any code that the file contains.

    Raises:
        ExportError: the file cannot be read.
    """
    files: dict[str, Any] = {MANIFEST: ""}
    try:
        with open_zip(path) as file:
            module = torch.export.load(file, extra_files=files).module()
    except Exception as error:  # damaged archives raise arbitrary errors
        raise ExportError(
            f"{path}: cannot be read as a torch.export program ({_first_line(error)}); export the model again"
        ) from None

    def forward(images: Tensor) -> Tensor:
        with torch.no_grad():
            return cast(Tensor, module(images))

    return forward, files[MANIFEST] or None


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0][:200]}"
