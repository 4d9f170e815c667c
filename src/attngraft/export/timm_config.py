"""config.json in timm's hub format, for `timm.create_model("local-dir:FOLDER", pretrained=True)` with plain timm."""

from pathlib import Path

import timm
import torch
from timm.models._hub import save_config_for_hf  # part of timm.models.save_for_hf
from torch import nn

from attngraft.errors import ExportError
from attngraft.export.check import example_inputs
from attngraft.models.schemes import split_scheme
from attngraft.models.transformers_folder import HOST as TRANSFORMERS
from attngraft.saved.manifest import Manifest

FILE = "config.json"
#: whether timm reads .safetensors files of `local-dir:` folders; older versions take them for pickles
LOADS_FOLDERS = tuple(map(int, timm.__version__.split(".")[:3])) >= (1, 0, 26)


def write_config(model: nn.Module, manifest: Manifest, folder: Path) -> None:
    """Write config.json with the architecture, its arguments, the classes, and the preprocessing of evaluation.

    Raises:
        ExportError: the host is not a registered timm model, or is a transformers model with timm's interface.
    """
    if manifest.host.name == TRANSFORMERS:
        raise ExportError(
            f"{TRANSFORMERS} is a transformers model, whose weights timm cannot load; use --to torch. To get a folder "
            "for transformers, load that export with attngraft.load and call attngraft.save_pretrained(model.model, FOLDER)"
        )
    if split_scheme(manifest.host.name)[0] not in ("timm", "attngraft") or not getattr(model, "pretrained_cfg", None):
        raise ExportError(f"{manifest.host.name} is not a timm model, so plain timm cannot load it; use --to torch")
    given = manifest.serving.input
    inputs = {name: given[name] for name in ("mean", "std", "interpolation", "crop_pct", "crop_mode")}
    classes = list(manifest.serving.classes)
    save_config_for_hf(
        model,
        folder / FILE,
        model_config={
            "num_classes": len(classes),
            "label_names": classes,
            "pretrained_cfg": {**inputs, "input_size": list(manifest.input_size), "num_classes": len(classes)},
        },
        model_args={name: value for name, value in manifest.host.args.items() if name != "num_classes"},
    )


@torch.no_grad()
def host_difference(model: nn.Module, manifest: Manifest, folder: Path) -> float:
    """Load the folder with plain timm, without grafts, and return the largest difference of its outputs from `model`'s.

    Raises:
        ExportError: timm cannot load the folder.
    """
    try:
        plain = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    except (RuntimeError, ValueError, TypeError, OSError, KeyError) as error:
        raise ExportError(f"plain timm cannot load the exported folder ({error}); remove --to hf") from error
    images = example_inputs(manifest, batch=2).float()
    return float((plain(images) - model.float()(images)).abs().max())
