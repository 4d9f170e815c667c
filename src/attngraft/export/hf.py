"""Save and load transformers models, with their grafts in an additional file.

config.json, model.safetensors    the host as written by transformers, whose `from_pretrained` loads it without grafts
grafts.safetensors                the grafts, in the format of `attngraft.save_grafts`; missing if there are none
"""

import copy
import logging
import os
import shutil
from pathlib import Path
from typing import Any

from torch import nn

from attngraft.attention import is_graft, plain_class
from attngraft.errors import ExportError, GraftFileError, UsageError, check_types
from attngraft.files import refuse_links, write_atomically
from attngraft.grafting.apply import grafted
from attngraft.grafting.io import graft_bytes, load_grafts
from attngraft.hosts import check_module, find_host
from attngraft.models.transformers_folder import GRAFTS, quiet
from attngraft.opening import check_folder

log = logging.getLogger(__name__)

_MISSING = (
    "pip install 'attngraft[hf]'; `attngraft.load` reads the folders that `attngraft export` made, without transformers"
)


def save_pretrained(model: nn.Module, folder: str | os.PathLike[str], **options: Any) -> Path:
    """Save a transformers model with its own `save_pretrained`, and its grafts, if any, to an additional file.

        attngraft.save_pretrained(model, "./flowers-vit")
        model = attngraft.from_pretrained("./flowers-vit")            # with grafts
        host = AutoModel.from_pretrained("./flowers-vit")             # without

    An old graft file is deleted first, and the new one is written last and atomically, so a folder never contains grafts for
    another host.

    The result of `peft.get_peft_model` is saved as its adapter and the grafts, without the host.

    Args:
        model: the model, with or without grafts.
        folder: output folder, created if needed.
        options: passed to the model's own `save_pretrained` (`max_shard_size`, ...).

    Raises:
        UsageError: the model is not a transformers model.
        HostError: no adapter supports the model.
        ExportError: a graft was folded into the host's weights.
        FolderError: a file of the folder is a link.
        StorageError: the grafts cannot be written.
    """
    check_module(model)
    check_types(folder=(folder, str, os.PathLike))
    whole: Any = model
    if not hasattr(whole, "save_pretrained"):
        raise UsageError(
            f"{type(model).__name__} is not a transformers model; use attngraft.save_grafts(model, file), which saves "
            "the grafts of any model"
        )
    host, path = find_host(model), Path(folder)
    grafts = [graft for _, _, _, graft in grafted(model)]
    if any(graft.folded for graft in grafts):
        raise ExportError(
            "a graft was folded into the host's weights, so the host cannot be saved separately; save before folding"
        )
    content = graft_bytes(host) if grafts else None
    refuse_links(path)
    (path / GRAFTS).unlink(missing_ok=True)
    state = {name: value for name, value in model.state_dict().items() if not is_graft(name)}
    whole.save_pretrained(str(path), state_dict=state, **options)
    if content is not None:
        write_atomically(path / GRAFTS, content)
    return path


def is_transformers(model: nn.Module) -> bool:
    """Return whether `model` itself is a model of transformers."""
    return any(kind.__module__ == "transformers.modeling_utils" for kind in type(model).__mro__)


def refuse_grafts(model: nn.Module) -> None:
    """Refuse to export a model with grafts as a folder of transformers.

    Raises:
        UsageError: the model has grafts.
    """
    names = sorted({graft.kind for _, _, _, graft in grafted(model)})
    if names:
        raise UsageError(
            f"--to hf: transformers would load the model without its grafts ({', '.join(names)}); remove --to hf and load "
            "the folder with attngraft.load, or save that model with attngraft.save_pretrained for attngraft.from_pretrained"
        )


def write_transformers(model: nn.Module, folder: Path, *, tokenizer: Path) -> nn.Module:
    """Write the files that transformers needs besides the weights; return the model as transformers loads it.

    Args:
        model: a model of transformers without grafts, whose weights are in `folder`.
        folder: the exported folder.
        tokenizer: folder below which transformers' files of the tokenizer are, if there are any.

    Raises:
        ExportError: transformers cannot load the folder.
    """
    import transformers

    whole: Any = model
    config = copy.deepcopy(whole.config)
    config.architectures = [plain_class(model).__name__]
    config.save_pretrained(folder)
    if whole.can_generate():
        whole.generation_config.save_pretrained(folder)
    for settings in sorted(tokenizer.rglob("tokenizer_config.json"))[:1]:
        shutil.copytree(settings.parent, folder, dirs_exist_ok=True)
    try:
        with quiet(transformers):
            kind: Any = _named_class(transformers, folder, {"local_files_only": True})
            loaded, report = kind.from_pretrained(str(folder), local_files_only=True, output_loading_info=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise ExportError(f"transformers cannot load the exported folder ({error}); remove --to hf") from error
    if problems := sorted([*report["missing_keys"], *report["unexpected_keys"]]):
        raise ExportError(f"transformers does not find or use the weights {', '.join(problems)}; remove --to hf")
    found: nn.Module = loaded.eval()
    return found


def from_pretrained(
    path: str | os.PathLike[str], *, model_class: type[nn.Module] | None = None, **options: Any
) -> nn.Module:
    """Load a grafted model saved by `save_pretrained`, or by `Trainer` with `GraftCheckpoints`, in evaluation mode.

    Args:
        path: a folder, or a repository on the Hugging Face Hub (USER/NAME).
        model_class: class of the host; by default the one in `config.json`.
        options: passed to the class's own `from_pretrained` (`dtype`, `attn_implementation`, `revision`, ...).

    Raises:
        UsageError: transformers is not installed, or does not have the class named in `config.json`.
        GraftFileError: there is no graft file, or the grafts do not match the model.
    """
    check_types(path=(path, str, os.PathLike), model_class=(model_class, type, None))
    try:
        import transformers  # optional dependency, and takes seconds to import
        from transformers.utils import cached_file
    except ImportError:
        raise UsageError(f"{path}: this requires transformers; run {_MISSING}") from None
    hub: dict[str, Any] = {
        name: options[name] for name in ("cache_dir", "revision", "token", "local_files_only") if name in options
    }
    try:
        found = cached_file(str(path), GRAFTS, _raise_exceptions_for_missing_entries=False, **hub)
    except OSError as error:
        first = str(error).partition("\n")[0]
        raise GraftFileError(
            f"{path}: not a folder, and not available from the Hugging Face Hub ({first}); check the name"
        ) from None
    if found is None:
        raise GraftFileError(
            f"{path}: no {GRAFTS} next to config.json; attngraft.save_pretrained(model, folder) writes it. Load a model "
            "without grafts with transformers' own from_pretrained"
        )
    if Path(path).is_dir():
        try:
            check_folder(Path(path))
        except OSError as error:
            raise GraftFileError(f"{path}: {error}; remove it, or save the model again") from None
    kind: Any = _named_class(transformers, path, hub) if model_class is None else model_class
    with quiet(transformers):
        model, report = kind.from_pretrained(str(path), output_loading_info=True, **options)
    for problem in ("missing", "unexpected"):  # in Trainer's checkpoints, the weights also include the grafts
        if names := sorted(name for name in report[f"{problem}_keys"] if not is_graft(name)):
            log.warning("%s: %s weights of the host: %s", path, problem, ", ".join(names))
    load_grafts(model, found)
    loaded: nn.Module = model.eval()
    return loaded


def _named_class(transformers: Any, path: str | os.PathLike[str], hub: dict[str, Any]) -> Any:
    config = transformers.AutoConfig.from_pretrained(str(path), **hub)
    names = getattr(config, "architectures", None) or []
    kind = next((getattr(transformers, name) for name in names if hasattr(transformers, name)), None)
    if kind is None:
        raise UsageError(
            f"{Path(path) / 'config.json'}: no class in architectures ({', '.join(names) or 'empty'}) exists in "
            f"transformers {transformers.__version__}; pass the model's class as model_class"
        )
    return kind
