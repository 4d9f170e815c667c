"""Folders of transformers with grafts beside: `save_pretrained` writes one, `from_pretrained` reads it.

config.json, model.safetensors    the host as transformers writes it; its own `from_pretrained` gives the host without grafts
grafts.safetensors                what was grafted, a file as `attngraft.save_grafts` writes; not there for a plain host
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from torch import nn

from attngraft.attention import is_graft
from attngraft.errors import ExportError, GraftFileError, UsageError
from attngraft.files import write_atomically
from attngraft.grafting.apply import grafted
from attngraft.grafting.io import graft_bytes, load_grafts
from attngraft.hosts import find_host
from attngraft.models.transformers_folder import GRAFTS, quiet

log = logging.getLogger(__name__)

_MISSING = (
    "pip install 'attngraft[hf]'; `attngraft.load` reads the folders that `attngraft export` made, without transformers"
)


def save_pretrained(model: nn.Module, folder: str | os.PathLike[str], **options: Any) -> Path:
    """Write a model of transformers, grafted or not: the host as its own `save_pretrained` does, the grafts beside it.

        attngraft.save_pretrained(model, "./flowers-vit")
        model = attngraft.from_pretrained("./flowers-vit")            # with grafts
        host = AutoModel.from_pretrained("./flowers-vit")             # without

    The grafts come last and in one piece, and those of a model that stood there before go first: a folder never has grafts
    of another host.

    Args:
        folder: made if it is not there.
        options: passed on to the model's own `save_pretrained` (`max_shard_size`, ...).

    Raises:
        UsageError: this is no model of transformers.
        HostError: no adapter knows the model.
        ExportError: a graft was folded into the host's weights.
        StorageError: the grafts cannot be written.
    """
    whole: Any = model
    if not hasattr(whole, "save_pretrained"):
        raise UsageError(
            f"{type(model).__name__} is no model of transformers, and only those are saved so; "
            "attngraft.save_grafts(model, file) writes the grafts of any model"
        )
    host, path = find_host(model), Path(folder)
    made = [graft for _, _, _, graft in grafted(model)]
    if any(graft.folded for graft in made):
        raise ExportError(
            "a graft was folded into the host's weights, so the host would not be itself; save before folding"
        )
    content = graft_bytes(host) if made else None
    (path / GRAFTS).unlink(missing_ok=True)
    state = {name: value for name, value in model.state_dict().items() if not is_graft(name)}
    whole.save_pretrained(str(path), state_dict=state, **options)
    if content is not None:
        write_atomically(path / GRAFTS, content)
    return path


def from_pretrained(
    path: str | os.PathLike[str], *, model_class: type[nn.Module] | None = None, **options: Any
) -> nn.Module:
    """The grafted model that `save_pretrained` wrote, or `Trainer` with `GraftCheckpoints`, in evaluation mode.

    Args:
        path: a folder, or a repository of the Hugging Face Hub (USER/NAME).
        model_class: of the host; the one that `config.json` names where it is not given.
        options: passed on to the class's own `from_pretrained` (`dtype`, `attn_implementation`, `revision`, ...).

    Raises:
        UsageError: transformers is not installed, or `config.json` names no class that it has.
        GraftFileError: no grafts stand beside `config.json`, or they do not fit.
    """
    try:
        import transformers
        from transformers.utils import cached_file
    except ImportError:
        raise UsageError(f"{path}: this needs transformers: {_MISSING}") from None
    hub: dict[str, Any] = {
        name: options[name] for name in ("cache_dir", "revision", "token", "local_files_only") if name in options
    }
    try:
        found = cached_file(str(path), GRAFTS, _raise_exceptions_for_missing_entries=False, **hub)
    except OSError as error:
        first = str(error).partition("\n")[0]
        raise GraftFileError(f"{path}: is no folder, and cannot be had from the Hugging Face Hub ({first})") from None
    if found is None:
        raise GraftFileError(
            f"{path}: there is no {GRAFTS} beside config.json; attngraft.save_pretrained(model, folder) writes it. "
            "Of a model without grafts transformers' own from_pretrained is enough"
        )
    kind: Any = _named_class(transformers, path, hub) if model_class is None else model_class
    model = _host(transformers, kind, path, options)
    load_grafts(model, found)
    return model.eval()


def _host(transformers: Any, kind: Any, path: str | os.PathLike[str], options: dict[str, Any]) -> nn.Module:
    """The host alone. A checkpoint of Trainer has the grafts among its weights, too, which is no news to the reader."""
    with quiet(transformers):
        model, report = kind.from_pretrained(str(path), output_loading_info=True, **options)
    for what in ("missing", "unexpected"):
        if names := sorted(name for name in report[f"{what}_keys"] if not is_graft(name)):
            log.warning("%s: %s among the host's weights: %s", path, what, ", ".join(names))
    loaded: nn.Module = model
    return loaded


def _named_class(transformers: Any, path: str | os.PathLike[str], hub: dict[str, Any]) -> Any:
    config = transformers.AutoConfig.from_pretrained(str(path), **hub)
    names = getattr(config, "architectures", None) or []
    kind = next((getattr(transformers, name) for name in names if hasattr(transformers, name)), None)
    if kind is None:
        raise UsageError(
            f"{Path(path) / 'config.json'}: architectures names {', '.join(names) or 'no class'}, which transformers "
            f"{transformers.__version__} does not have; pass model_class"
        )
    return kind
